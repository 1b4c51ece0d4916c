/** The service's API as this page uses it: the key, one way to ask, one kind of error, a job's event stream. */

const ROOT = new URL("../", import.meta.url); // where the service is, behind whatever path
const KEY = "isosim.key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** What the service refused, in its own words. */
export class Refused extends Error {
  constructor(status, body, retryAfter) {
    super(body.error || `the server answered with status ${status}`);
    this.status = status;
    this.type = body.error_type ?? "";
    this.remedy = body.remedy;
    this.requestId = body.request_id ?? "";
    this.retryAfter = retryAfter;
  }
}

/** No answer at all: the server is gone, or the network. */
export class Unreachable extends Error {
  constructor() {
    super(`no answer from ${ROOT.host}`);
  }
}

function headersWith(given, candidate) {
  const known = candidate ?? key.get();
  return known ? { ...given, authorization: `Bearer ${known}` } : given;
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...options, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("retry-after"));
  throw new Refused(response.status, body, wait > 0 ? wait : null);
}

/** Asks and returns the response. `json` is sent as JSON, `body` as it is. */
function ask(method, path, { json, body, headers = {}, candidate, signal }) {
  const content = json === undefined ? {} : { "content-type": "application/json" };
  return send(path, {
    method,
    signal,
    body: json === undefined ? body : JSON.stringify(json),
    headers: headersWith({ ...content, ...headers }, candidate),
  });
}

/** Asks and returns the JSON answer, null for an empty one. */
export async function call(method, path, options = {}) {
  const response = await ask(method, path, options);
  return response.status === 204 ? null : response.json();
}

/** Asks and returns the answer's bytes. */
export async function download(method, path, options = {}) {
  const response = await ask(method, path, options);
  return response.blob().catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Unreachable(); // the answer broke off
  });
}

/** A path out of parts that may hold any character. */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/** The data of server-sent events, as objects. EventSource could send no key, so the stream is read by hand. */
export async function* events(where, signal) {
  const response = await send(where, { headers: headersWith({ accept: "text/event-stream" }), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Unreachable();
    });
    if (done) return;
    const blocks = (held + value).split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
      if (data.length) yield JSON.parse(data.join("\n"));
    }
  }
}

/** A key of its own for a request that must not happen twice. */
export function idempotencyKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
