/** A new calibration: text, what the server understood of it, options, start; below it the earlier ones. */

import { attempt, clearAlerts } from "./alerts.js";
import { call, idempotencyKey } from "./api.js";
import { fault, field, h, select } from "./dom.js";
import { count, counted, METHOD_NAMES, PROMOTIONS } from "./format.js";
import { fileIntake, LANGUAGES } from "./intake.js";
import { noteText } from "./job.js";
import { jobList } from "./jobs.js";
import { labelFields } from "./label.js";
import { domainField } from "./listing.js";

const STEADY = 2000; // distinct sentences that give a steady threshold (docs/quality.md)

export async function openCalibrate([wanted = ""], context) {
  const { server, signal } = context;
  let posting = null;
  const domain = await domainField(context, wanted, describe, { pattern: server.domain_pattern, empty: "Give the domain a name." });

  const intake = fileIntake(context, {
    legend: "1. Text of the domain",
    lead: `Sentences without labels: a random sample of what will be compared. ${count(STEADY)} distinct sentences give a steady threshold, ${count(server.fewest.auto)} are the least. The text is deleted from the server when the job ends.${LANGUAGES[server.encoder.id] === "English" ? ` This server's encoder, ${server.encoder.id}, reads English; of other languages its scores mean little, and the page cannot tell German or French from English.` : ""}`,
    verdicts: (found) => verdicts(found, method.value, server),
    changed: () => {
      posting = null;
      clearAlerts(); // what was wrong with the text before
    },
  });

  const promotion = select(server.promotions.map((name) => [name, PROMOTIONS[name] ?? name]), "if_better");
  const method = select(Object.keys(server.fewest).map((name) => [name, METHOD_NAMES[name] ?? name]), "auto", { onchange: () => intake.refresh() });
  const seed = h("input", { type: "number", min: "0", max: "2147483647", step: "1", value: "0" });
  const labels = labelFields(context);
  const options = h("fieldset", {},
    h("legend", {}, "2. Domain"),
    h("div", { class: "row" },
      domain.element,
      field("Put it in use", promotion, "A first version has no other to beat. Versions can be put in use and taken back later.")),
    h("p", { class: "muted" }, "The server chooses the method: it measures several on a part of your text and keeps the one that proves best."),
    h("details", {}, h("summary", {}, "Labelled pairs (optional)"),
      h("p", { class: "muted" }, `From ${server.fewest_labels} pairs on, scores carry a probability, and thresholds can be asked for by precision.`),
      ...labels.elements),
    h("details", {}, h("summary", {}, "More options"),
      h("div", { class: "row" },
        field("Method", method, "Auto is right unless you compare methods."),
        field("Seed", seed, "The same text and seed give the same calibration."))));
  const start = h("button", { type: "submit", class: "primary" }, "Start the calibration");
  const form = h("form", { class: "card", novalidate: true, onsubmit: submit, oninput: () => { posting = null; } }, intake.element, options, h("div", { class: "buttons" }, start));

  function describe(name, known) {
    if (!known) return "A name for this kind of text: a–z, 0–9, dot, dash, underscore.";
    if (!known.versions.length) return "This domain has no calibration yet.";
    return `This domain exists; a new version joins its ${counted(known.versions.length, "version")}. Version ${known.champion} is in use.`;
  }

  /** The first control at fault below the text, after saying what is wrong; null where all is well. */
  function wrong(pairs) {
    const whole = /^\d+$/.test(seed.value) && Number(seed.value) <= 2147483647;
    fault(seed, whole ? "" : "A whole number from 0 to 2147483647.");
    return [[!domain.check(), domain.input], [!pairs, labels.file], [!whole, seed]].find(([found]) => found)?.[1] ?? null;
  }

  function submit(event) {
    event.preventDefault();
    attempt(context, "The calibration was not started", send, start, "Sending…");
  }

  async function send() {
    const pairs = await labels.read();
    const first = wrong(pairs);
    if (!await intake.ready()) return;
    if (first) {
      const box = first.closest("details");
      if (box) box.open = true;
      first.focus();
      return;
    }
    const { query, body, type } = pairs.length ? await withPairs(pairs) : intake.whole();
    const asked = new URLSearchParams({
      domain: domain.name(), method: method.value, promote: promotion.value, seed: seed.value,
      kind: labels.kind(), ...query,
    });
    posting ??= idempotencyKey(); // the same for another try, which then finds the job of the first
    const { job } = await call("POST", `calibrate?${asked}`, { body, headers: { "content-type": type, "idempotency-key": posting }, signal });
    intake.posted();
    noteText(job, intake.source());
    location.hash = `#/job/${job}`;
  }

  /** Sentences and labelled pairs as lines of JSON: the one body that holds both. */
  async function withPairs(pairs) {
    const sentences = await intake.sentences();
    const lines = pairs.map((pair) => `\n${JSON.stringify(pair)}`);
    return { query: {}, body: new Blob([sentences, ...lines]), type: "application/x-ndjson" };
  }

  return [h("h1", {}, "New calibration"), form, jobList(context)];
}

/** Is this enough text for the method? As [kind, words]. */
function verdicts(found, method, server) {
  const needed = server.fewest[method];
  const steady = method.includes("flow") ? Math.max(STEADY, server.steady_flow) : STEADY;
  const said = [];
  if (found.distinct < needed) {
    said.push(["warn", `Too few: the method needs at least ${count(needed)} distinct sentences, here are ${count(found.distinct)}.`]);
  } else if (found.distinct < steady) {
    said.push(["warn", `Enough to start; ${count(steady)} distinct sentences would give steadier figures.`]);
  } else {
    said.push(["good", "Enough text for a steady threshold."]);
  }
  if (found.sentences > server.limits.sentences) said.push(["warn", `More than the ${count(server.limits.sentences)} sentences that are taken; use a random sample.`]);
  return said;
}
