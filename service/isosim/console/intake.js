/** A file of the analyst's, or a paste: the server says what it is (POST /inspect), the reader corrects it before use. */

import { explain } from "./alerts.js";
import { call, download, Refused } from "./api.js";
import { button, facts, fault, field, h, select, table, unique } from "./dom.js";
import { count, counted, sentence } from "./format.js";

const LARGE = 100_000; // characters of a paste; a text box took six seconds for 20,000 lines, the page 0.1
const WAIT = 400; // ms after the last key stroke in the text
const LOOKED_AT = 20; // lines of a paste that tell whether it was copied from a spreadsheet
const SHOWN = 200; // characters of a cell
const ROWS_NAMED = 5; // rows that are too long

const SEEMING = 0.8; // share of the rows shown that have to look alike (jobs/table.py)
const CODE = /^(?=.*\d)[!-~]{1,40}$/; // a number, a date, an identifier: no space, a digit
const OTHER_LETTERS = 0.2; // share outside the Latin script: of ten lines of English Wikipedia at most 0.03, of Korean at least 0.76 (1,000 draws)

/** What the packaged encoder was trained on (isosim export); others do not say. */
export const LANGUAGES = { minilm: "English" };

const ANY = "application/octet-stream"; // its kind is detected; text too, since many tables are called .txt
const TYPES = {
  csv: "text/csv", tsv: "text/tab-separated-values",
  ndjson: "application/x-ndjson", jsonl: "application/x-ndjson", parquet: "application/vnd.apache.parquet",
  xlsx: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
};
const ACCEPTED = [".csv", ".tsv", ".txt", ".text", ".ndjson", ".jsonl", ".parquet", ".xlsx", "text/*"].join();
const FORMATS = { text: "text, one sentence a line", csv: "CSV", tsv: "table with tabs", ndjson: "lines of JSON" };
const WITH_HEADER = new Set(["csv", "tsv", "xlsx"]);
const SEPARATORS = { ",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars" };
const CHARSETS = [
  ["utf-8", "UTF-8"], ["windows-1252", "windows-1252 (Western Europe)"], ["utf-16", "UTF-16"],
  ["iso-8859-1", "ISO-8859-1 (Western Europe)"], ["iso-8859-15", "ISO-8859-15 (Western Europe, with €)"],
  ["iso-8859-2", "ISO-8859-2 (Central Europe)"], ["windows-1250", "windows-1250 (Central Europe)"],
  ["windows-1251", "windows-1251 (Cyrillic)"], ["koi8-r", "KOI8-R (Russian)"], ["windows-1253", "windows-1253 (Greek)"],
  ["windows-1254", "windows-1254 (Turkish)"], ["mac-roman", "Mac Roman"], ["shift_jis", "Shift JIS (Japanese)"],
  ["gb18030", "GB 18030 (Chinese)"], ["big5", "Big5 (Chinese)"], ["euc-kr", "EUC-KR (Korean)"],
];

/** The content type that a file's name declares. */
export function typeOf(name) {
  const [, suffix = ""] = /\.([^.]*)$/.exec(name.toLowerCase()) ?? [];
  return TYPES[suffix] ?? ANY;
}

/** What a file is, in words: "Excel workbook, sheet Tickets", "CSV with semicolons, windows-1252". */
export function describeFile({ format, encoding, separator, sheet }) {
  const named = { text: "Text, one sentence a line", tsv: "Table with tabs", ndjson: "Lines of JSON", parquet: "Parquet file", xlsx: "Excel workbook" };
  const what = format === "csv" ? `CSV with ${SEPARATORS[separator] ?? `“${separator}”`}` : named[format] ?? format;
  return [what, encoding && charsetName(encoding), sheet && `sheet ${sheet}`].filter(Boolean).join(", ");
}

