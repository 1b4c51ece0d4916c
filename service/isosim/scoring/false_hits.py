"""False hits: how often a search among many entries returns a wrong match, as a function of the false-match rate.

The false-match rate of a threshold is the share of random pairs that reach it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles

# Results are extrapolated to at most MOST_BEYOND × `FalseHitTable.entries` entries. Example: false hits were counted in
# searches among 5,000 entries and are extrapolated to at most 5,000,000 entries.
MOST_BEYOND = 1000
COUNTED = 10  # the share of queries with a false hit is extrapolated if fewer than 10 queries have a false hit
SMALLEST_RATE = 1e-6
CONFIDENCE_Z = 1.96  # number of standard errors from the estimate to each end of a 95 % interval


class Level(NamedTuple):
    """The false-match rate at which a wanted share of queries has a false hit, with the rate's 95 % interval."""

    rate: float
    low: float  # lower end of the interval; a lower rate means a stricter threshold
    high: float
    extrapolated: bool


@dataclass(frozen=True)
class FalseHitTable:
    """Share of queries with a wrong match among G entries, for several thresholds (FPIR; ISO/IEC 19795-1, 3.5).

    A threshold is identified by its false-match rate. Queries and entries are sentences of the domain. Each share in
    `hits` is a mean over subsets of G sentences.
    """

    rates: Doubles  # (L,) false-match rates, falling
    galleries: Doubles  # (G,) numbers of entries, rising; the last is about twice the one before it
    hits: Doubles  # (G, L) share of queries with a false hit
    errors: Doubles  # (G, L) relative standard error of `hits`; NaN where too few queries have a hit
    queries: int
    entries: int

    def law(self, gallery: float) -> "Law":
        """Share of queries with a false hit among `gallery` entries, as a function of the false-match rate.

        Hits were counted for the numbers of entries in `galleries`. Between two of these numbers, −ln(1 − share) is
        interpolated as a power law of the number of entries. For larger numbers of entries, the number of false hits
        of a query follows a negative binomial law, because queries differ in their false-match rates
        (`spread_between`).
        """
        # (G, L): expected number of false hits of a query, if all queries had the same false-match rate
        exponents = -np.log1p(-np.minimum(self.hits, 1 - 1e-12))
        known, logs = np.log(self.galleries), np.log(np.maximum(exponents, 1e-300))
        at = np.log(min(gallery, self.galleries[-1]))
        inside = np.exp([np.interp(at, known, logs[:, level]) for level in range(len(self.rates))])
        counted = np.flatnonzero(-np.expm1(-inside) * self.queries >= COUNTED)
        last = int(counted[-1]) if len(counted) else 0
        rates, expected, shape = self.rates[: last + 1], inside[: last + 1], np.inf
        if gallery > self.galleries[-1]:
            shapes, means = spread_between(exponents[-2, : last + 1], exponents[-1, : last + 1])
            expected = shapes * np.log1p(means * gallery / self.galleries[-2])
            shape = float(shapes[last])
        if not expected[0] > 1e-12:  # no false hit was counted
            expected, shape = alike(rates, gallery), np.inf
        return Law(rates, np.maximum.accumulate(expected[::-1])[::-1], shape, gallery)

    def level(self, share: float, gallery: float) -> Level:
        """The false-match rate at which this share of queries has a false hit among `gallery` entries."""
        law = self.law(gallery)
        nearest = max(int(np.searchsorted(self.galleries, gallery, side="right")) - 1, 0)
        rate = law.rate(share)
        place = int(np.clip(np.searchsorted(-self.rates, -rate), 0, len(self.rates) - 1))
        known = np.flatnonzero(np.isfinite(self.errors[nearest]))
        error = self.errors[nearest, known[np.argmin(np.abs(known - place))]] if len(known) else 1.0
        # widens the interval if hits were counted only for fewer than `gallery` entries
        beyond = max(np.log(gallery / self.galleries[-1]), 0.0) / 2
        width = float(np.exp(np.hypot(CONFIDENCE_Z * error, beyond)))
        # With 1 entry, the share of queries with a false hit is the false-match rate, so nothing is extrapolated.
        above = rate > law.rates[0] and gallery > 1
        return Level(
            rate,
            law.rate(share / width),
            law.rate(min(share * width, 1 - 1e-9)),
            bool(gallery > self.galleries[-1] + 1 or rate < law.rates[-1] or above),
        )

    def share(self, rates: Doubles, gallery: float) -> Doubles:
        """Share of queries with a false hit at the threshold of each of these false-match rates. (N,) -> (N,)"""
        return self.law(gallery).share(rates)

    def arrays(self) -> dict[str, Doubles]:
        """The fields as arrays, for storage; `from_arrays` is the inverse."""
        return {f.name: np.asarray(getattr(self, f.name), np.float64) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "FalseHitTable":
        """Raises KeyError if an array is missing, ValueError if shapes or orders are wrong."""
        values: dict[str, Any] = {f.name: np.asarray(arrays[f.name], np.float64) for f in fields(cls)}
        values |= {name: int(values[name]) for name in ("queries", "entries")}
        table = cls(**values)
        shape = (len(table.galleries), len(table.rates))
        if table.hits.shape != shape or table.errors.shape != shape:
            raise ValueError("a table of false hits needs a row for each number of entries and a column for each rate")
        if len(table.galleries) < 2 or len(table.rates) < 2 or not ((table.hits >= 0) & (table.hits <= 1)).all():
            raise ValueError("a table of false hits must hold shares for at least two numbers of entries and two rates")
        if (
            not (np.diff(table.rates) < 0).all()
            or not (table.rates > 0).all()
            or not (np.diff(table.galleries) > 0).all()
        ):
            raise ValueError("the rates of a table of false hits must decrease, and its numbers of entries increase")
        if not (np.diff(table.hits, axis=0) >= -1e-9).all() or not (np.diff(table.hits, axis=1) <= 1e-9).all():
            raise ValueError("false hits must not decrease with more entries, nor increase with a stricter threshold")
        return table


@dataclass(frozen=True)
class Law:
    """Share of queries with a false hit among `gallery` entries, as a function of the false-match rate.

    `expected` holds −ln(1 − share) at the rates in `rates`. Between two of these rates, −ln(1 − share) follows a power
    law. Above the highest rate, all queries are assumed to have the same false-match rate. Below the lowest rate, each
    query is assumed to have a false-match rate of its own, drawn from a Gamma distribution with shape `shape`. With an
    infinite `shape`, −ln(1 − share) is proportional to the false-match rate below the lowest rate.
    """

    rates: Doubles  # (L,) falling
    expected: Doubles  # (L,) falling
    shape: float
    gallery: float

    def share(self, rates: Doubles) -> Doubles:  # false-match rates (N,) -> shares of queries with a false hit (N,)
        logs = np.log(np.maximum(self.expected, 1e-300))
        inside = np.exp(np.interp(np.log(np.maximum(rates, 1e-300)), np.log(self.rates[::-1]), logs[::-1]))
        above = self.expected[0] / alike(self.rates[0], self.gallery) * alike(rates, self.gallery)
        below = self._below(rates)
        expected = np.where(rates > self.rates[0], above, np.where(rates < self.rates[-1], below, inside))
        shares: Doubles = -np.expm1(-expected)
        return shares

    def _below(self, rates: Doubles) -> Doubles:
        part = rates / self.rates[-1]
        if not np.isfinite(self.shape):
            return np.asarray(self.expected[-1] * part, np.float64)
        return np.asarray(self.shape * np.log1p(np.expm1(self.expected[-1] / self.shape) * part), np.float64)

    def rate(self, share: float) -> float:
        """The false-match rate at which this share of queries, in (0, 1), has a false hit; the inverse of `share`."""
        wanted = -np.log1p(-share)
        if wanted > self.expected[0]:
            hits = wanted * alike(self.rates[0], self.gallery) / self.expected[0]
            return float(min(-np.expm1(-hits / self.gallery), 1 - 1e-12))
        if wanted < self.expected[-1]:
            if not np.isfinite(self.shape):
                return float(self.rates[-1] * wanted / self.expected[-1])
            part = np.expm1(wanted / self.shape) / np.expm1(self.expected[-1] / self.shape)
            return float(self.rates[-1] * part)
        logs = np.log(np.maximum(self.expected, 1e-300))
        return float(np.exp(np.interp(np.log(wanted), logs[::-1], np.log(self.rates[::-1]))))


def alike(rates: npt.ArrayLike, gallery: float) -> Doubles:
    """Expected hits among `gallery` entries if all queries have the same false-match rate."""
    hits: Doubles = -gallery * np.log1p(-np.minimum(rates, 1 - 1e-12))
    return hits


def spread_between(half: Doubles, whole: Doubles) -> tuple[Doubles, Doubles]:
    """Fits a negative binomial law to the number of false hits of a query (Greenwood & Yule, 1920).

    In this law, each query has a false-match rate of its own, drawn from a Gamma distribution.

    Args:
        half: (L,) −ln(1 − s) at L thresholds, where s is the share of queries with a false hit among n entries.
        whole: (L,) −ln(1 − s) for searches among 2n entries.

    Returns:
        r and x, (L,) each. r is the shape of the Gamma distribution, and r·x the mean number of false hits of a query
        among n entries. They solve half = r·ln(1 + x) and whole = r·ln(1 + 2x).
    """
    growth = np.clip(whole / np.maximum(half, 1e-300), 1.0001, 1.9999)
    low, high = np.full(len(half), -15.0), np.full(len(half), 15.0)
    # Finds ln x by bisection. This works because whole / half = ln(1 + 2x) / ln(1 + x) decreases as x increases.
    for _ in range(60):
        middle = (low + high) / 2
        steep = np.log1p(2 * np.exp(middle)) / np.log1p(np.exp(middle)) > growth
        low, high = np.where(steep, middle, low), np.where(steep, high, middle)
    x = np.exp((low + high) / 2)
    shape: Doubles = half / np.log1p(x)
    return shape, x
