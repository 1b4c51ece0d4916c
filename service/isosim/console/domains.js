/** All domains with their versions, who answers, and how far what is asked has drifted. */

import { attempt } from "./alerts.js";
import { call, path } from "./api.js";
import { action, badge, button, facts, field, h, select, table, unique } from "./dom.js";
import { ago, count, counted, dated, methodName, percent, score, sentence } from "./format.js";
import { term, withTerms } from "./glossary.js";
import { jobList } from "./jobs.js";
import { newest, page, typed } from "./listing.js";
import { thresholdList } from "./thresholds.js";
import { hindrance, isDamaged, promote, remove, removeDomain } from "./versions.js";

const COUNTED = 10; // newest versions of a domain whose labels are counted: each is a request
const LOADED = 200; // domains that are asked for at once
const SHOWN = 50; // lines at first, and more with each press
const ORDERS = { name: "Name", newest: "Newest version" };

const opened = new Set(); // domains whose versions are shown, also after a change has loaded the page again

export async function openDomains(_, context) {
  const state = { contains: "", shown: SHOWN, ...(await page(context, { limit: LOADED })) };
  const list = h("section", { class: "card" });
  const total = h("p", { class: "muted", role: "status" });
  const order = select(Object.entries(ORDERS), "name", { onchange: show });
  const input = h("input", { type: "search", placeholder: "A part of the name", maxlength: "64" });
  const load = (contains) => attempt(context, "The domains could not be listed", async () => { // the server looks: it knows more domains than the page
    const found = await page(context, { contains, limit: LOADED });
    if (contains !== input.value.trim().toLowerCase()) return; // typed on meanwhile
    Object.assign(state, { contains, shown: SHOWN }, found);
    show();
  });
  typed(input, load, context);

  function show() {
    const { domains, next, shown } = state;
    const sorted = order.value === "newest" ? newest(domains) : domains;
    total.textContent = `${next === null ? counted(domains.length, "domain") : `The first ${count(domains.length)} domains by name; the filter finds the others`}.`;
    if (!domains.length) {
      list.replaceChildren(h("p", { class: "muted" }, "No domain has this in its name."));
      return;
    }
    const made = table("Domains", ["Domain", h("th", { scope: "col" }, term("in use", "In use")), h("th", { scope: "col" }, term("method", "Method")), "Made", h("th", { scope: "col" }, term("drift", "Drift")), "Actions"],
      sorted.slice(0, shown).flatMap((domain) => domainRows(domain, context)), { class: "stacked" });
    made.querySelector("tbody").classList.add("domains");
    const more = (shown < domains.length || next !== null) && button("Show more domains", () => attempt(context, "The domains could not be listed", async () => {
      const following = shown + SHOWN > domains.length && next !== null ? await page(context, { contains: state.contains, after: next, limit: LOADED }) : { domains: [], next };
      Object.assign(state, { domains: [...domains, ...following.domains], next: following.next, shown: shown + SHOWN });
      show();
    }));
    list.replaceChildren(made, ...(more ? [h("div", { class: "buttons" }, more)] : []));
  }

  show();
  const fresh = state.next === null && state.domains.every(({ domain, versions, unreadable }) => domain === "default" && !versions.length && !unreadable.length);
  return [
    h("div", { class: "heading" }, h("h1", {}, "Domains"), action("New calibration", "#/calibrate", { class: "button primary" })),
    h("p", { class: "lead" }, ...withTerms("A domain is a kind of text whose similarities are measured by texts of its own. Its version in use answers requests that name the domain; its other versions wait.")),
    jobList(context, () => load(input.value.trim().toLowerCase())),
    fresh && h("p", { class: "verdict" }, "There is no domain of your own yet. Begin with a ", h("a", { href: "#/calibrate" }, "new calibration"), " from a file of your sentences."),
    h("div", { class: "row" }, field("Filter by name", input, ""), field("Sort by", order, "")), total, list,
  ].filter(Boolean);
}

/** A domain's line, and the one below it that is folded out: its versions, saved thresholds and drift. */
function domainRows(state, context) {
  const { domain, champion, versions } = state;
  const version = versions.find((one) => one.version === champion);
  const damaged = isDamaged(state);
  const bare = champion === 0 && !versions.length && !state.unreadable.length; // there is nothing to unfold
  const id = unique("versions");
  const fold = h("tr", { class: "fold", id, hidden: true });
  const about = (what) => ({ "aria-label": `${what} ${domain}` });
  const toggle = button(damaged ? "What to do" : counted(versions.length, "version"), () => open(fold.hidden), { "aria-expanded": "false", "aria-controls": id, class: "toggle", ...about("Versions of") });

  function open(wanted) {
    fold.hidden = !wanted;
    toggle.setAttribute("aria-expanded", String(wanted));
    if (wanted) opened.add(domain);
    else opened.delete(domain);
    if (wanted && !fold.children.length) fold.append(h("td", { colspan: "6", role: "cell" }, h("div", { class: "stack" }, ...folded(state, context))));
  }

  const line = h("tr", { class: "domain" },
    h("th", { scope: "row" }, domain, domain === "default" && h("span", { class: "under small muted" }, "for requests that name no domain")),
    h("td", {}, damaged ? badge("damaged", "bad") : champion === null || (!version && champion !== 0) ? badge("none", "warn") : champion === 0 ? "built in" : `version ${champion}`),
    h("td", {}, version ? methodName(version.method) : champion === 0 && !damaged ? "not measured: no percentiles" : "–"),
    h("td", {}, version ? ago(version.created) : bare ? null : "–"),
    h("td", {}, bare ? null : driftWord(state.drift)),
    h("td", {}, h("div", { class: "buttons tight" },
      version && action("Report", `#/report/${encodeURIComponent(domain)}/${champion}`, about("Report of the version in use of")),
      !damaged && action("Try it", `#/compare/${encodeURIComponent(domain)}`, about("Try")),
      bare ? action("Calibrate", `#/calibrate/${encodeURIComponent(domain)}`, about("Calibrate")) : toggle)));
  if (opened.has(domain) && !bare) open(true);
  return [line, fold];
}

