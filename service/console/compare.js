/** Try it: sentences scored in one version, or side by side in two. */

import { report } from "./alerts.js";
import { call } from "./api.js";
import { badge, fault, field, h, table } from "./dom.js";
import { count, oneIn, percent, score } from "./format.js";
import { page, typed, withNamed } from "./listing.js";

const SOME = 200; // domains offered in a list
const EXAMPLE = {
  a: "A man is playing a guitar.",
  b: ["Someone plays an instrument.", "A person strums a guitar on stage.", "A man is not playing a guitar.", "Shares fell in London."].join("\n"),
};
const FLAGS = {
  truncated: "cut off: longer than the encoder reads",
  unreadable: "the encoder knows no word of it, so that its scores mean nothing",
  out_of_domain: "does not look like the domain's text",
};

export async function openCompare([left = "default", right = ""], context) {
  const { server, signal } = context;
  const listed = await page(context, { limit: SOME });
  const domains = await withNamed(listed, [left, right], context);
  const mode = (value, label, checked) => h("label", { class: "choice" }, h("input", { type: "radio", name: "mode", value, checked, onchange: arrange }), label);
  const one = mode("one", "Two sentences", true);
  const many = mode("many", "One against many");
  const a = h("textarea", { rows: "2", dir: "auto" });
  const b = h("textarea", { rows: "2", dir: "auto" });
  const first = references(domains, left, null);
  const second = references(domains, right, "nothing");
  const find = listed.next !== null && typed(h("input", { type: "search", autocomplete: "off", maxlength: "64" }), async (contains) => {
    try {
      const found = await page(context, { contains, limit: SOME });
      const known = await withNamed(found, [first.value, second.value], context);
      offer(first, known, first.value, null);
      offer(second, known, second.value, "nothing");
    } catch (error) {
      if (!signal.aborted && !context.refused(error)) report("The domains could not be listed", error);
    }
  });
  const score_ = h("button", { type: "submit", class: "primary" }, "Score");
  const results = h("div", { role: "region", "aria-label": "Scores", "aria-live": "polite" });
  const form = h("form", { class: "card", novalidate: true, onsubmit: submit, onkeydown: (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  } },
    h("fieldset", { class: "choices" }, h("legend", {}, "Compare"), one, many),
    h("div", { class: "row even" }, field("Sentence", a, ""), field("With", b, "")),
    find && field("Find a domain", find, "There are more domains than the lists below show; they show those with this in their name."),
    h("div", { class: "row" }, field("Scored by", first, ""), field("Beside it", second, "Another domain or version, to see the difference.")),
    h("div", { class: "buttons" }, score_, h("button", { type: "button", onclick: fill }, "Fill in an example"), h("span", { class: "muted small" }, "Ctrl + Enter scores")));

  const several = () => many.querySelector("input").checked;

  function arrange() {
    b.rows = several() ? 7 : 2;
    document.getElementById(`${b.id}-hint`).textContent = several() ? `One sentence a line, at most ${count(server.limits.pairs)}.` : "";
  }

  function fill() {
    a.value = EXAMPLE.a;
    b.value = several() ? EXAMPLE.b : EXAMPLE.b.split("\n")[0];
    submit();
  }

  async function submit(event) {
    event?.preventDefault();
    const others = (several() ? b.value.split("\n") : [b.value.replaceAll("\n", " ")]).map((text) => text.trim()).filter(Boolean);
    fault(a, a.value.trim() ? "" : "Write a sentence.");
    fault(b, others.length > server.limits.pairs ? `${count(others.length)} sentences; at most ${count(server.limits.pairs)} are scored at once.` : others.length ? "" : "Write a sentence to compare with.");
    const wrong = [a, b].find((control) => control.hasAttribute("aria-invalid"));
    if (wrong) {
      wrong.focus();
      return;
    }
    const pairs = others.map((text) => [a.value.trim(), text]);
    const asked = [first.value, second.value].filter(Boolean);
    score_.disabled = true;
    try {
      const answers = await Promise.all(asked.map((domain) => call("POST", "similarity", { json: { pairs, domain, detail: true }, signal })));
      results.replaceChildren(...scores(pairs, asked, answers, several()));
    } catch (error) {
      if (signal.aborted || context.refused(error)) return;
      results.replaceChildren();
      report("Nothing was scored", error, submit);
    } finally {
      score_.disabled = false;
    }
  }

  return [h("h1", {}, "Try it"), form, results];
}

