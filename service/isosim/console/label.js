/** Label pairs: draw pairs of a text, judge them one at a time, send the labels; the text stays in this page. */

import { explain, report, say } from "./alerts.js";
import { call, idempotencyKey, path } from "./api.js";
import { confirm } from "./dialogs.js";
import { button, fault, field, h, select, table } from "./dom.js";
import {
  cosines, draw, effective, effectiveLabels, halfWidth, MOST_SENTENCES, precisionCurve, sampleOf, scaled, untilPrecision, weightsOf,
} from "./drawing.js";
import { axis, figure } from "./figure.js";
import { count, counted, percent, score, sentence } from "./format.js";
import { term } from "./glossary.js";
import { fileIntake, parseLines, rowsOf } from "./intake.js";
import { firstFault, GRADES_HINT, GRADES_LABEL, parsePairs, tableOf } from "./labels.js";
import { page, typed, withNamed } from "./listing.js";

const SOME = 200; // domains offered
const FEWEST_SENTENCES = 20; // distinct ones: 190 pairs
const BATCH = 64; // texts of a request: the bar moves and a stop is quick
const OVERHEAD = 1000; // bytes of a request beside its texts
const MILESTONES = [20, 50, 100]; // labels
const NEAR = [["", "the whole scale"], ["0.01", "1 in 100 random pairs"], ["0.001", "1 in 1,000 random pairs"], ["0.0001", "1 in 10,000 random pairs"]];
const USUAL = 0.01; // share of pairs whose precision is foretold where no rate is named
const KEYS = { 1: 1, 0: 0, s: null, S: null, " ": null };
const LEAST_WORTH = 10; // effective labels that the server wants (fitting/probability.py)
const LEAST_PRECISION = 0.5; // the lowest that a threshold can be asked for by
const FEWEST_DRAWN = 5; // labels from which a curve is shown
const NUMBERS = 12; // rows below the curve

export async function openLabel([domain = ""], context) {
  const listed = await page(context, { limit: SOME });
  const domains = await withNamed(listed, [domain], context);
  const calibrated = domains.filter(hasVersion);
  const offered = (some) => [["", "Choose a domain"], ...some.filter(hasVersion).map(({ domain: name }) => name)];
  const choice = select(offered(domains), domain, {
    onchange: () => { location.hash = choice.value ? `#/label/${encodeURIComponent(choice.value)}` : "#/label"; },
  });
  const find = listed.next !== null && typed(h("input", { type: "search", autocomplete: "off", maxlength: "64" }), async (contains) => {
    try {
      const some = await withNamed(await page(context, { contains, limit: SOME }), [domain], context);
      choice.replaceChildren(...select(offered(some), domain).children);
      choice.value = known ? domain : "";
    } catch (error) {
      if (!context.signal.aborted && !context.refused(error)) report("The domains could not be listed", error);
    }
  });
  const known = calibrated.find(({ domain: name }) => name === domain);
  if (!known) choice.value = "";
  const head = h("section", { class: "card" },
    h("p", {}, "Say of pairs of your own text whether they mean the same. From the labels the domain learns which similarity is a match, ",
      "and thresholds can be asked for by precision."),
    find && field("Find a domain", find, "There are more domains than the list below shows; it shows those with this in their name."),
    field("Domain", choice, ""),
    domain && !known && h("p", { class: "verdict warn" }, `${domain} has no version that answers, and labels belong to one. `, h("a", { href: `#/calibrate/${encodeURIComponent(domain)}` }, "Calibrate it first"), "."));
  return [h("h1", {}, known ? `Label pairs for ${domain}` : "Label pairs"), head, ...(known ? work(known, context) : [])];
}

const hasVersion = ({ champion }) => champion > 0; // 0 is the built-in scale, which takes no labels

/** Judged pairs of a domain, kept in this tab: a reload does not lose them. */
class Labels {
  constructor(domain) {
    this.keys = { drawing: `isosim.labels.${domain}.drawing`, judged: `isosim.labels.${domain}.judged` };
    const stored = (key) => JSON.parse(sessionStorage.getItem(key) ?? "null");
    this.drawing = stored(this.keys.drawing); // { name, strata, queue: [[a, b, stratum, similarity]] }
    const { judged = [], others = [], sent = null } = stored(this.keys.judged) ?? {};
    this.sent = sent; // the job that got all of these, until one changes
    this.judged = judged; // [place in the queue, 0, 1 or null for a skipped one], as they were judged
    this.others = others; // pairs of files, and of drawings before this one
    this.kept = true; // whether the browser has room for them
    this.posting = null;
  }

