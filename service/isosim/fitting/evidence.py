"""Statistics of a domain's texts, vectors and labelled pairs, by which `gate.py` chooses the method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import mannwhitneyu, rankdata, spearmanr

from isosim.arrays import Doubles, Rows, Vectors
from isosim.fitting.scripts import MARK, TOKEN, words
from isosim.scoring.method import Method
from isosim.scoring.similarity import normalized

Score = Literal["spearman", "auroc"]

BOOTSTRAPS = 2000  # number of bootstrap samples of the labelled pairs
SAME = 1e-4  # unit vectors closer than this are treated as equal; rounding errors are about 1e-6 in fp32
WINDOW = 32  # `repeated` compares each vector with this many vectors after it
BLOCK = 10_000  # number of pairs of vectors compared at once; each side takes 30 MB with 768 dimensions


@dataclass(frozen=True)
class Surface:
    """How much an encoder's vectors depend on surface features of the texts, such as their length.

    `share_reference` and `directions_reference` are the expected values of `share` and `directions` for a bag-of-words
    baseline, in which a text's vector is the mean of random Gaussian word vectors (Wieting & Kiela, 2019, section 3.1).
    """

    share: float  # share of the centred variance that surface features explain
    share_reference: float  # `share` for the bag-of-words baseline
    directions: float  # participation ratio: effective number of directions
    directions_reference: float  # `directions` for the bag-of-words baseline

    @property
    def share_ratio(self) -> float:
        return self.share / max(self.share_reference, 1e-3)

    @property
    def directions_ratio(self) -> float:
        return self.directions / max(self.directions_reference, 1e-6)

    @property
    def rawness(self) -> float:
        """How much the vectors depend on surface features: share × share_ratio / √directions_ratio.

        This measure was developed for this project (docs/decisions/gate.md). It does not use the mean cosine of random
        pairs, which is also high for encoders trained contrastively at a low temperature.
        """
        return float(self.share * self.share_ratio / np.sqrt(max(self.directions_ratio, 1e-6)))

    @classmethod
    def from_sentences(cls, texts: Sequence[str], x: Doubles) -> "Surface":
        """Measures N texts and their vectors (N, D); needs memory for an (N, N) matrix."""
        basis = surface_basis(surface_features(texts))
        reference = bag_of_words(texts, basis, x.shape[1])
        return cls(surface_share(x, basis), reference[0], participation_ratio(x), reference[1])


def surface_features(texts: Sequence[str]) -> Doubles:
    """(N, 5): log word count, log characters per word, shares of punctuation marks, digits and capitals.

    Works for any language.
    """
    rows = []
    for text in texts:
        count, length = max(len(words(text)), 1), max(len(text), 1)
        marks = len(MARK.findall(text))
        digits, capitals = sum(c.isdigit() for c in text), sum(c.isupper() for c in text)
        rows.append((
            np.log(count), np.log(length / count), marks / length, digits / length, capitals / length,
        ))  # fmt: skip
    return np.asarray(rows, np.float64)


def surface_basis(features: Doubles) -> Doubles:
    """Orthonormal basis (N, R) of the centred features; constant features are left out, so R may be 0."""
    centred = features - features.mean(0)
    deviation = centred.std(0)
    varying = centred[:, deviation > 1e-9] / deviation[deviation > 1e-9]
    if not varying.shape[1]:
        return np.zeros((len(features), 0))
    left, singular, _ = np.linalg.svd(varying, full_matrices=False)
    basis: Doubles = left[:, singular > 1e-6 * singular[0]]
    return basis


def surface_share(x: Doubles, basis: Doubles) -> float:
    """Share of the centred variance of x (N, D) that a linear regression on the basis explains, 0–1.

    This is the R² of redundancy analysis; `basis` (N, R) is made by `surface_basis`. Adi et al., 2017, section 4.1,
    were the first to predict a sentence's length from its vector.
    """
    centred = x - x.mean(0)
    return float(np.square(basis.T @ centred).sum() / max(float(np.square(centred).sum()), 1e-30))


def participation_ratio(x: Doubles) -> float:
    """Effective number of directions of x (N, D): (Σλ)² / Σλ² (Gao et al., 2017, section 2).

    λ are the eigenvalues of the covariance.
    """
    centred = x - x.mean(0)
    gram = centred.T @ centred if x.shape[1] <= len(x) else centred @ centred.T
    return float(np.trace(gram) ** 2 / max(float(np.square(gram).sum()), 1e-30))


def bag_of_words(texts: Sequence[str], basis: Doubles, dim: int) -> tuple[float, float]:
    """Expected surface share and participation ratio if a text's vector is the mean of random word vectors (`dim`,).

    No random vectors are drawn: the expected Gram matrix of the texts' vectors equals the Gram matrix of the texts'
    word frequencies. The participation ratio of this matrix is too high: random word vectors of `dim` dimensions are
    only nearly orthogonal. So 1 / dim is added to the inverse of the ratio.
    """
    vocabulary: dict[str, int] = {}
    rows, columns, weights = [], [], []
    for row, text in enumerate(texts):
        tokens = TOKEN.findall(text.lower()) or [""]
        for token in tokens:
            rows.append(row)
            columns.append(vocabulary.setdefault(token, len(vocabulary)))
            weights.append(1 / len(tokens))
    frequencies = csr_matrix((weights, (rows, columns)), shape=(len(texts), len(vocabulary)))
    gram = (frequencies @ frequencies.T).toarray()
    mean = gram.mean(0)
    gram += mean.mean() - mean[:, None] - mean[None, :]
    trace = max(float(np.trace(gram)), 1e-30)
    share = float(np.einsum("ij,ij->", basis, gram @ basis)) / trace
    ratio = trace**2 / max(float(np.square(gram).sum()), 1e-30)
    return share, 1 / (1 / max(ratio, 1e-30) + 1 / dim)


def repeated(x: Vectors) -> list[Rows]:
    """Groups of equal vectors among x (N, D): the sorted rows of each group, the largest group first.

    Vectors that differ only by rounding count as equal. All vectors are sorted by their projection on a random line.
    This puts equal vectors close together, so each vector is compared only with the `WINDOW` vectors after it.
    """
    unit = normalized(x)
    line = unit.astype(np.float64) @ np.random.default_rng(0).standard_normal(x.shape[1])
    order = np.argsort(line, kind="stable")
    left: list[Rows] = []
    right: list[Rows] = []
    for step in range(1, min(WINDOW, len(x) - 1) + 1):
        near = np.flatnonzero(line[order[step:]] - line[order[:-step]] < 5 * SAME)
        for start in range(0, len(near), BLOCK):
            a, b = order[near[start : start + BLOCK]], order[near[start : start + BLOCK] + step]
            same = np.square(unit[a] - unit[b]).sum(1) < SAME**2
            left.append(a[same])
            right.append(b[same])
    if not sum(map(len, left)):
        return []
    a, b = np.concatenate(left), np.concatenate(right)
    groups = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(len(x), len(x))), directed=False)[1]
    inside = np.unique(np.concatenate([a, b]))
    members = inside[np.argsort(groups[inside], kind="stable")]
    repeats = np.split(members, np.flatnonzero(np.diff(groups[members])) + 1)
    return sorted(repeats, key=lambda rows: (-len(rows), int(rows[0])))


def score_of(values: npt.NDArray[np.floating]) -> Score:
    """Which score suits the labels: AUROC if all of them are 0 or 1, else Spearman correlation."""
    return "auroc" if np.isin(values, (0, 1)).all() else "spearman"


@dataclass(frozen=True)
class RankTest:
    """Tests whether pairs with higher labels have higher similarities.

    Uses Mann and Whitney's test if all labels are 0 or 1, and the test of Spearman's correlation for grades. The
    p-values are None if all similarities are equal.
    """

    kind: Score
    value: float
    p_agree: float | None  # probability that chance gives a score at least as high as `value`
    p_disagree: float | None  # probability that chance gives a score at least as low as `value`

    @classmethod
    def from_labels(cls, similarities: npt.NDArray[np.floating], values: npt.NDArray[np.floating]) -> "RankTest":
        """Tests L pairs: similarities (L,) against labels (L,)."""
        kind = score_of(values)
        if np.ptp(similarities) == 0:
            return cls(kind, 0.5 if kind == "auroc" else 0.0, None, None)
        if kind == "auroc":
            ones, zeros = similarities[values == 1], similarities[values == 0]
            above = mannwhitneyu(ones, zeros, alternative="greater", method="asymptotic")
            below = mannwhitneyu(ones, zeros, alternative="less", method="asymptotic")
            return cls(
                kind, float(above.statistic / (len(ones) * len(zeros))), float(above.pvalue), float(below.pvalue)
            )
        rising = spearmanr(similarities, values, alternative="greater")
        falling = spearmanr(similarities, values, alternative="less")
        return cls(kind, float(rising.statistic), float(rising.pvalue), float(falling.pvalue))

    def __str__(self) -> str:
        return f"{'AUROC' if self.kind == 'auroc' else 'Spearman correlation'} {self.value:.2f}"


def bootstrapped(
    similarities: npt.NDArray[np.floating], values: npt.NDArray[np.floating], weights: Doubles, score: Score
) -> Doubles:
    """Scores (B,) of B bootstrap samples; `weights` (B, L) states how often a sample contains each of the L pairs.

    Tied values get their mean rank. The score is NaN for a sample whose similarities or values are all equal.
    """
    ranks = midranks(similarities, weights)
    total = weights.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        if score == "auroc":
            positive = weights * (values == 1)
            count = positive.sum(1)
            wins = (positive * ranks).sum(1) - count * (count + 1) / 2
            auroc: Doubles = wins / (count * (total - count))
            return auroc
        other = midranks(values, weights)
        a, b = (r - (weights * r).sum(1, keepdims=True) / total[:, None] for r in (ranks, other))
        both = np.sqrt((weights * a * a).sum(1) * (weights * b * b).sum(1))
        correlation: Doubles = (weights * a * b).sum(1) / both
        return correlation


def midranks(values: npt.NDArray[np.floating], weights: Doubles) -> Doubles:
    """Ranks (B, L) of L values in each of B samples; ties get their mean rank.

    weights: (B, L) number of times that each sample contains each value.
    """
    dense = rankdata(values, method="dense").astype(np.intp) - 1
    order = np.argsort(dense, kind="stable")
    starts = np.flatnonzero(np.diff(dense[order], prepend=-1))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks: Doubles = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, dense]
    return ranks


@dataclass(frozen=True)
class LabelTest:
    """Scores of several maps on the same labelled pairs, with a paired bootstrap over the pairs."""

    scores: dict[Method, float]
    samples: dict[Method, Doubles]  # scores (B,) of the bootstrap samples

    @classmethod
    def from_labels(
        cls, similarities: Mapping[Method, npt.NDArray[np.floating]], values: npt.NDArray[np.floating], seed: int
    ) -> "LabelTest":
        """Scores every map on the same samples, drawn with replacement (Efron & Tibshirani, 1993).

        Args:
            similarities: for each method, similarities (L,) by its map.
            values: labels (L,).
        """
        count, kind = len(values), score_of(values)
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(count, np.full(count, 1 / count), BOOTSTRAPS).astype(np.float64)
        once = np.ones((1, count))
        samples = {m: bootstrapped(s, values, weights, kind) for m, s in similarities.items()}
        scores = {m: float(bootstrapped(s, values, once, kind)[0]) for m, s in similarities.items()}
        return cls(scores, samples)

    def p_not_better(self, one: Method, other: Method) -> float:
        """One-sided p-value for `one` being better than `other`: the share of samples in which `one` is not better."""
        gain = self.samples[one] - self.samples[other]
        gain = gain[np.isfinite(gain)]
        return (1 + int((gain <= 0).sum())) / (1 + len(gain))

    def gain(self, one: Method, other: Method) -> float:
        return self.scores[one] - self.scores[other]


NOMINAL_RATES = (0.1, 0.05, 0.01)


def threshold_error(percentiles: npt.NDArray[np.float64], nominal: Sequence[float] = NOMINAL_RATES) -> float:
    """Mean |ln(measured / nominal)| over the nominal false-match rates.

    The measured rate is the share of random pairs whose percentile is at least 1 − nominal.
    """
    floor = 1 / len(percentiles)
    measured = [max(floor, float((percentiles >= 1 - rate).mean())) for rate in nominal]
    return float(np.mean(np.abs(np.log(np.array(measured) / np.array(nominal)))))


def spread(vectors: Vectors, rng: np.random.Generator) -> dict[str, float]:
    """How vectors (N, D) point in different directions: they are scaled to unit length and not centred.

    Returns the mean cosine of random pairs, and the effective rank (Roy & Vetterli, 2007). Of more than 5,000 vectors,
    measures a random sample.
    """
    unit = normalized(vectors[rng.permutation(len(vectors))[:5000]])
    unit64 = unit.astype(np.float64)
    # Singular values are the square roots of the eigenvalues of the Gram matrix (the smaller of xᵀx and x xᵀ). An SVD
    # would take ten times as long.
    gram = unit64.T @ unit64 if len(unit) >= unit.shape[1] else unit64 @ unit64.T
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
    share = singular / singular.sum()
    share = share[share > 0]
    cosine = float(np.square(unit.mean(0, dtype=np.float64)).sum())
    return {"mean_random_cosine": cosine, "effective_rank": float(np.exp(-(share * np.log(share)).sum()))}
