/** Earlier calibrations, the newest first, with their outcome; refreshed while one of them goes on. */

import { alertBox } from "./alerts.js";
import { call } from "./api.js";
import { action, badge, button, h, table } from "./dom.js";
import { ago, count, percent } from "./format.js";
import { cancel, STAGES } from "./job.js";

const SHOWN = 15;
const EVERY = 3000; // ms

export function jobList(context) {
  const place = h("div", {}, h("p", { class: "muted" }, "Loading…"));
  let all = false;

  async function refresh() {
    if (context.signal.aborted) return;
    try {
      const { jobs } = await call("GET", "calibrate", { signal: context.signal });
      const focus = document.activeElement?.getAttribute("aria-label");
      show(jobs);
      if (focus) [...place.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focus)?.focus();
      if (jobs.some(({ status }) => ["queued", "running", "publishing"].includes(status))) setTimeout(refresh, EVERY);
    } catch (error) {
      if (!context.signal.aborted) place.replaceChildren(alertBox("The list could not be loaded", error, refresh));
    }
  }

  function show(jobs) {
    if (!jobs.length) {
      place.replaceChildren(h("p", { class: "muted" }, "None yet."));
      return;
    }
    const shown = all ? jobs : jobs.slice(0, SHOWN);
    const rows = shown.map((job) => h("tr", {},
      h("th", { scope: "row" }, job.domain),
      h("td", {}, outcome(job)),
      h("td", {}, job.base ? `labels for version ${job.base}` : job.method),
      h("td", { class: "number" }, job.base ? `${count(job.labels)} pairs` : count(job.sentences)),
      h("td", {}, ago(job.created)),
      h("td", {}, h("div", { class: "buttons tight" }, ...actions(job)))));
    place.replaceChildren(table("Earlier calibrations", ["Domain", "Outcome", "Method", h("th", { scope: "col", class: "number" }, "Sentences"), "Posted", "Actions"], rows, { class: "stacked" }));
    if (jobs.length > shown.length) place.append(button(`Show all ${count(jobs.length)}`, () => { all = true; show(jobs); }));
  }

  function actions(job) {
    const which = `calibration of ${job.domain}, posted ${job.created}`;
    return [
      action("Open", `#/job/${job.job}`, { "aria-label": `Open ${which}` }),
      ["queued", "running"].includes(job.status) && button("Cancel", async () => { if (await cancel(context, job)) refresh(); }, { class: "danger quiet", "aria-label": `Cancel ${which}` }),
    ].filter(Boolean);
  }

  refresh();
  return h("section", { class: "card" }, h("h2", {}, "Earlier calibrations"),
    h("p", { class: "muted small" }, "The outcome is that of its time: which version answers now stands under ", h("a", { href: "#/domains" }, "Domains"), "."),
    place);
}

function outcome(job) {
  switch (job.status) {
    case "succeeded": return [badge(job.promoted ? "promoted" : "not promoted", job.promoted ? "good" : ""), ` version ${job.version}`];
    case "running": return [badge("running"), ` ${STAGES[job.stage] ?? job.stage}, ${percent(Math.round(job.progress * 100) / 100)}`];
    case "failed": return [badge("failed", "bad"), h("span", { class: "under small" }, job.error)];
    default: return badge(job.status);
  }
}
