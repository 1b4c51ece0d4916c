"""Runs the examples in docstrings and compares their output."""

import doctest
import importlib

import pytest

# Smallest number of example lines by module: fewer means that examples were lost, or that the parser missed them.
EXAMPLES = {
    "isosim.core.jobs.labels": 2,
    "isosim.core.grants": 2,
    "isosim.core.scoring.calibration": 2,
    "isosim.core.scoring.distances": 4,
    "isosim.core.scoring.migration": 1,
    "isosim.core.scoring.similarity": 3,
    "isosim.core.scoring.reference": 3,
    "isosim.core.scoring.normalization": 5,
    "isosim.core.scoring.probability": 4,
    "isosim.modelling.calibration.linear": 5,
    "isosim.modelling.calibration.flow": 6,
    "isosim.modelling.calibrator": 5,
}


@pytest.mark.parametrize(("name", "least"), EXAMPLES.items())
def test_examples_give_the_documented_output(name: str, least: int) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted >= least
