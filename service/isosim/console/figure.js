/** A picture with its text alternative: a Chart.js canvas, one sentence that says what it shows, and its numbers. */

import { h } from "./dom.js";

const drawn = new Set();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "muted", "line", "surface", "before", "after", "mark", "good", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** A colour with some of the ground showing through. */
export function faint(colour, opacity) {
  return colour + Math.round(opacity * 255).toString(16).padStart(2, "0");
}

/** An axis in the page's colours. */
export function axis(palette, title, options = {}) {
  const { ticks, ...rest } = options;
  return {
    title: { display: true, text: title, color: palette.muted },
    ticks: { color: palette.muted, maxRotation: 0, ...ticks },
    grid: { color: palette.line, offset: false }, // on the ticks also where bars stand between them
    border: { color: palette.line },
    ...rest,
  };
}

function complete(config, palette) {
  const options = config.options ?? {};
  const legend = { labels: { color: palette.text, boxWidth: 16, boxHeight: config.type === "line" ? 2 : 10 }, ...options.plugins?.legend };
  return {
    ...config,
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, ...options,
      plugins: { ...options.plugins, legend },
    },
  };
}

/**
 * title, lead: what it is and how to read it. draw(palette): Chart.js configuration. summary: what it shows, in a sentence.
 * numbers: a table for those who cannot see the picture. over: an element in front of it. Returns { element, redraw(changes) }.
 */
export function figure(given, signal) {
  let { draw, summary, numbers } = given;
  let chart = null;
  const canvas = h("canvas", { role: "img", "aria-label": `${given.title}. ${summary}` });
  const said = h("p", { class: "summary" }, summary);
  const place = h("div", {}, numbers);
  const element = h("figure", { class: "card" },
    h("h3", {}, given.title), h("p", { class: "muted" }, given.lead), given.controls,
    h("div", { class: "plot" }, canvas, given.over), said,
    h("details", {}, h("summary", {}, "Numbers"), place));

  function paint() {
    chart?.destroy();
    if (signal.aborted || !element.isConnected) return;
    const fold = element.closest("details:not([open])");
    if (fold) { // a canvas without a size: painted when it is opened
      fold.addEventListener("toggle", paint, { once: true });
      return;
    }
    const palette = colours();
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    chart = new Chart(canvas, complete(draw(palette), palette));
  }

  function redraw(changes) {
    ({ draw, summary, numbers } = { draw, summary, numbers, ...changes });
    canvas.setAttribute("aria-label", `${given.title}. ${summary}`);
    said.textContent = summary;
    place.replaceChildren(numbers);
    paint();
  }

  drawn.add(paint);
  signal.addEventListener("abort", () => {
    drawn.delete(paint);
    chart?.destroy();
  });
  requestAnimationFrame(paint); // once the view stands in the page
  return { element, redraw };
}

for (const query of ["(prefers-color-scheme: dark)", "(prefers-contrast: more)"]) {
  matchMedia(query).addEventListener("change", () => drawn.forEach((paint) => paint()));
}
