"""What a version knows about its domain's text, besides the calibrator's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from service.core.domain_test import DomainTest
from service.core.normalization import ItemNormalization
from service.core.probability import ProbabilityMap
from service.core.reference import Doubles, ReferenceDistribution

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class DomainModel:
    """The parts of a version that turn a similarity into something with a meaning. Any of them may be missing."""

    reference: ReferenceDistribution | None = None  # of the calibrated similarity
    raw_reference: ReferenceDistribution | None = None  # of the frozen encoder's cosine
    normalization: ItemNormalization | None = None
    probability: ProbabilityMap | None = None
    domain_test: DomainTest | None = None

    KINDS: ClassVar[dict[str, Any]] = {
        "reference": ReferenceDistribution,
        "raw_reference": ReferenceDistribution,
        "normalization": ItemNormalization,
        "probability": ProbabilityMap,
        "domain_test": DomainTest,
    }

    @property
    def scale(self) -> ReferenceDistribution | None:
        """The reference that percentiles are read from: that of normalized scores where there are some."""
        return self.reference if self.normalization is None else self.normalization.reference

    def arrays(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """The parts there are, each as named arrays; `from_arrays` is the inverse."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part.arrays() for name, part in parts.items() if part is not None}

    @classmethod
    def from_arrays(cls, parts: Mapping[str, Arrays]) -> Self:
        """Raises KeyError where an array is missing, ValueError where one makes no sense."""
        return cls(**{name: cls.KINDS[name].from_arrays(arrays) for name, arrays in parts.items()})

    def false_match_rates(
        self,
        latents: npt.NDArray[np.float32],
        left: npt.NDArray[np.intp],
        right: npt.NDArray[np.intp],
        similarities: npt.NDArray[np.float32],
    ) -> Doubles | None:
        """Share of the domain's random pairs that score at least as high as the pairs (left[i], right[i]) of latents.

        latents: (N, D). left, right, similarities: (P,) -> (P,). With item normalization it is the normalized score
        that is compared. None without a reference.
        """
        if self.normalization is not None:
            scores = self.normalization.score(latents, left, right, similarities)
            return self.normalization.reference.false_match_rate(scores)
        return None if self.reference is None else self.reference.false_match_rate(similarities)
