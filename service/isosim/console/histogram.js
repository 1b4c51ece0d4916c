/** How many pairs have which similarity, with the threshold as a line that can be dragged. */

import { h, table } from "./dom.js";
import { axis, faint, figure } from "./figure.js";
import { count, counted, score } from "./format.js";

const LEAST = 0.5; // where the logarithmic axis begins; 0 has no place on it

/**
 * floor: the similarity from which on pairs were kept. moved(similarity): the line was dragged. Returns { element,
 * show(histogram, answer) }; the answer is null where no similarity reaches the target.
 */
export function scores(first, floor, moved, signal) {
  const line = h("input", { type: "range", class: "line", step: "0.01", "aria-label": "Lowest similarity that passes", oninput: () => moved(Number(line.value)) });

  /** Lays the range over the plot: the middle of its thumb then stands at the similarity of its value. */
  function lay({ chartArea: { left, right, top, bottom } }) {
    const thumb = 24; // px, as in files.css
    Object.assign(line.style, { left: `${left - thumb / 2}px`, width: `${right - left + thumb}px`, top: `${top}px`, height: `${bottom - top}px` });
  }

  function given(histogram, answer) {
    const { edges, compared, matches, others } = histogram;
    [line.min, line.max] = [Math.floor(edges[0] * 5) / 5, Math.ceil(edges.at(-1) * 5) / 5];
    if (!answer?.adjusted && !line.matches(":active")) line.value = answer ? answer.similarity : line.max; // right of all pairs
    line.classList.toggle("stale", Boolean(answer?.adjusted));
    const middle = (index) => (edges[index] + edges[index + 1]) / 2;
    const steps = (label, counts, colour) => ({ type: "line", label, data: [...counts, 0].map((y, index) => ({ x: edges[index], y: Math.max(y, LEAST / 10) })), stepped: true, fill: "start", pointRadius: 0, borderColor: colour, backgroundColor: faint(colour, 0.35), borderWidth: 1.5 });
    const bars = (label, counts, colour) => ({ label, data: counts.map((y, index) => ({ x: middle(index), y: y || null })), backgroundColor: colour, barPercentage: 1, categoryPercentage: 0.8 });
    const some = [...matches, ...others].some(Boolean);
    const [same, different] = [matches, others].map((counts) => counts.reduce((sum, one) => sum + one, 0));
    return {
      draw: (palette) => ({
        type: "bar",
        data: { datasets: [
          ...(some ? [bars("judged the same", matches, palette.good), bars("judged different", others, palette.bad)] : []),
          steps("the most alike: only these can pass", compared.map((pairs, index) => (middle(index) > floor ? pairs : 0)), palette.after),
          steps("all pairs compared", compared, palette.before),
        ] },
        options: {
          plugins: { tooltip: { enabled: false } },
          scales: {
            x: axis(palette, "similarity", { type: "linear", min: Number(line.min), max: Number(line.max), offset: false, ticks: { callback: (x) => score(x, 1) } }),
            y: axis(palette, "number of pairs", { type: "logarithmic", min: LEAST, ticks: { callback: (y) => (Number.isInteger(Math.log10(y)) ? count(y) : "") } }),
          },
        },
        plugins: [{ id: "line", afterLayout: lay }],
      }),
      summary: `${answer?.adjusted ? `${counted(answer.passing, "pair")} pass, by their words as well: the line does not show which.` : answer ? `The line stands at ${score(answer.similarity, 2)}: ${counted(answer.passing, "pair")} pass.` : "No similarity reaches the target."}${some ? ` Judged: ${count(same)} the same, ${count(different)} different.` : ""}`,
      numbers: table("Pairs by similarity", ["Similarity from", "Pairs", "Judged the same", "Judged different"],
        compared.map((pairs, index) => [score(edges[index], 2), ...[pairs, matches[index], others[index]].map(count)]).reverse()),
    };
  }

  const picture = figure({
    title: "How alike the pairs are",
    lead: "Drag the line, or move it with the arrow keys: the pairs on its right pass.",
    over: line, ...given(first, null), summary: "",
  }, signal);
  return { element: picture.element, show: (histogram, answer) => picture.redraw(given(histogram, answer)) };
}
