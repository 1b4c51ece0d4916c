/** Try it: sentences scored by one version or by two, with a verdict at a threshold. */

import { attempt, wayOut } from "./alerts.js";
import { call, path, Refused } from "./api.js";
import { badge, fault, field, h, table } from "./dom.js";
import { count, oneIn, percentile, plainly, roughly, score, sentence, versionName } from "./format.js";
import { term } from "./glossary.js";
import { newest, page, typed, withNamed } from "./listing.js";
import { isDamaged, named } from "./versions.js";
import { asked as query, describeTarget, KINDS, rateFields, savedThresholds } from "./thresholds.js";

const SOME = 200; // domains that are asked for at once
const NEWEST = 10; // domains, and versions of each, in a list where nothing is looked for
const EXAMPLE = {
  a: "A man is playing a guitar.",
  b: ["Someone plays an instrument.", "A person strums a guitar on stage.", "A man is not playing a guitar.", "Shares fell in London."].join("\n"),
};
const FLAGS = {
  truncated: "cut off: longer than the encoder reads",
  unreadable: "the encoder knows too few of its words, or cannot see where the two texts differ, so that the scores mean nothing",
  out_of_domain: "does not look like the domain's text, so that its scores and its verdict are less certain",
};

export async function openCompare([left = "default", right = ""], context) {
  const { server } = context;
  const listed = await page(context, { limit: SOME });
  let domains = await withNamed(listed, [left, right], context);
  const a = h("textarea", { rows: "2", dir: "auto" });
  const b = h("textarea", { rows: "4", dir: "auto" });
  const first = offer(h("select", {}), domains, left, null, [left, right]);
  const target = targetFields(context);
  first.addEventListener("change", () => target.offer(first.value, domains));
  const second = offer(h("select", {}), domains, right, "nothing", [left, right]);
  const find = (listed.next !== null || domains.length > NEWEST) && typed(h("input", { type: "search", autocomplete: "off", maxlength: "64" }), async (contains) => {
    const chosen = [first.value, second.value];
    domains = await withNamed(await page(context, { contains, limit: SOME }), chosen, context);
    offer(first, domains, first.value, null, chosen, contains);
    offer(second, domains, second.value, "nothing", chosen, contains);
  }, context);
  const score_ = h("button", { type: "submit", class: "primary" }, "Score");
  const results = h("div", { role: "region", "aria-label": "Scores", "aria-live": "polite" });
  const form = h("form", { class: "card", novalidate: true, onsubmit: submit, onkeydown: (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  } },
    h("div", { class: "row even" }, field("Sentence", a, ""), field("Compared with", b, `One sentence a line, at most ${count(server.limits.pairs)}.`)),
    find && field("Find a domain", find, `The lists below show the ${NEWEST} newest; here all are found by a part of their name.`),
    h("div", { class: "row even" }, field("Scored by", first, "A domain's version in use, or another: name@2 is version 2. Requests that name no domain are scored by default."), field("Second version", second, "Another domain or version, to see the difference.")),
    target.element,
    h("div", { class: "buttons" }, score_, h("button", { type: "button", onclick: fill }, "Fill in an example"), h("span", { class: "muted small keys" }, "Ctrl + Enter scores")));

  function fill() {
    a.value = EXAMPLE.a;
    b.value = EXAMPLE.b;
    submit();
  }

  async function submit(event) {
    event?.preventDefault();
    const others = b.value.split("\n").map((text) => text.trim()).filter(Boolean);
    fault(a, a.value.trim() ? "" : "Write a sentence.");
    fault(b, others.length > server.limits.pairs ? `${count(others.length)} sentences; at most ${count(server.limits.pairs)} are scored at once.` : others.length ? "" : "Write a sentence to compare with.");
    const wanted = target.read();
    const wrong = [a, b, ...target.controls].find((control) => control.hasAttribute("aria-invalid"));
    if (wrong) {
      wrong.focus();
      return;
    }
    const pairs = others.map((text) => [a.value.trim(), text]);
    const asked = [first.value, second.value].filter(Boolean);
    const answers = await attempt(context, "Nothing was scored", () => Promise.all(asked.map((domain) => judged(domain, pairs, wanted, context))), score_);
    results.replaceChildren(...(answers ? scores(pairs, asked, answers) : []));
  }

  target.offer(first.value, domains);
  const unknown = [[left, first], [right, second]].filter(([reference, list]) => reference && list.value !== reference);
  return [h("h1", {}, "Try it"),
    ...unknown.map(([reference, list]) => h("p", { class: "verdict warn" }, `There is no ${reference} here that can answer; ${list.value || "nothing"} is chosen instead.`)),
    form, results];
}

