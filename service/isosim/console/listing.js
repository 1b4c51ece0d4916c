/** Domains as the page asks for them: some at a time, for a store may hold more than any page should. */

import { attempt } from "./alerts.js";
import { Refused, call } from "./api.js";
import { button, fault, field, h, unique } from "./dom.js";
import { nameLike } from "./format.js";

const WAIT = 250; // ms after the last key stroke in a search
const SOME = 200; // domains suggested

/** A page of domains: { domains, next }. */
export function page({ signal }, { contains = "", after = "", limit = 50 } = {}) {
  const asked = new URLSearchParams({ limit, ...(contains && { contains }), ...(after && { after }) });
  return call("GET", `domains?${asked}`, { signal });
}

/** The domains of a page, and those of references that it lacks because it is not all; what is not there stays away. */
export async function withNamed({ domains, next }, references, { signal }) {
  if (next === null) return domains;
  const names = references.map((reference) => reference.split("@")[0]).filter((name) => name && !domains.some(({ domain }) => domain === name));
  const found = await Promise.all([...new Set(names)].map((name) => call("GET", `domains/${encodeURIComponent(name)}`, { signal }).catch((error) => {
    if (error instanceof Refused && [403, 404, 422].includes(error.status)) return null;
    throw error;
  })));
  return [...domains, ...found.filter(Boolean)];
}

/** Domains by their newest version, the latest first. */
export function newest(domains) {
  const latest = ({ versions }) => versions.map(({ created }) => created).sort().at(-1) ?? "";
  return [...domains].sort((a, b) => latest(b).localeCompare(latest(a)));
}

/** Calls `look`, which lists domains, with a field's text once typing pauses. */
export function typed(input, look, context) {
  let timer;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt(context, "The domains could not be listed", () => look(input.value.trim().toLowerCase())), WAIT);
  });
  return input;
}

/**
 * A field for a name; where it cannot be used, one that is close to it is offered. `empty`: what to say where there is none,
 * "" if it may be left out. Returns { element, check(): whether the name can be used }.
 */
export function nameField(label, input, hint, { pattern, empty }) {
  const proposal = h("p", {});

  function propose(name) {
    proposal.replaceChildren(...(name ? [button(`Use “${name}”`, () => {
      input.value = name;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      input.focus();
    })] : []));
  }

  function check() {
    const name = input.value.trim();
    const valid = name ? new RegExp(`^${pattern}$`).test(name) : !empty;
    fault(input, valid ? "" : name ? "1 to 64 of a–z, 0–9, dot, dash and underscore, beginning with a letter or digit." : empty);
    propose(valid ? "" : nameLike(name));
    return valid;
  }

  input.addEventListener("input", () => {
    fault(input, "");
    propose("");
  });
  return { element: h("div", {}, field(label, input, hint), proposal), check };
}

/**
 * A field for the name of a domain, which suggests those that exist. hint(name, known): what the name means, `known` being
 * the domain's state if there is one. Returns { element, input, name(), check() }.
 */
export async function domainField(context, wanted, hint, rules) {
  const listed = await page(context, { limit: SOME });
  let domains = await withNamed(listed, [wanted], context);
  const list = h("datalist", { id: unique("domains") });
  const input = h("input", { type: "text", list: list.id, value: wanted, autocomplete: "off", autocapitalize: "none", spellcheck: "false", oninput: describe, onchange: () => check() });
  const { element, check } = nameField("Domain", input, "", rules);
  const name = () => input.value.trim();

  function describe() {
    list.replaceChildren(...domains.map(({ domain }) => h("option", { value: domain })));
    document.getElementById(`${input.id}-hint`).textContent = hint(name(), domains.find(({ domain }) => domain === name().split("@")[0]));
  }

  if (listed.next !== null) {
    typed(input, async (contains) => {
      domains = await withNamed(await page(context, { contains, limit: SOME }), [contains], context);
      describe();
    }, context);
  }
  element.append(list);
  requestAnimationFrame(describe); // once the hint stands in the page
  return { element, input, name, check };
}