  get place() {
    const done = new Set(this.judged.map(([place]) => place));
    return this.drawing ? this.drawing.queue.findIndex((_, place) => !done.has(place)) : -1;
  }

  /** Those of this drawing, with the similarities that only they have. */
  get drawn() {
    const judged = this.judged.filter(([, label]) => label !== null);
    const pairs = judged.map(([place]) => this.drawing.queue[place]);
    const weights = judged.length ? weightsOf(this.drawing.strata, pairs.map(([, , stratum]) => stratum)) : [];
    return pairs.map(([a, b, stratum, similarity], index) => ({ a, b, label: judged[index][1], weight: weights[index], similarity, stratum }));
  }

  /** All; each source is scaled to a mean weight of 1, so that it counts by its number of pairs. */
  get all() {
    const weights = this.others.length ? scaled(this.others.map(({ weight }) => weight)) : [];
    return [...this.drawn, ...this.others.map((pair, index) => ({ ...pair, weight: weights[index] }))];
  }

  judge(label) {
    this.judged.push([this.place, label]);
    this.save();
  }

  undo() {
    this.judged.pop();
    this.save();
  }

  redraw(drawing) {
    this.others = this.all.map(({ a, b, label, weight }) => ({ a, b, label, weight }));
    [this.drawing, this.judged] = [drawing, []];
    this.join();
    this.save();
  }

  /** Pairs of a file; one that is there already gets the file's label. */
  add(pairs) {
    const given = new Set(pairs.map(name));
    this.others = [...this.others.filter((pair) => !given.has(name(pair))), ...pairs];
    this.judged = this.judged.filter(([place]) => !given.has(name(this.drawing.queue[place])));
    this.join();
    this.save();
  }

  /** Pairs of files that this drawing has drawn, too, are judged pairs of it: its weights hold for them. */
  join() {
    if (!this.drawing) return;
    const places = new Map(this.drawing.queue.map((pair, place) => [name(pair), place]));
    const here = ({ label, ...pair }) => (label === 0 || label === 1) && places.has(name(pair));
    this.judged.push(...this.others.filter(here).map((pair) => [places.get(name(pair)), pair.label]));
    this.others = this.others.filter((pair) => !here(pair));
  }

  forget() {
    Object.assign(this, { drawing: null, judged: [], others: [], sent: null });
    Object.values(this.keys).forEach((key) => sessionStorage.removeItem(key));
    this.posting = null;
  }

  /** Notes the job; another one for the same labels is another posting. */
  sentAs(job) {
    this.save(job);
  }

  save(sent = null) {
    this.posting = null;
    this.sent = sent;
    try {
      if (this.drawing) sessionStorage.setItem(this.keys.drawing, JSON.stringify(this.drawing));
      sessionStorage.setItem(this.keys.judged, JSON.stringify({ judged: this.judged, others: this.others, sent }));
      this.kept = true;
    } catch {
      this.kept = false; // more than the browser keeps
    }
  }
}

const name = (pair) => (Array.isArray(pair) ? pair.slice(0, 2) : [pair.a, pair.b]).join("\t");

function work({ domain, champion }, context) {
  const labels = new Labels(domain);
  const parts = [];
  const update = () => parts.forEach((part) => part.update());
  const judging = judgePart(labels, update, context);
  parts.push(drawPart(labels, { domain, champion }, () => { update(); judging.begin(); }, context));
  parts.push(judging, progressPart(labels, context), sendPart(labels, { domain, champion }, update, context));
  update();
  return parts.map(({ element }) => element);
}

