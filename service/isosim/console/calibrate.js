/** A new calibration: text, what the server understood of it, options, start; below it the earlier ones. */

import { clearAlerts, explain, report } from "./alerts.js";
import { call, idempotencyKey } from "./api.js";
import { button, fault, field, h, select, unique } from "./dom.js";
import { count, counted, METHOD_NAMES, nameLike, PROMOTIONS, sentence } from "./format.js";
import { fileIntake, labelsOf, LANGUAGES } from "./intake.js";
import { noteText } from "./job.js";
import { jobList } from "./jobs.js";
import { COLUMNS, GRADES_HINT, GRADES_LABEL, LABEL_FILES } from "./label.js";
import { page, typed, withNamed } from "./listing.js";

const SOME = 200; // domains suggested
const STEADY = 2000; // distinct sentences that give a steady threshold (docs/quality.md)

export async function openCalibrate([wanted = ""], context) {
  const { server, signal } = context;
  const listed = await page(context, { limit: SOME });
  let domains = await withNamed(listed, [wanted], context);
  const state = { posting: null, pairs: [], reading: null }; // pairs: the labelled ones, reading: of their file

  const intake = fileIntake(context, {
    legend: "1. Text of the domain",
    lead: `Sentences without labels: a random sample of what will be compared. ${count(STEADY)} distinct sentences give a steady threshold, ${count(server.fewest.auto)} are the least. The text is deleted from the server when the job ends.${LANGUAGES[server.encoder.id] === "English" ? ` This server's encoder, ${server.encoder.id}, reads English; of other languages its scores mean little, and the page cannot tell German or French from English.` : ""}`,
    verdicts: (found) => verdicts(found, method.value, server),
    changed: () => {
      state.posting = null;
      clearAlerts(); // what was wrong with the text before
    },
  });

  const suggestions = () => domains.map(({ domain }) => h("option", { value: domain }));
  const list = h("datalist", { id: unique("domains") }, suggestions());
  const domain = h("input", { type: "text", list: list.id, value: wanted, autocomplete: "off", autocapitalize: "none", spellcheck: "false", oninput: describeDomain, onchange: checkDomain });
  if (listed.next !== null) typed(domain, lookUp); // there are more than were listed
  const proposal = h("p", {});
  const promotion = select(server.promotions.map((name) => [name, PROMOTIONS[name] ?? name]), "if_better");
  const method = select(Object.keys(server.fewest).map((name) => [name, METHOD_NAMES[name] ?? name]), "auto", { onchange: () => intake.refresh() });
  const seed = h("input", { type: "number", min: "0", max: "2147483647", step: "1", value: "0" });
  const labelFile = h("input", { type: "file", accept: LABEL_FILES, onchange: () => { state.reading = readLabels(); } });
  const grades = h("input", { type: "checkbox", onchange: () => { state.reading = readLabels(); } });
  const options = h("fieldset", {},
    h("legend", {}, "2. Domain"),
    h("div", { class: "row" },
      h("div", {}, field("Domain", domain, ""), proposal),
      field("Put it in use", promotion, "A first version has no other to beat. Versions can be put in use and taken back later.")),
    h("p", { class: "muted" }, "The server chooses the method: it measures several on a part of your text and keeps the one that proves best."),
    h("details", {}, h("summary", {}, "Labelled pairs (optional)"),
      h("p", { class: "muted" }, `From ${server.fewest_labels} pairs on, scores carry a probability, and thresholds can be asked for by precision.`),
      field("File of labelled pairs", labelFile, COLUMNS),
      field(GRADES_LABEL, grades, GRADES_HINT)),
    h("details", {}, h("summary", {}, "More options"),
      h("div", { class: "row" },
        field("Method", method, "Auto is right unless you compare methods."),
        field("Seed", seed, "The same text and seed give the same calibration."))));
  const start = h("button", { type: "submit", class: "primary" }, "Start the calibration");
  const form = h("form", { class: "card", novalidate: true, onsubmit: submit, oninput: () => { state.posting = null; } }, intake.element, options, list, h("div", { class: "buttons" }, start));

  async function readLabels() {
    const [chosen] = labelFile.files;
    state.pairs = [];
    fault(labelFile, "");
    if (!chosen) return;
    try {
      const pairs = await labelsOf(chosen, grades.checked ? "grades" : "matches", signal);
      if (labelFile.files[0] !== chosen) return;
      state.pairs = pairs;
      document.getElementById(`${labelFile.id}-hint`).textContent = `${counted(pairs.length, "labelled pair")} understood.`;
    } catch (error) {
      if (signal.aborted || labelFile.files[0] !== chosen) return;
      context.refused(error);
      fault(labelFile, sentence(explain(error).text));
    }
  }

  async function lookUp(contains) {
    try {
      const found = await page(context, { contains, limit: SOME });
      domains = await withNamed(found, [contains], context);
      list.replaceChildren(...suggestions());
      describeDomain();
    } catch (error) {
      if (!signal.aborted && !context.refused(error)) report("The domains could not be listed", error);
    }
  }

  function describeDomain() {
    fault(domain, "");
    propose("");
    const known = domains.find((one) => one.domain === domain.value.trim());
    const hint = document.getElementById(`${domain.id}-hint`);
    if (!hint) return;
    if (!known) hint.textContent = "A name for this kind of text: a–z, 0–9, dot, dash, underscore.";
    else if (!known.versions.length) hint.textContent = "This domain has no calibration yet.";
    else hint.textContent = `This domain exists; a new version joins its ${counted(known.versions.length, "version")}. Version ${known.champion} is in use.`;
  }

  /** Whether the domain's name can be used; a name that is close to it is offered where it cannot. */
  function checkDomain() {
    const name = domain.value.trim();
    const known = new RegExp(`^${server.domain_pattern}$`).test(name);
    fault(domain, known ? "" : name ? "1 to 64 of a–z, 0–9, dot, dash and underscore, beginning with a letter or digit." : "Give the domain a name.");
    propose(known ? "" : name);
    return known;
  }

  /** The first control at fault below the text, after saying what is wrong; null where all is well. */
  function wrong() {
    const known = checkDomain();
    const whole = /^\d+$/.test(seed.value) && Number(seed.value) <= 2147483647;
    fault(seed, whole ? "" : "A whole number from 0 to 2147483647.");
    return [[!known, domain], [labelFile.hasAttribute("aria-invalid"), labelFile], [!whole, seed]].find(([found]) => found)?.[1] ?? null;
  }

  /** Offers a name that is close to what was written and can be used. */
  function propose(name) {
    const near = nameLike(name);
    proposal.replaceChildren(...(near ? [button(`Use “${near}”`, () => {
      domain.value = near;
      describeDomain();
      domain.focus();
    })] : []));
  }

  async function submit(event) {
    event?.preventDefault();
    start.disabled = true;
    start.textContent = "Sending…";
    try {
      await state.reading;
      const first = wrong();
      if (!await intake.ready()) return;
      if (first) {
        const box = first.closest("details");
        if (box) box.open = true;
        first.focus();
        return;
      }
      const { pairs } = state;
      const { query, body, type } = pairs.length ? await withPairs(pairs) : intake.whole();
      const asked = new URLSearchParams({
        domain: domain.value.trim(), method: method.value, promote: promotion.value, seed: seed.value,
        kind: grades.checked ? "grades" : "matches", ...query,
      });
      state.posting ??= idempotencyKey(); // the same for another try, which then finds the job of the first
      const { job } = await call("POST", `calibrate?${asked}`, { body, headers: { "content-type": type, "idempotency-key": state.posting }, signal });
      noteText(job, intake.source());
      location.hash = `#/job/${job}`;
    } catch (error) {
      if (signal.aborted || context.refused(error)) return;
      report("The calibration was not started", error, submit);
    } finally {
      start.disabled = false;
      start.textContent = "Start the calibration";
    }
  }

  /** Sentences and labelled pairs as lines of JSON: the one body that holds both. */
  async function withPairs(pairs) {
    const sentences = await intake.sentences();
    const lines = pairs.map((pair) => `\n${JSON.stringify(pair)}`);
    return { query: {}, body: new Blob([sentences, ...lines]), type: "application/x-ndjson" };
  }

  requestAnimationFrame(describeDomain); // once the hint stands in the page
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
    said.push(["warn", `Enough to start; ${count(steady)} distinct sentences would give a steadier scale.`]);
  } else {
    said.push(["good", "Enough text for a steady threshold."]);
  }
  if (found.sentences > server.limits.sentences) said.push(["warn", `More than the ${count(server.limits.sentences)} sentences that are taken; use a random sample.`]);
  return said;
}
