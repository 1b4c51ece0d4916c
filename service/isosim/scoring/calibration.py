"""A calibration: an immutable version of a domain, with all that scoring needs.

>>> DomainRef.parse("tickets@3")
DomainRef(name='tickets', version=3)
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from isosim.arrays import Arrays, Doubles, Vectors
from isosim.encoders.texts import Judge, PooledVector
from isosim.errors import InvalidInput
from isosim.scoring.false_hits import FalseHitTable
from isosim.scoring.out_of_domain import DomainTest, level_energies
from isosim.scoring.pair_features import PairMap
from isosim.scoring.probability import ProbabilityMap
from isosim.scoring.reference import ReferenceDistribution

DEFAULT = "default"  # the domain of requests that name none
DOMAIN_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
NAME_RULE = "a name has 1 to 64 of a-z, 0-9, '.', '_', '-' and starts with a letter or digit"
DOMAIN_REF = re.compile(rf"(?P<name>{DOMAIN_NAME})(?:@(?P<version>[1-9][0-9]{{0,8}}|0|champion|previous))?")


def name_fault(text: str, wanted: str = "the name of a domain") -> str:
    """Error message for an invalid domain name; the message suggests a valid name made from the text.

    >>> name_fault("Support Tickets").rpartition("; ")[2]
    "for example 'support-tickets'"
    """
    offered = re.sub(r"[^a-z0-9._-]+", "-", text[:256].lower().partition("@")[0]).strip("-._")[:64]
    example = f"; for example {offered!r}" if offered else ""
    return f"domain {text[:80]!r}: expected {wanted}; {NAME_RULE}{example}"


@dataclass(frozen=True)
class DomainRef:
    """A domain and one of its versions: `name` (the champion), `name@3`, `name@previous`."""

    name: str
    version: int | str = "champion"

    @classmethod
    @lru_cache(maxsize=4096)
    def parse(cls, text: str) -> "DomainRef":
        """Parses `name`, `name@3` or `name@previous`; raises InvalidInput for other texts."""
        match = DOMAIN_REF.fullmatch(text)
        if not match:
            raise InvalidInput(name_fault(text, "name (its champion), name@version or name@previous"))
        version = match["version"] or "champion"
        return cls(match["name"], int(version) if version.isdigit() else version)


@dataclass(frozen=True)
class DomainModel:
    """Reference distributions and fitted models of a version. A part that the version lacks is None."""

    reference: ReferenceDistribution | None = None  # distribution of the calibrated similarity
    raw_reference: ReferenceDistribution | None = None  # distribution of the frozen encoder's cosine
    probability: ProbabilityMap | None = None
    pair_map: PairMap | None = None  # better than `probability`, where the texts of a pair are known
    domain_test: DomainTest | None = None
    false_hits: FalseHitTable | None = None  # for searches by calibrated similarity
    raw_false_hits: FalseHitTable | None = None  # for searches by the frozen encoder's cosine

    KINDS: ClassVar[dict[str, Any]] = {
        "reference": ReferenceDistribution,
        "raw_reference": ReferenceDistribution,
        "probability": ProbabilityMap,
        "pair_map": PairMap,
        "domain_test": DomainTest,
        "false_hits": FalseHitTable,
        "raw_false_hits": FalseHitTable,
    }

    def arrays(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """The parts that are not None, each as named arrays; `from_arrays` is the inverse."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part.arrays() for name, part in parts.items() if part is not None}

    @classmethod
    def from_arrays(cls, parts: Mapping[str, Arrays]) -> Self:
        """Raises KeyError if an array is missing, ValueError if one is invalid."""
        return cls(**{name: cls.KINDS[name].from_arrays(arrays) for name, arrays in parts.items()})


