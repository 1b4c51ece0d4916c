/** One calibration: followed live while it runs, then what came of it. */

import { alertBox, explain, say } from "./alerts.js";
import { call, events, path, Refused } from "./api.js";
import { change } from "./dialogs.js";
import { action, badge, button, facts, h } from "./dom.js";
import { ago, count, counted, methodName, plainly, promotionReason, PROMOTIONS, seconds, sentence } from "./format.js";
import { withTerms } from "./glossary.js";
import { why } from "./report.js";
import { promote } from "./versions.js";

export const ACTIVE = new Set(["queued", "running", "publishing"]);
export const STAGES = {
  queued: "Waiting for a worker",
  starting: "Starting",
  embedding: "Reading the sentences with the encoder",
  choosing: "Comparing candidates",
  fitting: "Fitting the chosen map",
  calibrating: "Learning how alike such texts are",
  matching: "Comparing the texts",
  measuring: "Checking what was learnt",
};
const EMBEDDED = 0.7; // progress at which the embedding ends; what follows took 0.06 to 1.2 times as long, where it was measured
const FIRST_WAIT = 1000; // ms before a broken stream is taken up again, doubled each time
const LONGEST_WAIT = 15000;

export const cancel = (context, job) => change(context, {
  question: { title: `Cancel the calibration of ${job.domain}?`, text: "Its text is deleted and no version appears.", label: "Cancel the calibration", keep: "Keep it running", danger: true },
  failed: "The calibration was not cancelled",
  done: "The calibration is cancelled.",
  doing: () => call("DELETE", path("calibrate", job.job)),
});

const textOf = (job) => `isosim.text.${job}`; // stays in the tab: the server keeps no names of files

/** Notes for the job's page what its text was read from. */
export function noteText(job, words) {
  try {
    sessionStorage.setItem(textOf(job), words);
  } catch { // the browser keeps no more; the page does without
  }
}

export const notedText = (job) => sessionStorage.getItem(textOf(job));

export async function openJob([id], context) {
  const first = await call("GET", path("calibrate", id), { signal: context.signal });
  const place = h("div", { class: "stack" });
  const lost = h("div", { class: "stack" });
  const live = { element: null };

  async function show(job) {
    lost.replaceChildren();
    if (ACTIVE.has(job.status)) {
      live.element ??= progress(async () => { if (await cancel(context, job)) context.reload(); });
      live.element.update(job);
      if (!live.element.isConnected) place.replaceChildren(live.element);
    } else {
      const state = job.status === "succeeded" ? await stateOf(job.domain, context) : null;
      if (context.signal.aborted) return;
      place.replaceChildren(...ended(job, state, context));
      if (live.element) say(spokenEnd(job), job.promoted ? "good" : "");
    }
  }

  await show(first);
  if (ACTIVE.has(first.status)) follow(path("calibrate", id), show, lost, "The calibration goes on where it runs", context);
  return [
    h("p", { class: "trail" }, h("a", { href: "#/calibrate" }, "Calibrations"), " / ", first.job.slice(0, 8)),
    h("h1", {}, first.base ? `Labels for ${first.domain}, version ${first.base}` : `Calibration of ${first.domain}`),
    h("section", { class: "card" }, place, lost),
    h("section", { class: "card" }, h("h2", {}, "What was asked"), facts([
      ["Text", notedText(first.job)],
      ["Sentences given", first.base ? null : count(first.sentences)],
      ["Labelled pairs", first.labels ? count(first.labels) : null],
      ["Method", methodName(first.method)],
      ["Put in use", PROMOTIONS[first.promote] ?? first.promote],
      ["Seed", String(first.seed)],
      ["Started", ago(first.created)],
    ])),
  ];
}

