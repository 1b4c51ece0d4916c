/** All domains with their versions, who answers, and how far what is asked has drifted. */

import { report } from "./alerts.js";
import { action, badge, button, facts, h, table } from "./dom.js";
import { ago, count, counted, methodName, percent, score } from "./format.js";
import { page, typed } from "./listing.js";
import { promote, remove, removeDomain, rollBack } from "./versions.js";

const MANY = 8; // domains from which on a filter is offered

export async function openDomains(_, context) {
  const first = await page(context);
  const heading = h("div", { class: "heading" }, h("h1", {}, "Domains"), action("New calibration", "#/calibrate", { class: "button primary" }));
  const lead = h("p", { class: "lead" },
    "A domain is a kind of text with a scale of its own. Its champion answers requests that name the domain; the other versions wait.");
  const cards = h("div", {});
  show(cards, first, "", context);
  return [heading, lead, (first.next !== null || first.domains.length >= MANY) && filter(cards, context), cards].filter(Boolean);
}

/** Adds a page of cards, and a button for the next. */
function show(cards, { domains, next }, contains, context) {
  const more = next !== null && button("Show more domains", () => attempt(context, async () => {
    const following = await page(context, { contains, after: next });
    more.remove();
    show(cards, following, contains, context);
  }));
  const none = !domains.length && !cards.children.length && h("p", { class: "muted" }, "No domain has this in its name.");
  cards.append(...[none, ...domains.map((domain) => domainCard(domain, context)), more].filter(Boolean));
}

/** The server looks for the name: it knows more domains than the page. */
function filter(cards, context) {
  const input = h("input", { type: "search", "aria-label": "Filter domains by name", placeholder: "Filter by name", maxlength: "64" });
  typed(input, (contains) => attempt(context, async () => {
    const found = await page(context, { contains });
    if (contains !== input.value.trim().toLowerCase()) return; // typed on meanwhile
    cards.replaceChildren();
    show(cards, found, contains, context);
  }));
  return h("div", { class: "field" }, input);
}

async function attempt(context, doing) {
  try {
    await doing();
  } catch (error) {
    if (!context.signal.aborted && !context.refused(error)) report("The domains could not be listed", error, () => attempt(context, doing));
  }
}

function domainCard(state, context) {
  const { domain, previous, versions } = state;
  const newest = [...versions].sort((a, b) => b.version - a.version);
  const back = previous !== null && button(`Roll back to version ${previous}`, async () => {
    if (await rollBack(context, state)) context.reload();
  });
  const gone = domain !== "default" && button("Delete domain", async () => {
    if (await removeDomain(context, domain, versions.length)) context.reload();
  }, { class: "danger quiet", "aria-label": `Delete domain ${domain}` });
  const id = `domain-${domain}`;
  return h("section", { class: "card", "aria-labelledby": id },
    h("div", { class: "heading" },
      h("h2", { id }, domain),
      h("div", { class: "buttons" }, action("Try it", `#/compare/${encodeURIComponent(domain)}`), state.champion !== null && action("Add labels", `#/label/${encodeURIComponent(domain)}`, { "aria-label": `Add labels to ${domain}` }), back || null, gone || null)),
    h("p", {}, ...championLine(state)),
    state.unreadable.length > 0 && h("p", { class: "muted" }, `Cannot be read: ${state.unreadable.join("; ")}`),
    driftLine(state.drift),
    newest.length > 0 && table(`Versions of ${domain}`, ["Version", "Role", "Method", "Made", h("th", { scope: "col", class: "number" }, "Sentences"), "Actions"],
      newest.map((version) => versionRow(version, state, context))),
  );
}

function championLine({ champion, versions, unreadable }) {
  const version = versions.find((one) => one.version === champion);
  if (!version && unreadable.length) {
    return [h("strong", {}, champion === null ? "It cannot be read which version answers." : `Version ${champion} is damaged.`),
      " Requests fail where it is not in memory yet. Promote another version, or calibrate this domain anew."];
  }
  if (champion === null) return ["No version answers yet: promote one."];
  if (!version) return ["Raw cosines answer, without a scale: no percentiles. Calibrate this domain to give it one."];
  return [
    h("strong", {}, `Version ${champion}`), ` answers: ${methodName(version.method)}, `, ago(version.created),
    version.sentences ? `, from ${counted(version.sentences, "sentence")}.` : ".",
  ];
}

function versionRow(version, state, context) {
  const { domain, champion, previous } = state;
  const number = version.version;
  const role = number === champion ? badge("champion", "good") : number === previous ? badge("previous") : "";
  const named = number === champion || number === previous;
  const buttons = h("div", { class: "buttons tight" },
    action("Report", `#/report/${encodeURIComponent(domain)}/${number}`, { "aria-label": `Report of ${domain}, version ${number}` }),
    number !== champion && version.servable && button("Promote", async () => {
      if (await promote(context, state, number)) context.reload();
    }, { "aria-label": `Promote ${domain}, version ${number}` }),
    !named && button("Delete", async () => {
      if (await remove(context, state, number)) context.reload();
    }, { class: "danger quiet", "aria-label": `Delete ${domain}, version ${number}` }),
  );
  return h("tr", {},
    h("th", { scope: "row" }, String(number)),
    h("td", {}, role, version.servable ? null : badge("another encoder", "warn", "Made for another encoder than this server's; it cannot answer here.")),
    h("td", {}, methodName(version.method)),
    h("td", {}, ago(version.created)),
    h("td", { class: "number" }, version.sentences ? count(version.sentences) : "–"),
    h("td", {}, buttons),
  );
}

function driftLine(drift) {
  if (!drift) return h("p", { class: "muted" }, "Drift: nothing was asked of this version since the server started.");
  const psi = drift.stability_index;
  const [word, kind] = psi === null ? ["", ""] : psi > 0.25 ? ["shifted", "warn"] : psi > 0.1 ? ["moving", "warn"] : ["stable", "good"];
  const foreign = drift.out_of_domain;
  const seen = `${counted(drift.texts, "text")} and ${counted(drift.pairs, "pair")}`;
  if (foreign === null && psi === null) {
    return h("p", { class: "muted" }, `Drift: ${seen} judged so far; from 100 texts on something can be said.`);
  }
  return h("details", { class: "drift" },
    h("summary", {}, "Drift: ",
      foreign === null ? "" : `${percent(foreign)} of the last ${counted(drift.texts, "text")} look foreign (1 % is usual) `,
      word && badge(`scores ${word}`, kind)),
    facts([
      ["Looked at", seen],
      ["Texts flagged as foreign", foreign === null ? null : `${percent(foreign)}; the domain's own text gives 1 %`],
      ["Distance from the domain's text", drift.distance_mean === null ? null
        : `${score(drift.distance_mean, 2)} standard deviations, spread ${score(drift.distance_spread, 2)} (0 and 1 are its own)`],
      ["Stability of scores (PSI)", psi === null ? "needs 1,100 pairs" : `${score(psi)}; below 0.1 is stable, above 0.25 has shifted`],
    ]),
  );
}
