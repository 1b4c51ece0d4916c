/** The words that an analyst meets: one plain sentence each, in a panel beside the page that opens where the word stands. */

import { h } from "./dom.js";

const WORDS = {
  domain: "A kind of text whose similarities are measured by texts of its own, such as support tickets or film reviews.",
  default: "The domain of requests that name none; the server brings it along.",
  version: "One calibration of a domain; versions are numbered from 1 and are kept until you delete them.",
  "in use": "The version in use answers requests that name its domain; it is chosen by hand, or by a calibration that proves better.",
  encoder: "The language model that turns a sentence into a vector, a list of numbers.",
  method: "How a version reshapes the encoder's vectors before it compares them.",
  "uncorrected similarity": "The similarity (cosine) that the encoder itself gives two sentences; the same number means different things in different domains.",
  "calibrated similarity": "The similarity of two sentences after the domain's calibration, from −1 to 1; it is about the subject, so that opposites often score high.",
  percentile: "The share of random pairs of the domain's sentences that are less similar than this pair; it means the same in every domain.",
  probability: "How likely a pair is a match, as the version learnt it from labelled pairs.",
  threshold: "The similarity from which on two sentences count as a match.",
  "false-match rate": "The share of random, unrelated pairs that reach a threshold although they are no match.",
  "false hit rate": "The share of searches whose best wrong entry reaches the threshold, among a given number of entries.",
  precision: "The share of true matches among the pairs that reach a threshold.",
  recall: "The share of all true matches that reach a threshold.",
  "labelled pair": "Two sentences for which a person has said whether they match, or how well.",
  drift: "How far the text that is asked about now differs from the text that the domain was calibrated with.",
  "effective labels": "How many labels of equal weight would tell as much: labels that stand for many pairs count for less than their number.",
  "95 % interval": "A range that contains the true value in 95 of 100 repetitions of the measurement.",
};

const DETAILS = {
  rawness: "How much more the encoder's vectors show the surface of a sentence (length, marks, digits, capitals) than a plain list of its words does; a high value asks for a correction.",
  whitening: "A method that makes all directions of the vectors equally strong; the soft kind does so in part.",
  nulling: "A method that removes the few directions that nearly all sentences have in common.",
  flow: "A method with a small neural network that gives the vectors of the domain the shape of a round cloud.",
  "effective rank": "How many directions the vectors use in effect; more directions tell more sentences apart.",
  AUROC: "The chance that a labelled match scores higher than a labelled non-match: 0.5 is guessing, 1 is perfect.",
  Spearman: "How well the order of the scores agrees with the order of the grades: 0 is not at all, 1 is perfectly.",
  PSI: "The population stability index, which says how far today's scores are distributed differently from those of the calibration; below 0.1 is stable, above 0.25 has shifted.",
};

const ALL = { ...WORDS, ...DETAILS };
const SPELLINGS = { thresholds: "threshold", domains: "domain", versions: "version", probabilities: "probability", "labelled pairs": "labelled pair" };

const slug = (word) => `term-${word.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;

/** A word that opens the glossary at its sentence, which shows on hover too. */
export function term(word, shown = word) {
  const open = () => requestAnimationFrame(() => document.getElementById(slug(word)).focus()); // once the panel is there
  return h("button", {
    type: "button", class: "term", title: ALL[word], popovertarget: "glossary", popovertargetaction: "show", onclick: open,
  }, shown);
}

const SPELLED = [...Object.keys(ALL), ...Object.keys(SPELLINGS)].sort((a, b) => b.length - a.length);
const FIND = new RegExp(`(?<![\\w-])(${SPELLED.map((word) => word.replaceAll(" ", "\\s")).join("|")})(?![\\w-])`, "gi");

/** A text whose known words, each where it comes first, are terms. */
export function withTerms(text) {
  const met = new Set();
  return text.split(FIND).map((part, index) => {
    if (index % 2 === 0) return part;
    const spelled = SPELLED.find((word) => word.toLowerCase() === part.toLowerCase());
    const word = SPELLINGS[spelled] ?? spelled;
    if (met.has(word)) return part;
    met.add(word);
    return term(word, part);
  });
}

const list = (words) => h("dl", { class: "words" }, Object.entries(words).map(([word, sentence]) => h("div", { id: slug(word), tabindex: "-1" }, h("dt", {}, word), h("dd", {}, sentence))));

/** Fills the panel beside the page, which the browser opens and closes. */
export function fillGlossary() {
  document.getElementById("glossary").append(
    h("div", { class: "heading" }, h("h2", {}, "Glossary"), h("button", { type: "button", popovertarget: "glossary", popovertargetaction: "hide" }, "Close")),
    list(WORDS), h("h3", {}, "Words under “Details”"), list(DETAILS));
}
