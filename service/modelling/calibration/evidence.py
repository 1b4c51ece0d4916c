"""Measures of a domain's sentences and vectors, before and after a map, without labels or with them.

Each measure is a function of texts or vectors alone; what follows from them is decided in `gate.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import mannwhitneyu, rankdata, skew, spearmanr

from service.core.arrays import Doubles, Rows, Vectors
from service.core.scoring.similarity import cosine, normalized
from service.modelling.calibration.linear import crowding
from service.modelling.calibration.scripts import MARK, TOKEN, characters, is_unspaced, join_words, words

Score = Literal["spearman", "auroc"]

TEMPERATURE = 0.05  # of InfoNCE (Gao et al., SimCSE, 2021, section 3.1)
NEIGHBOURS = 10  # k of the k-occurrence (Radovanović et al., 2010, section 3)
DROPPED = 0.2  # share of the words a noised copy lacks
BOOTSTRAPS = 2000  # samples of the labelled pairs
SWAPPED = 0.3  # share of the noised copies with two words exchanged
SAME = 1e-4  # distance of unit vectors of the same tokens: rounding errors are 1e-6 in fp32
WINDOW = 32  # neighbours on a random line among which equal vectors are looked for
BLOCK = 10_000  # vectors compared at once: 30 MB at 768 dimensions


@dataclass(frozen=True)
class Surface:
    """How much a space shows of what a sentence looks like, beside a bag of words for the same sentences.

    The bag of words is the mean of random Gaussian word vectors (Wieting & Kiela, 2019, section 3.1), in expectation.
    """

    crowding: float  # mean cosine of random pairs
    share: float  # of the centred variance that the surface explains
    share_reference: float  # of the bag of words
    directions: float  # participation ratio: directions in use
    directions_reference: float

    @property
    def share_ratio(self) -> float:
        return self.share / max(self.share_reference, 1e-3)

    @property
    def directions_ratio(self) -> float:
        return self.directions / max(self.directions_reference, 1e-6)

    @property
    def rawness(self) -> float:
        """Share · share ratio / √directions ratio; measured for this project, docs/quality.md.

        Crowding is no part of it: training at a low temperature crowds a space, too, and such a space is not raw.
        """
        return float(self.share * self.share_ratio / np.sqrt(max(self.directions_ratio, 1e-6)))

    @classmethod
    def from_sentences(cls, texts: Sequence[str], x: Doubles) -> "Surface":
        """Of sentences and their vectors (N, D); a Gram matrix (N, N) is formed."""
        basis = surface_basis(surface_features(texts))
        reference = bag_of_words(texts, basis, x.shape[1])
        return cls(crowding(x), surface_share(x, basis), reference[0], participation_ratio(x), reference[1])


def surface_features(texts: Sequence[str]) -> Doubles:
    """(N, 5): log words, log characters a word, shares of marks, digits and capitals. No language is assumed."""
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
    """Orthonormal basis (N, R) of the centred features that vary; R may be 0."""
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

    The R² of redundancy analysis; that vectors are probed for length goes back to Adi et al., 2017, section 4.1.
    """
    centred = x - x.mean(0)
    return float(np.square(basis.T @ centred).sum() / max(float(np.square(centred).sum()), 1e-30))


def participation_ratio(x: Doubles) -> float:
    """(Σλ)² / Σλ² of the covariance of x (N, D): directions in use (Gao et al., 2017, section 2)."""
    centred = x - x.mean(0)
    gram = centred.T @ centred if x.shape[1] <= len(x) else centred @ centred.T
    return float(np.trace(gram) ** 2 / max(float(np.square(gram).sum()), 1e-30))