@dataclass(frozen=True)
class Calibration:
    """One version of a domain. `transform` maps pooled vectors (N, D) to latents (N, D); None is the identity."""

    domain: str
    version: int
    method: str
    encoder: str  # digest
    transform: Callable[[Vectors], Vectors] | None = None
    model: DomainModel = field(default_factory=DomainModel)
    # Number of latent dimensions of each level of a normalizing flow; empty for other methods.
    levels: tuple[int, ...] = ()
    size: int = 0  # bytes in memory, estimated by the loader

    @cached_property
    def origin(self) -> list[tuple[bytes, bytes]]:
        """Response headers that name the domain, version and encoder of the scores."""
        return [
            (b"x-isosim-domain", self.domain.encode()),
            (b"x-isosim-version", b"%d" % self.version),
            (b"x-isosim-encoder", self.encoder.encode()),
        ]

    @cached_property
    def notices(self) -> list[str]:
        """Notices that callers receive with all scores of this version."""
        model = self.model
        notices = [] if model.reference is not None else ["no_reference"]
        if model.probability is not None and model.probability.graded:
            notices.append(f"probability_is_mean_grade:{model.probability.low:g}-{model.probability.high:g}")
        return notices

    @property
    def notices_without_texts(self) -> list[str]:
        """Notices if only vectors or cosines are known: the probability then comes from the similarity alone."""
        return [] if self.model.pair_map is None else ["probability_without_texts"]

    @cached_property
    def decisions(self) -> dict[Any, Any]:
        """Cache of `advice.decision_threshold`, by target."""
        return {}

    def notices_of_places(self, *, raw: bool) -> list[str]:
        """Notices that callers receive with the scores from `place`."""
        graded = [notice for notice in self.notices if notice.startswith("probability")]
        return [*graded, *self.notices_without_texts] if self._has_probability(raw=raw) else ["raw_scale"]

    def _has_probability(self, *, raw: bool) -> bool:
        """Whether labels give a cosine a probability: they are fitted to the calibrated similarity."""
        return self.transform is None or not raw

    def place(self, cosines: Doubles, *, raw: bool) -> tuple[Doubles, npt.NDArray[np.bool_], Doubles | None] | None:
        """Scores cosines (N,) of calibrated vectors, or with `raw` of the frozen encoder's vectors.

        Returns three arrays (N,): the false-match rates, whether each rate is extrapolated, and the probabilities of a
        match. The probabilities are None if the version has no labels, and for raw cosines of a version with a
        transform. The whole result is None for a version without a reference for the cosines.
        """
        model = self.model
        scale = model.raw_reference if raw and self.transform is not None else model.reference
        if scale is None:
            return None
        rates = scale.false_match_rate(cosines)
        learnt = model.probability if self._has_probability(raw=raw) else None
        return rates, scale.extrapolated(rates), None if learnt is None else learnt.probability(rates)

    def judge(self, texts: Sequence[PooledVector], pooled: Vectors, latents: Vectors) -> list[float] | None:
        """The out-of-domain test's p-value of each text, also stored in `text.verdict`; None without a test."""
        test = self.model.domain_test
        if test is None:
            return None
        # `verdict` is read once per text: another thread may replace it with the verdict of another domain's test.
        known = [v[1] for text in texts if (v := text.verdict) is not None and v[0] is test.identity]
        if len(known) == len(texts):
            return known
        energies = level_energies(latents, self.levels) if self.levels else None
        p_values: list[float] = test.judge(pooled, np.array([text.tokens for text in texts]), energies).tolist()
        for text, p_value in zip(texts, p_values, strict=True):
            text.verdict = (test.identity, p_value)
        return p_values

    @property
    def early_judge(self) -> Judge | None:
        """The out-of-domain test of texts without a request's latents; None if it needs them, or if there is none."""
        return None if self.model.domain_test is None or self.levels else self._judge_early

    def _judge_early(self, texts: Sequence[PooledVector]) -> None:
        vectors = np.array([text.vector for text in texts])
        self.judge(texts, vectors, vectors)

    def latents(self, pooled: Vectors) -> Vectors:
        return pooled if self.transform is None else self.transform(pooled)
