"""Fits a domain's out-of-domain test to all of the domain's text, and derives p-values from the same text.

The test's statistics are smaller for texts to which it was fitted than for new texts. So the text is divided into
folds, and each fold is measured by a test that was fitted to the other folds (cross-fitting). All three stages of the
fit are cross-fitted:

1. the whitening, and the probe (a classifier that detects shuffled words),
2. the mean and standard deviation of each statistic, which depend on a text's length,
3. the correction that makes p-values comparable across lengths.

With all three stages cross-fitted, a nominal false-alarm rate of 1 % is in fact 1.0 %. With only the first stage
cross-fitted, it is 1.1 % (10,000 sentences) or 1.6 % (1,000 sentences). These rates were measured on Wikipedia, without
the probe.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Floats, Integers, Rows, Vectors
from isosim.fitting.linear import ledoit_wolf_intensity, shrunk_covariance
from isosim.fitting.reference import folds
from isosim.fitting.scripts import characters, is_unspaced
from isosim.scoring.out_of_domain import BANDS, CLIP, Combination, DomainTest, Standardization, Statistics

# Smallest number of sentences. Of 1,000 sentences, about ten have a p-value below 1 %. With fewer than ten, the value
# at which a statistic's p-value is 1 % could not be estimated.
FEWEST = 1000
SHUFFLED = 500  # number of copies with shuffled words that the probe learns from
FOLDS = 10
MOST_PROBED = 3000  # largest number of sentences for the probe's fit; with 500 shuffled copies, more do not help
RIDGE = 1.0  # ridge penalty of the probe, in units of a feature's variance
LENGTH_BINS = 12
FEWEST_IN_BIN = 30
SCORE_BINS = 5
SCORE_QUANTILE = 0.98
SMALLEST_SCALE = 0.01  # smallest standard deviation of a statistic; smaller deviations are rounding errors
BAND_SHRINKAGE = 1e-4
FARTHEST = 600.0  # value of −ln p at the end of a p-value curve (see `upper_curve`)
# Smallest number of sentences above the highest quantile of a p-value curve. The curve's exponential tail is fitted to
# these sentences.
BEYOND = 5
LEVELS = np.concatenate(
    [np.geomspace(1e-4, 0.02, 17)[:-1], np.linspace(0.02, 0.98, 33), 1 - np.geomspace(0.02, 1e-4, 17)[1:]]
)
# Shares of the false alarms that each statistic may cause: large distance, small distance, bands, probe. The key says
# whether there is a probe.
SHARES = {False: (0.4, 0.3, 0.3, 0.0), True: (0.3, 0.1, 0.15, 0.45)}
FEWEST_WORDS = 4


def shuffled_copies(texts: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """Copies of up to `count` texts with their words in random order, never the original order; one copy per text.

    Skips texts of fewer than four words, and texts that repeat a single word. In scripts without spaces between words,
    characters are shuffled instead of words. Combining marks stay with their characters.
    """
    copies: list[str] = []
    for number in rng.permutation(len(texts)):
        if len(copies) >= count:
            break
        between = "" if is_unspaced(texts[number]) else " "
        words = characters(texts[number]) if not between else texts[number].split()
        if len(words) < FEWEST_WORDS or len(set(words)) == 1:
            continue
        mixed = [words[i] for i in rng.permutation(len(words))]
        if mixed == words:
            other = next(i for i, word in enumerate(words) if word != words[0])
            mixed[0], mixed[other] = mixed[other], mixed[0]
        copies.append(between.join(mixed))
    return copies


@dataclass(frozen=True)
class Moments:
    """Number, sum (D,) and sum of outer products (D, D) of a set of vectors.

    `+` gives the moments of two sets together, and `-` those of a set without a subset.
    """

    count: int
    total: Doubles
    products: Doubles

    @classmethod
    def from_vectors(cls, x: Doubles) -> "Moments":  # (N, D)
        return cls(len(x), x.sum(0), x.T @ x)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.products + other.products)

    def __sub__(self, other: "Moments") -> "Moments":
        return Moments(self.count - other.count, self.total - other.total, self.products - other.products)

    def whitening(self, shrinkage: float) -> tuple[Doubles, Vectors]:
        """Mean (D,) and whitening matrix (D, D): the eigenvectors of the shrunk covariance, divided by √eigenvalue.

        The covariance is shrunk by `shrinkage` towards a multiple of the identity (Ledoit & Wolf, 2004).
        """
        mean = self.total / self.count
        covariance = shrunk_covariance(self.products / self.count - np.outer(mean, mean), shrinkage)
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values[::-1], 1e-9 * values[-1])  # smaller eigenvalues are rounding errors of float32
        return mean, (vectors[:, ::-1] / np.sqrt(values)).astype(np.float32)


def band_edges(dim: int) -> npt.NDArray[np.int64]:
    """Indices that divide the spectrum into bands, at fixed shares of `dim`; a small `dim` gives fewer bands."""
    return np.unique(np.round(BANDS * dim).astype(np.int64))


def probe_features(z: Vectors) -> Vectors:  # (N, D) -> (N, 2D)
    clipped = np.clip(z, -CLIP, CLIP)
    return np.concatenate([clipped, np.square(clipped)], axis=1)


def fit_probe(own: Vectors, shuffled: Vectors) -> Doubles:
    """Fits the probe: weights (2D,) of [z, z²], where z is a text's whitened vector.

    The weighted sum is large for texts with shuffled words. It is scaled to standard deviation 1 over `own`. The fit is
    a ridge regression with balanced classes, which equals Fisher's discriminant.

    Args:
        own: (N, D) whitened vectors of sentences.
        shuffled: (M, D) whitened vectors of copies with shuffled words.
    """
    features = probe_features(np.concatenate([own, shuffled]))
    deviation = np.maximum(features.std(0), 1e-6)
    features /= deviation
    labels = np.arange(len(features)) >= len(own)
    weights = ridge_weights(features, labels, RIDGE * len(features))
    spread = float((features[: len(own)] @ weights).std())
    scaled: Doubles = weights / deviation / max(spread, 1e-12)
    return scaled


def ridge_weights(features: Vectors, labels: npt.NDArray[np.bool_], penalty: float) -> Doubles:
    """Weights (F,) of a ridge regression of ±1 on features (N, F), in which both classes have the same total weight.

    Ridge regression with an intercept: (XᵀWX + λI) w = XᵀWy for features centred by their weighted mean (Hastie,
    Tibshirani, Friedman, 2009, section 3.4.1).
    """
    weight = np.where(labels, len(labels) / (2 * labels.sum()), len(labels) / (2 * (~labels).sum()))
    root = np.sqrt(weight).astype(np.float32)
    targets = np.where(labels, 1.0, -1.0)
    centred = (features - np.average(features, axis=0, weights=weight).astype(np.float32)) * root[:, None]
    aimed = (targets - np.average(targets, weights=weight)) * root
    matrix = (centred.T @ centred).astype(np.float64) + penalty * np.eye(features.shape[1])
    solution: Doubles = np.linalg.solve(matrix, centred.T.astype(np.float64) @ aimed)
    return solution


def fit(
    pooled: Vectors,
    tokens: Integers,
    shuffled: Vectors | None,
    rng: np.random.Generator,
    levels: Floats | None = None,
    folds: int = FOLDS,
) -> DomainTest:
    """Fits the out-of-domain test of a domain.

    Args:
        pooled: (N, D) vectors of distinct sentences.
        tokens: (N,) numbers of tokens of these sentences.
        shuffled: (M, D) vectors of copies with shuffled words; None or empty: no probe is fitted.
        levels: (N, L) cross-fitted log energies of a flow's latents; None for linear methods.

    Raises:
        ValueError: fewer than FEWEST sentences.
    """
    if len(pooled) < FEWEST:
        raise ValueError(f"an out-of-domain test needs at least {FEWEST} sentences; found {len(pooled)}")
    lengths = np.log(np.maximum(tokens, 1))
    probed = shuffled is not None and len(shuffled) > 0
    parts, statistics, held_out = cross_fitted_statistics(pooled, shuffled if probed else None, rng, levels, folds)

    def standardized(rows: Rows) -> Callable[[Rows], Doubles]:
        made = standardize(held_out[rows], lengths[rows], probed)
        return lambda others: made(held_out[others], tokens[others])

    standard = cross_fitted(standardized, parts)
    unshifted = combine(standard, probed)
    scores = unshifted.score(standard)

    def shifted(rows: Rows) -> Callable[[Rows], Doubles]:
        centres, shift = score_by_length(scores[rows], lengths[rows])
        return lambda others: scores[others] - np.interp(lengths[others], centres, shift)

    combination = replace(
        unshifted,
        length_shift=score_by_length(scores, lengths),
        final_curve=upper_curve(cross_fitted(shifted, parts)),
    )
    return DomainTest(statistics, standardize(held_out, lengths, probed), combination)


def cross_fitted(fit: Callable[[Rows], Callable[[Rows], Doubles]], parts: Sequence[Rows]) -> Doubles:
    """Values of all rows; the values of each part come from a fit to the rows outside the part."""
    everything = np.arange(sum(map(len, parts)))
    return in_order([fit(np.setdiff1d(everything, part))(part) for part in parts], parts)


def in_order(values: Sequence[Doubles], parts: Sequence[Rows]) -> Doubles:
    """Concatenates the values of the parts and sorts them by row number."""
    together: Doubles = np.concatenate(values)[np.argsort(np.concatenate(parts))]
    return together


def cross_fitted_statistics(
    pooled: Vectors, shuffled: Vectors | None, rng: np.random.Generator, levels: Floats | None, number: int
) -> tuple[list[Rows], Statistics, Doubles]:
    """The folds, the statistics fitted to all sentences, and each sentence's cross-fitted values (N, S).

    Every fit uses the shrinkage that is estimated from all sentences. Shrinkage estimated from fewer sentences is
    stronger and would make distances smaller. To leave out a fold, its moments are subtracted from the moments of all
    sentences.
    """
    centre = pooled.mean(0, dtype=np.float64)
    parts = folds(len(pooled), number, rng)
    moments = [Moments.from_vectors(pooled[part] - centre) for part in parts]
    whole = sum(moments[1:], start=moments[0])
    centred = (pooled - centre).astype(np.float32)
    fourth = float(np.square(np.vecdot(centred, centred), dtype=np.float64).mean())
    shrinkage = ledoit_wolf_intensity(whole.products / whole.count, fourth, len(pooled))

    def fitted(own_moments: Moments, rows: Rows) -> Statistics:
        mean, whitening = own_moments.whitening(shrinkage)
        mean = mean + centre
        probe = np.empty(0)
        if shuffled is not None:
            sample = rng.choice(rows, min(MOST_PROBED, len(rows)), replace=False)
            own, other = ((x - mean).astype(np.float32) @ whitening for x in (pooled[sample], shuffled))
            probe = fit_probe(own, other)
        return Statistics(mean, whitening, band_edges(len(mean)), probe)

    everything = np.arange(len(pooled))
    held_out: list[Doubles] = []
    for part, own in zip(parts, moments, strict=True):
        made = fitted(whole - own, np.setdiff1d(everything, part))
        held_out.append(made(pooled[part], None if levels is None else levels[part]))
    return parts, fitted(whole, everything), in_order(held_out, parts)


def length_bins(lengths: Doubles, number: int) -> tuple[Doubles, list[Rows]]:
    """Divides sentences by length into up to `number` bins with similar numbers of sentences.

    Returns each bin's mean log length and row numbers. Bins of fewer than 30 sentences are left out.
    lengths: (N,) log numbers of tokens.
    """
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, number + 1)))
    bins = np.searchsorted(edges[1:-1], lengths, side="right")
    rows = [np.flatnonzero(bins == k) for k in range(len(edges))]
    rows = [inside for inside in rows if len(inside) >= FEWEST_IN_BIN]
    return np.array([lengths[inside].mean() for inside in rows]), rows


def standardize(statistics: Doubles, lengths: Doubles, probed: bool) -> Standardization:
    """Fits each statistic's mean and standard deviation by length, and a Gaussian to the band statistics.

    statistics: (N, S) values of S statistics for N sentences.
    """
    centres, bins = length_bins(lengths, LENGTH_BINS)
    location = np.array([statistics[rows].mean(0) for rows in bins])
    scale = np.maximum([statistics[rows].std(0) for rows in bins], SMALLEST_SCALE)
    within = np.column_stack(
        [
            (column - np.interp(lengths, centres, mean)) / np.interp(lengths, centres, deviation)
            for column, mean, deviation in zip(statistics.T, location.T, scale.T, strict=True)
        ]
    )
    together = within[:, 1 : within.shape[1] - probed]
    covariance = shrunk_covariance(together.T @ together / len(together), BAND_SHRINKAGE)
    root = np.linalg.inv(np.linalg.cholesky(covariance)).T
    return Standardization(centres, location, scale, root)


def combine(standard: Doubles, probed: bool) -> Combination:
    """Curves that give the p-value of each statistic, fitted to cross-fitted values (N, T).

    `length_shift` and `final_curve` of the result are placeholders, which `fit` replaces.
    """
    high, low, bands, probe = SHARES[probed]
    above, below = upper_curve(standard[:, 0], high), upper_curve(-standard[:, 0], low)
    points = np.union1d(above[0], -below[0])
    both = np.maximum(np.interp(points, *above), np.interp(-points, *below))
    return Combination(
        np.stack([points, both]),
        upper_curve(standard[:, 1], bands),
        upper_curve(standard[:, 2], probe) if probed else np.empty((2, 0)),
        np.zeros((2, 1)),
        np.empty((2, 0)),
    )


def score_by_length(scores: Doubles, lengths: Doubles) -> Doubles:
    """98 % quantile of the scores, by length: a row of log lengths, and a row of quantiles. (2, C)

    The quantile depends on the length, because statistics of short texts have longer tails.
    """
    centres, bins = length_bins(lengths, SCORE_BINS)
    quantiles = [np.quantile(scores[rows], SCORE_QUANTILE, method="weibull") for rows in bins]
    return np.stack([centres, np.array(quantiles)])


def upper_curve(values: Doubles, share: float = 1.0) -> Doubles:
    """Fits a curve that gives the p-value of a statistic. (N,) -> (2, K)

    p(x) is the probability that a new value of the statistic is at least x. The curve's first row holds points x.
    The second row holds −ln(p(x) / share).

    At the first point, which lies near the sample's minimum, p is 1. The next points are quantiles of the sample. Above
    the highest quantile, p decreases exponentially, to exp(−FARTHEST) at the last point. Quantiles use Weibull's
    plotting position r / (n + 1). Then on average 1 % of new values lie above the point where p is 1 %. With NumPy's
    default (linear interpolation) and a sample of 1,000 values, 1.1 % of new values would lie above this point.

    Args:
        values: (N,) the sample.
        share: fraction of all false alarms that the statistic may cause. `Combination` compares values of p / share.
    """
    count = len(values)
    levels = LEVELS[np.minimum(LEVELS, 1 - LEVELS) >= BEYOND / count]
    points, first = np.unique(np.quantile(values, levels, method="weibull"), return_index=True)
    logs = -np.log1p(-levels[first])
    excess = values[values > points[-1]] - points[-1]
    mean = max(float(excess.mean()) if len(excess) else 0.0, 1e-6)
    lowest = min(float(values.min()), float(points[0]) - 1e-6)
    end = points[-1] + mean * (FARTHEST - logs[-1])
    return np.stack(
        [np.concatenate([[lowest], points, [end]]), np.log(share) + np.concatenate([[0.0], logs, [FARTHEST]])]
    )
