"""Out-of-domain test: a sentence gets a low p-value if its vector is unlike the vectors of the domain's own text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles, Floats, Integers, Vectors

FALSE_ALARMS = 0.01  # texts with a lower p-value are flagged as out of domain
# Edges of the bands of the spectrum, as shares of the number of dimensions. The first band has the largest eigenvalues.
BANDS = np.array([0, 8, 16, 32, 64, 128, 192, 256, 320, 384]) / 384
NORMS = 2  # number of statistics besides the bands: log ‖x‖² and log ‖x − μ‖²
CLIP = 6.0  # whitened coordinates are clipped to −CLIP … CLIP before they are weighted by `Statistics.probe`
FLOOR = 1e-6  # smallest energy, in units of the domain's variance; lower values are rounding error
DOUBLED_BYTES = 40_000_000  # size limit of `_doubled`, in bytes: 33 domains with 384 dimensions, or 8 with 768
# Largest number of tokens that has a row in a test's tables. A text has at most 10,000 characters by default; with
# 1,000,000 rows, the tables of one version took 0.4 GB.
LONGEST = 32_768


@dataclass(frozen=True, eq=False)
class Statistics:
    """Computes statistics of a vector x, not yet standardized by text length. z = (x − μ) · whitening."""

    mean: Doubles  # (D,) μ
    whitening: Vectors  # (D, D) eigenvectors / √eigenvalue in columns, by falling eigenvalue
    edges: Integers  # (B + 1,) edges of the bands of the spectrum, from 0 to D
    probe: Doubles  # (2D,) weights of [z, z²] in a sum that is high for shuffled words; (0,) without a probe

    @cached_property
    def _variances(self) -> Doubles:
        """The eigenvalues (D,)."""
        variances: Doubles = 1 / np.square(self.whitening.astype(np.float64)).sum(0)
        return variances

    @cached_property
    def _groups(self) -> Doubles:
        """(D, 1 + B + 1): weights of z². The weighted sums are ‖z‖², the energy of each band, and ‖x − μ‖²."""
        numbers = np.arange(len(self.mean))[:, None]
        inside = (self.edges[:-1] <= numbers) & (numbers < self.edges[1:])
        return np.column_stack([np.ones(len(self.mean)), inside, self._variances])

    @cached_property
    def _floors(self) -> Doubles:
        """(1 + B + 2,): minimum of each energy; lower values are rounding error."""
        return FLOOR * np.array([1.0] * len(self.edges) + [self._variances.sum()] * NORMS)

    def check(self) -> None:
        """Raises ValueError if shapes disagree or the bands do not cover the spectrum."""
        if self.mean.ndim != 1 or self.whitening.shape != 2 * self.mean.shape:
            raise ValueError(f"a mean {self.mean.shape} and a whitening {self.whitening.shape} do not fit each other")
        dim, edges = len(self.mean), self.edges
        if self.probe.shape not in {(0,), (2 * dim,)}:
            raise ValueError(f"a probe {self.probe.shape} does not fit {dim} dimensions")
        if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all() or edges[[0, -1]].tolist() != [0, dim]:
            raise ValueError(f"bands {edges.tolist()} do not divide {dim} dimensions")
        if not self.whitening.any(0).all():
            raise ValueError("a whitening has a column of zeros")

    def __call__(self, pooled: Floats, levels: Floats | None = None) -> Doubles:
        """Statistics of N vectors. (N, D), levels (N, L) -> (N, S)

        The columns are, in this order:

        1. the logarithms of ‖z‖², of the energy of each band, of ‖x − μ‖² and of ‖x‖²
        2. `levels`, if given: the log energies of a normalizing flow's levels (see `level_energies`)
        3. the probe's score, if there is a probe
        """
        x = pooled.astype(np.float64)
        z = (x - self.mean) @ in_double(self)
        count = len(self._floors)
        depth = 0 if levels is None else levels.shape[1]
        out = np.empty((len(x), count + depth + (len(self.probe) > 0)))
        logs = out[:, :count]
        np.matmul(z * z, self._groups, out=logs[:, :-1])
        np.vecdot(x, x, out=logs[:, -1])
        np.log(np.maximum(logs, self._floors, out=logs), out=logs)
        if levels is not None:
            out[:, count : count + depth] = levels
        if len(self.probe):
            linear, square = self.probe.reshape(2, -1)
            np.minimum(np.maximum(z, -CLIP, out=z), CLIP, out=z)
            np.vecdot(z, linear + z * square, out=out[:, -1])
        return out


# Cache of whitening matrices in float64, oldest first; an entry disappears when its Statistics are no longer used.
_doubled: "WeakKeyDictionary[Statistics, Doubles]" = WeakKeyDictionary()
_adding = Lock()


def in_double(statistics: Statistics) -> Doubles:
    """The whitening matrix in float64, cached for a few domains.

    In float64, the results for a text alone and in a batch differ by 1e-15 (float32: 1e-6). The cache is small, because
    a float64 matrix takes twice the memory of the float32 matrix, and both are kept.
    """
    whitening = _doubled.get(statistics)
    if whitening is None:
        whitening = statistics.whitening.astype(np.float64)
        with _adding:
            while _doubled and whitening.nbytes + sum(one.nbytes for one in _doubled.values()) > DOUBLED_BYTES:
                del _doubled[next(iter(_doubled))]
            _doubled[statistics] = whitening
    return whitening


@dataclass(frozen=True)
class Standardization:
    """Standardizes statistics by their mean and spread over the domain's texts of the same length.

    Mean and spread are stored for some numbers of tokens, the centres. Between the centres, they are interpolated
    linearly in the logarithm of the number of tokens.
    """

    centres: Doubles  # (C,) log tokens, rising
    location: Doubles  # (C, S) mean of each statistic
    scale: Doubles  # (C, S) standard deviation
    bands_root: Doubles  # (G, G): ‖s · root‖² is the squared Mahalanobis distance of standardized band statistics s

    @cached_property
    def _tables(self) -> tuple[Doubles, Doubles]:
        """Location and 1 / scale, each (tokens, S)."""
        return by_tokens(self.centres, self.location), 1 / by_tokens(self.centres, self.scale)

    def check(self, fewest: int, *, probed: bool) -> None:
        """Raises ValueError if shapes disagree, or if there are fewer than `fewest` band statistics."""
        check_lengths(self.centres)
        count = self.bands_root.shape[0] if self.bands_root.ndim else 0
        shape = (len(self.centres), 1 + count + probed)
        if self.bands_root.shape != (count, count) or count < fewest:
            raise ValueError(f"band statistics {self.bands_root.shape} must be square, with at least {fewest} rows")
        if self.location.shape != shape or self.scale.shape != shape or not (self.scale > 0).all():
            raise ValueError(
                f"locations {self.location.shape} and scales {self.scale.shape} must have the shape {shape}, and "
                "scales must be above 0"
            )

    def __call__(self, statistics: Doubles, tokens: Integers) -> Doubles:
        """Standardized statistics, from the statistics and the numbers of tokens. (N, S), (N,) -> (N, T)

        The columns are log ‖z‖², the logarithm of the bands' squared Mahalanobis distance, and the probe's score if
        there is a probe.

        Raises:
            ValueError: the statistics have levels but the test was fitted without levels, or the other way round.
        """
        if statistics.shape[1] != self.location.shape[1]:
            raise ValueError(
                f"{statistics.shape[1]} statistics, {self.location.shape[1]} expected: levels must be given if, and "
                "only if, the test was fitted with them"
            )
        location, inverse = self._tables
        row = row_of(tokens, len(location))
        standard = (statistics - location.take(row, 0)) * inverse.take(row, 0)
        end = len(self.bands_root)
        rotated = standard[:, 1 : end + 1] @ self.bands_root
        out = standard[:, end - 1 :]  # overwrites two band columns, which are not needed after `rotated`
        out[:, 0] = standard[:, 0]
        np.log(np.vecdot(rotated, rotated) + FLOOR, out=out[:, 1])
        return out


@dataclass(frozen=True)
class Combination:
    """Combines the p-values of several statistics into one p-value.

    1. The curve of each statistic gives a score −ln(p / share). p is the statistic's p-value, and share is the fixed
       share of the false alarms that this statistic may cause.
    2. A correction for the text's length (`length_shift`) is subtracted from the largest score.
    3. `final_curve` maps the corrected score to −ln of the combined p-value.

    A curve (2, K) holds K increasing inputs, and the output for each of them. Between the inputs, the output is
    interpolated linearly.
    """

    distance_curve: Doubles  # for log ‖z‖²; large and small values are both unusual
    bands_curve: Doubles
    probe_curve: Doubles  # (2, 0) without a probe
    length_shift: Doubles  # (2, C): log tokens, and the correction that makes p-values comparable across lengths
    final_curve: Doubles

    @cached_property
    def _shift(self) -> Doubles:
        return by_tokens(self.length_shift[0], self.length_shift[1][:, None])[:, 0]

    def check(self, *, probed: bool) -> None:
        """Raises ValueError if a curve does not rise, or if there is a probe curve without a probe."""
        curves = [self.distance_curve, self.bands_curve, self.final_curve, *([self.probe_curve] if probed else [])]
        if not all(curve.ndim == 2 and len(curve) == 2 and curve.shape[1] for curve in curves):
            raise ValueError("a curve must have two rows, points and values")
        if not all((np.diff(curve[0]) > 0).all() for curve in curves):
            raise ValueError("the points of a curve must increase")
        if self.probe_curve.shape != (2, 0) and not probed:
            raise ValueError("there is a curve for a probe, but no probe")
        if (np.diff(self.final_curve[1]) < 0).any() or self.final_curve[1, 0] < 0:
            raise ValueError("p-values must not exceed 1 and must decrease as the score increases")
        if self.length_shift.ndim != 2 or len(self.length_shift) != 2:
            raise ValueError("a length shift must have two rows, lengths and corrections")
        check_lengths(self.length_shift[0])

    def score(self, standard: Doubles) -> Doubles:
        """The largest −ln(p / share) of each text's statistics. (N, T) -> (N,)"""
        score = np.maximum(
            np.interp(standard[:, 0], *self.distance_curve), np.interp(standard[:, 1], *self.bands_curve)
        )
        if self.probe_curve.shape[1]:
            score = np.maximum(score, np.interp(standard[:, 2], *self.probe_curve))
        return score

    def __call__(self, standard: Doubles, tokens: Integers) -> Doubles:
        """p-values, from standardized statistics and numbers of tokens. (N, T), (N,) -> (N,)"""
        shift = self._shift.take(row_of(tokens, len(self._shift)))
        p_values: Doubles = np.exp(-np.interp(self.score(standard) - shift, *self.final_curve))
        return p_values


