/** A report's curve of false-match rates, read as a distribution of random pairs: { similarity: rising, rate: falling }. */

const logit = (rate) => Math.log(rate / (1 - rate));
const expit = (x) => 1 / (1 + Math.exp(-x));

/** The share of random pairs that score at least this much. Between knots the logit is a line, as in the service. */
export function rateAt(curve, similarity) {
  const { similarity: x, rate } = curve;
  if (similarity <= x[0]) return 1;
  if (similarity >= x.at(-1)) return 0;
  const above = x.findIndex((knot) => knot > similarity);
  const share = (similarity - x[above - 1]) / (x[above] - x[above - 1]);
  return expit(logit(rate[above - 1]) + share * (logit(rate[above]) - logit(rate[above - 1])));
}

/** The similarity that this share of random pairs reaches; null outside the curve. */
export function similarityAt(curve, wanted) {
  const { similarity: x, rate } = curve;
  if (wanted > rate[0] || wanted < rate.at(-1)) return null;
  const below = Math.max(1, rate.findIndex((one) => one <= wanted));
  const span = logit(rate[below]) - logit(rate[below - 1]);
  const share = span ? (logit(wanted) - logit(rate[below - 1])) / span : 0;
  return x[below - 1] + share * (x[below] - x[below - 1]);
}

/** Shares of random pairs in each bin between rising edges. */
export function histogram(curve, edges) {
  const rates = edges.map((edge) => rateAt(curve, edge));
  return rates.slice(1).map((rate, index) => rates[index] - rate);
}

/** Edges of bins of equal width over all but a millionth of the curves, from one fifth to another. */
export function sharedEdges(curves, bins) {
  const low = Math.floor(Math.min(...curves.map((curve) => curve.similarity[0])) * 5) / 5;
  const high = Math.ceil(Math.max(...curves.map((curve) => curve.similarity.at(-1))) * 5) / 5;
  return Array.from({ length: bins + 1 }, (_, index) => low + ((high - low) * index) / bins);
}

/** Whether two curves are the same to what a picture shows. */
export function same(one, other) {
  return one.similarity.length === other.similarity.length
    && one.similarity.every((x, index) => Math.abs(x - other.similarity[index]) < 1e-4);
}