/** Shows every state until the job ends; takes a broken stream up again, and says so in `lost`, with what the job does then. */
export async function follow(where, show, lost, meanwhile, context) {
  const { signal } = context;
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    try {
      for await (const job of events(`${where}/events`, signal)) {
        if (signal.aborted) return;
        await show(job);
        wait = FIRST_WAIT;
        if (!ACTIVE.has(job.status)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status < 500 && error.status !== 429) {
        if (error.status === 404) context.reload(); // deleted meanwhile: the view says so
        else if (!context.refused(error)) lost.replaceChildren(alertBox("", error, context.reload));
        return;
      }
      lost.replaceChildren(h("div", { class: "alert" }, h("p", {}, `${sentence(explain(error).text)} ${meanwhile}; asking again in ${seconds(wait / 1000)}.`)));
    }
    await new Promise((resolve) => { setTimeout(resolve, wait); });
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

/** A bar with the stage; `stop` is called by its button. */
export function progress(stop) {
  const bar = h("progress", { max: "1", "aria-label": "Progress" });
  const stage = h("p", { role: "status" });
  const left = h("p", { class: "muted" });
  const element = h("div", { class: "stack" }, stage, bar, left, h("div", { class: "buttons" },
    button("Cancel", stop, { class: "danger" })));
  let from = null;
  element.update = (now) => {
    const words = STAGES[now.stage] ?? now.stage;
    if (stage.textContent !== words) stage.textContent = words; // announced once, not at every percent
    bar.value = now.progress;
    if (from && now.progress < from.progress) from = null; // it has begun again
    if (now.stage === "embedding") from ??= { time: performance.now(), progress: now.progress };
    const made = from ? now.progress - from.progress : 0;
    const done = `${Math.round(now.progress * 100)} %`;
    if (now.stage === "embedding" && made > 0.02) {
      const spent = (performance.now() - from.time) / 1000;
      left.textContent = `${done}, about ${seconds(spent * ((EMBEDDED - now.progress) / made))} until they are read; comparing and measuring come after that.`;
    } else {
      left.textContent = now.status === "queued" ? "Other work may be before it." : done;
    }
  };
  return element;
}

function spokenEnd(job) {
  if (job.status === "succeeded") return `Version ${job.version} of ${job.domain} is made${job.promoted ? " and in use" : ", and not in use"}.`;
  return `The calibration ${job.status === "failed" ? "has failed" : `is ${job.status}`}.`;
}

/** The domain as it is now; null where it is gone, undefined where it cannot be told. */
async function stateOf(domain, { signal }) {
  try {
    return await call("GET", path("domains", domain), { signal });
  } catch (error) {
    return error instanceof Refused && error.status === 404 ? null : undefined;
  }
}

/** What has become of a job's version since, and whether it is still there and answers. */
function standing({ version, promoted }, state) {
  const there = state === undefined || Boolean(state?.versions.some((one) => one.version === version));
  const answers = state === undefined ? promoted : there && state.champion === version;
  if (!there) return { there, answers, words: " was made; it has been deleted since." };
  if (answers) return { there, answers, words: " is in use." };
  if (promoted) return { there, answers, words: state.champion ? ` was in use at first; version ${state.champion} is in use now.` : " was in use at first." };
  return { there, answers, words: state?.champion ? ` is made, and not in use; version ${state.champion} is.` : " is made, and not in use." };
}

function ended(job, state, context) {
  const { domain, version } = job;
  const again = action("New calibration", `#/calibrate/${encodeURIComponent(domain)}`);
  if (job.status === "succeeded") {
    const { there, answers, words } = standing(job, state);
    const look = action("Open the report", `#/report/${encodeURIComponent(domain)}/${version}`, { class: "button primary" });
    return [
      h("p", { class: "outcome" }, badge(there ? answers ? "in use" : "not in use" : "deleted", answers ? "good" : "warn"), " ",
        h("strong", {}, `Version ${version} of ${domain}`), words),
      h("p", {}, h("strong", {}, answers === job.promoted ? "Why: " : "When it was made: "), promotionReason(job.report?.promotion ?? "no reason is on record")),
      ...job.notices.map((notice) => h("p", { class: "verdict warn" }, sentence(plainly(notice)))),
      job.report && h("details", {}, h("summary", {}, "Details"), h("p", { class: "muted" }, ...withTerms(why(job.report)))),
      h("div", { class: "buttons" }, !there && again, there && look, there && action("Try it", `#/compare/${encodeURIComponent(`${domain}@${version}`)}`),
        there && !job.promoted && /calibrate again with/.test(job.report?.promotion ?? "") && again,
        there && !answers && !job.promoted && button("Put it in use all the same", async () => {
          if (await promote(context, { domain, champion: state?.champion ?? null }, version)) location.hash = `#/report/${encodeURIComponent(domain)}/${version}`;
        })),
    ].filter(Boolean);
  }
  if (job.status === "failed") {
    return [
      h("div", { class: "alert" }, h("p", {}, h("strong", {}, "It has failed. "), job.error), h("p", {}, "Nothing has changed for callers. Mend the cause and give the text again.")),
      h("div", { class: "buttons" }, again),
    ];
  }
  return [h("p", { class: "outcome" }, badge(job.status), ` ${counted(job.sentences, "sentence")} given; the text is deleted and nothing has changed for callers.`), h("div", { class: "buttons" }, again)];
}
