/** Judging the pairs of a match one at a time. Each judgement is sent at once; the browser holds what is not confirmed. */

import { alertBox, explain } from "./alerts.js";
import { call, path, Refused } from "./api.js";
import { button, h } from "./dom.js";
import { count, counted, seconds, sentence } from "./format.js";

const FIRST_WAIT = 1000; // ms until what was not confirmed is sent again, doubled each time
const LONGEST_WAIT = 15000;
const DRAWN = 10; // pairs that are fetched together: the server draws better ones as it learns
const LOW = 3; // pairs left when more are fetched
export const ENOUGH = 50; // judgements that tell something

/** The judgements to aim at next: a goal stands until it is reached. */
export const goalOf = (judged) => ENOUGH * 2 ** Math.max(0, Math.floor(Math.log2(judged / ENOUGH)) + 1);

const KEYS = { 1: 1, 0: 0, " ": null };
const WORD = /([\p{L}\p{N}]+)/u;

/** A text with the words in bold that the other one lacks, unless these are most of its words. */
export function unlike(text, other) {
  const there = new Set(other.toLowerCase().split(WORD));
  const parts = text.split(WORD).map((part, index) => (index % 2 && !there.has(part.toLowerCase()) ? h("b", {}, part) : part));
  return parts.filter((part) => part instanceof Node).length > parts.length / 4 ? [text] : parts;
}

/** The key under which this browser holds the target of a match. */
export const wantedKey = (job) => `isosim.wanted.${job}`;

const prefixOf = (job) => `isosim.judged.${job}.`;

/** The keys under which this browser holds judgements of a match that the server has not confirmed. */
export const held = (job) => Object.keys(localStorage).filter((key) => key.startsWith(prefixOf(job)));

/** Removes what this browser holds of a match. */
export const forget = (job) => [wantedKey(job), ...held(job)].forEach((key) => localStorage.removeItem(key));

const outboxes = new Map(); // job -> Outbox; they outlive the view

/** Judgements on their way to the server: pair -> { label: 1, 0 or null for one that is taken back, chosen: in the list }. */
class Outbox {
  constructor(job) {
    this.prefix = prefixOf(job);
    this.where = `${path("matches", job)}/labels`;
    this.wait = FIRST_WAIT;
    this.told = () => {};
    this.known = new Set(); // drawn pairs that the server counts as judged, as far as this page knows
    this.mine = new Map(); // what was judged here, sent or not
    this.turn = 0; // grows with each judgement and each answer
    this.pending = new Map(held(job).map((key) => [Number(key.slice(this.prefix.length)), JSON.parse(localStorage.getItem(key))]));
  }

  add(pair, label, chosen = false) {
    this.turn += 1;
    this.pending.set(pair, { label, chosen });
    this.mine.set(pair, label);
    try {
      localStorage.setItem(this.prefix + pair, JSON.stringify({ label, chosen }));
    } catch { // the browser keeps no more; leaving asks
    }
    this.send();
  }

  forget(pair) {
    this.pending.delete(pair);
    localStorage.removeItem(this.prefix + pair);
  }

  /** Sends what is held; `told` gets the server's answer, or the error and when it is sent again (null: not by itself). */
  async send() {
    clearTimeout(this.timer);
    if (this.sending || !this.pending.size) return;
    this.sending = true;
    const sent = [...this.pending];
    try {
      const answer = await call("POST", this.where, { json: { labels: sent.map(([pair, one]) => ({ pair, ...one })) } });
      this.turn += 1;
      for (const [pair, one] of sent) {
        if (one.label === null) this.known.delete(pair);
        else if (!one.chosen) this.known.add(pair);
        if (this.pending.get(pair) === one) this.forget(pair); // else judged anew meanwhile
      }
      [this.sending, this.wait] = [false, FIRST_WAIT];
      this.told({ answer });
      this.send();
    } catch (error) {
      this.sending = false;
      const lasting = error instanceof Refused && error.status < 500 && error.status !== 429;
      if (error.status === 404) this.pending.clear(); // removed, or another key's: the browser keeps them for that one
      this.told({ error, wait: lasting ? null : this.wait });
      if (!lasting) this.timer = setTimeout(() => this.send(), this.wait);
      this.wait = Math.min(2 * this.wait, LONGEST_WAIT);
    }
  }
}