/** All versions that can answer, by domain, the one in use first; where nothing is looked for, of the newest domains and of those that are named. */
function offer(element, domains, chosen, none, asked, found = "") {
  const kept = ["default", ...asked.map(domainOf)];
  const some = newest(domains).filter(({ domain }, index) => found || index < NEWEST || kept.includes(domain));
  const groups = some.map(({ domain, champion, previous, versions, unreadable }) => h("optgroup", { label: domain },
    h("option", { value: domain }, choiceOf({ domain, champion, versions, unreadable })),
    [...versions].reverse().filter(({ servable, version }, index) => servable && (index < NEWEST || version === previous || `${domain}@${version}` === chosen)).map((version) => h("option", { value: `${domain}@${version.version}` }, `${domain}: ${versionName(version)}`))));
  element.replaceChildren(...[none && h("option", { value: "" }, none), ...groups].filter(Boolean));
  element.value = chosen;
  if (element.selectedIndex < 0) element.selectedIndex = 0;
  return element;
}

function choiceOf(state) {
  if (isDamaged(state)) return `${state.domain}: damaged`;
  return state.champion ? `${state.domain}: in use, ${named(state.champion, state.versions)}` : `${state.domain}: uncorrected`;
}

/** What a verdict rests on: a saved threshold of the domain, or a rate. `read()` gives { name, target }, { target } or null. */
function targetFields(context) {
  const { signal } = context;
  let saved = [];
  let owner = ""; // domain of the saved ones
  let touched = false; // until then a saved threshold is offered first
  const kind = h("select", { onchange: () => {
    touched = true;
    arrange();
  } });
  const rates = rateFields();
  let of = null; // the kind whose rate is shown
  const element = h("div", { class: "row" }, field("A pair is a match at", kind, "A threshold that was saved for the domain, or a rate."), rates.wanted, rates.gallery);
  const typedKind = () => (kind.value in KINDS ? kind.value : null);
  fill(["fmr", "false_hit_rate"], "fmr");

  function fill(kinds, chosen) {
    kind.replaceChildren(...[
      saved.length && h("optgroup", { label: "Saved thresholds" }, saved.map(({ name, target }) => h("option", { value: `saved:${name}` }, `${name}: ${describeTarget(target)}`))),
      h("optgroup", { label: "A rate" }, kinds.map((name) => h("option", { value: name }, `${KINDS[name].label} ${KINDS[name].of}`))),
      h("option", { value: "" }, "no verdict"),
    ].filter(Boolean));
    kind.value = chosen;
    if (kind.selectedIndex < 0) kind.value = "fmr";
    arrange();
  }

  function arrange() {
    const name = typedKind();
    rates.wanted.hidden = name === null;
    rates.gallery.hidden = name !== "false_hit_rate";
    if (name !== null && name !== of) rates.show(of = name);
  }

  /** Offers what this version can be asked for; what cannot be found out is not offered. */
  const offer = (reference, domains) => attempt(context, "The saved thresholds could not be loaded", async () => {
    owner = domainOf(reference);
    const mine = owner;
    const state = domains.find(({ domain }) => domain === owner);
    const version = versionOf(reference, state);
    const unless = (error) => {
      if (error.name !== "AbortError" && !(error instanceof Refused && error.status !== 401)) throw error;
      return null;
    };
    const [list, about] = await Promise.all([
      state?.versions.length ? savedThresholds(owner, context).catch(unless) : null,
      version ? call("GET", path("domains", owner, "versions", version), { signal }).catch(unless) : null,
    ]);
    if (mine !== owner) return;
    saved = list?.thresholds ?? [];
    const labels = about?.report.labels;
    const precise = labels && !labels.graded;
    fill(["fmr", "false_hit_rate", ...(precise ? ["precision"] : [])], touched || !saved.length ? kind.value : `saved:${saved[0].name}`);
  });

  function read() {
    rates.controls.forEach((control) => fault(control, ""));
    if (kind.value.startsWith("saved:")) {
      const { name, target } = saved.find((one) => `saved:${one.name}` === kind.value);
      return { owner, name, target };
    }
    const name = typedKind();
    return name === null ? null : { target: rates.read(name) };
  }

  return { element, offer, read, controls: rates.controls };
}