/** All versions that can answer, by domain, aliases first. */
function references(domains, chosen, none) {
  return offer(h("select", {}), domains, chosen, none);
}

function offer(element, domains, chosen, none) {
  const groups = domains.map(({ domain, champion, previous, versions }) => h("optgroup", { label: domain },
    h("option", { value: domain }, champion ? `${domain}: champion, version ${champion}` : `${domain}: raw cosines`),
    previous && h("option", { value: `${domain}@previous` }, `${domain}: previous, version ${previous}`),
    [...versions].reverse().filter(({ servable }) => servable).map(({ version, method }) => h("option", { value: `${domain}@${version}` }, `${domain}@${version}: ${method}`))));
  element.replaceChildren(...[none && h("option", { value: "" }, none), ...groups].filter(Boolean));
  element.value = chosen;
  if (element.selectedIndex < 0) element.selectedIndex = 0;
  return element;
}

/** The answers as one table, the highest first where there are many; a heading above the columns of each version. */
function scores(pairs, asked, answers, sorted) {
  const order = pairs.map((_, index) => index);
  const unreadable = ({ flags: all }, row) => Object.values(all[row]).some((found) => found.includes("unreadable"));
  if (sorted) order.sort((i, j) => unreadable(answers[0], i) - unreadable(answers[0], j) || answers[0].similarity[j] - answers[0].similarity[i]);
  const columns = answers.map((answer) => [
    ["Similarity", (row) => score(answer.similarity[row], 4)],
    answer.percentile && ["Percentile", (row) => h("span", {}, percent(answer.percentile[row]), h("span", { class: "muted small under" }, `${oneIn(answer.percentile[row], answer.detail.pairs)} as high`))],
    answer.probability && [answer.notices.some((n) => n.startsWith("probability_is_mean_grade")) ? "Mean grade (0–1)" : "Probability", (row) => percent(answer.probability[row])],
    answer.flags.some(({ a, b }) => a.length || b.length) && ["Flags", (row) => flags(answer.flags[row])],
  ].filter(Boolean));
  const upper = h("tr", {}, h("td", {}), h("td", {}),
    answers.map((answer, index) => h("th", { scope: "colgroup", colspan: String(columns[index].length), class: "group" }, `${answer.domain}@${answer.version}`, h("span", { class: "muted" }, ` ${answer.method}`))));
  const made = table("Scores", ["Compared with", "Raw cosine", ...columns.flat().map(([label]) => label)],
    order.map((row) => [h("th", { scope: "row", class: "sample", dir: "auto" }, pairs[row][1]), score(answers[0].cosine[row], 4), ...columns.flat().map(([, cell]) => h("td", {}, cell(row)))]),
    { class: "scores" });
  made.querySelector("thead").prepend(upper);
  return [h("section", { class: "card", "aria-labelledby": "scores-heading" },
    h("h2", { id: "scores-heading" }, "Scores"),
    h("p", {}, "“", h("bdi", { class: "sample" }, pairs[0][0]), "”"),
    made,
    ...answers.flatMap((answer, index) => answer.notices.map((notice) => h("p", { class: "muted" }, explainNotice(notice, asked[index])))),
    h("details", {}, h("summary", {}, "How to read this"), h("ul", {},
      h("li", {}, "Raw cosine: the encoder alone, not comparable between domains."),
      h("li", {}, "Similarity: after the domain's calibration."),
      h("li", {}, "Percentile: the share of random pairs of the domain that score lower; it means the same in every domain. Below it, how rare so high a score is among random pairs."),
      h("li", {}, "Probability: of a match, where the domain was given labelled pairs."))))];
}

function flags(sides) {
  const found = [["a", "first"], ["b", "second"]].flatMap(([side, name]) => sides[side].map((flag) => badge(`${name}: ${flag.replaceAll("_", " ")}`, "warn", FLAGS[flag])));
  return found.length ? h("span", { class: "flags" }, found) : "–";
}

function explainNotice(notice, reference) {
  const [kind, detail] = notice.split(":");
  if (kind === "no_reference") return `${reference} has no scale yet, so there is no percentile: calibrate it with its own text.`;
  if (kind === "percentile_normalized") return `Percentiles of ${reference} compare scores less their texts' usual scores (${detail}).`;
  if (kind === "probability_is_mean_grade") return `${reference} was given grades of ${detail}; the mean grade stands on a scale of 0–1.`;
  return `${reference}: ${notice}`;
}