/** The text, and how pairs are drawn from it. */
function drawPart(labels, { domain, champion }, drawn, context) {
  const { server, signal } = context;
  const intake = fileIntake(context, {
    legend: "Text to draw pairs from",
    lead: `A file of your own sentences. Up to ${count(MOST_SENTENCES)} of them are taken at random. The server reads them and keeps nothing.`,
    verdicts: (found) => (found.distinct < FEWEST_SENTENCES ? [["warn", `Too few: at least ${FEWEST_SENTENCES} distinct sentences are needed, here are ${count(found.distinct)}.`]] : []),
  });
  const near = select(NEAR, "");
  const seed = h("input", { type: "number", min: "0", max: "2147483647", step: "1", value: "0" });
  const start = h("button", { type: "submit", class: "primary" }, "Draw pairs");
  const status = h("div", { role: "status" });
  const form = h("form", { novalidate: true, class: "stack", onsubmit: submit }, intake.element,
    h("details", {}, h("summary", {}, "More options"), h("div", { class: "row" },
      field("More pairs near", near, "Where the threshold will be: pairs that score as high as so many random ones."),
      field("Seed", seed, "The same text and seed draw the same pairs; another one draws others."))),
    h("div", { class: "buttons" }, start), status);
  const summary = h("summary", {}, "");
  const element = h("details", { class: "card" }, summary, form);

  async function submit(event) {
    event.preventDefault();
    const whole = /^\d+$/.test(seed.value) && Number(seed.value) <= 2147483647;
    fault(seed, whole ? "" : "A whole number from 0 to 2147483647.");
    if (!whole) {
      seed.closest("details").open = true;
      seed.focus();
      return;
    }
    start.disabled = true;
    const stopping = new AbortController();
    const until = AbortSignal.any([signal, stopping.signal]);
    try {
      const found = await intake.ready();
      if (!found || found.distinct < FEWEST_SENTENCES) return;
      const bar = h("progress", { max: "1", value: "0", "aria-label": "Drawing pairs" });
      const words = h("p", {}, "Fetching the sentences…");
      status.replaceChildren(h("div", { class: "drawing" }, words, bar, button("Stop", () => stopping.abort())));
      const sentences = sampleOf(parseLines(await (await intake.sentences(until)).text()).map(oneLine), Number(seed.value));
      const vectors = await vectorsOf(sentences, `${domain}@${champion}`, server, until, (done) => {
        bar.value = done / sentences.length;
        words.textContent = `Reading with the encoder: ${count(done)} of ${counted(sentences.length, "sentence")}`;
      });
      words.textContent = `Comparing ${counted((sentences.length * (sentences.length - 1)) / 2, "pair")}…`;
      const similarities = await cosines(vectors, sentences.length, until);
      const { strata, queue } = draw(similarities, sentences.length, { seed: Number(seed.value), near: Number(near.value) || null });
      labels.redraw({
        name: intake.name(), sentences: sentences.length, near: Number(near.value) || null, strata,
        queue: queue.map(({ i, j, stratum, similarity }) => [sentences[i], sentences[j], stratum, similarity]),
      });
      status.replaceChildren();
      element.open = false;
      drawn();
    } catch (error) {
      status.replaceChildren();
      if (signal.aborted || stopping.signal.aborted || context.refused(error)) return;
      report("No pairs were drawn", error, () => form.requestSubmit());
    } finally {
      start.disabled = false;
    }
  }

  function update() {
    const { drawing } = labels;
    summary.textContent = drawing ? `1. Pairs are drawn from ${drawing.name}: ${counted(drawing.sentences, "sentence")}. Draw from other text` : "1. Choose text";
  }

  element.open = !labels.drawing;
  return { element, update };
}

/** A sentence that fits into a cell of the file that is downloaded. */
const oneLine = (text) => text.replace(/[\t\r\n]+/g, " ");

/** Calibrated unit vectors of sentences, one after the other. */
async function vectorsOf(sentences, domain, { limits }, signal, progress) {
  progress(0);
  let vectors = null;
  for (let start = 0; start < sentences.length;) {
    let [end, bytes] = [start, OVERHEAD];
    const size = (text) => new Blob([JSON.stringify(text)]).size + 1;
    while (end < sentences.length && end - start < Math.min(BATCH, limits.texts) && (end === start || bytes + size(sentences[end]) <= limits.scoring_bytes)) {
      bytes += size(sentences[end]);
      end += 1;
    }
    const inputs = sentences.slice(start, end);
    const found = await call("POST", "embed", { json: { inputs, domain, space: "calibrated", normalize: true }, signal });
    vectors ??= new Float32Array(sentences.length * found[0].length);
    vectors.set(found.flat(), start * found[0].length);
    start = end;
    progress(end);
  }
  return vectors;
}