const LIKELY = 0.5; // probability from which on a match is more likely than not
const UNREACHABLE = "threshold_unreachable";
const domainOf = (reference) => reference.split("@")[0];

/** The number of the version that a reference names; null where it is not known here. */
function versionOf(reference, state) {
  const [, pinned] = reference.split("@");
  return pinned ? Number(pinned) : state?.champion ?? null;
}

/** The scores of a version with a verdict: { …answer, verdict: { target, name, similarity, match, why } | null }. */
async function judged(reference, pairs, wanted, { signal }) {
  const name = wanted?.name && wanted.owner === domainOf(reference) ? wanted.name : null;
  const answer = await call("POST", "similarity", { json: { pairs, domain: reference, detail: true, ...(name ? { threshold: name } : {}) }, signal });
  if (!wanted) return { ...answer, verdict: null };
  if (name) { // why a version cannot reach the target stands among the notices
    const [unreachable] = answer.notices.filter((notice) => notice.startsWith(UNREACHABLE));
    const notices = answer.notices.filter((notice) => notice !== unreachable);
    return { ...answer, notices, verdict: { ...answer.threshold, match: answer.match, why: unreachable?.slice(`${UNREACHABLE}:${name}: `.length) } };
  }
  const { target } = wanted;
  const none = (why, way) => ({ ...answer, verdict: { target, match: null, why, way } });
  try {
    const advised = await call("GET", `${path("domains", reference, "threshold")}?${query(target)}`, { signal });
    if (advised.version !== answer.version) return none("Another version was put in use meanwhile; score again.");
    const match = pairs.map((_, row) => answer.similarity[row] >= advised.similarity && !isUnreadable(answer, row));
    return { ...answer, verdict: { target, similarity: advised.similarity, match } };
  } catch (error) {
    if (!(error instanceof Refused) || error.status === 401) throw error;
    return none(error.message, wayOut(error));
  }
}

const isUnreadable = ({ flags: all }, row) => Object.values(all[row]).some((found) => found.includes("unreadable"));

function verdictOf({ match }, row) {
  if (!match) return "–";
  return h("span", { class: `match ${match[row] ? "yes" : "no"}` }, h("span", { "aria-hidden": "true" }, match[row] ? "✓ " : "✕ "), match[row] ? "match" : "no match");
}

function verdictLine({ domain, version, verdict }, digits) {
  const what = `${verdict.name ? `${verdict.name}, ` : ""}${describeTarget(verdict.target)}`;
  if (!verdict.match) return h("p", { class: "verdict warn" }, `${domain}@${version}: no verdict for ${what}. ${verdict.why ? sentence(plainly(verdict.why)) : ""} `, verdict.way);
  const from = `a similarity of at least ${score(verdict.similarity, digits)}`;
  return h("p", { class: "verdict" }, `${domain}@${version}: a match has ${from} (${what}).`);
}

