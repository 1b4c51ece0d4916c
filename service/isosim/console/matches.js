/** Find matches: a file, or new texts and known ones, become a job; below, the matches that are still there. */

import { attempt, clearAlerts } from "./alerts.js";
import { call, download, idempotencyKey, path } from "./api.js";
import { change } from "./dialogs.js";
import { badge, button, h, table, unique } from "./dom.js";
import { ago, count, counted, percent } from "./format.js";
import { fileIntake } from "./intake.js";
import { ACTIVE, STAGES } from "./job.js";
import { forget, held } from "./judging.js";
import { liveList } from "./jobs.js";
import { domainField } from "./listing.js";

const SAMPLE = "sample.csv";

export async function openMatches([wanted = ""], context) {
  const { server, signal } = context;
  let posting = null;
  const domain = await domainField(context, wanted, describe, { pattern: `${server.domain_pattern}(@[0-9]+)?`, empty: "" });

  const given = {
    verdicts: ({ distinct }) => (distinct < server.fewest.auto && !two.checked && !domain.name() ? [["", `With fewer than ${count(server.fewest.auto)} different texts, how alike they are is measured as for text in general.`]] : []),
    changed: () => {
      posting = null;
      clearAlerts(); // what was wrong with the file before
    },
  };
  // With two intakes on the page, a file goes where it is dropped; beside both, to the first that has none.
  let [asked, answer] = [null, null]; // both intakes ask about the same event, the second when the first has its file
  const receiver = (event) => {
    if (event === asked) return answer;
    const other = two.checked && !first.element.contains(event.target) && (second.element.contains(event.target) || first.name());
    [asked, answer] = [event, other ? second : first];
    return answer;
  };
  const first = fileIntake(context, { ...given, legend: "Your file", lead: "One text in each line or row, such as the questions, tickets or products that may repeat each other.", takes: (event) => receiver(event) === first });
  const second = fileIntake(context, { ...given, legend: "Known texts", lead: "The texts that yours are compared with. Each text of your file is matched against these, and not against its own file.", label: "Choose the file of known texts", pasteLabel: "Or paste known texts", takes: (event) => receiver(event) === second });
  const two = h("input", { type: "radio", name: unique("files"), onchange: showSecond });
  const one = h("input", { type: "radio", name: two.name, checked: true, onchange: showSecond });
  const scale = h("details", { open: wanted !== "" }, h("summary", {}, "Kind of text (optional)"), domain.element);
  const start = h("button", { type: "submit", class: "primary" }, "Find matches");
  const sample = button("Try it with a sample", () => attempt(context, "The sample could not be loaded", async () => {
    first.take(new File([await download("GET", `console/${SAMPLE}`, { signal })], SAMPLE));
  }, sample));
  const form = h("form", { class: "card", novalidate: true, onsubmit: submit, oninput: () => { posting = null; } },
    h("fieldset", { class: "choices" }, h("legend", {}, "What to find"),
      h("label", { class: "choice" }, one, "Duplicates in one file"), h("label", { class: "choice" }, two, "New texts against known ones")),
    first.element, second.element, scale,
    h("p", { class: "muted small" }, `Texts and pairs stay on this server for a while after their last use; the result says until when, and can be deleted. ${server.keys ? "Only your key and administrators see them." : "This server has no keys: everyone who can open this page sees them."}`),
    h("div", { class: "buttons" }, start, sample));
  two.checked = Boolean(second.name()); // two files were chosen before
  showSecond();

  function showSecond() {
    second.element.hidden = !two.checked;
  }

  /** What the named domain means for the similarities. */
  function describe(name, known) {
    const there = known && (known.versions.length || known.champion === 0);
    return !name ? "How alike two texts are is measured by your own texts, or as in a domain, a kind of text that the server knows. A new name makes a domain of these texts."
      : there ? `The similarities are those of ${name}.` : "There is no such domain yet: it is made of these texts.";
  }

  function submit(event) {
    event.preventDefault();
    attempt(context, "The search for matches was not started", send, start, "Sending…");
  }

  async function send() {
    const files = two.checked ? [first, second] : [first];
    for (const file of files) if (!await file.ready()) return;
    if (!domain.check()) {
      scale.open = true;
      domain.input.focus();
      return;
    }
    const [a, b] = files.map((file) => file.whole());
    const asked = new URLSearchParams(domain.name() ? { ...a.query, domain: domain.name() } : a.query);
    const body = new FormData();
    body.append("a", a.body, a.name);
    if (b) {
      body.append("b", b.body, b.name);
      const { force, ...query } = { ...b.query, column: second.found().column };
      for (const [name, value] of Object.entries(query)) asked.set(`${name}_b`, value);
      if (force) asked.set("force", force);
    }
    posting ??= idempotencyKey(); // the same for another try, which then finds the job of the first
    const { job } = await call("POST", `matches?${asked}`, { body, headers: { "idempotency-key": posting }, signal });
    for (const file of files) file.posted();
    location.hash = `#/matches/${job}`;
  }

  const mine = h("section", { class: "card mine" }, h("h2", {}, "Your matches"), matchList(context, () => mine.nextSibling === form || form.before(mine)));
  return [h("h1", {}, "Find matches"),
    h("p", { class: "lead" }, "Give a file, and get the pairs of texts in it that mean the same, with a figure for how many of them are right."),
    form, mine];
}