/** One pair after the other, its similarity hidden until it is judged. */
function judgePart(labels, changed, context) {
  const sides = [h("blockquote", { dir: "auto", class: "sample" }), h("blockquote", { dir: "auto", class: "sample" })];
  const pair = h("div", { class: "pair", "aria-live": "polite" }, ...sides);
  const last = h("p", { class: "muted" });
  const choose = (label) => () => judge(label);
  const same = button("Same", choose(1), { class: "primary", "aria-keyshortcuts": "1" });
  const different = button("Different", choose(0), { "aria-keyshortcuts": "0" });
  const skip = button("Skip", choose(null), { class: "quiet", "aria-keyshortcuts": "S" });
  const back = button("Undo", undo, { class: "quiet", "aria-keyshortcuts": "U" });
  const content = h("div", { class: "stack" }, pair, h("div", { class: "buttons" }, same, different, skip, back),
    h("p", { class: "muted small keys" }, "Keys: 1 same, 0 different, S or space skip, U or Backspace undo."));
  const done = h("p", {}, "All drawn pairs are judged. Send the labels, or draw more with another seed.");
  const heading = h("h2", { id: "judge" }, "2. Do these two mean the same?");
  const element = h("section", { class: "card judging", tabindex: "-1", "aria-labelledby": "judge" }, heading, content, done, last);

  function judge(label) {
    if (labels.place < 0) return;
    labels.judge(label);
    last.textContent = `The pair before: ${label === null ? "skipped" : label ? "same" : "different"}.`;
    changed();
    element.focus({ preventScroll: true });
  }

  function undo() {
    if (!labels.judged.length) return;
    labels.undo();
    last.textContent = "";
    changed();
    element.focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (element.hidden || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (target !== document.body && !element.contains(target) && !target.matches("h1, main")) return;
    if (key === " " && target.closest("button")) return; // presses that button
    if (key === "u" || key === "U" || key === "Backspace") undo();
    else if (key in KEYS) judge(KEYS[key]);
    else return;
    event.preventDefault();
  }, { signal: context.signal });

  function update() {
    element.hidden = !labels.drawing;
    if (element.hidden) return;
    const { place } = labels;
    content.hidden = place < 0;
    done.hidden = place >= 0;
    back.disabled = !labels.judged.length;
    if (place >= 0) sides.forEach((side, index) => { side.textContent = labels.drawing.queue[place][index]; });
  }

  return {
    element,
    update,
    begin() {
      last.textContent = "";
      element.focus({ preventScroll: true });
      element.scrollIntoView({ block: "nearest" });
    },
  };
}

/** How many there are, what more of them bring, and the curve so far. */
function progressPart(labels, context) {
  const numbers = h("p", { role: "status" });
  const widths = h("div", { class: "stack" });
  const place = h("div", {});
  const element = h("section", { class: "card" }, h("h2", {}, "3. What the labels tell so far"), numbers, widths, place);
  let picture = null;

  function update() {
    const { drawn, drawing, judged, others } = labels;
    element.hidden = !drawing;
    if (element.hidden) return;
    const matches = drawn.filter(({ label }) => label).length;
    const skipped = judged.length - drawn.length;
    numbers.textContent = `${counted(drawn.length, "pair")} judged: ${count(matches)} same, ${count(drawn.length - matches)} different; ${count(skipped)} skipped${others.length ? `; ${count(others.length)} more labels from files` : ""}.`;
    widths.replaceChildren(...expected(drawing, drawn.length));
    const curve = drawn.length >= FEWEST_DRAWN && pictureOf(precisionCurve(drawn));
    if (!curve) {
      picture = null;
      place.replaceChildren(h("p", { class: "muted" }, `From ${FEWEST_DRAWN} judged pairs on, the precision at each similarity is shown here.`));
    } else if (picture) {
      picture.redraw(curve);
    } else {
      picture = figure({ title: "Precision among the labels so far", lead: "The share of matches among the judged pairs that score at least so much, each counted with its weight.", ...curve }, context.signal);
      place.replaceChildren(picture.element);
    }
  }

  return { element, update };
}