/** The answers as one table, the highest first; a line for each pair and version. */
function scores(pairs, asked, answers) {
  const order = pairs.map((_, index) => index);
  order.sort((i, j) => isUnreadable(answers[0], i) - isUnreadable(answers[0], j) || answers[0].similarity[j] - answers[0].similarity[i]);
  const any = (of) => answers.some(of);
  const graded = any(({ notices }) => notices.some((notice) => notice.startsWith("probability_is_mean_grade")));
  const doubtful = !graded && any(({ verdict, probability }) => verdict?.match && probability?.some((share, row) => verdict.match[row] && share < LIKELY));
  const both = any((answer) => answer.percentile && answer.probability);
  const near = any(({ verdict, similarity }) => verdict?.match && similarity.some((one) => Math.abs(one - verdict.similarity) < 0.005));
  const digits = near ? 4 : 2; // so that a number does not seem to contradict its verdict
  const columns = [
    [term("calibrated similarity", "Similarity"), (answer, row) => score(answer.similarity[row], digits)],
    any((answer) => answer.percentile) && [term("percentile", "Percentile"), (answer, row) => (answer.percentile ? rarity(answer, row) : "–")],
    any((answer) => answer.probability) && [graded ? "Mean grade (0–1)" : term("probability", "Probability"), (answer, row) => {
      if (!answer.probability) return "–";
      return graded ? score(answer.probability[row], 2) : roughly(answer.probability[row]);
    }],
    any(({ verdict }) => verdict?.match) && ["Verdict", ({ verdict }, row) => (verdict ? verdictOf(verdict, row) : "–")],
    any(({ flags: all }) => all.some(({ a, b }) => a.length || b.length)) && ["Flags", (answer, row) => flags(answer.flags[row])],
  ].filter(Boolean);
  const two = answers.length > 1;
  const heads = ["Compared with", term("uncorrected similarity", "Uncorrected"), two && "Scored by", ...columns.map(([head]) => head)].filter(Boolean);
  const rows = order.flatMap((row) => answers.map((answer, index) => h("tr", { class: index ? "" : "first" },
    !index && h("th", { scope: "rowgroup", rowspan: String(answers.length), class: "sample", dir: "auto" }, pairs[row][1]),
    !index && h("td", { rowspan: String(answers.length) }, score(answers[0].cosine[row], digits)),
    two && h("td", {}, `${answer.domain}@${answer.version} `, h("span", { class: "muted small" }, answer.method)),
    columns.map(([, cell]) => h("td", {}, cell(answer, row))))));
  const met = Object.keys(FLAGS).filter((flag) => any(({ flags: all }) => all.some(({ a, b }) => a.includes(flag) || b.includes(flag))));
  return [h("section", { class: "card", "aria-labelledby": "scores-heading" },
    h("h2", { id: "scores-heading" }, "Scores"),
    h("p", {}, "“", h("bdi", { class: "sample" }, pairs[0][0]), "”", two ? "" : h("span", { class: "muted" }, ` scored by ${answers[0].domain}@${answers[0].version}`)),
    ...answers.filter(({ verdict }) => verdict).map((answer) => verdictLine(answer, digits)),
    table("Scores", heads.map((head) => h("th", { scope: "col" }, head)), rows, { class: "scores stacked" }),
    doubtful && h("p", { class: "verdict warn" }, "Some pairs are called a match though their probability is below 50 %: this threshold lets through more false pairs like them than true ones. Ask for a precision to be stricter."),
    both && h("p", {}, "Percentile and probability answer different questions: the percentile compares a pair with random pairs, nearly all of them unrelated; the probability says how often a pair with this similarity is a match among pairs like the labelled ones."),
    ...met.map((flag) => h("p", { class: "muted" }, `${flag.replaceAll("_", " ")}: ${FLAGS[flag]}.`)),
    ...answers.flatMap((answer, index) => answer.notices.map((notice) => h("p", { class: "muted" }, explainNotice(notice, asked[index])))),
  )];
}

function rarity({ percentile: shares, extrapolated, detail }, row) {
  const share = shares[row];
  return h("span", { class: "rarity" }, percentile(share, extrapolated?.[row], detail.pairs),
    share > 0.5 && h("span", { class: "muted small under" }, `${oneIn(share, detail.pairs)} as high`));
}

function flags(sides) {
  const found = [["a", "first"], ["b", "second"]].flatMap(([side, name]) => sides[side].map((flag) => badge(`${name}: ${flag.replaceAll("_", " ")}`, "warn", FLAGS[flag])));
  return found.length ? h("span", { class: "flags" }, found) : "–";
}

function explainNotice(notice, reference) {
  const [kind, detail] = notice.split(":");
  if (kind === "no_reference") return `${reference} was not calibrated with text of its own. Calibrate it to get percentiles.`;
  if (kind === "probability_is_mean_grade") return `${reference} was given grades of ${detail}; the mean grade stands on a scale of 0–1.`;
  return `${reference}: ${plainly(notice)}`;
}
