"""A map with features is used only where they help, and says as much as its labels do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.arrays import Doubles
from isosim.encoders.store import EncoderArtifact
from isosim.fitting import pair_map, probability
from isosim.fitting.job import calibrate_job
from isosim.fitting.publication import Fit
from isosim.jobs.job import JobRequest, LabelledPair
from isosim.jobs.posted import Posted
from isosim.scoring.pair_features import PairMap
from isosim.scoring.probability import evidence
from tests.core.scoring.references import MAP
from tests.stores import domains_of
from tests.text import sentences

COUNT = 400


def pairs(*, helpful: bool) -> tuple[probability.LabelledScores, Doubles, Doubles]:
    """Labels that depend on the evidence, and where features help also on `numbers_differ`."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, COUNT)
    features = np.column_stack([rng.random((COUNT, 2)), rng.random((COUNT, 2)) < 0.3]).astype(np.float64)
    logits = x - 3 - 4 * features[:, 2] * helpful
    labels = (rng.random(COUNT) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    return probability.LabelledScores.build(np.tanh(x / 9), labels), x, features


def test_features_that_help_are_used() -> None:
    labelled, x, features = pairs(helpful=True)
    found, report = pair_map.fit(labelled, x, features, 0)
    assert found is not None
    assert found.moves[2] < -2
    rates = np.full(2, 0.05)
    same, other = found.probability(rates, np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 1, 0]]))
    assert same > other + 0.3
    assert report.loss < report.rival_loss


def test_features_that_do_not_help_are_left_out() -> None:
    assert pair_map.fit(*pairs(helpful=False), 0)[0] is None


def test_thresholds_by_precision_are_probabilities_as_they_are_served() -> None:
    labelled, x, features = pairs(helpful=True)
    found, _ = pair_map.fit(labelled, x, features, 0)
    assert found is not None
    served = found.probability(1 / (1 + np.exp(x)), features)
    for precision in (0.7, 0.9):
        probability, low, high = found.curve.precision_threshold(precision)
        passing = served >= probability - 1e-9
        assert low <= probability <= high
        assert served[passing].mean() == pytest.approx(precision, abs=0.01)  # as the map itself says
        assert found.curve.recall(precision)[0] == pytest.approx(labelled.labels[passing].sum() / labelled.labels.sum())


def test_a_stored_map_gives_the_same_probabilities() -> None:
    labelled, x, features = pairs(helpful=True)
    found, _ = pair_map.fit(labelled, x, features, 0)
    assert found is not None
    again = PairMap.from_arrays(found.arrays())
    rates = 1 / (1 + np.exp(x))
    np.testing.assert_allclose(evidence(rates), x)
    assert (again.probability(rates, features) == found.probability(rates, features)).all()


@pytest.mark.parametrize(
    "fault",
    [
        {"moves": np.zeros(3)},
        {"centre": np.zeros((4, 1))},
        {"moves": np.full(4, np.nan)},
        {"knots": np.array([1.0, 0.0])},
        {"logits": np.array([1.0, 0.0])},
        {"clip": 0.6},
        {"thresholds": np.array([0.9, 0.1, 0.2])},
    ],
)
def test_a_damaged_map_is_refused(fault: dict[str, Any]) -> None:
    arrays = PairMap(np.zeros(4), np.zeros(4), MAP).arrays()
    PairMap.from_arrays(arrays)
    with pytest.raises(ValueError, match=r"map|thresholds"):
        PairMap.from_arrays(arrays | fault)


def test_a_job_learns_from_the_texts_of_labelled_pairs(tiny: EncoderArtifact, tmp_path: Path) -> None:
    """Other texts and other numbers are no matches."""
    every = sentences(600)
    labels = [
        LabelledPair(f"7 {text}", f"{every[row + (row % 4 == 3)]} {7 + (row % 4 == 1)}", float(row % 2 == 0))
        for row, text in enumerate(every[:200])
    ]
    request = JobRequest("d", tiny.digest, tiny.id, method="identity")

    def learnt(count: int) -> Fit:
        inputs = Posted(every, labels[:count])
        return calibrate_job(request, inputs, tiny, domains_of(tmp_path), lambda _, __: None, threads=1)

    enough = learnt(200)
    assert enough.model.pair_map is not None
    assert enough.report["labels"]["pair_features"]
    few = learnt(90)
    assert few.model.pair_map is None
    assert few.report["labels"]["pair_features"] is None