/** The widths of intervals that numbers of labels will give. */
function expected({ strata, near }, judged) {
  const rate = near ?? USUAL;
  const distance = ({ above }) => Math.abs(Math.log(above / rate));
  const edge = strata.reduce((best, one, index) => (distance(one) < distance(strata[best]) ? index : best), 0);
  const rows = [...new Set([judged, ...MILESTONES])].filter(Boolean).sort((a, b) => a - b).map((labels) => {
    const worth = effectiveLabels(strata, labels, edge);
    return [labels === judged ? `${count(labels)} (now)` : count(labels), score(worth, 1), `± ${score(halfWidth(worth), 2)}`];
  });
  return [
    h("p", {}, `What so many labels tell of the precision among the ${percent(strata[edge].above)} of pairs that score highest:`),
    table("Expected width of the interval", ["Labels", h("th", { scope: "col" }, term("effective labels", "Effective labels")), h("th", { scope: "col" }, term("95 % interval"))], rows, { class: "widths" }),
    h("p", { class: "muted small" }, "Widths where half of these pairs match, the least certain case. Only labels of these pairs tell of them. The version's report has the exact intervals."),
  ];
}

function pictureOf(curve) {
  const step = Math.max(1, Math.ceil(curve.length / NUMBERS));
  const shown = curve.filter((_, index) => index % step === 0 || index === curve.length - 1);
  const from = [0.9, 0.5].map((level) => [level, curve.findLast(({ precision }) => precision >= level)]).filter(([, found]) => found);
  return {
    draw: (palette) => ({
      type: "line",
      data: { datasets: [{
        label: "precision", data: curve.map(({ similarity, precision }) => ({ x: similarity, y: precision })), stepped: "before",
        borderColor: palette.after, backgroundColor: palette.after, borderWidth: 2, pointRadius: 2,
      }] },
      options: {
        plugins: { legend: { display: false }, tooltip: { callbacks: { title: ([one]) => `from ${score(one.parsed.x)} on`, label: (one) => `precision ${percent(one.parsed.y)}` } } },
        scales: {
          x: axis(palette, "similarity", { type: "linear", ticks: { callback: (x) => score(x, 2) } }),
          y: axis(palette, "precision", { min: 0, max: 1, ticks: { callback: (y) => percent(y) } }),
        },
      },
    }),
    summary: from.length ? `From a similarity of ${from.map(([level, { similarity }]) => `${score(similarity)} on, ${percent(level)} or more of the judged pairs match`).join("; from ")}.` : "At no similarity do half of the judged pairs match so far.",
    numbers: table("Precision among the labels so far", ["Similarity at least", "Precision"], shown.map(({ similarity, precision }) => [score(similarity), percent(Math.round(precision * 1000) / 1000)])),
  };
}

/** Says that no threshold by precision is in sight, and how many more labels one takes; "" where one is, or it cannot be told. */
function tooFew({ drawing, drawn, others }, fewest) {
  if (others.length || drawn.length < fewest) return ""; // of pairs out of files no similarity is known here
  const { reached, more } = untilPrecision(drawing.strata, drawn, LEAST_PRECISION);
  if (more === 0) return "";
  const wanted = more === null
    ? "So far none of the pairs that score highest is a match."
    : `Label about ${count(Math.ceil(more / 10) * 10)} more.`;
  return `No threshold by precision can be expected of these labels yet: of ten or more labels at or above it ${percent(LEAST_PRECISION)} have to be matches, each counted with its weight, and here are at most ${percent(Math.round(reached * 100) / 100)}. ${wanted} Probabilities come without that.`;
}

/** Whether labels were taken as grades: only a file that was said to hold grades brings other labels than 0 and 1. */
const isGraded = (all) => all.some(({ label }) => label !== 0 && label !== 1);

