/** What labels tell of a version: what its thresholds bring, how reliable its probabilities are, which methods were tried. */

import { h, table } from "./dom.js";
import { axis, faint, figure } from "./figure.js";
import { count, counted, methodName, percent, range, score } from "./format.js";
import { term } from "./glossary.js";

const FEWEST = 5; // matches, below which a picture would draw chance

/** A card that says why there is no picture. */
function missing(title, why, width = "") {
  return h("section", { class: `card ${width}` }, h("h3", {}, title), h("p", { class: "muted" }, why));
}

/** What thresholds bring and cost, by the precisions that a version's labels reach. */
export function operatingPoints({ labels: { table: rows, pairs }, reference }) {
  const title = "What a threshold brings, and costs";
  if (!rows.length) return missing(title, `${counted(pairs, "label")} are too few for this table: they reach no precision of 50 %. Label more pairs, above all such as score high.`, "whole");
  return h("section", { class: "card whole" },
    h("h3", {}, title),
    h("p", { class: "muted" }, `Learned from ${count(pairs)} labelled pairs, each counted by its weight: a label from the lower scale can stand for thousands of pairs. Where the interval of recall is wide, label more. Wrong matches: how many a search among 10,000 random entries meets on average.`),
    table(title, heads([term("precision", "Precision"), "95 % interval of precision", "Similarity", term("recall", "Recall"), "95 % interval of recall", term("false-match rate", "False-match rate"), "Wrong matches a search"]),
      rows.map((row) => [percent(row.precision), row.precision_interval ? range(row.precision_interval) : "", score(row.similarity), percent(row.recall),
        range(row.recall_interval), atLeast(row.false_match_rate, reference.resolution),
        String(Number(row.alarms.toPrecision(2)))]), { class: "stacked" }));
}

/** A rate, where so many pairs can count it. */
const atLeast = (rate, least = 0) => (rate < least ? `below ${percent(least)}` : percent(rate));

const heads = (cells) => cells.map((cell) => h("th", { scope: "col" }, cell));

/** How far probabilities are off, in words. */
function honesty({ reliability: bins, pairs }) {
  const held = bins.filter(({ predicted, low, high }) => low <= predicted && predicted <= high).length;
  return `In ${count(held)} of ${counted(bins.length, "group")} of the ${count(pairs)} labelled pairs, the 95 % interval of what happened holds what was promised.`;
}

export function reliability(labels, signal) {
  const bins = labels.reliability;
  const dots = bins.map((bin) => ({ x: bin.predicted, y: bin.observed }));
  const matches = labels.graded ? bins.length : Math.round(bins.reduce((sum, { observed, pairs }) => sum + observed * pairs, 0));
  if (matches < FEWEST) return missing("Reliability of probabilities", `The labels have ${counted(matches, "match", "matches")}, too few for a picture.`, "whole");
  const end = (name, extra) => ({ label: "", data: bins.map((bin) => ({ x: bin.predicted, y: bin[name] })), borderWidth: 0, pointRadius: 0, ...extra });
  const what = labels.graded ? "mean grade" : "share of matches";
  const { element } = figure({
    title: "Reliability of probabilities",
    lead: "Labelled pairs the map had not seen, in groups of like probability. On the diagonal, what was promised is what happened.",
    draw: (palette) => ({
      type: "line",
      data: {
        datasets: [
          { label: "observed", data: dots, borderColor: palette.after, backgroundColor: palette.after, pointRadius: 4, borderWidth: 1 },
          end("high", { label: "95 % interval", fill: "+1", backgroundColor: faint(palette.after, 0.2) }), end("low", {}),
          { label: "perfect", data: [{ x: 0, y: 0 }, { x: 1, y: 1 }], borderColor: palette.before, borderDash: [5, 4], pointRadius: 0, borderWidth: 1 },
        ],
      },
      options: {
        scales: {
          x: axis(palette, "predicted", { type: "linear", min: 0, max: 1 }),
          y: axis(palette, `observed ${what}`, { min: 0, max: 1 }),
        },
      },
    }),
    summary: honesty(labels),
    numbers: table("Reliability", ["Predicted", "Observed", "95 % interval", "Pairs"],
      bins.map((bin) => [score(bin.predicted), score(bin.observed), `${score(bin.low)} to ${score(bin.high)}`, count(bin.pairs)])),
  }, signal);
  element.classList.add("whole");
  return element;
}

export function candidates({ candidates: found, method: chosen }) {
  const title = "The candidates";
  if (!found?.length) return missing(title, "No other method was tried: only labelled pairs can choose one.", "whole");
  return h("section", { class: "card whole" },
    h("h3", {}, title), h("p", { class: "muted" }, "Every method that was tried on the labelled pairs: AUROC for labels 0 and 1, Spearman for grades."),
    table(title, ["Method", "Score on labelled pairs", "Gain over no correction", "95 % interval"],
      found.map(({ method, score: own, gain, interval }) => [`${methodName(method)}${method === chosen ? " (chosen)" : ""}`, score(own, 3), score(gain, 3), interval.map((end) => score(end, 3)).join(" to ")])));
}
