"""When the promise about ranking counts as kept."""

import pytest

from isosim.measurements.fit_cost import Result
from isosim.measurements.sts import View


def view(auto: list[float], rival: list[float] | None = None) -> View:
    names = [f"set{number}" for number in range(len(auto))]
    changes = {"auto": dict(zip(names, auto, strict=True))}
    if rival is not None:
        changes["flow"] = dict(zip(names, rival, strict=True))
    return View("view", dict.fromkeys(names, 50.0), dict.fromkeys(names, "soft:1"), changes)


@pytest.mark.parametrize(
    ("auto", "rival", "kept"),
    [
        ([0.0, 0.0], None, True),
        ([-0.9, 1.0], None, True),
        ([-1.1, 9.0], None, False),  # one set too much worse
        ([-0.5, 0.2], None, False),  # worse in the mean
        ([0.0, 0.0], [2.0, 2.0], True),  # what a rival gains here is not the paper's effect
        ([4.0, 4.0], [5.0, 4.0], False),  # a raw view, and a rival is better
        ([5.0, 4.0], [4.0, 4.0], True),
    ],
)
def test_kept_means_no_set_worse_no_mean_worse_and_on_raw_views_no_better_rival(
    auto: list[float], rival: list[float] | None, kept: bool
) -> None:
    assert view(auto, rival).kept == kept


def test_a_calibrations_cost_is_the_median_over_the_rounds() -> None:
    cheap = Result(10_000, "identity", [10.0, 10.0, 10.0], [12.0, 12.4, 30.0], {})
    assert cheap.overhead == pytest.approx(0.24)
    assert cheap.kept
    assert not Result(10_000, "identity", [10.0], [12.6], {}).kept
