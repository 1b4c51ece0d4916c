/** Labelled pairs out of the cells of a table; the rules are those of jobs/labels.py. */

const HIGHEST = 5; // grades are within 0–1 or 0–5

const NAME_THEM = "name the columns in a first row: a, b, label";

const number = (text) => (/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(text) ? Number(text) : null);

/** Cells of pasted lines, with tabs between them. */
export function pastedRows(text) {
  return text.split("\n").map((line, index) => ({ line: index + 1, cells: line.replace(/\r$/, "").split("\t") })).filter(({ cells }) => cells.some((cell) => cell.trim()));
}

/**
 * rows: [{ line, cells }]; grades: whether labels other than 0 and 1 are taken. Returns { pairs: [{a, b, label, weight}], faults: ["line 3: …"] }.
 *
 * If the first row names the columns a, b and label, and perhaps weight, others are ignored. Without these names there
 * are two sentences and, before or behind them, a column of labels: the one with more numbers, else the one that the
 * first row names label. The first row has names if neither its first nor its last cell is a number.
 */
export function parsePairs(rows, grades) {
  const pairs = [];
  const faults = [];
  if (!rows.length) return { pairs, faults };
  const width = rows[0].cells.length;
  const named = number(rows[0].cells[0]) === null && number(rows[0].cells[width - 1]) === null;
  const table = named ? rows.slice(1) : rows;
  const { fault, a, b, label, weight } = columnsOf(table.filter(({ cells }) => cells.length === width), named ? rows[0].cells.map((name) => name.trim().toLowerCase()) : [], width);
  if (table.length && fault) return { pairs, faults: [fault] };
  for (const { line, cells } of table) {
    const value = number(cells[label] ?? "");
    const heavy = weight < 0 ? 1 : number(cells[weight] ?? "");
    if (cells.length !== width) faults.push(`line ${line}: expected ${width} columns, found ${cells.length}`);
    else if (value === null) faults.push(`line ${line}: the label “${cells[label].slice(0, 20)}” is no number`);
    else if (heavy === null || heavy <= 0) faults.push(`line ${line}: the weight must be a number above 0`);
    else if (!grades && value !== 0 && value !== 1) faults.push(`line ${line}: the label ${value} is neither 0 nor 1`);
    else if (value < 0 || value > HIGHEST) faults.push(`line ${line}: the label ${value} is not within 0–${HIGHEST}`);
    else if (!cells[a].trim() || !cells[b].trim()) faults.push(`line ${line}: a sentence is empty`);
    else pairs.push({ a: cells[a].trim(), b: cells[b].trim(), label: value, weight: heavy });
  }
  return { pairs, faults };
}

/** The columns of a, b, label and weight (-1: none), or a fault. */
function columnsOf(table, names, width) {
  const once = (name) => names.filter((other) => other === name).length === 1;
  const weight = once("weight") ? names.indexOf("weight") : -1;
  if (["a", "b", "label"].every(once)) return { a: names.indexOf("a"), b: names.indexOf("b"), label: names.indexOf("label"), weight };
  const rest = Array.from({ length: width }, (_, column) => column).filter((column) => column !== weight);
  if (rest.length !== 3) return { fault: `expected a label and two sentences, found ${width} ${width === 1 ? "column" : "columns"}; ${NAME_THEM}` };
  const [first, last] = [rest[0], rest[2]].map((column) => table.filter(({ cells }) => number(cells[column]) !== null).length);
  if (!first && !last) return { fault: "neither the first nor the last column has a number; write 1 for a match and 0 for no match" };
  if (first === last && names[rest[0]] !== "label" && names[rest[2]] !== "label") return { fault: `the first and the last column could both hold the labels; ${NAME_THEM}` };
  const label = first > last || (first === last && names[rest[0]] === "label") ? rest[0] : rest[2];
  const [a, b] = rest.filter((column) => column !== label);
  return { a, b, label, weight };
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
