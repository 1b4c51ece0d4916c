/** A version's report: the threshold to use and the next step first; what was made, why, and its statistics under Details. */

import { advisor, amongSentences, bestRow, isReliable } from "./advisor.js";
import { call, path, Refused } from "./api.js";
import { action, badge, button, facts, h } from "./dom.js";
import { ago, count, counted, methodName, percent, promotionReason, range, score, sentence } from "./format.js";
import { term, withTerms } from "./glossary.js";
import { candidates, operatingPoints, reliability } from "./pictures.js";
import { thresholdList } from "./thresholds.js";
import { cannotAnswer, hindrance, promote, remove } from "./versions.js";

const USUAL = 0.01; // the false-match rate that the report leads with
const STEADY = 2000; // distinct sentences that give a steady threshold (docs/quality.md)
const FEW = 600; // sentences at or below which the gate corrects nothing (fitting/gate.py)

export async function openReport([domain, number], context) {
  const { signal } = context;
  const [version, state, advised] = await Promise.all([
    call("GET", path("domains", domain, "versions", number), { signal }),
    call("GET", path("domains", domain), { signal }),
    call("GET", `${path("domains", `${domain}@${number}`, "threshold")}?fmr=${USUAL}`, { signal }).catch((error) => {
      if (error instanceof Refused && error.status !== 401) return error; // it is said where the threshold would stand
      throw error;
    }),
  ]);
  const { report } = version;
  const role = version.version === state.champion ? "in use" : version.version === state.previous ? "previous" : "";
  const saved = thresholdList(domain, version.version, context, { champion: state.champion });
  return [
    h("p", { class: "trail" }, h("a", { href: "#/domains" }, "Domains"), " / ", domain),
    h("div", { class: "heading" },
      h("h1", {}, `${domain}, version ${version.version}`),
      h("div", { class: "buttons" }, ...actions(version, role, state, context))),
    h("p", {}, role ? badge(role, role === "in use" ? "good" : "") : "", hindrance(version)),
    decision(version, role, advised, state.champion),
    h("div", { class: "figures" },
      advisor(version, context, { champion: state.champion, saved: async () => {
        await saved.refresh();
        saved.element.scrollIntoView({ block: "nearest" });
      } }),
      h("section", { class: "card whole", "aria-label": "Saved thresholds" }, saved.element),
      report.labels?.table && isReliable(report) && operatingPoints(report)),
    details(version, signal),
  ];
}

const WIDE = 2; // an interval whose upper end is so many times its lower end says little

/** What to do with this version, in sentences that need no statistics, and the next step. */
function decision(version, role, advised, champion) {
  const { domain, report } = version;
  const named = `${domain}@${version.version}`;
  const best = isReliable(report) ? bestRow(report.labels) : null;
  const first = champion === null;
  const who = {
    "in use": `This version is in use: it answers requests for ${domain}.`,
    previous: `Version ${champion} is in use for ${domain}; this one was in use before it, and can be returned to.`,
  }[role] ?? (champion === null ? `No version of ${domain} is in use yet; put one in use.` : `Version ${champion} of ${domain} is in use; this version waits.`);
  return h("section", { class: "card", "aria-labelledby": "decision" },
    h("h2", { id: "decision" }, "What to use"),
    best && h("p", { class: "decision" }, "Use ", h("strong", { class: "big" }, score(best.similarity)), ...withTerms(`: ${percent(best.precision)} of the pairs that pass are matches, as far as your labels tell.`)),
    best && h("p", {}, ...withTerms(`Among pairs like your labelled ones it has this precision${best.precision_interval ? ` (95 % interval ${range(best.precision_interval)})` : ""} and finds ${percent(best.recall)} of the true matches, the recall (95 % interval ${range(best.recall_interval)}, from ${count(report.labels.pairs)} labels).${best.recall_interval[1] > WIDE * best.recall_interval[0] ? " That is too uncertain to rely on: label more pairs." : ""} A match tells its own similarity for the same labels, as it counts the pairs of its file.`)),
    h("p", { class: best ? "" : "decision" }, ...advice(advised, report, best)),
    !(advised instanceof Refused) && report.sentences > 1 && h("p", { class: "verdict warn" },
      amongSentences(report.sentences, USUAL), " Nearly all of them are false: to find duplicates in a list, ",
      best ? "use the precision above." : "ask below for a smaller rate, or label pairs and ask for a precision."),
    report.sentences < STEADY && h("p", { class: "verdict warn" }, `The text had ${counted(report.sentences, "distinct sentence")}; ${count(STEADY)} give a steadier threshold.`),
    h("p", {}, version.servable ? who : cannotAnswer(version)),
    h("p", {}, h("strong", {}, "Next step: "), version.servable
      ? `${first ? "put this version in use, so that thresholds can be saved; then see" : "see"} what it does to sentences of yours${first ? "" : ", and save the threshold under a name that requests can use"}.${report.labels ? "" : " Labelled pairs would show how many of the true matches it finds."}`
      : `${version.damaged ? "restore its files from a backup, or " : ""}calibrate the domain anew with this server's encoder.`),
    h("div", { class: "buttons" }, version.servable
      ? [action("Try it on sentences", `#/compare/${encodeURIComponent(named)}`, { class: "button primary" }),
        !first && !(advised instanceof Refused) && button("Save it under a name", () => {
          const name = document.querySelector("#save-threshold input");
          name.scrollIntoView({ block: "center" });
          name.focus();
        }),
        action("Add labels", `#/label/${encodeURIComponent(domain)}`)]
      : action("New calibration", `#/calibrate/${encodeURIComponent(domain)}`, { class: "button primary" })));
}

