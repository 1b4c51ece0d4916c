/** A new calibration: text, what was understood of it, options, start; below it the earlier ones. */

import { report } from "./alerts.js";
import { call, idempotencyKey } from "./api.js";
import { facts, fault, field, h, select, unique } from "./dom.js";
import { count, counted, METHOD_NAMES } from "./format.js";
import { bodyOf, NotText, understand } from "./intake.js";
import { jobList } from "./jobs.js";
import { parsePairs } from "./labels.js";
import { page, typed, withNamed } from "./listing.js";

const SOME = 200; // domains suggested
const STEADY = 2000; // distinct sentences that give a steady threshold (docs/quality.md)
const PROMOTIONS = {
  if_better: "if surely better than the champion",
  always: "always",
  never: "never, I look at the report first",
};
const NORMALIZATIONS = { none: "none", "as-norm": "AS-norm", csls: "CSLS" };
const LARGE = 100_000; // characters of a paste; a text box took six seconds for 20,000 lines, the page 0.1
const WAIT = 400; // ms after the last key stroke in the text

export async function openCalibrate([wanted = ""], context) {
  const { server, signal } = context;
  const listed = await page(context, { limit: SOME });
  let domains = await withNamed(listed, [wanted], context);
  const state = { source: null, name: "", understood: null, posting: null };

  // The text.
  const file = h("input", { type: "file", accept: ".txt,.text,text/plain", onchange: () => take(file.files[0] ?? null) });
  const paste = h("textarea", { rows: "6", dir: "auto", spellcheck: "false", oninput: () => {
    file.value = "";
    Object.assign(state, { source: null, understood: null });
    clearTimeout(state.timer);
    state.timer = setTimeout(() => take(paste.value.trim() ? new Blob([paste.value]) : null), WAIT);
  } });
  paste.addEventListener("paste", (event) => {
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    if (pasted.length < LARGE) return;
    event.preventDefault();
    [file.value, paste.value] = ["", ""];
    clearTimeout(state.timer);
    take(new Blob([pasted]));
  });
  const seen = h("div", { class: "understood", role: "status" });
  const text = h("fieldset", { class: "drop" },
    h("legend", {}, "1. Text of the domain"),
    h("p", { class: "muted" }, "One sentence a line, no labels. A random sample of what will be compared: ", `${count(STEADY)} distinct sentences give a steady threshold, ${count(server.fewest.auto)} are the least. The text is deleted from the server when the job ends.`),
    field("Choose a file, or drop it anywhere on this page", file, ""),
    field("Or paste", paste, "A large paste is taken as it is and not shown here."),
    seen);

  // The options.
  const suggestions = () => domains.map(({ domain }) => h("option", { value: domain }));
  const list = h("datalist", { id: unique("domains") }, suggestions());
  const domain = h("input", { type: "text", list: list.id, value: wanted, autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: "64", oninput: describeDomain });
  if (listed.next !== null) typed(domain, lookUp); // there are more than were listed
  const method = select(Object.keys(server.fewest).map((name) => [name, METHOD_NAMES[name] ?? name]), "auto", { onchange: showUnderstood });
  const promotion = select(server.promotions.map((name) => [name, PROMOTIONS[name] ?? name]), "if_better");
  const seed = h("input", { type: "number", min: "0", max: "2147483647", step: "1", value: "0" });
  const normalization = select(server.normalizations.map((name) => [name, NORMALIZATIONS[name] ?? name]), "none");
  const force = h("input", { type: "checkbox" });
  const labels = h("textarea", { rows: "4", dir: "auto", spellcheck: "false", oninput: describeLabels });
  const labelFile = h("input", { type: "file", accept: ".tsv,.txt,text/*", onchange: async () => {
    labels.value = labelFile.files[0] ? await labelFile.files[0].text() : "";
    describeLabels();
  } });
  const options = h("fieldset", {},
    h("legend", {}, "2. Domain and method"),
    h("div", { class: "row" },
      field("Domain", domain, ""),
      field("Method", method, "")),
    field("Let it answer", promotion, "A first version has no champion to beat. Whatever you choose, versions can be promoted and rolled back later."),
    h("details", {}, h("summary", {}, "Labelled pairs (optional)"),
      h("p", { class: "muted" }, "From 20 pairs on, scores carry a probability, and thresholds can be asked for by precision."),
      field("File of labelled pairs", labelFile, ""),
      field("Or paste: label, sentence, sentence, with tabs between", labels, "Labels are 0 and 1, or grades within 0–1 or 0–5.")),
    h("details", {}, h("summary", {}, "More options"),
      h("div", { class: "row" },
        field("Seed", seed, "The same text and seed give the same calibration."),
        field("Item normalization", normalization, "Compares scores less their texts' usual scores; costs ranking.")),
      h("label", { class: "check" }, force, " Take each line as a sentence, even where the lines look like the rows of a table")));
  const start = h("button", { type: "submit", class: "primary" }, "Start the calibration");
  const form = h("form", { class: "card", novalidate: true, onsubmit: submit, oninput: () => { state.posting = null; } }, text, options, list, h("div", { class: "buttons" }, start));

  for (const kind of ["dragover", "drop"]) {
    window.addEventListener(kind, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault(); // else the browser would leave this page for the file
      text.classList.toggle("over", kind === "dragover");
      if (kind === "drop") {
        file.files = event.dataTransfer.files;
        take(event.dataTransfer.files[0]);
      }
    }, { signal });
  }
  window.addEventListener("dragleave", () => text.classList.remove("over"), { signal });

  async function take(source) {
    state.reading?.abort();
    Object.assign(state, { source, understood: null, posting: null, reading: new AbortController() });
    const reading = state.reading;
    if (source instanceof File) paste.value = "";
    fault(file, "");
    seen.replaceChildren();
    if (!source) return;
    const bar = h("progress", { max: "1", value: "0", "aria-label": "Reading the text" });
    seen.replaceChildren(h("p", {}, "Reading… ", bar));
    try {
      state.understood = await understand(source, server.limits, (share) => { bar.value = share; }, reading.signal);
      showUnderstood();
    } catch (error) {
      if (reading.signal.aborted) return;
      state.source = null;
      seen.replaceChildren();
      fault(file, error instanceof NotText ? error.message : `The file could not be read: ${error.message}`);
    }
  }

  function showUnderstood() {
    if (!state.understood) return;
    seen.replaceChildren(...describe(state.understood, state.source, method.value, server));
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
    const known = domains.find((one) => one.domain === domain.value.trim());
    const hint = document.getElementById(`${domain.id}-hint`);
    if (!hint) return;
    if (!known) hint.textContent = "A name for this kind of text: a–z, 0–9, dot, dash, underscore.";
    else if (!known.versions.length) hint.textContent = "This domain has no calibration yet.";
    else hint.textContent = `This domain exists; a new version joins its ${counted(known.versions.length, "version")}. Version ${known.champion} answers now.`;
  }

  function describeLabels() {
    const { pairs, faults } = parsePairs(labels.value);
    fault(labels, faults.length ? `${faults[0]}${faults.length > 1 ? ` (and ${faults.length - 1} more)` : ""}.` : "");
    document.getElementById(`${labels.id}-hint`).textContent = labels.value.trim()
      ? `${counted(pairs.length, "labelled pair")} understood.` : "Labels are 0 and 1, or grades within 0–1 or 0–5.";
    return { pairs, faults };
  }

  /** The first control at fault, after saying what is wrong; null where all is well. */
  function wrong() {
    const name = domain.value.trim();
    const known = new RegExp(`^${server.domain_pattern}$`).test(name);
    fault(domain, known ? "" : name ? "1 to 64 of a–z, 0–9, dot, dash and underscore, beginning with a letter or digit." : "Give the domain a name.");
    const whole = /^\d+$/.test(seed.value) && Number(seed.value) <= 2147483647;
    fault(seed, whole ? "" : "A whole number from 0 to 2147483647.");
    if (!state.source) fault(file, "Choose a file or paste text first.");
    const { faults } = describeLabels();
    return [[!state.source, file], [!known, domain], [!whole, seed], [faults.length, labels]].find(([bad]) => bad)?.[1] ?? null;
  }

  async function submit(event) {
    event?.preventDefault();
    clearTimeout(state.timer);
    if (paste.value.trim() && !state.understood) await take(new Blob([paste.value]));
    const first = wrong();
    if (first) {
      for (let box = first.closest("details"); box; box = null) box.open = true;
      first.focus();
      return;
    }
    start.disabled = true;
    start.textContent = "Sending…";
    try {
      state.understood ??= await understand(state.source, server.limits, null, signal);
      const { pairs } = parsePairs(labels.value);
      const { body, type } = await bodyOf(state.source, server.limits, state.understood, pairs, signal);
      const query = new URLSearchParams({
        domain: domain.value.trim(), method: method.value, promote: promotion.value, seed: seed.value, normalization: normalization.value,
        ...(force.checked ? { force: "true" } : {}),
      });
      state.posting ??= idempotencyKey(); // the same for another try, which then finds the job of the first
      const { job } = await call("POST", `calibrate?${query}`, { body, headers: { "content-type": type, "idempotency-key": state.posting }, signal });
      location.hash = `#/job/${job}`;
    } catch (error) {
      if (signal.aborted || context.refused(error)) return;
      report("The calibration was not started", error, submit);
    } finally {
      start.disabled = false;
      start.textContent = "Start the calibration";
    }
  }

  requestAnimationFrame(describeDomain); // once the hint stands in the page
  return [h("h1", {}, "New calibration"), form, jobList(context)];
}

