/** False-match rate against threshold, with the advisor's line: which similarity to ask for, for pairs and for searches. */

import { alertBox, explain } from "./alerts.js";
import { call, path, Refused } from "./api.js";
import { field, h, select, table } from "./dom.js";
import { axis, faint, figure } from "./figure.js";
import { count, percent, range, score, sentence } from "./format.js";
import { term } from "./glossary.js";
import { nameField } from "./listing.js";
import { asked, kindOf, KINDS, rateFields, saveThreshold } from "./thresholds.js";

const TITLE = "Which threshold?";
const SAVE_FORM = "save-threshold";
const FLOOR = 1e-6; // the curve's last rate
const ROWS = 20; // of the picture's numbers, at most
const WAIT = 350; // ms after the last key stroke

/** Whether the labels of a version tell of precisions. */
export const isReliable = (report) => Boolean(report.labels) && !report.labels.graded;

/** The row of the highest precision up to 90 % that the labels reach, else of the lowest; null for none. */
export function bestRow({ table: rows }) {
  const rising = [...(rows ?? [])].sort((a, b) => a.precision - b.precision);
  return rising.filter(({ precision }) => precision <= 0.9).at(-1) ?? rising[0] ?? null;
}

/** How many pairs a rate lets through where all sentences of the domain are compared with each other. */
export function amongSentences(sentences, rate) {
  const passing = (sentences * (sentences - 1) / 2) * rate;
  const many = passing < 1 ? "less than 1 pair passes" : Math.round(passing) === 1 ? "about 1 pair passes" : `about ${count(Number(passing.toPrecision(2)))} pairs pass`;
  return `Among the domain's ${count(sentences)} sentences, each compared with each, ${many}.`;
}

/**
 * The picture for a version; asks GET /domains/{d}/threshold. `champion`: of its domain, null for none, and then nothing can
 * be saved; `saved` is called after a threshold was saved.
 */
export function advisor(version, context, { champion, saved }) {
  const { signal } = context;
  const { domain, report } = version;
  const reference = `${domain}@${version.version}`;
  const { curve } = report.reference;
  const kinds = Object.keys(KINDS).filter((name) => name !== "precision" || isReliable(report));
  const begin = isReliable(report) && bestRow(report.labels) ? "precision" : "fmr"; // what the report advises
  const kind = select(kinds.map((name) => [name, `${KINDS[name].label} ${KINDS[name].of}`]), begin, { onchange: reset });
  const rates = rateFields({ oninput: () => later() });
  const answer = h("div", { class: "answer", role: "status" });
  const saving = saveForm(domain, context, champion, saved);
  const controls = h("div", { class: "stack" },
    h("div", { class: "row" }, field("Ask for", kind, ""), rates.wanted, rates.gallery),
    answer,
    saving.element);
  const told = curve.similarity.map((x, index) => [score(x), percent(curve.rate[index])]);
  const picture = figure({
    title: TITLE,
    lead: ["The share of random pairs that pass a ", term("threshold"), ", the ", term("false-match rate"), ". Ask for a rate, and the line shows the similarity to use."],
    controls,
    draw: drawWith(curve, null),
    summary: "",
    numbers: table("Threshold for a false-match rate", ["Similarity", "False-match rate"], told.filter((_, index) => index % Math.ceil(told.length / ROWS) === 0)),
  }, signal);
  picture.element.classList.add("whole");

  let timer = 0;
  let latest = 0;
  function later() {
    clearTimeout(timer);
    timer = setTimeout(advise, WAIT);
  }
  function reset() {
    rates.show(kind.value, kind.value === "precision" ? reachable(report.labels) : undefined);
    advise();
  }

  async function advise() {
    saving.offer(null); // what it would save holds for another target
    const target = rates.read(kind.value);
    if (!target) return;
    latest += 1;
    const mine = latest;
    try {
      const found = await call("GET", `${path("domains", reference, "threshold")}?${asked(target)}`, { signal });
      if (mine !== latest) return;
      saving.offer(target);
      answer.replaceChildren(...sentences(found, report));
      picture.redraw({ draw: drawWith(curve, found), summary: `The line stands at a similarity of ${score(found.similarity)}.` });
    } catch (error) {
      if (error.name === "AbortError" || mine !== latest) return;
      picture.redraw({ draw: drawWith(curve, null), summary: "" });
      const own = error instanceof Refused && [409, 422].includes(error.status); // says itself what can be asked for
      answer.replaceChildren(own ? h("p", { class: "verdict warn" }, h("strong", {}, "No threshold: "), inPercent(explain(error).text)) : alertBox("No threshold", error, advise));
    }
  }
  reset();
  return picture.element;
}

/** The highest precision up to 90 % that the labels reach, in per cent. */
function reachable(labels) {
  const row = bestRow(labels);
  return row ? String(Number((100 * row.precision).toPrecision(3))) : KINDS.precision.first;
}

/** The server's words about a rate, with shares as the reader has typed them. */
const inPercent = (text) => sentence(text.replaceAll(/(?<![\d.]|similarity, )0\.\d+(?![\d.%])|\b\d+e-\d+/g, (share) => percent(Number(share))));

/** "fmr-0.01": a name that says what it stands for. */
const proposed = (target) => Object.entries(target).map(([name, value]) => `${name.replaceAll("_", "-")}-${value}`).join("-");