/** What was compared: the files' names, where the server was told them. */
export const nameOf = ({ files, rows }) => (files.length ? files.join(" and ") : rows.length > 1 ? "two lists" : "one list");

/** Running and ready matches, the newest first; refreshed while one of them runs. */
function matchList(context, some) {
  return liveList(context, "matches?limit=50", ({ matches }, refresh) => {
    if (matches.length) some();
    const rows = matches.map((match) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#/matches/${match.job}`, title: `Open the match of ${match.created}` }, nameOf(match))),
      h("td", {}, standing(match)),
      ...[match.rows.map(count).join(" and "), match.judged === null ? "–" : count(match.judged)].map((text) => h("td", { class: "number" }, text)),
      h("td", {}, ago(match.created)),
      h("td", {}, h("div", { class: "buttons tight" },
        button(ACTIVE.has(match.status) ? "Cancel" : "Delete", async () => { if (await removeMatch(match, context)) refresh(); }, { class: "danger quiet", "aria-label": `Delete the match of ${match.created}` })))));
    return { content: rows.length > 0 && table("Your matches", ["File", "State", ...["Texts", "Judged"].map((head) => h("th", { scope: "col", class: "number" }, head)), "Started", "Actions"], rows, { class: "stacked" }),
      active: matches.some(({ status }) => ACTIVE.has(status)) };
  });
}

function standing({ job, status, stage, progress, error }) {
  const unsent = held(job).length;
  if (status === "succeeded") return [badge("ready", "good"), unsent > 0 && badge(`${counted(unsent, "judgement")} to send: open it`, "warn")];
  if (status === "failed") return [badge("failed", "bad"), h("span", { class: "under small" }, error)];
  return ACTIVE.has(status) ? [badge(status), ` ${STAGES[stage] ?? stage}, ${percent(Math.round(progress * 100) / 100)}`] : badge(status);
}

/** Cancels or deletes a match after a question; whether it is gone. */
export async function removeMatch({ job, status }, context) {
  const running = ACTIVE.has(status);
  const gone = await change(context, {
    question: {
      title: running ? "Cancel this match?" : "Delete this match?", danger: true, keep: running ? "Keep it running" : "Keep it",
      text: `Its texts${running ? " are" : ", pairs and judgements are"} removed from the server for good.`, label: running ? "Cancel it" : "Delete it",
    },
    failed: "The match was not removed",
    done: running ? "The match is cancelled." : "The match is deleted.",
    doing: () => call("DELETE", path("matches", job)),
  });
  if (gone) forget(job);
  return gone;
}