function charsetName(encoding) {
  const known = CHARSETS.find(([name]) => name === encoding.toLowerCase());
  return known ? known[1].replace(/ \(.*/, "") : encoding;
}

/** The labelled pairs of a table file of any kind. Fails with the words of the server where it cannot be read. */
export async function labelsOf(file, kind, signal) {
  const pairs = await download("POST", `inspect?give=labels&kind=${kind}`, { body: file, headers: { "content-type": typeOf(file.name) }, signal });
  return parseLines(await pairs.text()).map(([a, b, label, weight]) => ({ a, b, label, weight }));
}

export function parseLines(text) {
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

const kept = new Map(); // legend -> what was chosen and not yet posted; it is there again when the view is opened again

/**
 * Fields for a file or a paste, and below them what was understood of it.
 *
 * given: { legend, lead, label and pasteLabel of the fields, verdicts(found): [[kind, words]], changed()
 * after each change, takes(event): whether a file that is dropped is for these fields; by default it is }. Returns { element, found():
 * the answer of /inspect or null, ready(): the same once the server has looked, body(): for POST /calibrate as
 * { query, options }, posted(): it need not be kept, sentences(): the chosen column as a blob of NDJSON, refresh(): shows the verdicts anew, miss() }.
 */
export function fileIntake(context, given) {
  const { server, signal } = context;
  const state = { source: null, name: "", type: ANY, chosen: {}, found: null, reading: null, timer: 0 };
  const radios = unique("column");

  const file = h("input", { type: "file", accept: ACCEPTED, onchange: () => takeFile(file.files[0] ?? null) });
  const paste = h("textarea", { rows: "5", dir: "auto", spellcheck: "false", oninput: () => {
    file.value = "";
    forget();
    clearTimeout(state.timer);
    state.timer = setTimeout(takePaste, WAIT);
  } });
  paste.addEventListener("paste", (event) => {
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    if (pasted.length < LARGE) return;
    event.preventDefault();
    [file.value, paste.value] = ["", ""];
    clearTimeout(state.timer);
    takeText(pasted);
  });
  const pasting = field(given.pasteLabel ?? "Or paste", paste, "One sentence a line, or cells of a spreadsheet. A large paste is taken as it is and not shown here.");
  const working = h("p", { role: "status", class: "working" });
  const seen = h("div", { class: "understood" });
  const element = h("fieldset", { class: "drop" },
    h("legend", {}, given.legend),
    h("p", { class: "muted" }, given.lead),
    field(given.label ?? "Choose a file, or drop it anywhere on this page", file, "Text, CSV, TSV, lines of JSON, Parquet or an Excel workbook (.xlsx)."),
    pasting, working, seen);

  for (const kind of ["dragover", "drop"]) {
    window.addEventListener(kind, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault(); // else the browser would leave this page for the file
      const mine = given.takes?.(event) ?? true;
      element.classList.toggle("over", mine && kind === "dragover");
      if (mine && kind === "drop") {
        file.files = event.dataTransfer.files;
        takeFile(event.dataTransfer.files[0] ?? null);
      }
    }, { signal });
  }
  window.addEventListener("dragleave", () => element.classList.remove("over"), { signal });

  function forget() {
    kept.delete(given.legend);
    state.reading?.abort();
    Object.assign(state, { source: null, name: "", type: ANY, chosen: {}, found: null });
    fault(file, "");
    pasting.hidden = false;
    working.replaceChildren();
    seen.replaceChildren();
    given.changed?.();
  }

  function takeFile(source) {
    clearTimeout(state.timer);
    paste.value = "";
    forget();
    if (!source) return null;
    Object.assign(state, { source, name: source.name, type: typeOf(source.name) });
    return look();
  }

  function takePaste() {
    clearTimeout(state.timer);
    forget();
    return paste.value.trim() ? takeText(paste.value) : null;
  }

  function takeText(text) {
    forget();
    const lines = text.slice(0, LARGE).split("\n", LOOKED_AT).filter((line) => line.trim());
    const cells = lines.length > 1 && lines.every((line) => line.includes("\t"));
    Object.assign(state, { source: new Blob([text]), name: "Pasted text", type: cells ? TYPES.tsv : ANY, chosen: { charset: "utf-8" } });
    return look();
  }

  function look(changes = {}) {
    state.pending = inspect({ ...state.chosen, ...changes });
    return state.pending;
  }

  /** Asks the server what the source is. What the reader corrected goes along; a correction it refuses is taken back. */
  async function inspect(wanted) {
    state.reading?.abort();
    const reading = new AbortController();
    state.reading = reading;
    const asked = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== null));
    fault(file, "");
    if (state.source.size > server.limits.bytes) {
      const million = (bytes) => Math.round(bytes / 1e6);
      fault(file, `This has ${million(state.source.size)} MB; at most ${million(server.limits.bytes)} MB are taken. A random sample of 20,000 sentences is plenty.`);
      state.source = null;
      return;
    }
    working.replaceChildren("The server reads it… ", h("progress", { "aria-label": "Reading the file" }));
    try {
      const found = await call("POST", `inspect?${new URLSearchParams(asked)}`, {
        body: state.source, headers: { "content-type": state.type }, signal: AbortSignal.any([signal, reading.signal]),
      });
      Object.assign(state, { found, chosen: asked, unread: null });
      kept.set(given.legend, { source: state.source, name: state.name, type: state.type, chosen: asked, pasted: paste.value });
      working.replaceChildren(h("span", { class: "unseen" }, `${describeFile(found)}: ${counted(found.sentences, "sentence")}.`));
    } catch (error) {
      if (signal.aborted || reading.signal.aborted) return;
      working.replaceChildren();
      context.refused(error);
      const { text, next } = explain(error);
      const own = error instanceof Refused && [400, 413, 415, 422].includes(error.status); // says itself what to do
      state.unread = own ? null : wanted; // to be asked again
      fault(file, own ? sentence(text) : `${sentence(text)} ${next}`);
    }
    show();
    given.changed?.();
  }

  function show() {
    const focus = document.activeElement?.closest(".understood") ? document.activeElement : null;
    const kept = focus && [focus.id || null, focus.name || null, focus.value];
    pasting.hidden = Boolean(state.found) && state.name !== "Pasted text";
    seen.replaceChildren(...(state.found ? understood(state.found) : []));
    const [box, head] = [seen.querySelector(".scroll"), seen.querySelector("th.chosen")];
    if (box && head) box.scrollLeft = Math.max(0, head.offsetLeft + head.offsetWidth - box.clientWidth); // in a narrow window it lies outside
    if (!kept) return;
    const [id, name, value] = kept;
    const again = [...seen.querySelectorAll("input, select")].find((one) => (name ? one.name === name && one.value === value : one.id === id));
    (again ?? seen.querySelector("input:checked"))?.focus();
  }

  function understood(found) {
    const doubts = seeming(found);
    const verdicts = given.verdicts(found).filter(([kind]) => kind !== "good" || !doubts.length);
    return [
      h("p", {}, h("strong", {}, state.name), ": ", describeFile(found), ". ", pasting.hidden && button("Paste text instead", () => { file.value = ""; takeFile(null); paste.focus(); }, { class: "quiet" })),
      corrections(found),
      preview(found),
      counts(found),
      ...tooLong(found), ...doubts.map((words) => h("p", { class: "verdict warn" }, words)), ...verdicts.map(([kind, words]) => h("p", { class: `verdict ${kind}` }, words)),
    ].filter(Boolean);
  }

  /** Fields for what may have been understood wrongly. */
  function corrections(found) {
    const fields = [];
    const anew = (change) => look({ column: null, ...change }); // the columns' names may be others then
    if (found.encoding && !(found.encoding_certain && !state.chosen.charset) && state.name !== "Pasted text") {
      const current = found.encoding.toLowerCase();
      const known = CHARSETS.some(([name]) => name === current);
      const options = known ? CHARSETS : [[current, found.encoding], ...CHARSETS];
      const control = select(options, current, { id: `${radios}-charset`, onchange: () => anew({ charset: control.value }) });
      fields.push(field("Encoding", control, state.chosen.charset ? "" : "A guess. If the rows below show wrong letters, choose another one."));
    }
    if (found.sheets.length > 1) {
      const control = select(found.sheets, found.sheet, { id: `${radios}-sheet`, onchange: () => anew({ sheet: control.value, header: null }) });
      fields.push(field("Sheet", control, ""));
    }
    if (found.format in FORMATS) {
      const control = select(Object.entries(FORMATS), found.format, { id: `${radios}-format`, onchange: () => anew({ format: control.value, header: null, force: control.value === "text" ? true : null }) });
      fields.push(field("Read it as", control, ""));
    }
    const header = WITH_HEADER.has(found.format) && h("label", { class: "check" }, h("input", {
      type: "checkbox", id: `${radios}-header`, checked: found.header, onchange: (event) => anew({ header: String(event.target.checked) }),
    }), " The first row holds the columns' names");
    return fields.length || header ? h("div", {}, fields.length > 0 && h("div", { class: "row" }, fields), header) : null;
  }

  function preview(found) {
    const choice = found.columns.length > 1;
    const heads = found.columns.map((name, index) => {
      const chosen = name === found.column;
      const label = choice
        ? h("label", { class: "choice" }, h("input", { type: "radio", name: radios, value: name, checked: chosen, onchange: () => look({ column: name }) }), name)
        : found.format === "text" ? "First lines" : name;
      return h("th", { scope: "col", class: chosen ? "chosen" : "", id: `${radios}-${index}` }, label);
    });
    const at = found.columns.indexOf(found.column);
    const rows = found.rows.map((cells) => h("tr", {}, found.columns.map((_, index) =>
      h("td", { class: index === at ? "chosen sample" : "sample", dir: "auto" }, shortened(cells[index] ?? "")))));
    return h("div", {},
      choice && h("p", {}, h("span", { class: "muted" }, "Which column holds the sentences? Chosen: "), h("strong", {}, found.column),
        h("span", { class: "muted" }, ` (${at + 1} of ${found.columns.length}).`)),
      table(choice ? "First rows; the columns' heads choose the column with the sentences" : "First rows", heads, rows, { class: "preview" }));
  }

  function counts(found) {
    return facts([
      ["Sentences", count(found.sentences)],
      ["Distinct", count(found.distinct)],
      ["Same word for word", count(found.sentences - found.distinct)],
      ["Empty", count(found.empty)],
      ["Too long", count(found.too_long)],
      ["Longest (characters)", count(found.longest)],
    ], { class: "facts tiles" });
  }

  function tooLong(found) {
    if (!found.too_long) return [];
    const rows = found.too_long_rows.slice(0, ROWS_NAMED);
    const kind = found.format === "text" ? "line" : "row";
    const more = found.too_long > rows.length ? ", …" : "";
    return [h("p", { class: "verdict warn" }, `${counted(found.too_long, kind)} longer than ${count(server.limits.characters)} characters will be left out (${kind} ${rows.map(count).join(", ")}${more}).`)];
  }

  /** What makes the rows shown look like something else than sentences that the encoder can read. */
  function seeming(found) {
    const place = found.columns.indexOf(found.column);
    const cells = found.rows.map((row) => (row[place] ?? "").trim()).filter(Boolean);
    const alike = (test) => cells.length > 0 && cells.filter(test).length >= SEEMING * cells.length;
    const said = [];
    const text = cells.join("");
    const letters = text.match(/\p{L}/gu)?.length ?? 0;
    const latin = text.match(/\p{Script=Latin}/gu)?.length ?? 0;
    if (alike((cell) => CODE.test(cell))) said.push("These look like numbers or codes, not sentences: most of the rows shown are one word with digits. Choose another column.");
    else if (latin === letters && alike((cell) => cell.split(/\s+/).length <= 2)) said.push("These look like names or categories, not sentences: most of the rows shown have at most two words.");
    const { id } = server.encoder;
    if (LANGUAGES[id] === "English" && letters - latin > OTHER_LETTERS * letters) {
      said.push(`Most of this is not English, and this server's encoder, ${id}, was trained on English: its scores would mean little. A server with a multilingual encoder can read it.`);
    }
    return said;
  }

  // What the page has shown counts as confirmed: the reader could have corrected it.
  const known = (found) => ({
    format: found.format,
    ...(found.sheets.length > 1 ? { sheet: found.sheet } : {}),
    ...(found.encoding && !found.encoding_certain ? { charset: found.encoding } : {}),
    ...state.chosen,
    ...(found.columns.length > 1 ? { column: found.column } : {}),
  });

  if (kept.has(given.legend)) {
    const { pasted, ...rest } = kept.get(given.legend);
    Object.assign(state, rest);
    paste.value = pasted;
    look(rest.chosen);
  }

  return {
    element,
    posted: () => kept.delete(given.legend),
    found: () => state.found,
    name: () => state.name,

    /** Takes a file as if it had been chosen. */
    take: takeFile,

    /** What the text is read from: "tickets.xlsx, Excel workbook, sheet Tickets, column Question". */
    source: () => [state.name, describeFile(state.found), state.found.columns.length > 1 && `column ${state.found.column}`].filter(Boolean).join(", "),
    refresh: show,

    /** What was understood, once the server has looked; null where it could not, which is said at the file's field. */
    async ready() {
      if (!state.source && paste.value.trim()) await takePaste();
      else if (state.source && (state.found === null || state.unread)) await look(state.unread ?? {});
      else await state.pending;
      if (!state.source && !file.hasAttribute("aria-invalid")) fault(file, "Choose a file or paste text first.");
      if (!state.found || file.hasAttribute("aria-invalid")) file.focus();
      return file.hasAttribute("aria-invalid") ? null : state.found;
    },

    /** The file itself and how it is to be read, for POST /calibrate. */
    whole: () => ({ query: known(state.found), body: state.source, type: ANY, name: state.name }),

    /** The sentences of the chosen column, as the server reads them: NDJSON. */
    sentences: (until = signal) => download("POST", `inspect?${new URLSearchParams({ ...known(state.found), give: "sentences" })}`, {
      body: state.source, headers: { "content-type": state.type }, signal: until,
    }),
  };
}

/** So many characters, never half of one that takes two code units. */
function shortened(text) {
  const start = Array.from(text.slice(0, 2 * SHOWN));
  return start.length > SHOWN ? `${start.slice(0, SHOWN).join("")}…` : text;
}