window.addEventListener("beforeunload", (event) => {
  if ([...outboxes.values()].some(({ pending }) => pending.size)) event.preventDefault(); // the browser asks
});

/**
 * given: { job, judged: so many are, recall: whether pairs shall tell about the recall too, target(): what they shall tell about, as
 * parameters, changed(answer): judgements were confirmed }. Returns { element, labelOf(pair, label): the judgement where the server has this label, choose(pair, label): judges a pair of the list, which tells nothing of others,
 * reading(): before all judged pairs are read, returns what takes them, print(rows): them in short, seen(): those that were read }.
 */
export function judging(given, context) {
  const { signal } = context;
  const where = path("matches", given.job);
  const outbox = outboxes.get(given.job) ?? new Outbox(given.job);
  outboxes.set(given.job, outbox);
  const state = { judged: given.judged, picked: new Map(), queue: [], passed: [], met: new Set(outbox.pending.keys()), fetching: false, all: false };

  const sides = [h("blockquote", { dir: "auto", class: "sample" }), h("blockquote", { dir: "auto", class: "sample" })];
  const pair = h("div", { class: "pair", "aria-live": "polite" }, ...sides);
  const same = button("Same", () => judge(1), { "aria-keyshortcuts": "1" });
  const different = button("Different", () => judge(0), { "aria-keyshortcuts": "0" });
  const skip = button("Skip", () => judge(null), { class: "quiet", "aria-keyshortcuts": "Space" });
  const back = button("Undo", undo, { class: "quiet", "aria-keyshortcuts": "U" });
  const done = h("p", { class: "progress" });
  const last = h("p", { class: "muted", role: "status" });
  const waiting = h("div", {}, h("p", { class: "muted" }, "Fetching pairs…"));
  const unsent = h("p", { class: "verdict warn", role: "status", hidden: true });
  const elsewhere = h("p", { class: "verdict warn", role: "status", hidden: true });
  const element = h("section", { class: "card judging", tabindex: "-1", "aria-labelledby": "judge" },
    h("div", { class: "heading" }, h("h2", { id: "judge" }, "Do these two mean the same?"), done),
    h("div", { class: "buttons equal" }, same, different, skip, back), pair, waiting, last, unsent, elsewhere,
    h("p", { class: "muted small keys" }, "Keys: 1 same, 0 different, space skip, U or Backspace undo. Would one answer do for both? Then they mean the same."));

  outbox.told = ({ answer, error, wait }) => {
    if (answer) state.judged = answer.judged - answer.chosen;
    unsent.hidden = !error;
    if (error) unsent.textContent = !outbox.pending.size ? sentence(explain(error).text) : `${sentence(explain(error).text)} ${counted(outbox.pending.size, "judgement")} not sent yet; this browser holds ${outbox.pending.size === 1 ? "it" : "them"}${wait ? `, and sends again in ${seconds(wait / 1000)}` : ""}.`;
    update();
    if (error) return;
    given.changed(answer);
    if (!state.queue.length) fetchPairs();
  };

  async function fetchPairs() {
    if (state.fetching || state.all || signal.aborted) return;
    state.fetching = true;
    const skipped = state.passed.filter(({ label }) => label === null).length; // the server draws these again
    try {
      const target = given.target();
      const asked = new URLSearchParams({ ...target, recall: String(given.recall || !target.precision), count: DRAWN + state.queue.length + skipped + outbox.pending.size });
      const { pairs } = await call("GET", `${where}/label?${asked}`, { signal });
      const fresh = pairs.filter((one) => !state.met.has(one.pair));
      fresh.sort((x, y) => scattered(x.pair) - scattered(y.pair)); // the server gives the most alike first, which would sway
      fresh.forEach((one) => state.met.add(one.pair));
      for (const one of fresh) { // a pair that was judged in the list and is drawn now has its label
        if (state.picked.has(one.pair)) outbox.add(one.pair, state.picked.get(one.pair));
        else state.queue.push(one);
      }
      state.all = !fresh.length;
      waiting.replaceChildren(state.all ? h("p", {}, "All pairs are judged or skipped.") : "");
    } catch (error) {
      if (signal.aborted) return;
      context.refused(error);
      waiting.replaceChildren(alertBox("No pairs could be fetched", error, fetchPairs));
    } finally {
      state.fetching = false;
    }
    update();
  }

  function judge(label) {
    const one = state.queue.shift();
    if (!one) return;
    state.passed.push({ one, label });
    if (label !== null) outbox.add(one.pair, label);
    last.textContent = `The pair before: ${label === null ? "skipped" : label ? "same" : "different"}.`;
    update();
    element.focus({ preventScroll: true });
    if (state.queue.length <= LOW) fetchPairs();
  }

  function undo() {
    const before = state.passed.pop();
    if (!before) return;
    if (before.label !== null) outbox.add(before.one.pair, null);
    state.queue.unshift(before.one);
    last.textContent = "";
    update();
    element.focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (!element.isConnected || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (target !== document.body && !element.contains(target) && !target.matches("h1, main, .line, button")) return;
    if (key === " " && target.closest("button")) return; // presses that button
    const { top, bottom } = pair.getBoundingClientRect();
    if (bottom <= 0 || top >= window.innerHeight) return; // a pair that is not seen is not judged
    if (key === "u" || key === "U" || key === "Backspace") undo();
    else if (key in KEYS) judge(KEYS[key]);
    else return;
    event.preventDefault();
  }, { signal });

  function update() {
    const unconfirmed = [...outbox.pending].reduce((sum, [pair, { label, chosen }]) => sum + (chosen ? 0 : (label !== null) - outbox.known.has(pair)), 0);
    const judged = Math.max(0, state.judged + unconfirmed);
    done.textContent = judged < ENOUGH ? `${judged} of about ${ENOUGH}` : `${count(judged)}: enough for an answer. The next goal is ${count(goalOf(judged))}`;
    const [shown] = state.queue;
    for (const control of [same, different, skip]) control.disabled = !shown;
    back.disabled = !state.passed.length;
    pair.hidden = !shown;
    waiting.hidden = Boolean(shown);
    sides.forEach((side, index) => side.replaceChildren(...(shown ? unlike(...(index ? [shown.b, shown.a] : [shown.a, shown.b])) : [])));
  }

  const print = (rows) => rows.map(({ pair, label }) => `${pair} ${label}`).join();

  /** Says which pairs were judged otherwise elsewhere since they were judged here; those judged elsewhere are not asked. */
  function learn(rows) {
    const there = new Map(rows.map((row) => [row.pair, row]));
    const others = [...outbox.mine].filter(([pair, label]) => !outbox.pending.has(pair) && (there.get(pair)?.label ?? null) !== label);
    for (const [pair] of others) outbox.mine.set(pair, there.get(pair)?.label ?? null);
    if (others.length) {
      const some = others.map(([pair]) => there.get(pair)).filter(Boolean).slice(0, 3);
      elsewhere.textContent = `${counted(others.length, "pair")} that you judged ${others.length === 1 ? "was" : "were"} judged otherwise since, in another tab or by someone else. The later judgement counts${some.length ? `: ${some.map(({ a, b, label }) => `“${a}” and “${b}” are now ${label ? "the same" : "different"}`).join("; ")}` : ""}. “Judged pairs” below has them all.`;
      elsewhere.hidden = false;
    }
    state.seen = print(rows);
    state.picked = new Map(rows.filter(({ chosen }) => chosen).map(({ pair, label }) => [pair, label]));
    state.judged = rows.length - state.picked.size;
    state.queue = state.queue.filter(({ pair }, index) => !index || !there.has(pair) || state.picked.has(pair)); // the first is on the page
    update();
  }

  outbox.send();
  update();
  fetchPairs();
  return {
    element,
    print,
    seen: () => state.seen,
    reading() {
      const { turn } = outbox;
      return (rows) => { if (turn === outbox.turn) learn(rows); }; // else a judgement was on its way meanwhile
    },
    labelOf: (pair, label) => (outbox.mine.has(pair) ? outbox.mine.get(pair) : label),
    choose: (pair, label) => outbox.add(pair, label, true),
  };
}

/** A number's place in an order that has nothing to do with its size, the same every time. */
const scattered = (number) => Math.imul(number + 1, 0x9e3779b1) >>> 0;
