/** One match: followed while it runs; then what a target lets pass and what that is worth, pairs to judge, downloads. */

import { alertBox, attempt, say } from "./alerts.js";
import { call, download, path, Refused } from "./api.js";
import { action, badge, button, fault, field, h, refill, select, table } from "./dom.js";
import { count, counted, dated, percent, plainly, range, score, sentence } from "./format.js";
import { parseLines, typeOf } from "./intake.js";
import { ACTIVE, follow, progress } from "./job.js";
import { scores } from "./histogram.js";
import { ENOUGH, forget, judging, unlike, wantedKey } from "./judging.js";
import { nameOf, removeMatch } from "./matches.js";

const WAIT = 400; // ms after the last key stroke in the target
const LEARNT = 1500; // ms after the last judgement until the answer is read again
const EVERY = 15000; // ms between looks at what was judged elsewhere
const MOST_JUDGED = 1000; // judgements up to which those made elsewhere are noticed
const SHOWN = 50; // pairs in the table, and more with each press
const COPIES = 1000; // rows that repeat a text, up to which their number stands beside each pair
const SURE = 0.2; // width of the interval of the precision at which the server asks for no more judgements
const UNSURE = 0.25; // width above which "sure" is withdrawn: in 30 simulated matches 1 time in place of 15
const ROUGH = 0.4; // width from which on the labels are too few; unmeasured
const KINDS = {
  precision: { label: "How many should be right", first: "90", hint: "Of 100 pairs that pass, so many should mean the same (the precision).", read: (text) => Number(text) / 100, valid: (value) => value >= 0.1 && value < 1, fault: "Give per cent: from 10 to below 100, for example 80." },
  surely: { label: "How many should surely be right", first: "80", hint: "As above, but with 95 % certainty: the lower end of the interval reaches it.", read: (text) => Number(text) / 100, asks: (value) => ({ precision: value, confidence: 0.95 }), valid: (value) => value >= 0.1 && value < 1, fault: "Give per cent: from 10 to below 100, for example 80." },
  similarity: { label: "How alike they must be", first: "0.9", hint: "The lowest similarity that passes; 1 is the same text.", read: Number, valid: (value) => value >= -1 && value <= 1, fault: "Give a number from −1 to 1." },
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
  const state = { asked: {}, learnt: match.answer.precision !== null, latest: 0, shown: SHOWN, out: new Map(), answer: match.answer, timer: 0, sure: false, surest: null };
  const copies = match.copies.length === 1 ? match.copies[0] : 0;
  const until = h("time", {});

  const remembered = wantedKey(match.job);
  const last = { precision: KINDS.precision.first, surely: KINDS.surely.first };
  const kind = select(Object.entries(KINDS).map(([name, { label }]) => [name, label]), "precision", { onchange: () => ask(kind.value === "similarity" ? score(state.answer?.adjusted === false ? state.answer.similarity : 0.9, 2) : last[kind.value]) });
  const input = h("input", { type: "number", step: "any", inputmode: "decimal", value: KINDS.precision.first, oninput: later });
  const [thenKind, thenValue] = wantedKind in KINDS && wantedValue ? [wantedKind, wantedValue] : (localStorage.getItem(remembered) ?? "").split(" ");
  if (thenKind in KINDS) [kind.value, input.value, last[thenKind]] = [thenKind, thenValue, thenValue];
  const wanted = field("Wanted", input, KINDS[kind.value].hint);
  const [tile, rest] = [h("div", { class: "tile", role: "status" }), h("div", { class: "stack small" })];
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
  const form = select(Object.entries(FORMS).filter(([name]) => name !== "clusters" || match.rows.length === 1), "pairs");
  const format = select(Object.entries(FORMATS), "xlsx");
  const save = button("Download", () => store(form.value, format.value, state.asked, save), { class: "primary" });
  const saveLabels = button("Download labels", () => store("judged", "csv", {}, saveLabels));
  const earlier = h("input", { type: "file", accept: ".csv,.tsv,.xlsx,.ndjson", onchange: () => earlier.files.length && attempt(context, "The labels were not taken over", takeOver, earlier) });
  const { domain } = match.scale;
  const use = domain && button(`Use these labels for ${domain}`, () => useLabels());

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
      last[kind.value] = input.value;
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
      judge.expect(found.error || !state.learnt ? null : state.sure ? 0 : moreOf(whole.answer));
      own.textContent = state.answer ? ownOf(state.answer) : "";
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
    const [early, share] = [judged - chosen < ENOUGH, precision && Number((100 * precision).toPrecision(4))];
    const less = precision && button(`Ask for ${share} %`, () => ask(share), { class: early ? "" : "primary" });
    return [
      h("p", { class: "big" }, "No pairs ", badge(early ? "too early to tell" : "out of reach", "warn")),
      h("p", {}, `At no similarity are ${input.value} % of the pairs right, as far as ${counted(judged - chosen, "judgement")} tell.`, precision ? ` The highest is ${share} %, with ${passing} pairs.` : ""),
      h("p", {}, h("strong", {}, "Next step: "), `${early || !precision ? "" : "ask for less, or "}judge more pairs.`),
      h("div", { class: "buttons" }, early && toJudge("Judge pairs", true), less, !early && toJudge("Judge pairs", !less)),
    ];
  }

  /** One number, one word of confidence, what is false, what is missed, and the next step; the rest stands under Details. */
  function answerOf({ answer }) {
    const { passing, confirmed, precision, precision_interval: interval, expected_false: wrong, expected_false_interval: wrongs, recall, recall_interval: recalls, judged, chosen } = answer;
    const notices = answer.notices.filter((notice) => !notice.startsWith("not judged")).map((notice) => h("p", { class: "verdict warn" }, sentence(plainly(notice))));
    const [known, width, drawn] = [precision !== null && interval !== null, widthOf(answer), judged - chosen];
    const asked = `${kind.value} ${input.value}`;
    const before = state.surest === asked; // it was sure of this target once
    state.sure = known && width <= (before && state.sure ? UNSURE : SURE);
    if (state.sure) state.surest = asked;
    const { sure } = state;
    const rare = known && precision < 0.5;
    const ready = known && !rare && (sure || drawn >= ENOUGH);
    const [word, colour] = rare ? ["mostly false", "bad"] : sure ? ["sure", "good"] : width <= ROUGH ? ["rough", "warn"] : ["too few labels", "bad"];
    rest.replaceChildren(
      h("p", {}, `${answer.adjusted ? "Similarity less what other words take away" : "Similarity"} from ${score(answer.similarity, 2)} on; ${answer.matched_rows.map((found, file) => `${count(found)} of ${counted(match.rows[file], "row")}${match.files.length > 1 ? ` of ${match.files[file]}` : ""}`).join(" and ")} in a pair. ${count(confirmed)} of the pairs ${confirmed === 1 ? "is" : "are"} judged the same.`),
      h("p", {}, `All matches: those among the ${counted(match.candidates, "most alike pair")}. From ${counted(drawn, "judgement")}${chosen ? `; besides, ${counted(chosen, "pair")} judged in the list, which tell${chosen === 1 ? "s" : ""} nothing of the others` : ""}.`));
    return [
      h("p", { class: "big" }, h("strong", {}, counted(passing, "pair")), " ", badge(known && !rare ? `${word}: ± ${percent(Math.ceil(50 * width) / 100)}` : word, colour)),
      known ? h("p", {}, `About ${count(Math.round(wrong))} of them are false (${count(Math.round(wrongs[0]))} to ${count(Math.round(wrongs[1]))}): ${percent(Math.round(precision * 100) / 100)} are right (95 % interval ${rounded(interval)}).`)
        : h("p", {}, `Not judged${drawn ? " enough" : ""}: how many of these pairs are right is unknown.`),
      known && h("p", {}, `They are ${percent(Math.round((recall ?? 0) * 100) / 100)} of all matches${recalls ? ` (${rounded(recalls)})` : ""}; ${missedOf(answer)}.`),
      before && !sure && h("p", { class: "verdict warn" }, "This was sure before: the last judgements differ from what the earlier ones let expect."),
      ...notices,
      h("p", {}, h("strong", {}, "Next step: "), rare ? "ask for more that are right: move the line to the right." : sure ? "download the pairs."
        : ready ? `download the pairs. Or judge about ${count(moreOf(answer))} more, and the share that is right is known to ±\u00a010\u00a0%.`
          : drawn < ENOUGH ? `judge ${drawn ? `${count(ENOUGH - drawn)} more` : `about ${ENOUGH} pairs`}.` : "judge on, until there are some that mean the same and some that do not."),
      h("div", { class: "buttons" }, ready && button("To the downloads", () => { save.scrollIntoView({ block: "center" }); save.focus(); }, { class: "primary" }), !sure && toJudge(ready ? "Judge more pairs" : "Judge pairs", !ready)),
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
    lead.textContent = `${found.length < every ? `The first ${count(found.length)} of ${counted(every, "pair")}` : counted(every, "pair")}, the ${state.answer?.adjusted ? "most probable" : "most alike"} first.${passing && copies ? ` Besides, ${counted(copies, "row repeats", "rows repeat")} a text word for word; the downloads begin with them.` : ""}`;
    const times = (row) => repeated.get(row) ?? 1;
    const [one, other] = match.files.length > 1 ? match.files.map((name) => `Text of ${name}`) : ["One text", "Another text"];
    const whole = found.length >= every;
    if (passing) [...state.out].sort(([x], [y]) => x - y).forEach(([at, row]) => found.some(({ pair }) => pair === row.pair) || found.splice(at, 0, row));
    const body = found.map((row, at) => h("tr", {},
      h("td", { class: "number" }, score(row.similarity, 2)),
      h("td", { class: "sample", dir: "auto" }, unlike(row.text_a, row.text_b)), h("td", { class: "sample", dir: "auto" }, unlike(row.text_b, row.text_a)),
      verdict(row, at),
      h("td", {}, row.numbers_differ && badge("other numbers", "warn"), row.negation_differs && badge("negation", "warn"),
        (repeated.has(row.row_a) || repeated.has(row.row_b)) && badge(`in ${times(row.row_a)} and ${counted(times(row.row_b), "row")}`))));
    const more = !whole && button("Show more pairs", async () => {
      state.shown += SHOWN;
      more.disabled = true;
      read();
    });
    const heads = [h("th", { scope: "col", class: "number" }, "Similarity"), one, other, "Your judgement", "Notes"];
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
      picture.element, h("div", { class: "row" }, field("Ask for", kind, ""), wanted), tile, h("details", {}, h("summary", {}, "Details"), rest)),
    h("section", { class: "card", "aria-labelledby": "save" }, h("h2", { id: "save" }, "Download"),
      h("div", { class: "row" }, field("Content", form, "Each text of a group is like the group on average: a pair whose groups do not fit is in none."), field("Format", format, "A workbook opens in every Excel; a CSV has commas."), h("div", { class: "buttons" }, save)), hold, own,
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

/** Which judged pairs the threshold does not decide. */
function ownOf({ left_out: out, confirmed_below: below }) {
  return [below && `Besides, ${counted(below, "pair")} below that, judged the same.`, out && `Left out: ${counted(out, "pair")} above it, judged different.`].filter(Boolean).join(" ");
}

/** About how many more judgements, in tens, make the answer sure. */
const moreOf = (answer) => 10 * Math.max(1, Math.ceil((answer.judged - answer.chosen) * ((widthOf(answer) / SURE) ** 2 - 1) / 10));

const widthOf = ({ precision_interval: interval }) => (interval ? interval[1] - interval[0] : 1);

const rounded = (interval) => range(interval.map((share) => Math.round(share * 100) / 100));
