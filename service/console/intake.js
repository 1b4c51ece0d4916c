/** Reads text as the server will, in chunks with pauses, so that a large file does not freeze the page. */

const PAUSE = 20; // ms of work after which the browser gets a turn
const EXAMPLES = 3;
const PLACES = 5; // too long lines that are named

/** The text cannot be what one sentence a line looks like. */
export class NotText extends Error {}

/** Lines of a blob of UTF-8, some at a time, with the number of bytes read so far. */
async function* lines(blob, signal) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const reader = blob.stream().getReader();
  let [held, read, number, turn] = ["", 0, 0, performance.now()];
  for (;;) {
    const { value, done } = await reader.read();
    let text;
    try {
      text = decoder.decode(value, { stream: !done });
    } catch {
      throw new NotText(`This is not UTF-8 text (after line ${number + 1}). Save it as UTF-8 and choose it again.`);
    }
    if (text.includes("\0")) throw new NotText(`This is not a text file (a zero byte after line ${number + 1}).`);
    const parts = (held + text).split("\n");
    held = done ? "" : parts.pop();
    if (done && parts.at(-1) === "") parts.pop();
    number += parts.length;
    read += value?.length ?? 0;
    yield [parts, read];
    if (done) return;
    if (performance.now() - turn > PAUSE) {
      await new Promise((resolve) => { setTimeout(resolve); });
      signal?.throwIfAborted();
      turn = performance.now();
    }
  }
}

/** Characters as the server counts them: code points. */
function characters(text) {
  let number = 0;
  for (const _ of text) number += 1;
  return number;
}

/** What the server would understand of a text, one sentence a line. */
export async function understand(blob, limits, progress, signal) {
  if (blob.size > limits.bytes) {
    const million = (bytes) => Math.round(bytes / 1e6);
    throw new NotText(`This has ${million(blob.size)} MB; at most ${million(limits.bytes)} MB are taken. A random sample of 20,000 lines is plenty.`);
  }
  const found = { lines: 0, sentences: 0, empty: 0, tooLong: 0, places: [], longest: 0, longestLine: 0, examples: [], columns: 0, objects: 0 };
  const distinct = new Set();
  for await (const [some, read] of lines(blob, signal)) {
    for (const line of some) {
      found.lines += 1;
      const text = line.trim();
      if (!text) {
        found.empty += 1;
        continue;
      }
      const length = line.length > Math.min(limits.characters, found.longest) ? characters(line) : line.length;
      if (length > found.longest) [found.longest, found.longestLine] = [length, found.lines];
      if (length > limits.characters) {
        found.tooLong += 1;
        if (found.places.length < PLACES) found.places.push(found.lines);
        continue;
      }
      found.sentences += 1;
      distinct.add(text);
      if (found.examples.length < EXAMPLES) found.examples.push(text);
      if (text.includes("\t")) found.columns += 1;
      if (text.startsWith("{") && text.endsWith("}")) found.objects += 1;
    }
    progress?.(blob.size ? read / blob.size : 1);
  }
  return { ...found, distinct: distinct.size, duplicates: found.sentences - distinct.size };
}

/** The request's body and its type: the text as it is where that will do, else lines of JSON or without the too long ones. */
export async function bodyOf(blob, limits, understood, pairs, signal) {
  if (!pairs.length && !understood.tooLong) return { body: blob, type: "text/plain; charset=utf-8" };
  const parts = [];
  for await (const [some] of lines(blob, signal)) {
    const kept = some.filter((line) => line.trim() && (line.length <= limits.characters || characters(line) <= limits.characters));
    if (kept.length) parts.push(`${(pairs.length ? kept.map((line) => JSON.stringify(line.trim())) : kept).join("\n")}\n`);
  }
  if (!pairs.length) return { body: new Blob(parts), type: "text/plain; charset=utf-8" };
  parts.push(pairs.map((pair) => JSON.stringify(pair)).join("\n"));
  return { body: new Blob(parts), type: "application/x-ndjson" };
}
