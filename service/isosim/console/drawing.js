/**
 * Pairs for people to judge, drawn out of all pairs of some sentences with known probabilities.
 *
 * Matches are rare: of pairs drawn evenly nearly all would be different. So all pairs are put into strata along the
 * similarity scale, by rank: below the 90th percentile, to the 99th, and from there on by a factor √10 of the rank each.
 * From each stratum pairs are drawn by simple random sampling without replacement. They are judged in an opening and then
 * in rounds, each with a fixed number of pairs from every stratum in random order. So wherever the judging stops, the
 * judged pairs of a stratum are a random sample of it, and their number does not depend on the labels.
 *
 * The estimator this serves is inverse probability weighting (Horvitz and Thompson, 1952), given the numbers judged: in a
 * stratum with N pairs of which n are judged, each judged pair had the probability n / N, and its weight is N / n. The sum
 * of w·y over judged pairs estimates the sum of y over all pairs without bias; the server's precision
 * Σ w·label·[s ≥ t] / Σ w·[s ≥ t] and recall Σ w·label·[s ≥ t] / Σ w·label are ratios of such sums (Hájek). The sentences
 * are a simple random sample of the text, which gives every pair the same further factor; ratios do not depend on it, so
 * weights are scaled to a mean of 1. A skipped pair counts as not drawn: right where skipping has nothing to do with the
 * label.
 *
 * How many from where: with as many labels in each stratum, the pairs above any edge have 1.9 times the effective labels
 * (Kish, 1965: (Σw)² / Σw²) of one stratum, so that no part of the upper scale is known much better than another. All
 * labels together then have few, as the lowest stratum holds nine pairs in ten; the server wants 10 effective labels.
 * The opening therefore takes one pair of each stratum, and of the rest as many as the stratum has of all pairs: with
 * eight strata 12 of 20 are from the lowest, and the 20 have 14 effective labels.
 */

export const MOST_SENTENCES = 1000; // 499,500 pairs; their cosines take a second or less
const FIRST = [0.1, 0.01]; // shares of all pairs above the lowest edges
const FACTOR = Math.sqrt(10); // of the edges beyond
const SMALLEST = 10; // pairs in the highest stratum, by rank; ties may make it other
const OPENING = 20; // pairs: as many labels as the server wants at least
const ROUNDS = 50;
const SHARE_NEAR = 2; // pairs a round from the strata beside the wanted rate; 1 from the others
const TURN = 15; // ms of work after which the browser gets a turn
const NORMAL = 1.96; // of a 95 % interval

