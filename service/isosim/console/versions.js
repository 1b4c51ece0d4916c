/** Whether a domain can answer, and what can be done to its versions, each after a confirmation that says what will follow. */

import { call, path } from "./api.js";
import { change } from "./dialogs.js";
import { badge } from "./dom.js";
import { counted, plainly, sentence, versionName } from "./format.js";
import { resolvedFor } from "./thresholds.js";

/** Whether requests for the domain fail because its record cannot be read. */
export function isDamaged({ unreadable }) {
  return unreadable.length > 0;
}

/** A version's name by its number, which is all that is known of one that is not listed. */
export function named(number, versions = []) {
  const version = versions.find((one) => one.version === number);
  return version ? versionName(version) : `version ${number}`;
}

/** Why a version cannot answer on this server, which its `servable` denies. A damaged one may be promoted again, after a repair. */
export function cannotAnswer({ damaged }) {
  return damaged ? "Its files are damaged: this server could not load it." : "It was made for another encoder than this server's, and cannot answer here.";
}

/** The same as a badge; null if nothing hinders it. */
export function hindrance(version) {
  return version.servable ? null : badge(version.damaged ? "damaged" : "another encoder", "warn", cannotAnswer(version));
}

/** What the person saw; where the domain has changed since, the server refuses. */
const seen = ({ revision }) => (revision === null ? {} : { revision });

let looking = false; // a second press while the question is on its way asks nothing twice

export async function promote(context, state, version) {
  const { domain, champion, versions } = state;
  if (looking) return undefined;
  looking = true;
  const lost = await unreached(domain, version, context).finally(() => (looking = false));
  return change(context, {
    question: {
      title: `Put version ${version} of ${domain} in use?`,
      text: [
        `From now on requests for “${domain}” are answered by ${named(version, versions)}.`,
        champion ? `${sentence(named(champion, versions)).slice(0, -1)} becomes the previous one, and can be returned to.` : "",
        ...lost.map(({ name, notice }) => `The saved threshold ${name} gives no verdict then: ${notice}`),
      ],
      label: "Put in use",
    },
    failed: `Version ${version} was not put in use`,
    done: `Version ${version} of ${domain} is in use now.`,
    // The lost thresholds that the question has named, so that the server takes the change.
    doing: () => call("PUT", path("domains", domain, "champion"), { json: { version, ...seen(state), ...(lost.length && { without: lost.map(({ name }) => name) }) } }),
  });
}

/** The saved thresholds that a version has no similarity for; none where that cannot be found out. */
async function unreached(domain, version, context) {
  const { thresholds } = await resolvedFor(domain, version, context).catch(() => ({ thresholds: [] }));
  return thresholds.filter(({ similarity, target }) => similarity === null && target.fmr === undefined).map(({ name, notice }) => ({ name, notice: sentence(plainly(notice)) }));
}

export function removeDomain(context, { domain, versions, unreadable }) {
  return change(context, {
    question: {
      title: `Delete ${domain}?`,
      text: [
        `${unreadable.length ? "All of its versions" : `Its ${counted(versions.length, "version")}`} and its saved thresholds go for good, and its calibrations are cancelled.`,
        "Requests that name it will fail. A domain that is calibrated anew under the name goes on counting its versions.",
      ],
      label: "Delete the domain",
      danger: true,
      typed: domain,
    },
    failed: `${domain} was not deleted`,
    done: `${domain} is deleted.`,
    doing: () => call("DELETE", path("domains", domain)),
  });
}

export function remove(context, state, version) {
  const { domain, versions } = state;
  return change(context, {
    question: {
      title: `Delete version ${version} of ${domain}?`,
      text: `${sentence(named(version, versions))} It is gone for good, and its number is not given again. Requests that pin it will fail.`,
      label: "Delete",
      danger: true,
    },
    failed: `Version ${version} was not deleted`,
    done: `Version ${version} of ${domain} is deleted.`,
    doing: () => call("DELETE", `${path("domains", domain, "versions", version)}?${new URLSearchParams(seen(state))}`),
  });
}
