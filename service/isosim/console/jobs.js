/** Earlier calibrations, the newest first, with their outcome; refreshed while one of them goes on. */

import { alertBox } from "./alerts.js";
import { call } from "./api.js";
import { action, badge, button, h, refill, table } from "./dom.js";
import { ago, count, percent } from "./format.js";
import { ACTIVE, cancel, STAGES } from "./job.js";

const SHOWN = 15;
const EVERY = 3000; // ms

/** A list that is read anew while something in it goes on. show(answer, refresh): { content: null for none, active }. */
export function liveList(context, where, show) {
  const place = h("div", {}, h("p", { class: "muted" }, "Loading…"));
  async function refresh() {
    if (context.signal.aborted) return;
    try {
      const answer = await call("GET", where, { signal: context.signal });
      const { content, active } = show(answer, refresh);
      refill(place, content || h("p", { class: "muted" }, "None yet."));
      if (active) setTimeout(refresh, EVERY);
    } catch (error) {
      if (!context.signal.aborted) place.replaceChildren(alertBox("The list could not be loaded", error, refresh));
    }
  }
  refresh();
  return place;
}

/** The calibrations; with `ended` only those that go on, and it is called when one of them has ended. */
export function jobList(context, ended) {
  let [all, going] = [false, 0];
  const [running, title] = [Boolean(ended), ended ? "Running calibrations" : "Earlier calibrations"];

  function show({ jobs: every }, refresh) {
    const jobs = every.filter(({ status }) => !running || ACTIVE.has(status));
    section.hidden = running && !jobs.length;
    if (running && jobs.length < going) ended();
    going = jobs.length;
    const shown = all ? jobs : jobs.slice(0, SHOWN);
    const rows = shown.map((job) => h("tr", {},
      h("th", { scope: "row" }, job.domain),
      h("td", {}, outcome(job)),
      h("td", {}, job.base ? `labels for version ${job.base}` : job.method),
      h("td", { class: "number" }, job.base ? `${count(job.labels)} pairs` : count(job.sentences)),
      h("td", {}, ago(job.created)),
      h("td", {}, h("div", { class: "buttons tight" }, ...actions(job, refresh)))));
    const made = table(title, ["Domain", "Outcome", "Method", h("th", { scope: "col", class: "number" }, "Sentences"), "Started", "Actions"], rows, { class: "stacked" });
    const rest = jobs.length > shown.length && button(`Show all ${count(jobs.length)}`, () => { all = true; refresh(); });
    return { content: jobs.length > 0 && [made, rest || ""], active: jobs.some(({ status }) => ACTIVE.has(status)) };
  }

  function actions(job, refresh) {
    const which = `calibration of ${job.domain}, started ${job.created}`;
    return [
      action("Open", `#/job/${job.job}`, { "aria-label": `Open ${which}` }),
      ["queued", "running"].includes(job.status) && button("Cancel", async () => { if (await cancel(context, job)) refresh(); }, { class: "danger quiet", "aria-label": `Cancel ${which}` }),
    ].filter(Boolean);
  }

  const section = h("section", { class: "card", hidden: running }, h("h2", {}, title),
    !running && h("p", { class: "muted small" }, "The outcome is that of its time: which version is in use now stands under ", h("a", { href: "#/domains" }, "Domains"), "."),
    liveList(context, "calibrate", show));
  return section;
}

function outcome(job) {
  switch (job.status) {
    case "succeeded": return [badge(job.promoted ? "put in use" : "not put in use", job.promoted ? "good" : ""), ` version ${job.version}`];
    case "running": return [badge("running"), ` ${STAGES[job.stage] ?? job.stage}, ${percent(Math.round(job.progress * 100) / 100)}`];
    case "failed": return [badge("failed", "bad"), h("span", { class: "under small" }, job.error)];
    default: return badge(job.status);
  }
}
