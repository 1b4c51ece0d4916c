/** Starts the page: what the server is, which view the address asks for, and the key where one is needed. */

import { alertBox, clearAlerts, clearStatus, say, wayOut } from "./alerts.js";
import { call, key, Refused } from "./api.js";
import { openCalibrate } from "./calibrate.js";
import { openCompare } from "./compare.js";
import { askKey } from "./dialogs.js";
import { action, button, h } from "./dom.js";
import { openDomains } from "./domains.js";
import { fillGlossary } from "./glossary.js";
import { openJob } from "./job.js";
import { LANGUAGES } from "./intake.js";
import { openLabel } from "./label.js";
import { openMatch } from "./match.js";
import { openMatches } from "./matches.js";
import { openReport } from "./report.js";

// A view gets the address's parts and { server, signal, reload, refused }, and returns its content, a heading first.
const VIEWS = { matches: (parts, context) => (parts[0] ? openMatch(parts, context) : openMatches([], context)), find: openMatches, domains: openDomains, report: openReport, calibrate: openCalibrate, job: openJob, compare: openCompare, label: openLabel };
const KEPT = new Set(["matches", "find", "calibrate", "compare", "label"]); // what was entered there outlives a change of key
const OF_DOMAIN = new Set(["find", "report", "calibrate", "compare", "label"]); // whose address begins with a domain
const CARRIED = new Set(["compare"]); // links that lead to the same domain
const TABS = { find: "matches", label: "domains", report: "domains", job: "calibrate" };

const main = document.getElementById("main");
const keyButton = document.getElementById("key");
let leaving = new AbortController();
let server = null;
let domain = ""; // the last one that was looked at

function address() {
  if (!location.hash.startsWith("#/") || location.hash === "#/") return ["matches"];
  try {
    return location.hash.slice(2).split("/").map(decodeURIComponent);
  } catch {
    return ["matches"]; // a malformed address
  }
}

/** Marks the view in the navigation, whose links keep to the domain that was looked at last. */
function markTab(name, [first = ""]) {
  if (OF_DOMAIN.has(name) && first) domain = first.split("@")[0];
  for (const link of document.querySelectorAll("nav a")) {
    const view = link.getAttribute("href").split("/")[1] || "matches";
    if (CARRIED.has(view)) link.setAttribute("href", domain ? `#/${view}/${encodeURIComponent(domain)}` : `#/${view}`);
    if (view === (TABS[name] ?? name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function changeKey(reason) {
  const answer = await askKey(reason);
  const shown = main.querySelector(".view")?.dataset.name;
  if (answer === "changed" && KEPT.has(shown)) {
    clearAlerts();
    say("The key is changed.");
  } else if (answer) {
    show({ focus: true, ask: answer === "changed" }); // whoever forgets a key need not be asked for one at once
  }
}

function keyMissing(error) {
  return h("section", { class: "card" },
    h("h1", {}, "A key is needed"),
    h("p", {}, error.message),
    h("div", { class: "buttons" }, button("Enter a key", () => changeKey(), { class: "primary" })),
  );
}

/** For errors of actions: true where the key was the trouble and the reader was asked for another. */
function refused(error) {
  const unauthorized = error instanceof Refused && error.status === 401;
  if (unauthorized) changeKey(error.message);
  return unauthorized;
}

/** Shows what the address asks for. `ask`: where a key is missing, ask for it at once. */
async function show({ focus = false, ask = true } = {}) {
  leaving.abort();
  const leave = new AbortController();
  leaving = leave;
  clearAlerts();
  const [asked, ...parts] = address();
  const name = asked in VIEWS ? asked : "matches";
  markTab(name, parts);
  const place = h("div", { class: "view", "aria-busy": "true" }, h("p", { class: "muted loading" }, "Loading…"));
  main.replaceChildren(place);
  let content;
  let unauthorized = null;
  try {
    server ??= await describeServer();
    content = await VIEWS[name](parts, { server, signal: leave.signal, reload: () => show({ focus: true }), refused });
  } catch (error) {
    if (leave.signal.aborted) return;
    unauthorized = error instanceof Refused && error.status === 401 ? error : null;
    content = unauthorized
      ? keyMissing(error)
      : [h("h1", {}, "This could not be shown"), alertBox("", error, () => show({ focus: true })), ...(wayOut(error) ? [] : [h("p", {}, action("To the domains", "#/domains"))])];
  }
  if (leave.signal.aborted) return;
  place.replaceChildren(...[content].flat());
  place.dataset.name = unauthorized ? "" : name;
  place.removeAttribute("aria-busy");
  const heading = place.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  document.title = `${heading?.textContent ?? "isosim"} · isosim console`;
  if (focus) heading?.focus();
  if (unauthorized && ask) changeKey(key.get() ? unauthorized.message : "");
}

async function describeServer() {
  const found = await call("GET", "console/server.json");
  keyButton.hidden = !found.keys;
  const label = document.getElementById("encoder");
  const language = LANGUAGES[found.encoder.id];
  label.textContent = language ? `reads ${language}` : found.encoder.id;
  label.title = `encoder ${found.encoder.id}, digest ${found.encoder.digest}, ${found.encoder.dim} dimensions; isosim ${found.version}`;
  return found;
}

keyButton.addEventListener("click", () => changeKey());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the views
  (main.querySelector("h1") ?? main).focus();
});
window.addEventListener("hashchange", () => {
  clearStatus();
  show({ focus: true });
  window.scrollTo(0, 0);
});
fillGlossary();
show();
