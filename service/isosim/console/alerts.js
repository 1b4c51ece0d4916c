/** What went wrong and what to do next, in a region that screen readers announce; and short notes of success. */

import { Refused, Unreachable } from "./api.js";
import { action, button, h } from "./dom.js";
import { counted, plainly, sentence } from "./format.js";

const NEXT = {
  Unauthorized: "Enter a key the server knows.",
  Forbidden: "Ask whoever runs the server for a key with that scope, or enter another one (“Key”, at the top).",
  NotFound: "It may have been deleted meanwhile. Look at the list again.",
  Conflict: "Look at the current state before trying again.",
  TooLarge: "Give less text: a random sample of 20,000 sentences is plenty.",
  Empty: "Add some text and try again.",
  Validation: "Change it and try again.",
  Overloaded: "The server has more to do than it can take.",
  Unhealthy: "The server is starting or stopping.",
  Unavailable: "Tell whoever runs the server, if waiting does not help.",
  Internal: "Tell whoever runs the server; the request's id leads to the cause in its log.",
};
/** Where a person can do what the service names as a remedy: a button's label and the view that it leads to. */
const WAYS = {
  add_labels: ["Add labels", "label"],
  calibrate: ["New calibration", "calibrate"],
  delete_threshold: ["To the saved thresholds", "domains"],
  list_domains: ["To the domains", "domains"],
  list_thresholds: ["To the saved thresholds", "domains"],
};
const REPEATABLE = new Set(["Overloaded", "Unhealthy", "Unavailable", "Internal", "Backend"]);

/** An error as { text, next, wait, repeatable }. A fault of the page itself is said to be one. */
export function explain(error) {
  if (error instanceof Unreachable) {
    const next = "Is the server running? What you entered is still here; try again when it is back.";
    return { text: error.message, next, wait: null, repeatable: true };
  }
  if (!(error instanceof Refused)) return { text: `this page failed: ${error.message}`, next: "Load it again.", repeatable: false };
  const wait = error.retryAfter;
  const next = NEXT[error.type] ?? "";
  return {
    text: plainly(error.message),
    next: wait ? `${next} It asks to wait ${counted(wait, "second")}.` : next,
    wait,
    repeatable: REPEATABLE.has(error.type),
    requestId: error.requestId,
  };
}

/** The button to an error's remedy; null where this page has none. */
export function wayOut({ remedy }) {
  const [label, view] = WAYS[remedy?.action] ?? [];
  return label ? action(label, `#/${view}/${encodeURIComponent(remedy.arguments.domain ?? "")}`) : null;
}

function retryButton(retry, wait) {
  const again = button("Try again", retry);
  if (wait) {
    again.disabled = true;
    setTimeout(() => { again.disabled = false; }, wait * 1000);
  }
  return again;
}

/** The error as a box. `retry` is offered where doing the same again can help. */
export function alertBox(title, error, retry) {
  const { text, next, wait, repeatable, requestId } = explain(error);
  const box = h("div", { class: "alert" },
    title ? h("p", {}, h("strong", {}, `${title}: `), text) : h("p", {}, sentence(text)),
    next && h("p", {}, next),
    requestId && h("p", { class: "muted small" }, `request ${requestId}`),
  );
  const buttons = [retry && repeatable && retryButton(retry, wait), wayOut(error)].filter(Boolean);
  if (buttons.length) box.append(h("div", { class: "buttons" }, buttons));
  return box;
}

/** Shows an error above the page until it is dismissed or the view changes. */
export function report(title, error, retry) {
  const box = alertBox(title, error, retry && (() => { box.remove(); retry(); }));
  box.append(button("Dismiss", () => box.remove(), { class: "quiet dismiss" }));
  const region = document.getElementById("alerts");
  region.replaceChildren(box);
  region.scrollIntoView({ block: "nearest" });
}

/** Does something while its control is off, and says with `words` that it goes on; where it fails, it can be tried again. */
export async function attempt(context, title, doing, control = null, words = "") {
  const [before, held] = [control?.textContent, control === document.activeElement];
  if (control) control.disabled = true;
  if (words) control.textContent = words;
  try {
    return await doing();
  } catch (error) {
    if (!context.signal.aborted && !context.refused(error)) report(title, error, () => attempt(context, title, doing, control, words));
    return null;
  } finally {
    if (control) control.disabled = false;
    if (words) control.textContent = before;
    if (held && document.activeElement === document.body) control.focus(); // a control that is off loses it
  }
}

/** Notes what has happened; kind "good" where it is what was wanted. */
export function say(text, kind = "good") {
  document.getElementById("status").replaceChildren(h("p", { class: `note ${kind}` }, text));
}

export function clearAlerts() {
  document.getElementById("alerts").replaceChildren();
}

export function clearStatus() {
  document.getElementById("status").replaceChildren();
}
