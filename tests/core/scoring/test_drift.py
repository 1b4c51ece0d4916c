"""Sliding windows: what they hold, when they speak, and what a shift looks like in them."""

import math

import numpy as np
import pytest

from isosim.scoring.calibration import Calibration
from isosim.scoring.drift import BASELINE, FEWEST, WINDOW, DriftMonitor, DriftWindow, stability_index
from isosim.scoring.out_of_domain import FALSE_ALARMS
from isosim.scoring.similarity import Scores


def scores(similarities: list[float] | np.ndarray, flagged: int = 0) -> Scores:
    """One text a pair, the first `flagged` of them odd."""
    found = np.asarray(similarities, np.float32)
    odd = [FALSE_ALARMS / 2 if number < flagged else 0.5 for number in range(len(found))]
    return Scores(found, found, None, None, None, odd)


def test_little_says_nothing() -> None:
    window = DriftWindow(1)
    window.observe(scores(np.zeros(FEWEST - 1)))
    drift = window.measure()
    assert (drift.texts, drift.pairs) == (FEWEST - 1, FEWEST - 1)
    assert drift.out_of_domain is drift.stability_index is None


def test_rates_are_those_of_the_last_texts() -> None:
    window = DriftWindow(1)
    window.observe(scores(np.zeros(WINDOW), flagged=WINDOW))
    window.observe(scores(np.zeros(WINDOW), flagged=WINDOW // 20))
    drift = window.measure()
    assert drift.texts == WINDOW
    assert drift.out_of_domain == pytest.approx(0.05)


def test_scores_like_the_first_ones_are_stable_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    window = DriftWindow(1)
    for _ in range(10):
        window.observe(scores(rng.normal(0.3, 0.1, BASELINE // 5)))
    stable = window.measure().stability_index
    assert stable is not None
    assert 0 <= stable < 0.06
    for _ in range(2 * WINDOW // 100):
        window.observe(scores(rng.normal(0.45, 0.1, 100)))
    shifted = window.measure().stability_index
    assert shifted is not None
    assert shifted > 0.25


def test_one_large_request_fills_the_baseline_and_the_rest_is_recent() -> None:
    window = DriftWindow(1)
    window.observe(scores(np.linspace(-1, 1, BASELINE + FEWEST)))
    drift = window.measure()
    assert drift.pairs == BASELINE + FEWEST
    assert drift.stability_index is not None
    assert drift.stability_index > 1  # the recent ones are all above the rest


def test_the_index_is_the_sum_over_deciles() -> None:
    baseline = np.arange(1000) / 1000
    recent = baseline[baseline < 0.5]
    b, half = (100 + 0.5) / (1000 + 5), (100 + 0.5) / (500 + 5)
    none = 0.5 / (500 + 5)
    expected = 5 * (half - b) * math.log(half / b) + 5 * (none - b) * math.log(none / b)
    assert stability_index(baseline, recent) == pytest.approx(expected)
    assert stability_index(baseline, baseline) == pytest.approx(0)


def test_a_baseline_of_one_value_is_no_error() -> None:
    assert stability_index(np.zeros(100), np.zeros(100)) == pytest.approx(0)
    assert stability_index(np.zeros(100), np.ones(100)) >= 0


def calibration(domain: str, version: int = 1) -> Calibration:
    return Calibration(domain, version, "identity", "digest")


def test_a_new_champion_starts_anew() -> None:
    monitor = DriftMonitor()
    monitor.observe(calibration("news"), scores(np.zeros(200)))
    before = monitor.measure("news")
    assert before is not None
    assert before.texts == 200
    monitor.observe(calibration("news", 2), scores(np.zeros(7)))
    after = monitor.measure("news")
    assert after is not None
    assert after.texts == 7


def test_the_domains_asked_last_are_kept() -> None:
    monitor = DriftMonitor(domains=2)
    for domain in ("a", "b", "a", "c"):
        monitor.observe(calibration(domain), scores([0.5]))
    champions = {domain: calibration(domain) for domain in ("a", "b", "d")} | {"c": calibration("c", 2)}
    assert monitor.all(champions).keys() == {"a"}  # nor those of a version that answers no longer
    assert monitor.measure("c") is not None
    assert monitor.measure("b") is None


def test_a_domain_without_a_test_has_pairs_alone() -> None:
    found = np.zeros(FEWEST, np.float32)
    window = DriftWindow(1)
    window.observe(Scores(found, found, None, None, None, None))
    drift = window.measure()
    assert (drift.texts, drift.pairs, drift.out_of_domain) == (0, FEWEST, None)


def test_pairs_that_say_nothing_are_not_counted() -> None:
    seen = scores([0.1] * FEWEST)
    unreadable = np.arange(FEWEST) % 2 == 0
    window = DriftWindow(1)
    window.observe(seen._replace(unreadable=unreadable))
    assert window.measure().pairs == FEWEST // 2
