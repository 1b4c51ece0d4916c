/** Labelled pairs out of the cells of a table; the rules are those of jobs/labels.py. */

const HIGHEST = 5; // grades are within 0–1 or 0–5

const number = (text) => (/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(text) ? Number(text) : null);

/** Cells of pasted lines, with tabs between them. */
export function pastedRows(text) {
  return text.split("\n").map((line, index) => ({ line: index + 1, cells: line.replace(/\r$/, "").split("\t") })).filter(({ cells }) => cells.some((cell) => cell.trim()));
}

/**
 * rows: [{ line, cells }]; grades: whether labels other than 0 and 1 are taken. Returns { pairs: [{a, b, label, weight}], faults: ["line 3: …"] }.
 *
 * If the first row names the columns a, b and label, others than these and weight are ignored. Otherwise, of the first
 * and the last column the one that looks more like labels holds them: more numbers, then fewer numbers
 * outside 0–5, then the name `label`. A first row with a number in neither holds the names of the columns; a fourth one
 * may be `weight`.
 */
export function parsePairs(rows, grades) {
  const pairs = [];
  const faults = [];
  let table = rows;
  let names = (rows[0]?.cells ?? []).map((name) => name.trim().toLowerCase());
  if (["a", "b", "label"].every((name) => names.filter((other) => other === name).length === 1)) {
    const ragged = rows.filter(({ cells }) => cells.length !== names.length);
    if (ragged.length) return { pairs, faults: ragged.map(({ line, cells }) => `line ${line}: expected ${names.length} columns, found ${cells.length}`) };
    const columns = ["a", "b", "label", "weight"].map((name) => names.indexOf(name)).filter((column) => column >= 0);
    rows = rows.map(({ line, cells }) => ({ line, cells: columns.map((column) => cells[column]) }));
    table = rows;
    names = rows[0].cells.map((name) => name.trim().toLowerCase());
  }
  const weights = names.length === 4 ? names.indexOf("weight") : -1;
  if (weights >= 0) {
    table = rows.map(({ line, cells }, index) => ({ line, cells: cells.filter((_, column) => column !== weights), weight: index ? number(cells[weights] ?? "") : 1 }));
  }
  table = table.filter(({ line, cells, weight = 1 }) => {
    if (weight === null || weight <= 0) faults.push(`line ${line}: the weight must be a number above 0`);
    else if (cells.length !== 3) faults.push(`line ${line}: expected a label and two sentences, found ${cells.length} ${cells.length === 1 ? "column" : "columns"}`);
    else return true;
    return false;
  });
  let header = [];
  if (table.length && number(table[0].cells[0]) === null && number(table[0].cells[2]) === null) {
    header = table[0].cells.map((name) => name.trim().toLowerCase());
    table = table.slice(1);
  }
  const first = isFirst(table, header);
  if (first === null) return { pairs, faults: ["the first and the last column could both hold the labels; add a header that names the right one: label, a, b or a, b, label"] };
  for (const { line, cells, weight = 1 } of table) {
    const [written, a, b] = first ? cells : [cells[2], cells[0], cells[1]];
    const label = number(written);
    if (label === null) faults.push(`line ${line}: the label “${written.slice(0, 20)}” is no number`);
    else if (!grades && label !== 0 && label !== 1) faults.push(`line ${line}: the label ${label} is neither 0 nor 1`);
    else if (label < 0 || label > HIGHEST) faults.push(`line ${line}: the label ${label} is not within 0–${HIGHEST}`);
    else if (!a.trim() || !b.trim()) faults.push(`line ${line}: a sentence is empty`);
    else pairs.push({ a: a.trim(), b: b.trim(), label, weight });
  }
  return { pairs, faults };
}

/** Whether the labels stand in the first column, else in the last; null where that cannot be told. */
function isFirst(table, header) {
  if (header.join() === "a,b,label") return false;
  const worse = (column) => {
    const numbers = table.map(({ cells }) => number(cells[column]));
    return [numbers.filter((one) => one === null).length, numbers.filter((one) => one !== null && (one < 0 || one > HIGHEST)).length];
  };
  const [first, last] = [worse(0), worse(2)];
  if (first[0] !== last[0]) return first[0] < last[0];
  if (first[1] !== last[1]) return first[1] < last[1];
  if (header[0] === "label" || header[2] === "label") return header[0] === "label";
  if (table.length && first[0] === 0 && first[1] === 0 && table.every(({ cells }) => number(cells[1]) !== null)) return null;
  return true;
}

export const GRADES_LABEL = "The labels are grades of similarity";
export const GRADES_HINT = "Only for labels within 0–1 or 0–5 that say how similar two sentences are: the domain then answers a mean grade, and has no precision.";

/** The first fault, and how many more there are; "" for none. */
export function firstFault(faults) {
  return faults.length ? `${faults[0][0].toUpperCase()}${faults[0].slice(1)}${faults.length > 1 ? ` (and ${faults.length - 1} more)` : ""}.` : "";
}

const cell = (text) => text.replace(/[\t\r\n]+/g, " ");

/** Pairs as the command line and this page read them: tabs between the cells, a first line of names. */
export function tableOf(pairs) {
  return ["a\tb\tlabel\tweight", ...pairs.map(({ a, b, label, weight }) => [cell(a), cell(b), label, Number(weight.toPrecision(9))].join("\t"))].join("\n") + "\n";
}