@dataclass(frozen=True)
class DomainTest:
    """Tests whether a sentence comes from the text of a domain; the result is a calibrated p-value.

    It combines these statistics, each compared with its values for texts of the same length:

    1. log ‖z‖² of the whitened vector z, which determines the likelihood of z under a Gaussian. Small values count as
       unusual too, because texts of random rare words lie nearer the mean than sentences do.
    2. The energies in bands of the spectrum.
    3. The score of a probe that separates sentences from copies with shuffled words. There is a probe only if the test
       was fitted with such copies. They serve as negative examples (Gutmann & Hyvärinen, 2010; Hendrycks et al., 2019).
    """

    statistics: Statistics
    standardization: Standardization
    combination: Combination
    # Tells which test made a text's `verdict`, without keeping the test's arrays in memory.
    identity: object = field(default_factory=object, compare=False, repr=False)

    @property
    def derived(self) -> int:
        """Bytes of the tables that are computed from the arrays at the first text."""
        centres, shift = self.standardization.centres, self.combination.length_shift[0]
        return 8 * (rows_for(centres) * 2 * int(self.standardization.location.shape[1]) + rows_for(shift))

    def judge(self, pooled: Floats, tokens: Integers, levels: Floats | None = None) -> Doubles:
        """p-values of N vectors: the share of the domain's sentences that are at least as unusual; above 0, at most 1.

        Args:
            pooled: (N, D) vectors.
            tokens: (N,) numbers of tokens.
            levels: (N, L) from `level_energies`.

        Raises:
            ValueError: `levels` is given but the test was fitted without levels, or the other way round.
        """
        tokens = np.asarray(tokens)
        return self.combination(self.standardization(self.statistics(pooled, levels), tokens), tokens)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The fields of all parts as arrays, for storage; `from_arrays` is the inverse."""
        parts = (self.statistics, self.standardization, self.combination)
        return {field.name: getattr(part, field.name) for part in parts for field in fields(part)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "DomainTest":
        """Raises KeyError if an array is missing, ValueError if one is invalid."""

        def values(part: type[Any]) -> dict[str, npt.NDArray[Any]]:
            return {field.name: arrays[field.name] for field in fields(part)}

        test = cls(
            Statistics(**values(Statistics)),
            Standardization(**values(Standardization)),
            Combination(**values(Combination)),
        )
        if not all(np.isfinite(arrays[name]).all() for name in test.arrays()):
            raise ValueError("a domain test must consist of finite numbers")
        test.statistics.check()
        test.standardization.check(len(test.statistics.edges) - 1 + NORMS, probed=len(test.statistics.probe) > 0)
        test.combination.check(probed=len(test.statistics.probe) > 0)
        return test


def check_lengths(lengths: Doubles) -> None:
    """Raises ValueError if the lengths (logarithms of numbers of tokens) do not rise, or exceed ln(LONGEST)."""
    if lengths.ndim != 1 or not len(lengths) or (np.diff(lengths) <= 0).any() or lengths[-1] > np.log(LONGEST):
        raise ValueError(f"the lengths of a domain test must increase, and not exceed {LONGEST:,} tokens")


def row_of(tokens: Integers, count: int) -> Integers:
    """Row of each number of tokens in a table of `count` rows; all longer texts use the last row."""
    return np.minimum(np.maximum(tokens, 1), count - 1)


def rows_for(centres: Doubles) -> int:
    """Rows of a table with one row for each number of tokens, up to the last of the centres (C,) of log tokens."""
    return int(np.ceil(np.exp(centres[-1]))) + 1


def by_tokens(centres: Doubles, values: Doubles) -> Doubles:
    """Interpolates values (C, S) linearly in log tokens; constant outside the centres (C,). -> (tokens, S)"""
    lengths = np.log(np.maximum(np.arange(rows_for(centres)), 1))
    return np.column_stack([np.interp(lengths, centres, column) for column in values.T])


def level_energies(latents: Floats, sizes: Sequence[int]) -> Doubles:
    """For each vector, the log mean square of the latents of each level of a normalizing flow. (N, D) -> (N, L)

    `sizes`: the number of latent dimensions of each level.
    """
    if sum(sizes) != latents.shape[1]:
        raise ValueError(f"levels of {list(sizes)} channels do not fit latents of {latents.shape[1]} dimensions")
    starts = np.cumsum([0, *sizes[:-1]])
    energies = np.add.reduceat(np.square(latents.astype(np.float64)), starts, axis=1) / np.asarray(sizes)
    logs: Doubles = np.log(np.maximum(energies, FLOOR))
    return logs
