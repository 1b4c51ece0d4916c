"""What similarities unrelated sentences of a domain have: the scale that gives a score its meaning."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ReferenceDistribution:
    """Cumulative distribution of the similarity of random sentence pairs, as quantile knots.

    similarities: (K,) rising; probabilities: (K,) rising, the share of pairs below; pairs: sample size.
    """

    similarities: npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float64]
    pairs: int

    def percentile(self, similarities: Floats) -> npt.NDArray[np.float64]:
        """Share of random pairs that score lower, 0–1; 1 − percentile is the false-match rate."""
        return np.interp(similarities, self.similarities, self.probabilities, left=0.0, right=1.0)

    def arrays(self) -> dict[str, npt.NDArray[np.float64]]:
        """For storage; `from_arrays` is the inverse."""
        return {
            "similarities": self.similarities,
            "probabilities": self.probabilities,
            "pairs": np.array(float(self.pairs)),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.float64]]) -> "ReferenceDistribution":
        """Raises KeyError where an array is missing."""
        return cls(arrays["similarities"], arrays["probabilities"], int(arrays["pairs"]))
