"""Is what a domain is asked about still like the text its version was made from? A sliding window, per domain."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.arrays import Doubles
from service.core.scoring.calibration import Calibration
from service.core.scoring.out_of_domain import FALSE_ALARMS
from service.core.scoring.similarity import Scores

WINDOW = 2000  # texts, and as many pairs
BASELINE = 1000  # pairs: the first ones a version served are what later ones are compared with
FEWEST = 100  # texts or pairs below which nothing is said
BINS = 10


@dataclass(frozen=True)
class Drift:
    """What a domain's window shows; None where it holds too little."""

    texts: int
    pairs: int
    out_of_domain: float | None  # share of texts flagged; FALSE_ALARMS is what the domain's own text gives
    distance_mean: float | None  # of log ‖z‖², in the reference text's standard deviations from its mean
    distance_spread: float | None  # standard deviation, 1 for the reference text
    stability_index: float | None  # PSI of the similarities against the first the version served


class Ring:
    """The last numbers of a stream, in a fixed array."""

    def __init__(self, size: int) -> None:
        self._values = array("d", [0.0]) * size  # taking a few numbers costs it a fifth of what numpy's takes
        self._seen = 0

    def extend(self, values: Sequence[float]) -> None:
        held, size = self._values, len(self._values)
        for place, value in enumerate(values, self._seen):
            held[place % size] = value
        self._seen += len(values)

    @property
    def values(self) -> Doubles:
        """In no particular order."""
        return np.frombuffer(self._values)[: min(self._seen, len(self._values))]


def stability_index(baseline: Doubles, recent: Doubles) -> float:
    """Population stability index over the baseline's deciles: Σ (r − b) ln(r / b) (Siddiqi, 2006, chapter 8).

    Below 0.1 is taken as stable, above 0.25 as shifted. Two samples of one law of n and m give about 9/n + 9/m.
    """
    edges: Doubles = np.unique(np.quantile(baseline, np.linspace(0, 1, BINS + 1)[1:-1]))

    def shares(values: Doubles) -> Doubles:
        counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
        shares = (counts + 0.5) / (len(values) + 0.5 * (len(edges) + 1))
        return np.asarray(shares, np.float64)

    b, r = shares(baseline), shares(recent)
    return float(((r - b) * np.log(r / b)).sum())


class DriftWindow:
    """The last texts and pairs one version was asked about."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._flags, self._distances, self._similarities = Ring(WINDOW), Ring(WINDOW), Ring(WINDOW)
        self._baseline = Ring(BASELINE)
        self._room = BASELINE

    def observe(self, scores: Scores) -> None:
        if scores.verdicts is not None:
            self._flags.extend([verdict.p_value < FALSE_ALARMS for verdict in scores.verdicts])
            self._distances.extend([verdict.distance for verdict in scores.verdicts])
        similarities = scores.similarity if scores.unreadable is None else scores.similarity[scores.readable]
        numbers: list[float] = similarities.tolist()
        if self._room:
            self._baseline.extend(numbers[: self._room])
        self._similarities.extend(numbers[self._room :])
        self._room = max(0, self._room - len(numbers))

    def measure(self) -> Drift:
        flags, distances, recent = self._flags.values, self._distances.values, self._similarities.values
        enough = len(flags) >= FEWEST
        return Drift(
            texts=len(flags),
            pairs=len(self._baseline.values) + len(recent),
            out_of_domain=float(flags.mean()) if enough else None,
            distance_mean=float(distances.mean()) if enough else None,
            distance_spread=float(distances.std()) if enough else None,
            stability_index=stability_index(self._baseline.values, recent) if len(recent) >= FEWEST else None,
        )


class DriftMonitor:
    """Windows of the domains that are asked about, those asked last; a new champion starts a new one.

    The event loop alone writes; other threads may read, and see a window in the middle of an update.
    """

    def __init__(self, domains: int = 500) -> None:
        self._most = domains
        self._windows: OrderedDict[str, DriftWindow] = OrderedDict()

    def observe(self, calibration: Calibration, scores: Scores) -> None:
        """Of the domain's champion: requests that pin another version say nothing about the domain."""
        window = self._windows.get(calibration.domain)
        if window is None or window.version != calibration.version:
            window = self._windows[calibration.domain] = DriftWindow(calibration.version)
            while len(self._windows) > self._most:
                self._windows.popitem(last=False)
        self._windows.move_to_end(calibration.domain)
        window.observe(scores)

    def forget(self, domain: str) -> None:
        """The domain was deleted."""
        self._windows.pop(domain, None)

    def measure(self, domain: str) -> Drift | None:
        window = self._windows.get(domain)
        return None if window is None else window.measure()

    def all(self) -> dict[str, Drift]:
        return {domain: window.measure() for domain, window in list(self._windows.items())}
