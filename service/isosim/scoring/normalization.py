"""Item normalization: compares a pair's cosine with the usual cosines of its two sentences in the domain.

Some sentences, called hubs, are similar to most others (Radovanović et al., JMLR 2010), so their pairs pass any
threshold too often. AS-norm and CSLS correct this: they subtract the usual cosines of both sentences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Vectors
from isosim.scoring.reference import ReferenceDistribution

KINDS = ("as-norm", "csls")
SMALLEST_SPREAD = 0.01  # minimum spread of cosines; keeps scores finite if all cosines of a sentence are equal
STEEPNESS = {"as-norm": 0.25, "csls": 1.0}  # factor before tanh; keeps scores of typical pairs far from ±1
UNIT_ERROR = 1e-3  # maximum |norm − 1| of a stored cohort vector
REFERENCE = "reference."  # prefix of the names under which the reference's arrays are stored


@dataclass(frozen=True)
class CohortStatistics:
    """Usual score of each sentence: mean (N,) and spread (N,) of its cosines to its nearest cohort vectors."""

    mean: Doubles
    spread: Doubles

    def __getitem__(self, rows: npt.NDArray[np.intp]) -> "CohortStatistics":
        return CohortStatistics(self.mean[rows], self.spread[rows])


def normalize(
    kind: str, similarities: npt.NDArray[np.floating], left: CohortStatistics, right: CohortStatistics
) -> Doubles:
    """Normalized scores (N,) in (−1, 1) of pairs with the cosines `similarities` (N,).

    s is a pair's cosine. μ_l and σ_l are mean and spread in `left`, μ_r and σ_r in `right`.

    - as-norm: tanh(z/4), z = ((s − μ_l)/σ_l + (s − μ_r)/σ_r)/2 (Cumani et al., 2011, section 2.3; Matejka et al.,
      2017, eq. 6)
    - csls: tanh(2s − μ_l − μ_r) (Conneau et al., 2018, eq. 4)

    >>> side = CohortStatistics(mean=np.array([0.2]), spread=np.array([0.1]))
    >>> normalize("as-norm", np.array([0.6]), side, side).round(4)
    array([0.7616])
    >>> normalize("csls", np.array([0.6]), side, side).round(4)
    array([0.664])
    """
    s = similarities.astype(np.float64)
    if kind == "as-norm":
        z = ((s - left.mean) / left.spread + (s - right.mean) / right.spread) / 2
    else:
        z = 2 * s - (left.mean + right.mean)
    scores: Doubles = np.tanh(STEEPNESS[kind] * z)
    return scores


@dataclass(frozen=True)
class ItemNormalization:
    """A domain's item normalization and the false-match rates of normalized scores.

    The cohort consists of the vectors with which every sentence is compared. Each of them is the centroid of several
    sentences, because the vector of a single sentence can be inverted to its text (Morris et al., EMNLP 2023).

    Raises:
        ValueError: the kind is unknown, the cohort is empty, a cohort vector does not have length 1, or `nearest` is
            not 1 … C.
    """

    kind: str  # one of KINDS
    cohort: Vectors  # (C, D) unit vectors
    nearest: int  # number of nearest cohort vectors used for a sentence, 1 … C
    reference: ReferenceDistribution  # distribution of the normalized scores of random pairs

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown item normalization {self.kind!r}; choose from {', '.join(KINDS)}")
        if self.cohort.ndim != 2 or not self.cohort.size:
            raise ValueError(f"a cohort must be an array (C, D); its shape is {self.cohort.shape}")
        lengths = np.linalg.norm(self.cohort.astype(np.float64), axis=1)
        if not (np.abs(lengths - 1) <= UNIT_ERROR).all():
            raise ValueError("the vectors of a cohort must have unit length")
        if not 1 <= self.nearest <= len(self.cohort):
            raise ValueError(f"nearest must be 1 to {len(self.cohort)}; it is {self.nearest}")

    def cohort_statistics(self, latents: Vectors) -> CohortStatistics:
        """Usual score of each sentence, from latents (N, D). The result for a row does not depend on the other rows."""
        return cohort_statistics(cohort_cosines(latents, self.cohort), self.nearest)

    def score(
        self,
        latents: Vectors,
        left: npt.NDArray[np.intp],
        right: npt.NDArray[np.intp],
        similarities: npt.NDArray[np.floating],
    ) -> Doubles:
        """Normalized scores (P,) in (−1, 1) of the pairs (left[i], right[i]) of latents (N, D).

        `similarities` (P,) holds the cosines of the pairs. The score of a pair is bit-identical in any batch, and for
        (a, b) as for (b, a).
        """
        own = self.cohort_statistics(latents)
        return normalize(self.kind, similarities, own[left], own[right])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The fields as arrays of numbers, for storage; `from_arrays` is the inverse."""
        own = {"kind": np.array(KINDS.index(self.kind)), "cohort": self.cohort, "nearest": np.array(self.nearest)}
        return own | {REFERENCE + name: array for name, array in self.reference.arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Raises KeyError if an array is missing, ValueError if one is invalid."""
        kind, nearest = int(arrays["kind"]), int(arrays["nearest"])
        if not 0 <= kind < len(KINDS):
            raise ValueError(f"a stored kind of item normalization must be 0 to {len(KINDS) - 1}; it is {kind}")
        own = {name.removeprefix(REFERENCE): array for name, array in arrays.items() if name.startswith(REFERENCE)}
        return cls(KINDS[kind], arrays["cohort"].astype(np.float32), nearest, ReferenceDistribution.from_arrays(own))


def cohort_cosines(latents: Vectors, cohort: Vectors) -> npt.NDArray[np.float32]:
    """Cosines of latents (N, D) to a cohort (C, D) -> (N, C).

    Each row is multiplied separately, so its result does not depend on the other rows. When BLAS multiplies rows
    together, it sums in another order.
    """
    dots: npt.NDArray[np.float32] = np.matmul(latents[:, None, :], np.ascontiguousarray(cohort.T))[:, 0]
    norms = np.sqrt(np.einsum("nd,nd->n", latents, latents, dtype=np.float64))[:, None]
    cosines: npt.NDArray[np.float32] = np.divide(
        dots, norms, out=np.zeros_like(dots), where=norms > 0, casting="same_kind"
    )
    return cosines


def cohort_statistics(cosines: npt.NDArray[np.float32], nearest: int) -> CohortStatistics:
    """Mean and spread of the `nearest` highest cosines in each row (N, C).

    >>> nearby = cohort_statistics(np.array([[0.1, 0.5, 0.7]], np.float32), nearest=2)
    >>> nearby.mean.round(4), nearby.spread.round(4)
    (array([0.6]), array([0.1]))
    """
    highest = np.partition(cosines, cosines.shape[1] - nearest, axis=1)[:, cosines.shape[1] - nearest :]
    near = highest.astype(np.float64)
    return CohortStatistics(near.mean(1), np.maximum(near.std(1), SMALLEST_SPREAD))
