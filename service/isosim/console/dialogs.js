/** Questions in native dialogs: is this meant, and which key. */

import { call, key, Refused } from "./api.js";
import { explain, report, say } from "./alerts.js";
import { button, field, h, unique } from "./dom.js";
import { sentence } from "./format.js";

/** Shows a modal dialog; resolves to what it was closed with, "" for Escape. */
function ask(title, content, attributes = {}) {
  const id = unique("dialog");
  const dialog = h("dialog", { "aria-labelledby": id, ...attributes }, h("h2", { id }, title), content);
  const leave = () => dialog.close("");
  return new Promise((resolve) => {
    window.addEventListener("hashchange", leave); // a question belongs to the page that asked it
    dialog.addEventListener("close", () => {
      window.removeEventListener("hashchange", leave);
      dialog.remove();
      resolve(dialog.returnValue);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Whether the reader means it. A dangerous action has to be chosen, the focus is on leaving it; `typed` is a name that
 * the reader must type first, `keep` the label of the button that changes nothing. */
export async function confirm({ title, text, label, danger = false, typed = null, keep = "Cancel" }) {
  const close = (answer) => (event) => event.target.closest("dialog").close(answer);
  const yes = button(label, close("yes"), { class: danger ? "danger" : "primary", autofocus: !danger, disabled: typed !== null });
  const no = button(keep, close(""), { autofocus: danger && typed === null });
  const paragraphs = [text].flat().map((line) => h("p", {}, line));
  const name = typed !== null && field(`Type ${typed} to confirm`, h("input", {
    type: "text", autocomplete: "off", spellcheck: "false", autofocus: true,
    oninput: (event) => { yes.disabled = event.target.value.trim() !== typed; },
    onkeydown: (event) => { if (event.key === "Enter" && !yes.disabled) close("yes")(event); },
  }));
  return (await ask(title, [...paragraphs, name, h("div", { class: "buttons" }, yes, no)].filter(Boolean))) === "yes";
}

/** Asks, does it, says so. `question`: for `confirm`. Resolves to whether it was done. */
export async function change(context, { question, failed, done, doing }) {
  if (!(await confirm(question))) return false;
  try {
    await doing();
  } catch (error) {
    if (!context.refused(error)) report(failed, error, null);
    return false;
  }
  say(done);
  return true;
}

/** Asks for a key, tries it, and keeps it for this tab's session. Resolves to "changed", "forgotten" or "". */
export async function askKey(reason = "") {
  const input = h("input", { type: "password", autocomplete: "off", required: true, autofocus: true, spellcheck: "false" });
  const wrong = h("p", { class: "fault", role: "alert" }, reason);
  const use = h("button", { type: "submit", class: "primary" }, "Use this key");
  async function submit(event) {
    event.preventDefault();
    const dialog = event.target.closest("dialog");
    const candidate = input.value.trim();
    if (!candidate) return;
    use.disabled = true;
    try {
      await call("GET", "domains?limit=1", { candidate });
    } catch (error) {
      if (!(error instanceof Refused && error.status === 403)) { // 403: a known key that may do other things
        wrong.textContent = `${sentence(explain(error).text)} ${explain(error).next}`;
        input.select();
        return;
      }
    } finally {
      use.disabled = false;
    }
    key.set(candidate);
    dialog.close("changed");
  }
  const forget = button("Forget the key", (event) => {
    key.forget();
    event.target.closest("dialog").close("forgotten");
  });
  const form = h("form", { onsubmit: submit, novalidate: true },
    h("p", {}, "It stays in this tab until the tab is closed, and is sent to this server only."),
    field("API key", input, key.get() ? "A key is in use; a new one replaces it." : ""),
    wrong,
    h("div", { class: "buttons" }, use, key.get() && forget, button("Cancel", (event) => event.target.closest("dialog").close(""))),
  );
  return ask(key.get() ? "Another key" : "This server needs a key", form);
}