/** A name for the target that is shown, and the button that saves it; `offer(null)` where there is nothing to save. */
function saveForm(domain, context, champion, saved) {
  let target = null;
  let own = false; // a name that was typed outlives another rate
  const name = h("input", { type: "text", maxlength: "64", autocomplete: "off", autocapitalize: "none", spellcheck: "false", oninput: () => { own = name.value !== ""; } });
  const hint = champion === null ? "Put a version in use first; then thresholds can be saved." : `Requests for ${domain} can then ask for a match by this name.`;
  const named = nameField("Name of the threshold", name, hint, { pattern: context.server.domain_pattern, empty: "Give it a name." });
  const save = h("button", { type: "submit" }, "Save this threshold");
  async function submit(event) {
    event.preventDefault();
    if (!target || champion === null) return;
    if (!named.check()) name.focus();
    else if (await saveThreshold(context, domain, name.value.trim(), target)) saved();
  }
  const element = h("form", { class: "row", novalidate: true, onsubmit: submit, id: SAVE_FORM },
    named.element,
    h("div", { class: "buttons" }, save));
  const offer = (found) => {
    target = found;
    save.disabled = found === null || champion === null;
    if (!own) name.value = found ? proposed(found) : "";
  };
  return { element, offer };
}

/** A share of random pairs, no smaller than so many can count. */
const passing = (rate, least = 0) => (rate < least ? `Fewer than ${percent(least)}` : percent(rate));

function sentences(found, { sentences: among, reference }) {
  const [low, high] = found.interval;
  const kind = kindOf(found.target);
  const rate = percent(found.target[kind]);
  const what = {
    fmr: `a false-match rate of ${rate}`,
    false_hit_rate: `a wrong match in ${rate} of searches among ${count(found.target.gallery ?? 0)} entries`,
    precision: `a precision of ${rate}`,
  }[kind];
  return [
    h("p", {}, `For ${what} take pairs with a similarity of at least `, h("strong", { class: "big" }, score(found.similarity)), "."),
    kind === "false_hit_rate" && h("p", { class: "verdict warn" }, "The best match of every sentence counts as wrong here. Where sentences of the text mean the same, this similarity is too high to find such duplicates: ask for a precision, which takes labelled pairs."),
    h("p", { class: "muted" }, `95 % interval ${score(low)} to ${score(high)}, from ${count(found.pairs)} ${KINDS[kind].from}.`,
      found.extrapolated ? " Fewer than 10 of them are as similar, so that this value is read off a fitted curve." : "",
      found.precision_interval === undefined ? "" : ` The precision itself has a 95 % interval of ${range(found.precision_interval)}.`,
      found.recall === undefined ? "" : ` It finds ${percent(found.recall)} of the true matches (95 % interval ${range(found.recall_interval)}).`,
      found.with_texts ? ` Pairs of texts match by their words too, from a probability of ${score(found.with_texts.probability)} on: ${percent(found.with_texts.recall)} of the true matches.` : "",
      kind === "fmr" || found.false_match_rate === undefined ? "" : ` ${passing(found.false_match_rate, reference.resolution)} of random pairs pass.`,
      among > 1 && (found.target.fmr ?? found.false_match_rate) !== undefined ? ` ${amongSentences(among, found.target.fmr ?? found.false_match_rate)}` : ""),
  ].filter(Boolean);
}

function drawWith(curve, found) {
  return (palette) => {
    const datasets = [{
      label: "random pairs that pass", data: curve.similarity.map((x, index) => ({ x, y: curve.rate[index] })),
      borderColor: palette.after, backgroundColor: palette.after, pointRadius: 0, borderWidth: 2, curve: true,
    }];
    if (found) {
      datasets.push({ label: "advised threshold", data: [FLOOR, 1].map((y) => ({ x: found.similarity, y })), borderColor: palette.mark, backgroundColor: palette.mark, pointRadius: 0, borderWidth: 2 });
      datasets.push({ label: "95 % interval", data: found.interval.map((x) => ({ x, y: 1 })), fill: "start", backgroundColor: faint(palette.mark, 0.25), borderWidth: 0, pointRadius: 0 });
      datasets.push({
        label: "", data: [{ x: found.similarity, y: found.target.fmr ?? found.false_match_rate }],
        borderColor: palette.mark, backgroundColor: palette.mark, pointRadius: 5, showLine: false,
      });
    }
    const decade = (y) => Math.abs(Math.log10(y) - Math.round(Math.log10(y))) < 1e-9;
    return {
      type: "line",
      data: { datasets },
      options: {
        interaction: { mode: "nearest", axis: "x", intersect: false },
        plugins: {
          legend: { labels: { color: palette.text, boxWidth: 16, boxHeight: 2, filter: (item) => item.text !== "" } },
          tooltip: { filter: (one) => one.dataset.curve === true, callbacks: { title: ([one]) => (one ? `threshold ${score(one.parsed.x)}` : ""), label: (one) => `${one.dataset.label}: ${percent(one.parsed.y)} pass` } },
        },
        scales: {
          x: axis(palette, "threshold", { type: "linear", ticks: { callback: (x) => score(x, 1) } }),
          y: axis(palette, "false-match rate", { type: "logarithmic", min: FLOOR, max: 1, ticks: { callback: (y) => (decade(y) ? percent(y) : "") } }),
        },
      },
    };
  };
}