def bag_of_words(texts: Sequence[str], basis: Doubles, dim: int) -> tuple[float, float]:
    """Surface share and participation ratio of the mean of random word vectors of width `dim`, in expectation.

    Nothing is drawn: the expected Gram matrix of such an encoder is that of the word frequencies, and a finite width
    adds 1 / dim to the inverse ratio.
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


def noised(texts: Sequence[str], count: int, rng: np.random.Generator) -> tuple[Rows, list[str]]:
    """Rows (M,) of up to `count` random sentences, rising, and a noised copy of each.

    A fifth of the words is dropped, and sometimes two are exchanged. In scripts without spaces, and in a text of one
    word, characters stand for words. Sentences of one character are passed over.
    """
    able = [row for row in rng.permutation(len(texts)).tolist() if len(texts[row].strip()) > 1]
    rows = np.sort(np.asarray(able[:count], np.intp))
    return rows, [noise(texts[row], rng) for row in rows.tolist()]


def noise(text: str, rng: np.random.Generator) -> str:
    """A copy that never is empty; see `noised`."""
    apart = is_unspaced(text)
    every = words(text) if apart else text.split()
    one_word = len(every) == 1
    every = characters(text) if one_word else every
    kept = [word for word in every if rng.random() >= DROPPED] or [every[int(rng.integers(len(every)))]]
    if len(kept) > 1 and rng.random() < SWAPPED:
        i, j = rng.choice(len(kept), 2, replace=False)
        kept[i], kept[j] = kept[j], kept[i]
    return join_words(kept) if apart else ("" if one_word else " ").join(kept)


def info_nce(copies: Vectors, originals: Vectors) -> Doubles:
    """InfoNCE of each copy against all originals (M, D), (M,); lower is better (SimCSE, 2021, equation 1)."""
    logits = (normalized(copies) @ normalized(originals).T).astype(np.float64) / TEMPERATURE
    top = logits.max(1, keepdims=True)
    loss: Doubles = top[:, 0] + np.log(np.exp(logits - top).sum(1)) - np.diag(logits)
    return loss


def alignment(copies: Vectors, originals: Vectors) -> float:
    """Mean squared distance of unit vectors that belong together (Wang & Isola, 2020, section 4.1)."""
    return float(np.square(normalized(copies) - normalized(originals)).sum(1, dtype=np.float64).mean())


def uniformity(x: Vectors) -> float:
    """log mean exp(−2 d²) over all pairs of unit vectors, (N, D); lower is more uniform (Wang & Isola, section 4.1)."""
    cosines = pairwise(x)
    above = cosines[np.triu_indices(len(x), 1)]
    return float(np.log(np.exp(4 * (above.astype(np.float64) - 1)).mean()))


def hubness(x: Vectors, k: int = NEIGHBOURS) -> float | None:
    """Skewness of how often a sentence is among another's k nearest (Radovanović et al., 2010, equation 2).

    None where there are not more than k + 1 sentences, or all stand equally often.
    """
    if len(x) <= k + 1:
        return None
    cosines = pairwise(x)
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argpartition(-cosines, k, axis=1)[:, :k]
    occurrences = np.bincount(nearest.ravel(), minlength=len(x))
    return float(skew(occurrences)) if occurrences.std() else None


def repeated(x: Vectors) -> list[Rows]:
    """Rows, rising, of each group of vectors (N, D) that are the same but for rounding; the largest group first.

    Equal vectors are neighbours on a random line, and only neighbours are compared.
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


def pairwise(x: Vectors) -> Vectors:  # (N, D) -> (N, N)
    unit = normalized(x)
    cosines: Vectors = unit @ unit.T
    return cosines


def agreement(one: Vectors, other: Vectors, left: Rows, right: Rows) -> float | None:
    """Spearman correlation of two spaces' cosines over the same pairs of rows; None where one space has only one."""
    a, b = cosine(one[left], one[right]), cosine(other[left], other[right])
    return float(spearmanr(a, b).statistic) if np.ptp(a) > 0 and np.ptp(b) > 0 else None


def paired_z(gain: Doubles) -> float:
    """Mean over its standard error, of paired differences (N,)."""
    return float(gain.mean() / max(float(gain.std(ddof=1)) / np.sqrt(len(gain)), 1e-12))


def score_of(values: npt.NDArray[np.floating]) -> Score:
    """AUROC where all labels are 0 or 1, else Spearman."""
    return "auroc" if np.isin(values, (0, 1)).all() else "spearman"


