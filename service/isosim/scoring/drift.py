"""Drift: a sliding window per domain shows whether requests still resemble the text that the champion was fitted to."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isosim.arrays import Doubles
from isosim.scoring.calibration import Calibration
from isosim.scoring.out_of_domain import FALSE_ALARMS
from isosim.scoring.similarity import Scores

WINDOW = 2000  # a window holds the last 2,000 texts and the last 2,000 pairs
BASELINE = 1000  # the first 1,000 pairs that a version scored are the baseline with which later pairs are compared
FEWEST = 100  # a figure needs at least this many texts or pairs
BINS = 10


@dataclass(frozen=True)
class Drift:
    """Figures of a domain's window; a figure is None if the window holds too few texts or pairs for it."""

    texts: int
    pairs: int
    out_of_domain: float | None  # share of flagged texts; about FALSE_ALARMS if requests resemble the domain's own text
    stability_index: float | None  # see `stability_index`; compares recent similarities with the version's first 1,000


def stability_index(baseline: Doubles, recent: Doubles) -> float:
    """Population stability index: Σ (r − b) ln(r / b) over the baseline's deciles (Siddiqi, 2006, chapter 8).

    b and r are the shares of the baseline and of the recent values in a decile. An index below 0.1 is commonly called
    stable, an index above 0.25 shifted. Samples of n and m values from the same distribution have an index of about
    9/n + 9/m.
    """
    edges: Doubles = np.unique(np.quantile(baseline, np.linspace(0, 1, BINS + 1)[1:-1]))

    def shares(values: Doubles) -> Doubles:
        counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
        shares = (counts + 0.5) / (len(values) + 0.5 * (len(edges) + 1))
        return np.asarray(shares, np.float64)

    b, r = shares(baseline), shares(recent)
    return float(((r - b) * np.log(r / b)).sum())


class DriftWindow:
    """The last texts and pairs that one version scored."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._flags: deque[bool] = deque(maxlen=WINDOW)
        self._similarities: deque[float] = deque(maxlen=WINDOW)
        self._baseline: list[float] = []

    def observe(self, scores: Scores) -> None:
        if scores.oddness is not None:
            self._flags.extend([p_value < FALSE_ALARMS for p_value in scores.oddness])
        similarities = scores.similarity if scores.unreadable is None else scores.similarity[scores.readable]
        numbers: list[float] = similarities.tolist()
        room = BASELINE - len(self._baseline)
        self._baseline += numbers[:room]
        self._similarities += numbers[room:]

    def measure(self) -> Drift:
        # `copy` holds the interpreter's lock throughout, so that no other thread changes the numbers meanwhile.
        flags, recent = np.array(self._flags.copy()), np.array(self._similarities.copy())
        return Drift(
            texts=len(flags),
            pairs=len(self._baseline) + len(recent),
            out_of_domain=float(flags.mean()) if len(flags) >= FEWEST else None,
            stability_index=stability_index(np.array(self._baseline), recent) if len(recent) >= FEWEST else None,
        )


class DriftMonitor:
    """One window for each of the most recently used domains; a new champion starts a new window.

    Only the event loop writes. Other threads may read, and may see a window that is only partly updated.
    """

    def __init__(self, domains: int = 500) -> None:
        self._most = domains
        self._windows: OrderedDict[str, DriftWindow] = OrderedDict()

    def observe(self, calibration: Calibration, scores: Scores) -> None:
        """Adds the scores of a request.

        Call this only for scores of the champion, because requests for other versions do not represent the domain's
        traffic.
        """
        window = self._windows.get(calibration.domain)
        if window is None or window.version != calibration.version:
            window = self._windows[calibration.domain] = DriftWindow(calibration.version)
            while len(self._windows) > self._most:
                self._windows.popitem(last=False)
        self._windows.move_to_end(calibration.domain)
        window.observe(scores)

    def measure(self, domain: str) -> Drift | None:
        window = self._windows.get(domain)
        return None if window is None else window.measure()

    def all(self, champions: Mapping[str, Calibration]) -> dict[str, Drift]:
        """The drift of those of these champions that have been asked for."""
        windows = ((name, one.version, self._windows.get(name)) for name, one in champions.items())
        return {name: window.measure() for name, version, window in windows if window and window.version == version}
