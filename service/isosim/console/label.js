/** Labels of a domain: judged pairs of a match on its scale, or a file of pairs that are labelled already. */

import { attempt, explain } from "./alerts.js";
import { call, idempotencyKey, path } from "./api.js";
import { action, fault, field, h } from "./dom.js";
import { counted, sentence } from "./format.js";
import { labelsOf } from "./intake.js";

const FILES = ".tsv,.csv,.txt,.xlsx,.ndjson,.jsonl,.parquet,text/*";

/**
 * Fields for a file of labelled pairs. Returns { file, elements, kind(): "grades" or "matches", read(): the pairs, none
 * without a file, null where it cannot be read, which is said at its field }.
 */
export function labelFields(context) {
  const { signal } = context;
  let reading = null;
  const look = () => { reading = understand(); };
  const file = h("input", { type: "file", accept: FILES, onchange: look });
  const grades = h("input", { type: "checkbox", onchange: look });
  const kind = () => (grades.checked ? "grades" : "matches");

  async function understand() {
    const [chosen] = file.files;
    fault(file, "");
    if (!chosen) return [];
    try {
      const pairs = await labelsOf(chosen, kind(), signal);
      if (file.files[0] === chosen) document.getElementById(`${file.id}-hint`).textContent = `${counted(pairs.length, "labelled pair")} understood.`;
      return pairs;
    } catch (error) {
      if (!signal.aborted && !context.refused(error) && file.files[0] === chosen) fault(file, sentence(explain(error).text));
      return null;
    }
  }

  const elements = [
    field("File of labelled pairs", file, "Columns a, b and label: two texts, and 1 for a match or 0 for none; a column weight may follow."),
    field("The labels are grades of similarity", grades, "Only for labels within 0–1 or 0–5 that say how similar two sentences are: the domain then gives a mean grade, and has no precision."),
  ];
  const read = () => {
    if (!reading || file.hasAttribute("aria-invalid")) look();
    return reading;
  };
  return { file, elements, kind, read };
}

export async function openLabel([domain], context) {
  const { champion } = await call("GET", path("domains", domain), { signal: context.signal });
  return [
    h("h1", {}, `Labels for ${domain}`),
    h("section", { class: "card" },
      h("p", {}, "Labels say of pairs whether they mean the same. From them a domain learns which similarity is a match, and thresholds can be asked for by precision."),
      !champion && h("p", { class: "verdict warn" }, `${domain} has no version in use, and labels belong to one. `, h("a", { href: `#/calibrate/${encodeURIComponent(domain)}` }, "Calibrate it first"), ".")),
    ...(champion ? [
      h("section", { class: "card" }, h("h2", {}, "Judge pairs of your own text"),
        h("p", {}, `Find matches in a file, measured as ${domain}, and judge about 50 pairs; then “Use these labels for ${domain}”.`),
        h("div", { class: "buttons" }, action("Find matches", `#/find/${encodeURIComponent(domain)}`, { class: "button primary" }))),
      fromFile(domain, context)] : []),
  ];
}

/** A file of labelled pairs, for a domain. */
function fromFile(domain, context) {
  const { signal } = context;
  const labels = labelFields(context);
  const send = h("button", { type: "submit" }, "Send the labels");

  async function submit(event) {
    event?.preventDefault();
    fault(labels.file, labels.file.files.length ? "" : "Choose a file first.");
    if (labels.file.files.length) await attempt(context, "The labels were not sent", sendLabels, send);
  }

  async function sendLabels() {
    const pairs = await labels.read();
    if (!pairs) return;
    const { job } = await call("POST", `${path("domains", domain, "labels")}?kind=${labels.kind()}`, {
      body: pairs.map((pair) => `${JSON.stringify(pair)}\n`).join(""),
      headers: { "content-type": "application/x-ndjson", "idempotency-key": idempotencyKey() }, signal,
    });
    location.hash = `#/job/${job}`;
  }

  return h("form", { class: "card", novalidate: true, onsubmit: submit }, h("h2", {}, "Or send labels from a file"),
    h("p", { class: "muted" }, "Sending makes a new version of the domain with these labels, in place of earlier ones. It is put in use, with the same similarities, unless its probabilities are worse or it cannot reach a saved threshold."),
    ...labels.elements, h("div", { class: "buttons" }, send));
}