@dataclass(frozen=True)
class RankTest:
    """Whether pairs with higher labels are the more similar ones: a score, and one-sided p-values against chance.

    Mann and Whitney's test where all labels are 0 or 1, Spearman's for grades. NaN where all similarities are equal.
    """

    kind: Score
    value: float
    p_agree: float  # that a score as high comes about by chance
    p_disagree: float  # that one as low does

    @classmethod
    def from_labels(cls, similarities: npt.NDArray[np.floating], values: npt.NDArray[np.floating]) -> "RankTest":
        """Of L pairs, (L,) and (L,)."""
        kind = score_of(values)
        if np.ptp(similarities) == 0:
            return cls(kind, 0.5 if kind == "auroc" else 0.0, np.nan, np.nan)
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


def labelled_score(similarities: npt.NDArray[np.floating], values: npt.NDArray[np.floating]) -> float:
    """Spearman correlation with grades, or AUROC of labels 0/1; (L,), (L,). NaN where one of both is constant."""
    weights = np.ones((1, len(values)))
    return float(bootstrapped(similarities, values, weights, score_of(values))[0])


def bootstrapped(
    similarities: npt.NDArray[np.floating], values: npt.NDArray[np.floating], weights: Doubles, score: Score
) -> Doubles:
    """The score of each of B samples of the L pairs, given how often (B, L) a pair stands in it; (B,).

    Ranks are those of the sample itself, midranks among equals: drawing the pairs out would give the same number.
    NaN where a sample's similarities or values are constant.
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
    """Midranks of L values in each of B samples in which they stand `weights` (B, L) times; (B, L)."""
    dense = rankdata(values, method="dense").astype(np.intp) - 1
    order = np.argsort(dense, kind="stable")
    starts = np.flatnonzero(np.diff(dense[order], prepend=-1))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks: Doubles = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, dense]
    return ranks


@dataclass(frozen=True)
class LabelTest:
    """How labelled pairs judge several maps: scores, and a paired bootstrap over the pairs."""

    pairs: int
    kind: Score
    scores: dict[str, float]
    samples: dict[str, Doubles]  # (B,)

    @classmethod
    def from_labels(
        cls, similarities: Mapping[str, npt.NDArray[np.floating]], values: npt.NDArray[np.floating], seed: int
    ) -> "LabelTest":
        """Each map's score on the same samples of pairs, drawn with replacement (Efron & Tibshirani, 1993)."""
        count, kind = len(values), score_of(values)
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(count, np.full(count, 1 / count), BOOTSTRAPS).astype(np.float64)
        samples = {m: bootstrapped(s, values, weights, kind) for m, s in similarities.items()}
        scores = {m: labelled_score(s, values) for m, s in similarities.items()}
        return cls(count, kind, scores, samples)

    def p_not_better(self, one: str, other: str) -> float:
        """One-sided probability that `one` is not better than `other`, from the bootstrap of their difference."""
        gain = self.samples[one] - self.samples[other]
        gain = gain[np.isfinite(gain)]
        return (1 + int((gain <= 0).sum())) / (1 + len(gain))

    def gain(self, one: str, other: str) -> float:
        return self.scores[one] - self.scores[other]


SPECTRUM = 64  # singular values reported
NOMINAL_RATES = (0.1, 0.05, 0.01)


def threshold_error(percentiles: npt.NDArray[np.float64], nominal: Sequence[float] = NOMINAL_RATES) -> float:
    """Mean |ln(measured / nominal)| of the false-match rate, for percentiles of random pairs."""
    floor = 1 / len(percentiles)
    measured = [max(floor, float((percentiles >= 1 - rate).mean())) for rate in nominal]
    return float(np.mean(np.abs(np.log(np.array(measured) / np.array(nominal)))))


def space(latents: Vectors, rng: np.random.Generator) -> dict[str, Any]:
    """How crowded a space is: mean random cosine, effective rank (Roy & Vetterli, 2007), singular spectrum.

    The spectrum is of the unit vectors, not centred, relative to the largest value.
    """
    sample = latents[rng.permutation(len(latents))[:5000]]
    unit = normalized(sample)
    unit64 = unit.astype(np.float64)
    gram = unit64.T @ unit64 if len(unit) >= unit.shape[1] else unit64 @ unit64.T  # an SVD takes ten times as long
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
    share = singular / singular.sum()
    share = share[share > 0]
    return {
        "mean_random_cosine": float(np.square(unit.mean(0, dtype=np.float64)).sum()),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "singular_spectrum": [round(float(v), 6) for v in singular[:SPECTRUM] / singular[0]],
    }
