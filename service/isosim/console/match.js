/** One match: followed while it runs; then what a target lets pass and what that is worth, pairs to judge, downloads. */

import { alertBox, attempt, say } from "./alerts.js";
import { call, download, path, Refused } from "./api.js";
import { action, badge, button, fault, field, h, refill, select, table } from "./dom.js";
import { count, counted, dated, percent, plainly, roughly, score, sentence } from "./format.js";
import { parseLines, typeOf } from "./intake.js";
import { ACTIVE, follow, progress } from "./job.js";
import { scores } from "./histogram.js";
import { ENOUGH, forget, goalOf, judging, unlike, wantedKey } from "./judging.js";
import { nameOf, removeMatch } from "./matches.js";

const WAIT = 400; // ms after the last key stroke in the target
const LEARNT = 1500; // ms after the last judgement until the answer is read again
const EVERY = 15000; // ms between looks at what was judged elsewhere
const MOST_JUDGED = 1000; // judgements up to which those made elsewhere are noticed
const SHOWN = 50; // pairs in the table, and more with each press
const COPIES = 1000; // rows that repeat a text, up to which their number stands beside each pair
const EXACT = 0.1; // width up to which the interval of the precision is shown as good
const ROUGH = 0.4; // width from which on the judgements are too few; unmeasured
const KINDS = {
  precision: { label: "How many should be right", hint: "Of 100 pairs that pass, so many should mean the same (the precision).", read: (text) => Number(text) / 100, valid: (value) => value >= 0.1 && value < 1, fault: "Give per cent: from 10 to below 100, for example 80." },
  surely: { label: "How many should surely be right", hint: "As above, but with 95 % certainty: the lower end of the interval reaches it.", read: (text) => Number(text) / 100, asks: (value) => ({ precision: value, confidence: 0.95 }), valid: (value) => value >= 0.1 && value < 1, fault: "Give per cent: from 10 to below 100, for example 80." },
  similarity: { label: "How alike they must be", hint: "The lowest similarity that passes; 1 is the same text.", read: Number, valid: (value) => value >= -1 && value <= 1, fault: "Give a number from −1 to 1." },
};
const SHOWS = { passing: "Pairs that pass", judged: "Judged pairs" };
const FORMS = { pairs: "Pairs, the most alike first", best: "Each row with its best match", clusters: "Groups of rows" };
const FORMATS = { xlsx: "Excel workbook", csv: "CSV", ndjson: "Lines of JSON" };

export async function openMatch([id, ...wanted], context) {
  const where = path("matches", id);
  const first = await call("GET", where, { signal: context.signal }).catch((error) => {
    if (error instanceof Refused && error.status === 404) return null;
    throw error;
  });
  if (!first) return gone(id, context);
  const [place, lost, early] = [1, 2, 3].map(() => h("div", { class: "stack" }));
  let live = null;

  async function show(match) {
    lost.replaceChildren();
    if (ACTIVE.has(match.status)) {
      if (!live) place.replaceChildren(h("section", { class: "card" }, live = progress(async () => { if (await removeMatch(match, context)) context.reload(); })), early);
      live.update(match);
      if (match.best?.length) early.replaceChildren(...bestSoFar(match.best));
    } else if (match.status === "succeeded") {
      const whole = match.answer ? match : await call("GET", where, { signal: context.signal });
      place.replaceChildren(...resultOf(whole, wanted, context));
    } else {
      place.replaceChildren(h("section", { class: "card" },
        match.status === "failed" ? h("div", { class: "alert" }, h("p", {}, h("strong", {}, "It has failed. "), sentence(plainly(match.error)))) : h("p", {}, "This match was cancelled, and its texts are deleted."),
        h("div", { class: "buttons" }, action("Find other matches", "#/", { class: "button primary" }))));
    }
  }

  await show(first);
  if (ACTIVE.has(first.status)) follow(where, show, lost, "It goes on, or begins again when the server is back", context);
  return [
    h("p", { class: "trail" }, h("a", { href: "#/" }, "Find matches"), " / ", id.slice(0, 8)),
    h("h1", {}, `Matches in ${nameOf(first)}`),
    place, lost,
  ];
}