/** Uniform numbers in [0, 1) from a seed (sfc32, Doty-Humphrey). */
export function generator(seed) {
  let [a, b, c, d] = [0x9e3779b9, 0x243f6a88, seed | 0, 1];
  const next = () => {
    const t = (a + b + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + t) | 0;
    return (t >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 12; i += 1) next();
  return next;
}

/** The items in random order. */
export function shuffled(items, random) {
  const order = [...items];
  for (let i = order.length - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/** So many distinct sentences at random. */
export function sampleOf(sentences, seed, most = MOST_SENTENCES) {
  return shuffled(new Set(sentences), generator(seed)).slice(0, most);
}

/** Cosines of all pairs i < j of unit vectors, row by row. vectors: Float32Array (count × dim). */
export async function cosines(vectors, count, signal) {
  const dim = vectors.length / count;
  const found = new Float32Array((count * (count - 1)) / 2);
  let [place, turn] = [0, performance.now()];
  for (let i = 0; i < count; i += 1) {
    for (let j = i + 1; j < count; j += 1) {
      let sum = 0;
      for (let k = 0, a = i * dim, b = j * dim; k < dim; k += 1) sum += vectors[a + k] * vectors[b + k];
      found[place] = sum;
      place += 1;
    }
    if (performance.now() - turn > TURN) {
      await new Promise((resolve) => { setTimeout(resolve); });
      signal?.throwIfAborted();
      turn = performance.now();
    }
  }
  return found;
}

/**
 * Strata, the lowest first: { floor, size, above: the share of all pairs at or above its floor, opening, share: its pairs in
 * the opening and in each round }.
 */
function strataOf(similarities, near) {
  const sorted = Float32Array.from(similarities).sort();
  const floors = [-Infinity];
  const add = (rate) => {
    const rank = Math.round(rate * sorted.length);
    const floor = sorted[sorted.length - rank];
    if (rank >= SMALLEST && floor > floors.at(-1) && floor > sorted[0]) floors.push(floor);
    return rank >= SMALLEST;
  };
  FIRST.forEach(add);
  for (let rate = FIRST.at(-1) / FACTOR; add(rate); rate /= FACTOR);
  const strata = floors.map((floor) => ({ floor, size: 0, opening: 1, share: 1 }));
  for (const similarity of similarities) strata[stratumOf(strata, similarity)].size += 1;
  let above = 0;
  for (const stratum of [...strata].reverse()) {
    above += stratum.size;
    stratum.above = above / sorted.length;
  }
  const rest = OPENING - strata.length;
  for (const stratum of strata) stratum.opening += Math.round((rest * stratum.size) / sorted.length);
  if (near) {
    const distance = ({ above: rate }) => Math.abs(Math.log(rate / near));
    const edge = strata.reduce((best, one, index) => (index && (!best || distance(one) < distance(strata[best])) ? index : best), 0);
    for (const index of [edge - 1, edge]) if (strata[index]) strata[index].share = SHARE_NEAR;
  }
  return strata;
}

function stratumOf(strata, similarity) {
  let index = strata.length - 1;
  while (similarity < strata[index].floor) index -= 1;
  return index;
}

/**
 * Draws pairs to be judged. similarities: of all pairs i < j of `count` sentences, row by row; near: a rate of random pairs
 * beside which more are drawn, or null. Returns { strata, queue: [{ i, j, stratum, similarity }] } in the order of judging.
 */
export function draw(similarities, count, { seed = 0, near = null } = {}) {
  const random = generator(seed);
  const strata = strataOf(similarities, near);
  const drawn = strata.map(() => []);
  const passed = strata.map(() => 0);
  let place = 0;
  for (let i = 0; i < count; i += 1) {
    for (let j = i + 1; j < count; j += 1, place += 1) {
      const stratum = stratumOf(strata, similarities[place]);
      const most = strata[stratum].opening + ROUNDS * strata[stratum].share;
      // A reservoir (Vitter, 1985): each pair of the stratum ends in it with the same probability.
      const at = passed[stratum] < most ? passed[stratum] : Math.floor(random() * (passed[stratum] + 1));
      if (at < most) drawn[stratum][at] = { i, j, stratum, similarity: similarities[place] };
      passed[stratum] += 1;
    }
  }
  const waiting = drawn.map((pairs) => shuffled(pairs, random));
  const round = (number) => shuffled(waiting.flatMap((pairs, stratum) => pairs.splice(0, number(strata[stratum]))), random);
  const queue = round(({ opening }) => opening);
  while (waiting.some((pairs) => pairs.length)) queue.push(...round(({ share }) => share));
  return { strata, queue };
}

/** The weight of each judged pair by its stratum: N / n, scaled to a mean of 1 over the judged pairs. */
export function weightsOf(strata, judged) {
  const counts = countsOf(strata, judged);
  const raw = judged.map((stratum) => strata[stratum].size / counts[stratum]);
  return scaled(raw);
}

/** Numbers with a mean of 1. */
export function scaled(weights) {
  const mean = weights.reduce((sum, weight) => sum + weight, 0) / weights.length;
  return weights.map((weight) => weight / mean);
}

function countsOf(strata, judged) {
  const counts = strata.map(() => 0);
  for (const stratum of judged) counts[stratum] += 1;
  return counts;
}

/** How many labels of equal weight have the same variance (Kish). */
export function effective(weights) {
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return sum ** 2 / weights.reduce((total, weight) => total + weight ** 2, 0);
}

/** Effective labels among the pairs from a stratum upwards, when so many labels are judged in the order of the queue. */
export function effectiveLabels(strata, labels, lowest) {
  const total = (name) => strata.reduce((sum, stratum) => sum + stratum[name], 0);
  const opened = Math.min(1, labels / total("opening"));
  const rounds = Math.max(0, labels - total("opening")) / total("share");
  let [sum, squares] = [0, 0];
  for (const { size, opening, share } of strata.slice(lowest)) {
    sum += size;
    squares += size ** 2 / Math.min(size, opened * opening + rounds * share);
  }
  return sum ** 2 / squares;
}

/** Half the width of the 95 % interval of a precision, where half of the pairs match: the widest a binomial has. */
export function halfWidth(effective) {
  return Math.min(0.5, NORMAL * Math.sqrt(0.25 / effective));
}

/**
 * About how many more labels it takes until some threshold can have this precision: { reached: the highest that ten labels
 * or more have so far, more }. The server asks for ten labels at or above a threshold (fitting/probability.py)
 * and smooths what this only counts. more: 0 where one is reached, null where no label so far promises it.
 */
export function untilPrecision(strata, judged, precision, fewest = 10) {
  const curve = precisionCurve(judged);
  const reached = Math.max(0, ...curve.slice(fewest - 1).map((one) => one.precision));
  if (reached >= precision) return { reached, more: 0 };
  const count = curve.findLastIndex((one) => one.precision >= precision) + 1;
  if (!count) return { reached, more: null };
  const lowest = curve[count - 1].similarity;
  const inside = (pairs, stratum) => pairs.filter((pair) => pair.stratum === stratum).length;
  const above = judged.filter(({ similarity }) => similarity >= lowest);
  let [each, gain] = [0, 0]; // labels of a round, and those of them at or above `lowest`
  strata.forEach(({ share }, stratum) => {
    each += share;
    const all = inside(judged, stratum);
    if (all) gain += (share * inside(above, stratum)) / all;
  });
  return { reached, more: Math.ceil(((fewest - count) * each) / gain) };
}

/** [{ similarity, precision }] from the highest down: the weighted share of matches among judged pairs as high. */
export function precisionCurve(judged) {
  let [matches, all] = [0, 0];
  return [...judged].sort((x, y) => y.similarity - x.similarity).map(({ similarity, label, weight }) => {
    matches += weight * label;
    all += weight;
    return { similarity, precision: matches / all };
  });
}