/** Files of labels in and out, and the labels to the server. */
function sendPart(labels, { domain, champion }, changed, context) {
  const { server, signal } = context;
  const file = h("input", { type: "file", accept: ".tsv,.csv,.txt,.xlsx,.ndjson,.jsonl,.parquet,text/*", onchange: take });
  const graded = h("input", { type: "checkbox", onchange: take });
  const counts = h("p", { role: "status" });
  const send = button("Send", submit, { class: "primary" });
  const save = button("Download as TSV", store);
  const forget = button("Forget them", drop, { class: "danger quiet" });
  const unkept = h("p", { class: "verdict warn", hidden: true }, "They take more room than this browser keeps: download them before you leave this page.");
  const missing = h("p", { class: "verdict warn", role: "alert" });
  const sent = h("p", { class: "verdict good", hidden: true });
  const short = h("p", { class: "verdict warn", hidden: true });
  const element = h("section", { class: "card" }, h("h2", {}, "Labels"), counts, sent, short, unkept, missing,
    h("div", { class: "buttons" }, send, save, forget),
    h("p", { class: "muted" }, "The labels stay in this tab, also when the page is loaded again, until the tab is closed or you forget them. ",
      "Sending makes a new version of the domain with all of these labels; they replace those that were sent before. The new version answers, with the same similarities, unless its probabilities are worse or it cannot reach a saved threshold."),
    field("Go on with labels from a file", file, "The file that was downloaded here, or labelled pairs of your own: sentence, sentence, label, or label, sentence, sentence; a fourth column named weight may follow."),
    field(GRADES_LABEL, graded, GRADES_HINT));

  async function take() {
    const [chosen] = file.files;
    fault(file, "");
    if (!chosen) return;
    try {
      const { pairs, faults } = parsePairs(await rowsOf(chosen, signal), graded.checked);
      if (faults.length) fault(file, firstFault(faults));
      else if (!pairs.length) fault(file, "The file holds no labelled pairs.");
      else labels.add(pairs.map((pair) => ({ ...pair, a: oneLine(pair.a), b: oneLine(pair.b) })));
      changed();
    } catch (error) {
      if (signal.aborted) return;
      context.refused(error);
      fault(file, sentence(explain(error).text));
    }
  }

  /** Why the labels cannot be sent; "" where they can. */
  function lacking(all) {
    const wanted = server.fewest_labels - all.length;
    if (wanted > 0) return `At least ${server.fewest_labels} labelled pairs are needed: ${count(wanted)} more.`;
    const worth = effective(all.map(({ weight }) => weight));
    if (worth < LEAST_WORTH) return `With their weights these labels are worth ${score(worth, 1)} of equal weight, and the server needs ${LEAST_WORTH}: judge some more pairs.`;
    return isGraded(all) && labels.drawn.length ? "The file holds grades, and pairs that are judged here are 0 and 1: they cannot be sent together. Forget them, and take the file alone." : "";
  }

  async function submit() {
    const { all } = labels;
    missing.textContent = lacking(all);
    if (missing.textContent) return;
    send.disabled = true;
    try {
      labels.posting ??= idempotencyKey(); // the same for another try, which then finds the job of the first
      const lines = all.map(({ a, b, label, weight }) => `${JSON.stringify({ a, b, label, weight })}\n`);
      const kind = isGraded(all) ? "grades" : "matches";
      const { job } = await call("POST", `${path("domains", domain, "labels")}?version=${champion}&kind=${kind}`, {
        body: lines.join(""),
        headers: { "content-type": "application/x-ndjson", "idempotency-key": labels.posting }, signal,
      });
      labels.sentAs(job);
      location.hash = `#/job/${job}`;
    } catch (error) {
      if (signal.aborted || context.refused(error)) return;
      report("The labels were not sent", error, submit);
    } finally {
      update();
    }
  }

  function store() {
    const address = URL.createObjectURL(new Blob([tableOf(labels.all)], { type: "text/tab-separated-values" }));
    h("a", { href: address, download: `${domain}-labels.tsv` }).click();
    URL.revokeObjectURL(address);
  }

  async function drop() {
    const { all } = labels;
    const meant = await confirm({
      title: `Forget ${counted(all.length, "label")}?`, label: "Forget them", danger: true,
      text: "They are deleted from this tab, and so are the pairs that were drawn. What was sent or downloaded stays.",
    });
    if (!meant) return;
    labels.forget();
    file.value = "";
    changed();
    say("The labels are forgotten.");
  }

  function update() {
    const { all, kept, drawing } = labels;
    counts.textContent = all.length ? `${counted(all.length, "label")}, ${count(all.filter(({ label }) => label > 0).length)} of them matches.` : "No labels yet.";
    const again = labels.sent !== null && all.length > 0;
    send.textContent = !all.length ? "Send the labels" : `Send ${counted(all.length, "label")}${again ? " again" : ""}`;
    send.disabled = !all.length;
    send.classList.toggle("primary", !again);
    sent.hidden = !again;
    sent.replaceChildren("All of these labels were sent: ", h("a", { href: `#/job/${encodeURIComponent(labels.sent ?? "")}` }, "see what came of them"), ". Sending them again makes one more version.");
    short.textContent = tooFew(labels, server.fewest_labels);
    short.hidden = !short.textContent;
    unkept.hidden = kept;
    missing.textContent = "";
    forget.textContent = all.length ? "Forget them" : "Forget the drawn pairs";
    save.disabled = !all.length;
    forget.disabled = !all.length && !drawing;
  }

  return { element, update };
}
