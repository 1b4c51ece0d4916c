/** Domains as the page asks for them: some at a time, for a store may hold more than any page should. */

import { Refused, call } from "./api.js";

export const WAIT = 250; // ms after the last key stroke in a search

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

/** Calls `look` with what stands in a field, once nobody types any more. */
export function typed(input, look) {
  let timer;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => look(input.value.trim().toLowerCase()), WAIT);
  });
  return input;
}