function describe(found, source, method, server) {
  const needed = server.fewest[method];
  const steady = method.includes("flow") ? Math.max(STEADY, server.steady_flow) : STEADY;
  const verdicts = [];
  if (found.distinct < needed) {
    verdicts.push(["warn", `Too few: the method needs at least ${count(needed)} distinct sentences, here are ${count(found.distinct)}.`]);
  } else if (found.distinct < steady) {
    verdicts.push(["warn", `Enough to start; ${count(steady)} distinct sentences would give a steadier scale.`]);
  } else {
    verdicts.push(["good", "Enough text for a steady threshold."]);
  }
  if (found.sentences > server.limits.sentences) verdicts.push(["warn", `More than the ${count(server.limits.sentences)} sentences that are taken; use a random sample.`]);
  if (found.tooLong) verdicts.push(["warn", `${counted(found.tooLong, "line")} longer than ${count(server.limits.characters)} characters will be left out (line ${found.places.join(", ")}${found.tooLong > found.places.length ? ", …" : ""}).`]);
  if (found.objects > found.sentences / 2) verdicts.push(["warn", "These lines look like JSON; each is taken as a sentence, braces and all. Is that meant?"]);
  if (found.columns > found.sentences / 2) verdicts.push(["warn", "These lines have tabs and look like a table, which the server refuses: send only the column with the sentences. If each line is one sentence, say so under More options."]);
  return [
    h("p", {}, h("strong", {}, source instanceof File ? source.name : "Pasted text"), " as the server will read it:"),
    facts([
      ["Lines", count(found.lines)],
      ["Sentences", count(found.sentences)],
      ["Distinct", count(found.distinct)],
      ["Duplicates", count(found.duplicates)],
      ["Empty lines", count(found.empty)],
      ["Too long", count(found.tooLong)],
      ["Longest (characters)", h("span", { title: `line ${found.longestLine}` }, count(found.longest))],
    ], { class: "facts tiles" }),
    ...verdicts.map(([kind, words]) => h("p", { class: `verdict ${kind}` }, words)),
    found.examples.length ? h("details", {}, h("summary", {}, "First sentences"), h("ol", {}, found.examples.map((line) => h("li", { class: "sample", dir: "auto" }, Array.from(line.slice(0, 400)).slice(0, 200).join(""))))) : "",
  ];
}
