/** A version's report: what was made, why, what it does to the space, and which threshold to ask for. */

import { advisor } from "./advisor.js";
import { call, path } from "./api.js";
import { action, badge, button, facts, h } from "./dom.js";
import { ago, count, methodName, percent, promotionReason, score, seconds, sentence } from "./format.js";
import { candidates, operatingPoints, randomPairs, reliability, spectrum } from "./pictures.js";
import { promote, remove } from "./versions.js";

export async function openReport([domain, number], context) {
  const { signal } = context;
  const [version, state] = await Promise.all([
    call("GET", path("domains", domain, "versions", number), { signal }),
    call("GET", path("domains", domain), { signal }),
  ]);
  const { report } = version;
  const role = version.version === state.champion ? "champion" : version.version === state.previous ? "previous" : "";
  return [
    h("p", { class: "trail" }, h("a", { href: "#/domains" }, "Domains"), " / ", domain),
    h("div", { class: "heading" },
      h("h1", {}, `${domain}, version ${version.version}`),
      h("div", { class: "buttons" }, ...actions(version, role, state.champion, context))),
    h("p", {}, role ? badge(role, role === "champion" ? "good" : "") : "", version.servable ? null : badge("another encoder", "warn")),
    h("section", { class: "card" },
      h("h2", {}, "What was chosen, and why"),
      h("p", {}, h("strong", {}, `${sentence(methodName(report.method))} `), report.reason ? sentence(report.reason) : ""),
      report.promotion && h("p", {}, h("strong", {}, "Promotion: "), promotionReason(report.promotion)),
      report.normalization && report.normalization !== "none" && h("p", {},
        `Percentiles of this version rest on item normalization (${report.normalization}); the pictures show the cosine.`),
      provenance(version, report)),
    h("div", { class: "figures" },
      advisor(`${domain}@${version.version}`, report, signal),
      report.labels?.table?.length && operatingPoints(report.labels),
      randomPairs(report, signal),
      spectrum(report, signal),
      report.labels?.reliability && reliability(report.labels, signal),
      candidates(report, signal)),
  ];
}

function actions(version, role, champion, context) {
  const { domain, version: number } = version;
  return [
    action("Try it", `#/compare/${encodeURIComponent(domain)}@${number}`),
    role === "champion" && action("Add labels", `#/label/${encodeURIComponent(domain)}`),
    role !== "champion" && version.servable && button("Promote", async () => {
      if (await promote(context, { domain, champion }, number)) context.reload();
    }, { class: "primary" }),
    !role && button("Delete", async () => {
      if (await remove(context, { domain, champion }, number)) location.hash = "#/domains";
    }, { class: "danger quiet" }),
    button("Save as JSON", () => save(`${domain}-${number}-report.json`, version)),
  ].filter(Boolean);
}

function save(name, content) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  h("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

/** Texts that the encoder cannot tell apart, by line: their pairs tie, and bound the rates that a threshold can have. */
function repetition({ texts, vectors, groups: [largest] }) {
  const more = largest.texts > largest.lines.length ? ", …" : "";
  return `${count(texts)} texts have ${count(vectors)} vectors, as the encoder reads the same of them. The largest group has ${count(largest.texts)}: lines ${largest.lines.join(", ")}${more} (blank lines not counted).`;
}

function provenance(version, report) {
  const spent = Object.values(report.duration_seconds ?? {}).reduce((sum, part) => sum + part, 0);
  const duplicates = report.posted - report.sentences - (report.unreadable ?? 0);
  const { labels } = report;
  return facts([
    ["Made", ago(version.created)],
    ["Distinct sentences", report.sentences === undefined ? null
      : `${count(report.sentences)}${duplicates > 0 ? ` of ${count(report.posted)} posted` : ""}`],
    ["Texts the encoder knows no word of", report.unreadable ? `${count(report.unreadable)}, left out` : null],
    ["Texts read alike", report.repeated ? repetition(report.repeated) : null],
    ["Smallest rate that a threshold reaches", report.reference?.smallest_rate ? percent(report.reference.smallest_rate) : null],
    ["Labelled pairs", labels ? `${count(labels.pairs)}, mean label ${score(labels.mean_label, 2)}` : "none"],
    ["Method asked for", report.asked],
    ["Seed", report.seed === undefined ? null : String(report.seed)],
    ["Took", spent ? seconds(spent) : null],
    ["Smallest rate that text backs", report.reference ? percent(report.reference.resolution) : null],
    ["Foreign text is flagged", report.domain_test === undefined ? null : report.domain_test ? "yes" : "no: it takes 1,000 distinct sentences"],
    ["Encoder", h("code", { title: version.encoder }, version.encoder.slice(0, 12))],
    ["SHA-256 of the text", report.text_sha256 ? h("code", { title: report.text_sha256 }, report.text_sha256.slice(0, 12)) : null],
  ]);
}
