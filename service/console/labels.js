/** Labelled pairs out of lines: label, sentence, sentence with tabs between; the label may also come last. */

const HIGHEST = 5; // grades are within 0–1 or 0–5

const number = (text) => (/^\s*\d+(\.\d+)?\s*$/.test(text) ? Number(text) : null);

/** { pairs: [{a, b, label}], faults: ["line 3: …"] }. A first line of column names is passed over. */
export function parsePairs(text) {
  const pairs = [];
  const faults = [];
  text.split("\n").forEach((line, index) => {
    if (!line.trim()) return;
    const cells = line.replace(/\r$/, "").split("\t");
    const place = `line ${index + 1}`;
    if (cells.length !== 3) {
      faults.push(`${place}: expected three columns with tabs between, found ${cells.length}`);
      return;
    }
    const first = number(cells[0]);
    const last = number(cells[2]);
    if (first === null && last === null) {
      if (index > 0) faults.push(`${place}: neither the first nor the last column is a number`);
      return;
    }
    const [label, a, b] = first === null ? [last, cells[0], cells[1]] : [first, cells[1], cells[2]];
    if (label > HIGHEST) faults.push(`${place}: the label ${label} is above ${HIGHEST}`);
    else if (!a.trim() || !b.trim()) faults.push(`${place}: a sentence is empty`);
    else pairs.push({ a: a.trim(), b: b.trim(), label });
  });
  return { pairs, faults };
}
