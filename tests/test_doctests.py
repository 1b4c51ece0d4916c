"""Runs the examples in docstrings and compares their output."""

import doctest
import importlib

import pytest

# Smallest number of example lines by module: fewer means that examples were lost, or that the parser missed them.
EXAMPLES = {
    "isosim.jobs.labels": 2,
    "isosim.access.grants": 2,
    "isosim.scoring.calibration": 2,
    "isosim.scoring.distances": 4,
    "isosim.scoring.similarity": 3,
    "isosim.scoring.method": 2,
    "isosim.scoring.reference": 3,
    "isosim.scoring.probability": 4,
    "isosim.fitting.linear": 5,
    "isosim.fitting.flow": 6,
    "isosim.fitting.calibrator": 5,
}


@pytest.mark.parametrize(("name", "least"), EXAMPLES.items())
def test_examples_give_the_documented_output(name: str, least: int) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted >= least
