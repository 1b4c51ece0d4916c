/** Labels of a domain: judged pairs of a match on its scale, or a file of pairs that are labelled already. */

import { explain, report } from "./alerts.js";
import { call, idempotencyKey, path } from "./api.js";
import { action, fault, field, h } from "./dom.js";
import { sentence } from "./format.js";
import { labelsOf } from "./intake.js";

export const LABEL_FILES = ".tsv,.csv,.txt,.xlsx,.ndjson,.jsonl,.parquet,text/*";
export const COLUMNS = "Columns a, b and label: two texts, and 1 for a match or 0 for none; a column weight may follow.";
export const GRADES_LABEL = "The labels are grades of similarity";
export const GRADES_HINT = "Only for labels within 0–1 or 0–5 that say how similar two sentences are: the domain then gives a mean grade, and has no precision.";

export async function openLabel([domain], context) {
  const { champion } = await call("GET", path("domains", domain), { signal: context.signal });
  return [
    h("h1", {}, `Labels for ${domain}`),
    h("section", { class: "card" },
      h("p", {}, "Labels say of pairs whether they mean the same. From them a domain learns which similarity is a match, and thresholds can be asked for by precision."),
      !champion && h("p", { class: "verdict warn" }, `${domain} has no version in use, and labels belong to one. `, h("a", { href: `#/calibrate/${encodeURIComponent(domain)}` }, "Calibrate it first"), ".")),
    ...(champion ? [
      h("section", { class: "card" }, h("h2", {}, "Judge pairs of your own text"),
        h("p", {}, `Find matches in a file on the scale of ${domain}, and judge about 50 pairs; then “Use these labels for ${domain}”.`),
        h("div", { class: "buttons" }, action("Find matches", `#/find/${encodeURIComponent(domain)}`, { class: "button primary" }))),
      fromFile(domain, context)] : []),
  ];
}

/** A file of labelled pairs, for a domain. */
function fromFile(domain, context) {
  const { signal } = context;
  const file = h("input", { type: "file", accept: LABEL_FILES, onchange: () => fault(file, "") });
  const grades = h("input", { type: "checkbox" });
  const send = h("button", { type: "submit" }, "Send the labels");

  async function submit(event) {
    event?.preventDefault();
    const [chosen] = file.files;
    fault(file, chosen ? "" : "Choose a file first.");
    if (!chosen) return;
    send.disabled = true;
    try {
      const kind = grades.checked ? "grades" : "matches";
      const pairs = await labelsOf(chosen, kind, signal).catch((error) => {
        if (signal.aborted || context.refused(error)) return null;
        fault(file, sentence(explain(error).text));
        return null;
      });
      if (!pairs) return;
      const { job } = await call("POST", `${path("domains", domain, "labels")}?kind=${kind}`, {
        body: pairs.map((pair) => `${JSON.stringify(pair)}\n`).join(""),
        headers: { "content-type": "application/x-ndjson", "idempotency-key": idempotencyKey() }, signal,
      });
      location.hash = `#/job/${job}`;
    } catch (error) {
      if (!signal.aborted && !context.refused(error)) report("The labels were not sent", error, submit);
    } finally {
      send.disabled = false;
    }
  }

  return h("form", { class: "card", novalidate: true, onsubmit: submit }, h("h2", {}, "Or send labels from a file"),
    h("p", { class: "muted" }, "Sending makes a new version of the domain with these labels, in place of earlier ones. It is put in use, with the same similarities, unless its probabilities are worse or it cannot reach a saved threshold."),
    field("File of labelled pairs", file, COLUMNS), field(GRADES_LABEL, grades, GRADES_HINT),
    h("div", { class: "buttons" }, send));
}