function advice(advised, report, best) {
  if (advised instanceof Refused) return [`No threshold lets 1 in 100 unrelated pairs pass. ${sentence(advised.message)}`];
  if (best) return [`From ${score(advised.similarity)} on, 1 in 100 unrelated pairs passes; that suits the comparison of two single sentences.`];
  return ["From ", h("strong", { class: "big" }, score(advised.similarity)), " on, 1 in 100 unrelated pairs passes. Which of those that pass mean the same, only labelled pairs tell."];
}

/** Why the method was chosen. */
export function why({ asked, method, evidence, candidates: tried, base }) {
  const kept = "The encoder's own cosine is kept, because";
  const chosen = `${sentence(methodName(method)).slice(0, -1)} was chosen, because`;
  if (base) return `All but the labels is that of version ${base}.`;
  if (asked !== "auto") return `${sentence(methodName(method)).slice(0, -1)} is used, because it was asked for.`;
  if (!evidence) return `${kept} only texts show whether it needs a correction.`;
  if (!evidence.surface) return `${kept} most sentences have the same vector, and no method could tell them apart.`;
  if (method.startsWith("soft:")) return `${chosen} ranking gets better: the encoder's own vectors depend too much on the length, marks and capitals of sentences like these.`;
  if (method !== "identity") return `${chosen} ranking gets better: it puts the labelled pairs in a better order than the encoder's own cosine does.`;
  if (evidence.sentences <= FEW) return `${kept} there are too few sentences to judge a correction by.`;
  if (!(evidence.strength > 0) || !tried.length) return "No correction is needed: the encoder fits sentences like these as it is.";
  return `${kept} the labelled pairs are ranked better with it than with the correction.`;
}

function details(version, signal) {
  const { report } = version;
  return h("details", { class: "card folded" },
    h("summary", {}, h("h2", {}, "Details")),
    h("p", { class: "muted" }, "Why this method, where it comes from, and the measurements. Nothing here is needed to use the threshold."),
    h("section", { class: "stack" },
      h("h3", {}, "Why this method"),
      h("p", {}, ...withTerms(why(report))),
      report.promotion && h("p", {}, h("strong", {}, "Put in use or not: "), ...withTerms(promotionReason(report.promotion)))),
    h("section", { class: "stack" },
      h("h3", {}, "Where it comes from"),
      provenance(version, report)),
    h("div", { class: "figures" },
      report.labels?.reliability && reliability(report.labels, signal),
      candidates(report)),
    h("p", { class: "muted small" }, "Words used here: ", ...["rawness", "whitening", "nulling", "effective rank", "AUROC", "Spearman"].flatMap((word, index) => [index ? ", " : "", term(word)]), "."));
}

function actions(version, role, state, context) {
  const { version: number } = version;
  return [
    role !== "in use" && (version.servable || version.damaged) && button("Put in use", async () => {
      if (await promote(context, { ...state, revision: null }, number)) context.reload();
    }, { class: "primary" }),
    !role && button("Delete", async () => {
      if (await remove(context, { ...state, revision: null }, number)) location.hash = "#/domains";
    }, { class: "danger quiet" }),
  ].filter(Boolean);
}

/** Texts that the encoder cannot tell apart, by line: their pairs tie, and bound the rates that a threshold can have. */
function repetition({ texts, vectors, groups: [largest] }) {
  const more = largest.texts > largest.lines.length ? ", …" : "";
  return `${count(texts)} texts have ${count(vectors)} vectors, as the encoder reads the same of them. The largest group has ${count(largest.texts)}: lines ${largest.lines.join(", ")}${more} (blank lines not counted).`;
}

function provenance(version, report) {
  const duplicates = report.posted - report.sentences - (report.unreadable ?? 0);
  const { labels } = report;
  return facts([
    ["Made", ago(version.created)],
    ["Distinct sentences", report.sentences === undefined ? null
      : `${count(report.sentences)}${duplicates > 0 ? ` of ${count(report.posted)} given` : ""}`],
    ["Texts the encoder knows too few words of", report.unreadable ? `${count(report.unreadable)}, left out` : null],
    ["Texts read alike", report.repeated ? repetition(report.repeated) : null],
    ["Smallest rate that a threshold reaches", report.reference.smallest_rate ? percent(report.reference.smallest_rate) : null],
    ["Labelled pairs", !labels ? "none" : labels.graded ? `${count(labels.pairs)}, mean label ${score(labels.mean_label, 2)}`
      : `${count(labels.pairs)}; by their weights ${percent(labels.mean_label)} of the pairs that they stand for are matches`],
    ["Rawness", report.evidence?.surface ? score(report.evidence.rawness, 2) : null],
    ["Sentences recognized after a change of capitals and marks", (report.evidence?.recognition ?? null) === null ? null : percent(report.evidence.recognition)],
    ["Directions in use (effective rank)", `${score(report.before.effective_rank, 0)} before, ${score(report.after.effective_rank, 0)} after`],
    ["Method asked for", report.asked],
    ["Seed", String(report.seed)],
    ["Smallest rate that text backs", percent(report.reference.resolution)],
    ["Foreign text is flagged", report.domain_test ? "yes" : "no: it takes 1,000 distinct sentences"],
    ["Encoder", h("code", { title: version.encoder }, version.encoder.slice(0, 12))],
    ["SHA-256 of the text", report.text_sha256 ? h("code", { title: report.text_sha256 }, report.text_sha256.slice(0, 12)) : null],
  ]);
}