function folded(state, context) {
  const { domain, champion, previous, versions } = state;
  const latest = [...versions].sort((a, b) => b.version - a.version);
  const back = versions.some(({ version }) => version === previous) && button(`Return to version ${previous}`, async () => {
    if (await promote(context, state, previous)) context.reload();
  });
  const gone = domain !== "default" && button("Delete domain", async () => {
    if (await removeDomain(context, state)) context.reload();
  }, { class: "danger quiet", "aria-label": `Delete domain ${domain}` });
  return [
    ...(isDamaged(state) ? damage(state) : [withoutVersion(state)]),
    latest.length > 0 && table(`Versions of ${domain}`, ["Version", "Role", "Sentences", "Labels", "Actions"],
      latest.map((version, place) => versionRow(version, state, context, place < COUNTED)), { class: "stacked" }),
    versions.length > 0 && !isDamaged(state) && thresholdList(domain, null, context, { champion }).element,
    driftDetails(state.drift),
    h("div", { class: "buttons" }, champion > 0 && !isDamaged(state) && action("Add labels", `#/label/${encodeURIComponent(domain)}`, { "aria-label": `Add labels to ${domain}` }), back || null, gone || null),
  ].filter(Boolean);
}

/** What the API does with requests for a damaged domain, and what to do. */
function damage({ domain, unreadable }) {
  return [h("div", { class: "alert" },
    h("p", {}, h("strong", {}, `Requests for ${domain} are answered with status 503`), ", unless a server still has the version in use in memory."),
    ...unreadable.map((text) => h("p", {}, sentence(text))),
    h("p", {}, "Run this command where the model store is, or restore the record from a backup."))];
}

/** What answers where no version is in use; null where one is. */
function withoutVersion({ champion, versions }) {
  if (versions.some(({ version }) => version === champion)) return null;
  return h("p", {}, champion === null ? "No version is in use yet: put one in use."
    : "The encoder's own similarity is in use: no percentiles. Put a version in use to have them.");
}

/** How many labels a version has; its report knows. */
function labelCount({ domain, number }, { signal }) {
  const cell = h("td", { class: "number" }, "–");
  call("GET", path("domains", domain, "versions", number), { signal })
    .then(({ report: { labels } }) => { if (labels) cell.textContent = count(labels.pairs); })
    .catch(() => {}); // what cannot be read is said where it is opened
  return cell;
}

function versionRow(version, state, context, counting) {
  const { domain, champion, previous } = state;
  const number = version.version;
  const role = number === champion ? badge("in use", "good") : number === previous ? badge("previous") : "";
  const buttons = h("div", { class: "buttons tight" },
    action("Report", `#/report/${encodeURIComponent(domain)}/${number}`, { "aria-label": `Report of ${domain}, version ${number}` }),
    number !== champion && (version.servable || version.damaged) && button("Put in use", async () => {
      if (await promote(context, state, number)) context.reload();
    }, { "aria-label": `Put ${domain}, version ${number}, in use` }),
    !role && button("Delete", async () => {
      if (await remove(context, state, number)) context.reload();
    }, { class: "danger quiet", "aria-label": `Delete ${domain}, version ${number}` }),
  );
  return h("tr", {},
    h("th", { scope: "row" }, String(number), h("span", { class: "under small" }, `${methodName(version.method)}, ${dated(version.created)}`)),
    h("td", {}, role, hindrance(version)),
    h("td", { class: "number" }, version.sentences ? count(version.sentences) : "–"),
    counting ? labelCount({ domain, number }, context) : h("td", { class: "number" }, "–"),
    h("td", {}, buttons),
  );
}

const MOVING = 0.1; // stability index (PSI) from which on scores have moved, and shifted
const SHIFTED = 0.25;

/** Drift in a word or two, for a line. */
function driftWord(drift) {
  if (!drift) return h("span", { class: "muted" }, "no requests yet");
  const { stability_index: psi, out_of_domain: foreign } = drift;
  if (psi === null && foreign === null) return h("span", { class: "muted" }, "too little asked");
  const [word, kind] = psi === null ? [`${percent(foreign)} foreign`, foreign > 0.05 ? "warn" : "good"]
    : psi > SHIFTED ? ["shifted", "warn"] : psi > MOVING ? ["moving", "warn"] : ["stable", "good"];
  return badge(word, kind);
}

function driftDetails(drift) {
  if (!drift) return h("p", { class: "muted" }, "Drift: nothing was asked of the version in use since the server started.");
  const { stability_index: psi, out_of_domain: foreign } = drift;
  const seen = `${counted(drift.texts, "text")} and ${counted(drift.pairs, "pair")}`;
  if (foreign === null && psi === null) {
    return h("p", { class: "muted" }, `Drift: ${seen} were looked at so far; it takes 100 texts to say something.`);
  }
  return h("details", { class: "drift" },
    h("summary", {}, `Drift: ${foreign === null ? "details" : `${percent(foreign)} of the last ${counted(drift.texts, "text")} look foreign (1 % is usual)`}`),
    facts([
      ["Looked at", seen],
      ["Texts flagged as foreign", foreign === null ? null : `${percent(foreign)}; the domain's own text gives 1 %`],
      [["Stability of scores (", term("PSI"), ")"], psi === null ? "needs 1,100 pairs" : `${score(psi)}; below ${MOVING} is stable, above ${SHIFTED} has shifted`],
    ]),
  );
}
