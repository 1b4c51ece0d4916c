"""Parts of a calibration as they are stored: they come back unchanged, and damaged ones are not loaded."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from isosim.scoring.pair_features import PairMap
from tests.core.scoring.references import GRADED, MAP, REFERENCE, a_test, false_hits

TWO = np.array([0.0, 1.0])
TABLE = false_hits(1.0)
PARTS: dict[str, Any] = {
    "reference": REFERENCE,
    "probabilities": MAP,
    "grades": GRADED,
    "domain test": a_test(),
    "domain test with levels": a_test(levels=3, probe=False),
    "false hits": TABLE,
    "pair map": PairMap(np.zeros(4), np.ones(4), MAP),
}


def loaded(part: str, **changes: Any) -> Any:
    """The part as it is stored, with other arrays in some places; None: without that array."""
    arrays = {name: array.copy() for name, array in PARTS[part].arrays().items()} | changes
    given = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    return type(PARTS[part]).from_arrays(given)


@pytest.mark.parametrize("part", PARTS)
def test_what_is_stored_comes_back(part: str) -> None:
    again = loaded(part)
    for name, array in PARTS[part].arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array, strict=True)
    for field in fields(again):
        assert type(getattr(again, field.name)) is type(getattr(PARTS[part], field.name))


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, made in PARTS.items() for name in made.arrays()])
def test_a_missing_array_is_named(part: str, name: str) -> None:
    with pytest.raises(KeyError, match=name):
        loaded(part, **{name: None})


FINITE = [(part, name) for part in ("probabilities", "domain test", "pair map") for name in PARTS[part].arrays()]


@pytest.mark.parametrize(("part", "name"), [pair for pair in FINITE if pair[1] not in ("edges", "graded")])
def test_numbers_that_are_none_are_refused(part: str, name: str) -> None:
    spoilt = PARTS[part].arrays()[name].copy()
    spoilt.flat[0] = np.nan
    with pytest.raises(ValueError):
        loaded(part, **{name: spoilt})


DAMAGED: list[tuple[str, dict[str, Any], str | None]] = [
    *(
        ("reference", {name: wrong}, "knots")
        for name in ("similarities", "logits")
        for wrong in (getattr(REFERENCE, name)[::-1], [-1.0, 0.0, 0.0, 0.2, 0.4], [-1.0, np.nan, 0.0, 0.2, 0.4])
    ),
    ("probabilities", {"knots": [-2.0, 4.0, 4.0]}, "must rise"),
    ("probabilities", {"knots": [1.0], "logits": [0.0]}, "two knots"),
    ("probabilities", {"logits": [0.0, -0.1, 1.0]}, "must not fall"),
    ("probabilities", {"logits": TWO}, "one logit for each"),
    ("probabilities", {"clip": 0.5}, "clip"),
    ("probabilities", {"high": 0.0}, "more than one value"),
    ("probabilities", {"precisions": [0.5, 0.7, 0.7]}, "must rise"),
    ("probabilities", {"thresholds": [0.5, 0.4, 0.8]}, "must not fall"),
    ("probabilities", {"thresholds": [0.4, 0.5]}, "every precision"),
    ("probabilities", {"interval_high": [0.5, 0.49, 0.95]}, "outside its own interval"),
    ("probabilities", {"interval_low": [0.3, 0.51, 0.7]}, "outside its own interval"),
    ("probabilities", {"recalls": [0.9, 0.6]}, "a recall"),
    ("probabilities", {"recall_low": [0.8, 0.65, 0.1]}, "a recall lies outside its own interval"),
    ("probabilities", {"precision_low": [0.4, 0.6]}, "a precision"),
    ("probabilities", {"precision_high": [0.55, 0.65, 0.95]}, "a precision lies outside its own interval"),
    ("probabilities", {"graded": 1.0}, "grades have no precisions"),
    ("false hits", replace(TABLE, hits=TABLE.hits[:, :-1]).arrays(), "false hits"),
    ("false hits", {"hits": TABLE.hits[::-1]}, "false hits"),
    ("false hits", {"hits": TABLE.hits[:, ::-1]}, "false hits"),
    ("false hits", {"hits": TABLE.hits + 1}, "false hits"),
    ("false hits", {"rates": TABLE.rates[::-1]}, "false hits"),
    ("false hits", {"galleries": TABLE.galleries[::-1]}, "false hits"),
    ("pair map", {"moves": np.zeros(3)}, "map"),
    ("pair map", {"centre": np.zeros((4, 1))}, "map"),
    ("pair map", {"knots": MAP.knots[::-1]}, "map"),
    ("pair map", {"logits": MAP.logits[::-1]}, "map"),
    ("pair map", {"clip": 0.6}, "map"),
    ("pair map", {"thresholds": [0.9, 0.1, 0.2]}, "thresholds"),
    ("domain test with levels", {"probe_curve": [TWO, TWO]}, "curve"),
    *(
        ("domain test", {name: wrong}, None)
        for name, wrong in [
            ("mean", np.zeros(11)), ("whitening", np.ones((12, 11))), ("whitening", np.diag([0.0] + [1.0] * 11)),
            ("probe", np.zeros(12)), ("probe", np.zeros(0)), ("edges", np.array([0, 3, 3, 12])),
            ("edges", np.array([0, 3, 6, 13])), ("edges", np.array([1, 3, 6, 12])), ("edges", np.empty(0, np.intp)),
            ("centres", np.log([5.0, 60.0, 20.0])), ("centres", [1.0, 2.0, 40.0]), ("centres", np.empty(0)),
            ("location", np.zeros((2, 7))), ("scale", np.ones((3, 6))), ("scale", np.zeros((3, 7))),
            ("bands_root", np.eye(4)), ("bands_root", 1.0), ("bands_root", np.ones((5, 4))),
            ("distance_curve", [[0.0, 0.0], TWO]), ("bands_curve", np.empty((2, 0))), ("probe_curve", np.empty((2, 0))),
            ("final_curve", TWO), ("final_curve", [TWO, TWO[::-1]]), ("final_curve", [TWO, [-0.5, 1.0]]),
            ("length_shift", [[2.0, 1.0], [0.0, 0.0]]), ("length_shift", np.zeros(3)),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "changes", "reason"), DAMAGED, ids=range(len(DAMAGED)))
def test_arrays_that_make_no_sense_are_refused(part: str, changes: dict[str, Any], reason: str | None) -> None:
    with pytest.raises(ValueError, match=reason):
        loaded(part, **changes)
