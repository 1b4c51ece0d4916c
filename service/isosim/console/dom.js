/** Builds elements. Text goes in as text nodes, never as HTML, whatever the server or a file says. */

let counter = 0;

/** An identifier that no other element has. */
export function unique(prefix) {
  counter += 1;
  return `${prefix}-${counter}`;
}

/** An element; attributes named `on…` are listeners, null and false leave an attribute out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** New content for a place; the focus stays on the control with the same name. */
export function refill(place, ...content) {
  const focus = place.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  place.replaceChildren(...content.flat());
  if (focus) [...place.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focus)?.focus({ preventScroll: true });
}

export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/** A link that looks like a button. */
export function action(label, href, attributes = {}) {
  return h("a", { href, class: "button", ...attributes }, label);
}

/** A word that marks a state; kind "good", "warn" or none. */
export function badge(text, kind = "", title = null) {
  return h("span", { class: `badge ${kind}`, title }, text);
}

/** A labelled control with a hint below it. */
export function field(label, control, ...hint) {
  control.id ||= unique("field");
  const note = h("p", { class: "hint", id: `${control.id}-hint` }, ...hint);
  control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

/** Says below a field what is wrong with it; an empty text says that nothing is. */
export function fault(control, text) {
  const id = `${control.id}-fault`;
  document.getElementById(id)?.remove();
  control.toggleAttribute("aria-invalid", false);
  const described = [`${control.id}-hint`];
  if (text) {
    control.setAttribute("aria-invalid", "true");
    document.getElementById(`${control.id}-hint`).after(h("p", { class: "fault", id }, text));
    described.unshift(id);
  }
  control.setAttribute("aria-describedby", described.join(" "));
}

// A box that scrolls must be reachable by keyboard, one that does not should not stand in the way.
const scrolling = new ResizeObserver((boxes) => {
  for (const { target } of boxes) {
    if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };

/**
 * Prepares a table of class `stacked`, whose rows become blocks in a narrow window: each cell carries its column's name,
 * and roles keep it a table for screen readers whatever its display.
 */
export function label(content) {
  const heads = [...content.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const part of [content, ...content.querySelectorAll("thead, tbody, tr, td")]) part.setAttribute("role", ROLES[part.tagName]);
  for (const cell of content.querySelectorAll("th")) cell.setAttribute("role", cell.closest("thead") ? "columnheader" : "rowheader");
  for (const row of content.tBodies[0].rows) {
    [...row.cells].reverse().forEach((cell, index) => { // from the end: a cell above may span this row's first column
      if (cell.tagName === "TD" && cell.colSpan === 1) cell.dataset.label = heads[heads.length - 1 - index];
    });
  }
}

const NUMBER = /^(–|[<−-]?[\d.,]+( %)?( to [−-]?[\d.,]+( %)?)?)$/;

/** Aligns columns of numbers to the right; counted from the end, as a cell above may span a row's first column. */
function alignNumbers({ tHead: { rows: [{ cells: heads }] }, tBodies: [{ rows }] }) {
  [...heads].reverse().forEach((head, index) => {
    const cells = [...rows].map((row) => row.cells[row.cells.length - 1 - index]).filter(Boolean);
    const some = cells.some((cell) => cell.matches(".number") || (cell.matches("td") && /\d/.test(cell.textContent)));
    if (some && cells.every((cell) => NUMBER.test(cell.textContent))) [head, ...cells].forEach((cell) => cell.classList.add("number"));
  });
}

/** A table with a caption for readers who do not see it; wide ones scroll in a box of their own. */
export function table(caption, heads, rows, attributes = {}) {
  const head = h("tr", {}, heads.map((cell) => (cell instanceof Node ? cell : h("th", { scope: "col" }, cell))));
  const body = rows.map((row) => row instanceof Node ? row : h("tr", {}, row.map((cell, index) => {
    if (cell instanceof HTMLTableCellElement) return cell;
    return index ? h("td", {}, cell ?? "–") : h("th", { scope: "row" }, cell ?? "–");
  })));
  const content = h("table", attributes, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, body));
  alignNumbers(content);
  if (content.classList.contains("stacked")) label(content);
  const box = h("div", { class: "scroll", role: "group", "aria-label": caption }, content);
  scrolling.observe(box);
  return box;
}

/** Names and values; null leaves a row out. */
export function facts(entries, attributes = {}) {
  return h("dl", { class: "facts", ...attributes }, entries
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function select(options, chosen, attributes = {}) {
  const element = h("select", attributes, options.map((option) => {
    const [value, label] = Array.isArray(option) ? option : [option, option];
    return h("option", { value }, label);
  }));
  element.value = chosen;
  return element;
}
