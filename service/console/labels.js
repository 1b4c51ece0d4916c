/** Labelled pairs out of lines with tabs between the cells; the rules are those of core/jobs/labels.py. */

const HIGHEST = 5; // grades are within 0–1 or 0–5

const number = (text) => (/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(text) ? Number(text) : null);

/**
 * { pairs: [{a, b, label}], faults: ["line 3: …"] }. Of the first and the last column the one with more numbers holds
 * the labels. A first line with a number in neither holds the names of the columns; a fourth one may be `weight`.
 */
export function parsePairs(text) {
  const pairs = [];
  const faults = [];
  const rows = [];
  let weights = -1; // column, where the first line names one
  text.split("\n").forEach((line, index) => {
    if (!line.trim()) return;
    const cells = line.replace(/\r$/, "").split("\t");
    if (!rows.length && cells.length === 4) weights = cells.findIndex((name) => name.trim().toLowerCase() === "weight");
    const weight = weights >= 0 && rows.length ? number(cells[weights] ?? "") : 1;
    if (weights >= 0) cells.splice(weights, 1);
    if (weight === null || weight <= 0) faults.push(`line ${index + 1}: the weight must be a number above 0`);
    else if (cells.length === 3) rows.push({ place: `line ${index + 1}`, cells, weight });
    else faults.push(`line ${index + 1}: expected three columns with tabs between, found ${cells.length}`);
  });
  if (rows.length && number(rows[0].cells[0]) === null && number(rows[0].cells[2]) === null) rows.shift();
  const numbers = (column) => rows.filter(({ cells }) => number(cells[column]) !== null).length;
  const first = numbers(0) >= numbers(2);
  for (const { place, cells, weight } of rows) {
    const [label, a, b] = first ? [number(cells[0]), cells[1], cells[2]] : [number(cells[2]), cells[0], cells[1]];
    if (label === null) faults.push(`${place}: the label ${cells[first ? 0 : 2]} is no number`);
    else if (label > HIGHEST) faults.push(`${place}: the label ${label} is above ${HIGHEST}`);
    else if (!a.trim() || !b.trim()) faults.push(`${place}: a sentence is empty`);
    else pairs.push({ a: a.trim(), b: b.trim(), label, ...(weight === 1 ? {} : { weight }) });
  }
  return { pairs, faults };
}