/** The page of a match that was deleted. */
function gone(id, { server }) {
  if (!server.keys) forget(id); // else it may be there for another key
  return [h("h1", {}, "This match is not there any more"), h("section", { class: "card" },
    h("p", {}, `It was deleted, or not used for so long that its texts were removed${server.keys ? ", or it belongs to another key" : ""}. The same file makes it anew; labels that were downloaded can be used again.`),
    h("div", { class: "buttons" }, action("Find matches", "#/", { class: "button primary" })))];
}

function bestSoFar(pairs) {
  const cell = (text) => h("td", { class: "sample", dir: "auto" }, text);
  const rows = pairs.slice(0, SHOWN).map(({ row_a, row_b, a, b }) => [`${count(row_a)} and ${count(row_b)}`, cell(a), cell(b)]);
  return [
    h("h2", {}, "The most alike so far"),
    h("p", { class: "muted" }, "Among the texts that are read already. More follow, and then how alike they are."),
    table("The most alike so far", ["Rows", "A text", "Another text"], rows, { class: "stacked found" }),
  ];
}

/** Everything about a match that has succeeded. `wanted`: the target's kind and value, as the address has them. */
function resultOf(match, [wantedKind, wantedValue], context) {
  const { signal } = context;
  const where = path("matches", match.job);
  const state = { asked: {}, learnt: match.answer.precision !== null, latest: 0, shown: SHOWN, out: new Map(), answer: match.answer, timer: 0 };
  const copies = match.copies.length === 1 ? match.copies[0] : 0;
  const until = h("time", {});

  const remembered = wantedKey(match.job);
  let share = "90"; // in per cent, as asked for last
  const kind = select(Object.entries(KINDS).map(([name, { label }]) => [name, label]), "precision", { onchange: () => ask(kind.value === "similarity" ? score(state.answer?.adjusted === false ? state.answer.similarity : 0.9, 2) : share) });
  const input = h("input", { type: "number", step: "any", inputmode: "decimal", value: share, oninput: later });
  const [thenKind, thenValue] = wantedKind in KINDS && wantedValue ? [wantedKind, wantedValue] : (localStorage.getItem(remembered) ?? "").split(" ");
  if (thenKind in KINDS) [kind.value, input.value] = [thenKind, thenValue];
  const wanted = field("Wanted", input, KINDS[kind.value].hint);
  const [tile, rest] = [h("div", { class: "tile", role: "status" }), h("details", { class: "stack small" })];
  const judge = judging({
    job: match.job, judged: match.judged, recall: Boolean(match.scale.domain), // a domain's labels have to tell of all similarities
    target: () => (target()?.precision ? { precision: target().precision } : state.asked),
    changed: (answer) => {
      tellUntil(answer.until);
      clearTimeout(state.timer);
      state.timer = setTimeout(read, LEARNT);
    },
  }, context);
  const picture = scores(match.histogram, match.floor, (similarity) => {
    kind.value = "similarity";
    ask(score(similarity, 2));
  }, signal);
  const pairs = h("div", { class: "stack" });
  const shown = select(Object.entries(SHOWS), "passing", { onchange: later });
  const own = h("p", { class: "muted small" });
  const [lead, hold] = [h("p", { class: "muted" }), h("p", { class: "verdict warn", role: "status", hidden: true }, "No pairs reach what is asked for above: ask for less, or judge more pairs.")];
  const form = select(Object.entries(FORMS).filter(([name]) => name !== "clusters" || match.rows.length === 1), "pairs", { onchange: describe });
  const content = field("Content", form, "");
  const format = select(Object.entries(FORMATS), "xlsx");
  const save = button("Download", () => store(form.value, format.value, state.asked, save), { class: "primary" });
  const saveLabels = button("Download labels", () => store("judged", "csv", {}, saveLabels));
  const earlier = h("input", { type: "file", accept: ".csv,.tsv,.xlsx,.ndjson", onchange: () => earlier.files.length && attempt(context, "The labels were not taken over", takeOver, earlier) });
  const { domain } = match.scale;
  const use = domain && button(`Use these labels for ${domain}`, () => useLabels());

  /** What the chosen content holds. */
  function describe() {
    const { passing, left_out: out, confirmed_below: below, adjusted } = state.answer ?? {};
    content.querySelector(".hint").textContent = form.value === "clusters" ? "A text is in a group only if it is as alike as asked for to the group as a whole." : "";
    form.options[0].textContent = adjusted ? "Pairs, the surest first" : FORMS.pairs;
    own.textContent = !state.answer ? "" : [
      `The file ${form.value === "pairs" ? "has" : "is made of"} ${counted(passing, "pair")}${below ? `: ${count(passing - below)} above the line and ${count(below)} below it that you judged the same` : ""}.`,
      copies && `Before them, ${counted(copies, "row repeats", "rows repeat")} a text word for word.`,
      out && `${count(out)} above the line ${out === 1 ? "is" : "are"} left out because you judged ${out === 1 ? "it" : "them"} different.`].filter(Boolean).join(" ");
  }

  const stale = (on) => [tile, pairs].forEach((part) => part.classList.toggle("stale", on));

  function tellUntil(time) {
    until.dateTime = time;
    until.textContent = dated(time);
  }

  /** The target as parameters of the service; null where none is given rightly. */
  function target() {
    const value = input.value === "" ? NaN : KINDS[kind.value].read(input.value);
    const { valid, asks = () => ({ [kind.value]: value }) } = KINDS[kind.value];
    return valid(value) ? asks(value) : null;
  }

  function ask(value) {
    input.value = value;
    wanted.querySelector(".hint").textContent = KINDS[kind.value].hint;
    later();
  }

  function later() {
    state.latest += 1; // an answer on its way holds for another target, as does what is said below
    state.out.clear();
    stale(true);
    save.disabled = true;
    fault(input, target() ? "" : KINDS[kind.value].fault);
    if (target()) {
      if (kind.value !== "similarity") share = input.value;
      localStorage.setItem(remembered, `${kind.value} ${input.value}`);
      history.replaceState(null, "", `#/matches/${match.job}/${kind.value}/${input.value}`);
    }
    clearTimeout(state.timer);
    state.timer = setTimeout(read, WAIT);
  }

  const stateFor = (asked) => call("GET", `${where}?${new URLSearchParams(asked)}`, { signal });

  /** What the target lets pass; without enough judgements a precision is not claimed, and as many pairs as texts pass. */
  async function read() {
    clearTimeout(state.timer);
    const asked = target();
    if (!asked || signal.aborted) return;
    state.latest += 1;
    const mine = state.latest;
    try {
      let [found, used] = [null, asked];
      if (asked.precision && !state.learnt) [found, used] = [await stateFor({}), {}];
      if (found && found.answer.precision !== null) [found, used] = [null, asked];
      found ??= await stateFor(used).catch((error) => {
        if (error instanceof Refused && error.status === 422) return { error }; // no similarity reaches it
        if (!(error instanceof Refused && error.status === 409)) throw error; // a judgement was taken back
        used = {};
        return stateFor(used);
      });
      if (mine !== state.latest) return;
      const whole = found.error ? await stateFor({}) : found;
      if (mine !== state.latest) return;
      state.learnt = whole.answer.precision !== null;
      Object.assign(state, { asked: found.error ? null : used, answer: found.error ? null : whole.answer });
      tellUntil(whole.until);
      tile.replaceChildren(...(found.error ? unreachable(whole, found.error) : answerOf(whole)));
      rest.hidden = Boolean(found.error);
      describe();
      picture.show(whole.histogram, state.answer);
      await list(mine, whole);
      if (mine !== state.latest) return;
      state.failed = false;
      stale(false);
      hold.hidden = !(save.disabled = !state.asked);
      saveLabels.disabled = !whole.judged;
      if (use) use.disabled = whole.judged < context.server.fewest_labels;
    } catch (error) {
      if (signal.aborted || mine !== state.latest || lost(error)) return;
      state.failed = true;
      tile.replaceChildren(alertBox("The answer could not be read", error, read));
    }
  }

  /** Whether an error is the end of this view: another key is needed, or the match was deleted. */
  function lost(error) {
    const deleted = error instanceof Refused && error.status === 404;
    if (deleted) context.reload();
    return deleted || context.refused(error);
  }

  const rowsOf = async (asked) => parseLines(await (await download("GET", `${where}/result?${new URLSearchParams(asked)}`, { signal })).text());

  const judgedRows = () => rowsOf({ form: "judged", at_most: Math.max(MOST_JUDGED, state.shown) });

  /** Reads everything again if pairs were judged in another tab or by someone else, or if it could not be read. */
  async function look() {
    if (document.hidden || signal.aborted) return;
    try {
      const rows = await judgedRows();
      if (state.failed || judge.seen() !== judge.print(rows)) read();
    } catch (error) {
      if (!signal.aborted) lost(error); // without an answer, the next look tells
    }
  }

  const toJudge = (label, first) => button(label, () => {
    judge.element.scrollIntoView({ block: "start" });
    judge.element.focus({ preventScroll: true });
  }, { class: first ? "primary" : "" });

  function unreachable({ answer: { judged, chosen } }, { remedy }) {
    const { precision, pairs: passing } = remedy?.arguments ?? {};
    const [early, highest, surely] = [judged - chosen < ENOUGH, precision && Number((100 * precision).toPrecision(4)), kind.value === "surely"];
    const less = precision && button(`Ask for ${highest} %`, () => ask(highest), { class: early ? "" : "primary" });
    return [
      h("p", { class: "big" }, "No pairs ", badge(early ? "too early to tell" : "out of reach", "warn")),
      h("p", {}, `At no line are ${surely ? "surely " : ""}${input.value} % of the pairs right after ${counted(judged - chosen, "judgement")}${precision ? `; the highest that is ${surely ? "sure" : "likely"} is ${highest} %, with ${passing} pairs` : ""}; more judgements may reach it.`),
      h("p", {}, h("strong", {}, "Next step: "), `${early || !precision ? "" : "ask for less, or "}judge more pairs.`),
      h("div", { class: "buttons" }, early && toJudge("Judge pairs", true), less, !early && toJudge("Judge pairs", !less)),
    ];
  }

  /** One number, one word of confidence, what is false, what is missed, and the next step; the rest stands under Details. */
  function answerOf({ answer }) {
    const { passing, confirmed, precision, precision_interval: interval, expected_false: wrong, expected_false_interval: wrongs, recall, recall_interval: recalls, judged, chosen } = answer;
    const notices = answer.notices.filter((notice) => !notice.startsWith("not judged")).map((notice) => h("p", { class: "verdict warn" }, sentence(plainly(notice))));
    const [known, width, drawn] = [precision !== null && interval !== null, interval ? interval[1] - interval[0] : 1, judged - chosen];
    const [unjudged, rare, whole] = [drawn ? "Not judged enough" : "Not judged", known && precision < 0.5, (part) => percent(Math.round(part * 100) / 100)];
    const [ready, goal] = [known && !rare && drawn >= Math.min(ENOUGH, match.candidates), goalOf(drawn)];
    const wide = (judgements) => Math.round((Math.round(100 * interval[1]) - Math.round(100 * interval[0])) * Math.sqrt(drawn / judgements)); // an interval shrinks as 1 / √judgements
    rest.replaceChildren(h("summary", {}, "Details"),
      h("p", {}, `${answer.adjusted ? "Similarity less what other words take away" : "Similarity"} from ${score(answer.similarity, 2)} on; ${answer.matched_rows.map((found, file) => `${count(found)} of ${counted(match.rows[file], "row")}${match.files.length > 1 ? ` of ${match.files[file]}` : ""}`).join(" and ")} in a pair. You judged ${count(confirmed)} of the ${counted(passing, "pair")} the same: ${count(confirmed - answer.confirmed_below)} above the line and ${count(answer.confirmed_below)} below it.`),
      h("p", {}, `All matches: those among the ${counted(match.candidates, "most alike pair")}. From ${counted(drawn, "judgement")}${chosen ? `; besides, ${counted(chosen, "pair")} judged in the list, which tell${chosen === 1 ? "s" : ""} nothing of the others` : ""}.`));
    return [
      h("p", { class: "big" }, h("strong", {}, known || kind.value === "similarity" ? counted(passing, "pair") : `${unjudged} yet`), " ",
        kind.value === "similarity" && !known && badge(unjudged.toLowerCase(), "warn"), known && badge(rare ? "mostly false" : width > ROUGH ? "too few judgements" : `${whole(interval[0])} to ${whole(interval[1])} are right`, rare || width > ROUGH ? "bad" : width > EXACT ? "warn" : "good")),
      known ? h("p", {}, `Between ${whole(interval[0])} and ${whole(interval[1])} of them are right (with 95 % certainty), most likely ${whole(precision)}: about ${count(Math.round(wrong))} are false (${count(Math.round(wrongs[0]))} to ${count(Math.round(wrongs[1]))}).`)
        : h("p", {}, `How many of ${kind.value === "similarity" ? "these" : "the most alike"} pairs mean the same is unknown.`),
      known && h("p", {}, `They are ${whole(recall ?? 0)} of all matches${recalls ? ` (${whole(recalls[0])} to ${whole(recalls[1])})` : ""}; ${missedOf(answer)}.`),
      answer.adjusted && h("p", { class: "verdict" }, `From ${domain ? "labels" : "your judgements"} it has learned which words matter, so the line no longer tells alone which pairs pass: “How sure” in the list does.`),
      ...notices,
      h("p", {}, h("strong", {}, "Next step: "), rare ? "ask for more that are right: move the line to the right."
        : ready ? `download the pairs${goal > match.candidates ? "." : `, or judge on: after ${count(goal - drawn)} more (${count(goal)} in all) the range of what is right is expected to be about ${wide(goal)} points wide instead of ${wide(drawn)}, after ${count(2 * goal - drawn)} more about ${wide(2 * goal)}.`}`
          : drawn < ENOUGH ? `judge ${drawn ? `${count(ENOUGH - drawn)} more` : `about ${ENOUGH} pairs`}.` : "judge on, until there are some that mean the same and some that do not."),
      h("div", { class: "buttons" }, ready && button("To the downloads", () => { save.scrollIntoView({ block: "center" }); save.focus(); }, { class: "primary" }), toJudge(ready ? "Judge more pairs" : "Judge pairs", !ready)),
    ].filter(Boolean);
  }

  /** The pairs that pass, or those that are judged, and beside each how many rows have its texts. */
  async function list(mine, { judged }) {
    const learn = judge.reading();
    const rows = await judgedRows();
    if (mine !== state.latest) return;
    if (rows.length < MOST_JUDGED) learn(rows);
    const passing = shown.value === "passing";
    if (passing && !state.asked) {
      pairs.replaceChildren(h("p", { class: "muted" }, "No pair passes."));
      lead.textContent = "";
      return;
    }
    const found = passing
      ? await rowsOf({ ...state.asked, skip: copies, at_most: state.shown })
      : rows.slice(0, state.shown).map((row) => ({ ...row, text_a: row.a, text_b: row.b }));
    const repeated = new Map();
    if (copies && copies <= COPIES) for (const { row_a: row } of await rowsOf({ similarity: 1, at_most: copies })) repeated.set(row, (repeated.get(row) ?? 1) + 1);
    if (mine !== state.latest) return;
    const every = passing ? state.answer.passing : judged;
    lead.textContent = `${found.length < every ? `The first ${count(found.length)} of ${counted(every, "pair")}` : counted(every, "pair")}, the ${passing && state.answer.adjusted ? "surest" : "most alike"} first.${passing && copies ? ` Besides, ${counted(copies, "row repeats", "rows repeat")} a text word for word; the downloads begin with them.` : ""}`;
    const times = (row) => repeated.get(row) ?? 1;
    const [one, other] = match.files.length > 1 ? match.files.map((name) => `Text of ${name}`) : ["One text", "Another text"];
    const whole = found.length >= every;
    if (passing) [...state.out].sort(([x], [y]) => x - y).forEach(([at, row]) => found.some(({ pair }) => pair === row.pair) || found.splice(at, 0, row));
    const known = passing && state.answer.precision !== null;
    const body = found.map((row, at) => h("tr", {},
      h("td", { class: "number" }, score(row.similarity, 2)), known && h("td", { class: "number" }, roughly(row.probability)),
      h("td", { class: "sample", dir: "auto" }, unlike(row.text_a, row.text_b)), h("td", { class: "sample", dir: "auto" }, unlike(row.text_b, row.text_a)),
      verdict(row, at),
      h("td", {}, row.numbers_differ && badge("other numbers", "warn"), row.negation_differs && badge("negation", "warn"),
        (repeated.has(row.row_a) || repeated.has(row.row_b)) && badge(`in ${times(row.row_a)} and ${counted(times(row.row_b), "row")}`))));
    const more = !whole && button("Show more pairs", async () => {
      state.shown += SHOWN;
      read();
    }, { "aria-label": "Show more pairs" }); // by which it keeps the focus
    const heads = [...(known ? ["Similarity", "How sure"] : ["Similarity"]).map((name) => h("th", { scope: "col", class: "number" }, name)), one, other, "Your judgement", "Notes"];
    refill(pairs, found.length ? table(SHOWS[shown.value], heads, body, { class: `stacked found ${shown.value}` }) : h("p", { class: "muted" }, passing ? "No pair passes." : "No pair is judged."), more || "");
  }

  /** A pair's judgement, which can be changed, or two buttons to judge it. A row that is left out stays until the target changes. */
  function verdict(row, at) {
    const cell = h("td", {});
    function say(label) {
      judge.choose(row.pair, label);
      if (label === 0) state.out.set(at, row);
      else state.out.delete(at);
      show();
      cell.querySelector("button, select").focus();
    }
    function show() {
      const label = judge.labelOf(row.pair, row.label);
      cell.replaceChildren(label === null
        ? h("div", { class: "buttons tight" }, [["Same", 1], ["Different", 0]].map(([word, given]) => button(word, () => say(given), { "aria-label": `${word}: pair ${row.pair + 1}` })))
        : select([["1", "same"], ["0", "different"], ["", "not judged"]], String(label), { class: `badge ${label ? "good" : "bad"}`, "aria-label": `Judgement of pair ${row.pair + 1}`, onchange: ({ target: { value } }) => say(value ? Number(value) : null) }));
    }
    show();
    return cell;
  }

  /** Downloads what holds now, which may be other than what the page has read. */
  async function store(what, type, asked, control) {
    await attempt({ signal, refused: lost }, "Nothing was downloaded", () => fetched(what, type, asked), control, "Fetching…");
    save.disabled = !state.asked || tile.classList.contains("stale");
    look();
  }

  async function fetched(what, type, asked) {
    const content = await download("GET", `${where}/result?${new URLSearchParams({ ...asked, form: what, format: type })}`, { signal });
    const address = URL.createObjectURL(content);
    h("a", { href: address, download: `${nameOf(match).replace(/\.[^. ]*$/, "")} ${what === "judged" ? "labels" : what}.${type}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 0);
  }

  /** Judges the pairs whose texts were judged in an earlier match. */
  async function takeOver() {
    fault(earlier, "");
    const [file] = earlier.files;
    const [head, ...rows] = parseLines(await (await download("POST", "inspect?give=rows", { body: file, headers: { "content-type": typeOf(file.name) }, signal })).text());
    const [a, b, label, chosen] = ["a", "b", "label", "chosen"].map((name) => head.indexOf(name));
    const labels = rows.map((row) => ({ a: row[a], b: row[b], label: Number(row[label]), chosen: row[chosen] === "1" }));
    if ([a, b, label].includes(-1)) return void fault(earlier, "It has no columns a, b and label: choose a file that “Download labels” has made.");
    const { unknown } = await call("POST", `${where}/labels`, { json: { labels }, signal });
    say(`${counted(labels.length - unknown, "label")} of ${count(labels.length)} taken over.${unknown ? " The texts of the others are not among these pairs." : ""}`);
    read();
  }

  /** The judged pairs become labels of the domain whose scale this match has. */
  const useLabels = () => attempt(context, `The labels were not given to ${domain}`, async () => {
    const judged = await rowsOf({ form: "judged" });
    const body = judged.map(({ a, b, label, weight }) => `${JSON.stringify({ a, b, label, weight })}\n`).join("");
    const { job } = await call("POST", path("domains", domain, "labels"), { body, headers: { "content-type": "application/x-ndjson" }, signal });
    location.hash = `#/job/${job}`;
  }, use);

  tellUntil(match.until);
  document.addEventListener("visibilitychange", look, { signal });
  window.addEventListener("focus", look, { signal });
  const looking = setInterval(look, EVERY);
  signal.addEventListener("abort", () => clearInterval(looking));
  requestAnimationFrame(read); // once the view stands in the page
  const texts = match.distinct.map((number) => counted(number, "different text")).join(" and ");
  return [
    ...match.notices.map((notice) => h("p", { class: "verdict warn" }, sentence(plainly(notice)))),
    judge.element, // above all that changes with a judgement, so that it stays where it is
    h("section", { class: "card", "aria-labelledby": "answer" }, h("h2", { id: "answer" }, "What passes"),
      h("p", { class: "muted" }, `${texts}; ${counted(match.pairs, "pair")} compared${domain ? ` on the scale of ${domain}` : ""}, started ${dated(match.created)}.`),
      picture.element, h("div", { class: "row" }, field("Ask for", kind, ""), wanted), tile, rest),
    h("section", { class: "card", "aria-labelledby": "save" }, h("h2", { id: "save" }, "Download"),
      h("div", { class: "row" }, content, field("Format", format, "A workbook opens in every Excel; a CSV has commas."), h("div", { class: "buttons" }, save)), hold, own,
      h("p", {}, "Texts, pairs and your labels stay on the server until ", until, "; each use extends that. Labels that are downloaded can be given to a later match, here, or to a domain, under Calibrate."),
      h("div", { class: "buttons" }, saveLabels, use, button("Delete this match", async () => { if (await removeMatch(match, context)) location.hash = "#/"; }, { class: "danger quiet" })),
      h("details", {}, h("summary", {}, "Labels of an earlier match"), field("File of labels", earlier, "Pairs of the same texts are judged here as they were there.")),
      use && h("p", { class: "muted small" }, `From ${context.server.fewest_labels} judged pairs on, ${domain} can take them: a new version with these labels is made, in place of earlier labels.`)),
    h("section", { class: "card", "aria-labelledby": "pairs" }, h("h2", { id: "pairs" }, "Pairs"), field("Show", shown, "Is a pair plainly wrong or right? Say so here: it is then in no download, or in all. The share that is right is told by the pairs judged at the top alone."), lead, pairs),
  ];
}

/** How many matches the target does not let pass, as far as the share that is found tells. */
function missedOf({ passing, expected_false: wrong, recall, recall_interval: recalls }) {
  const at = (share) => count(Math.round((passing - wrong) * (1 / share - 1)));
  if (!recall) return "the others are missed";
  return `about ${at(recall)} are missed${recalls && recalls[0] > 0 ? ` (${at(recalls[1])} to ${at(recalls[0])})` : ""}`;
}

