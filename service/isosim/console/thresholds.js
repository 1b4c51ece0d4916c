/** Thresholds saved by name: targets that belong to a domain and get a similarity from each of its versions. */

import { alertBox, report, say } from "./alerts.js";
import { call, path, Refused } from "./api.js";
import { change, confirm } from "./dialogs.js";
import { button, fault, field, h, table } from "./dom.js";
import { count, percent, plainly, score, sentence } from "./format.js";
import { term } from "./glossary.js";

/** What can be asked for. `from`: what the answer rests on. */
export const KINDS = {
  fmr: { label: "false-match rate", of: "of pairs", first: "1", hint: "The share of random pairs that may pass.", from: "random pairs" },
  false_hit_rate: { label: "false hit rate", of: "of searches", first: "1", hint: "The share of searches that may end with a wrong match.", from: "comparisons of random sentences" },
  precision: { label: "precision", of: "of the pairs that pass", first: "90", hint: "The share of true matches among the pairs that pass, for pairs like the labelled ones.", from: "labelled pairs" },
};
const ENTRIES = 10000; // searched, where nothing else is said

export const kindOf = (target) => Object.keys(KINDS).find((name) => name in target);

/**
 * Fields for a rate, and for the entries of a search. Returns { wanted, gallery, controls, show(kind, first): for another
 * kind, read(kind): the target, null where it is wrong, which is said }.
 */
export function rateFields(attributes = {}) {
  const rate = h("input", { type: "number", step: "any", inputmode: "decimal", ...attributes });
  const entries = h("input", { type: "number", step: "1", min: "1", inputmode: "numeric", value: String(ENTRIES), ...attributes });
  const wanted = field("Wanted", rate, "");
  const gallery = field("Entries searched", entries, "How many texts each search looks through.");

  function show(kind, first = KINDS[kind].first) {
    rate.value = first;
    fault(rate, "");
    gallery.hidden = kind !== "false_hit_rate";
    wanted.querySelector("label").textContent = `Wanted ${KINDS[kind].label} in per cent`;
    wanted.querySelector(".hint").textContent = KINDS[kind].hint;
  }

  function read(kind) {
    const [share, searched] = [Number(rate.value) / 100, Number(entries.value)];
    const valid = share > 0 && share < 1;
    fault(rate, valid ? "" : "Give a number above 0 and below 100.");
    if (kind !== "false_hit_rate") return valid ? { [kind]: share } : null;
    const whole = Number.isInteger(searched) && searched > 0;
    fault(entries, whole ? "" : "Give a whole number above 0.");
    return valid && whole ? { [kind]: share, gallery: searched } : null;
  }

  return { wanted, gallery, controls: [rate, entries], show, read };
}

/** "false-match rate 1 %" */
export function describeTarget(target) {
  const kind = kindOf(target);
  const searched = kind === "false_hit_rate" ? ` among ${count(target.gallery)} entries` : "";
  return `${KINDS[kind].label} ${percent(target[kind])}${searched}`;
}

/** A target as the parameters of GET /domains/{d}/threshold. */
export const asked = (target) => new URLSearchParams(target).toString();

/** { domain, version, revision, thresholds }: resolved for the champion. */
export function savedThresholds(domain, { signal }) {
  return call("GET", path("domains", domain, "thresholds"), { signal });
}

/** The saved ones with the similarity of a version, which need not be the champion. */
export async function resolvedFor(domain, version, context) {
  const saved = await savedThresholds(domain, context);
  if (version === null || version === saved.version) return saved;
  const resolved = await Promise.all(saved.thresholds.map(async ({ name, target }) => {
    try {
      const { similarity } = await call("GET", `${path("domains", `${domain}@${version}`, "threshold")}?${asked(target)}`, context);
      return { name, target, similarity, notice: null };
    } catch (error) {
      if (!(error instanceof Refused) || error.status === 401) throw error;
      return { name, target, similarity: null, notice: error.message };
    }
  }));
  return { ...saved, thresholds: resolved };
}

/** Saves a target under a name, after a question where the name is in use. Resolves to whether it was saved. */
export async function saveThreshold(context, domain, name, target) {
  try {
    const { thresholds, revision } = await savedThresholds(domain, context);
    const old = thresholds.find((one) => one.name === name);
    const question = old && {
      title: `Replace the threshold ${name} of ${domain}?`,
      text: [`It stands for: ${describeTarget(old.target)}. From now on it will stand for: ${describeTarget(target)}.`, "Requests that name it are judged by the new one."],
      label: "Replace",
    };
    if (question && !(await confirm(question))) return false;
    await call("PUT", path("domains", domain, "thresholds", name), { json: revision === null ? target : { ...target, revision } });
  } catch (error) {
    if (!context.signal.aborted && !context.refused(error)) report(`The threshold ${name} was not saved`, error, null);
    return false;
  }
  say(`The threshold ${name} of ${domain} is saved: ${describeTarget(target)}.`);
  return true;
}

const forget = (context, domain, { name, target }, revision) => change(context, {
  question: {
    title: `Delete the threshold ${name} of ${domain}?`,
    text: [`It stands for: ${describeTarget(target)}.`, "Requests that name it will fail."],
    label: "Delete",
    danger: true,
  },
  failed: `The threshold ${name} was not deleted`,
  done: `The threshold ${name} of ${domain} is deleted.`,
  doing: () => call("DELETE", `${path("domains", domain, "thresholds", name)}${revision === null ? "" : `?revision=${revision}`}`),
});

/** The list for a version of a domain; null: its champion, which may be null for none. Returns { element, refresh }. */
export function thresholdList(domain, version, context, { champion }) {
  const place = h("div", { class: "stack" }, h("p", { class: "muted" }, "Loading…"));

  async function refresh() {
    if (champion === null) {
      place.replaceChildren(h("p", {}, "Put a version in use first; then thresholds can be saved."));
      return;
    }
    try {
      show(await resolvedFor(domain, version, context));
    } catch (error) {
      if (!context.signal.aborted) place.replaceChildren(alertBox("The saved thresholds could not be loaded", error, refresh));
    }
  }

  function show({ thresholds, revision, version: answering }) {
    if (!thresholds.length) {
      place.replaceChildren(h("p", { class: "muted" }, "No threshold of this domain is saved."));
      return;
    }
    const rows = thresholds.map((one) => [
      one.name,
      describeTarget(one.target),
      one.similarity === null ? (one.notice ? h("span", { class: "verdict warn under" }, sentence(plainly(one.notice))) : "–") : score(one.similarity),
      button("Delete", async () => { if (await forget(context, domain, one, revision)) refresh(); }, { class: "danger quiet small", "aria-label": `Delete the threshold ${one.name} of ${domain}` }),
    ]);
    place.replaceChildren(table(`Saved thresholds of ${domain}`, ["Name", "Stands for", `Similarity in version ${version ?? answering}`, "Actions"], rows, { class: "stacked" }));
  }

  refresh();
  const element = h("div", { class: "stack" },
    h("h3", {}, "Saved thresholds"),
    h("p", { class: "muted small" }, "A name stands for a target, such as a ", term("false-match rate"), " of 1 %. Each version has its own similarity for it, so that the name stays valid when another version is put in use, where that version reaches the target."),
    place);
  return { element, refresh };
}
