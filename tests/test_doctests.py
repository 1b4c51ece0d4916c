"""Runs the examples in docstrings and compares their output."""

import doctest
import importlib

import pytest

# Smallest number of example lines by module: fewer means that examples were lost, or that the parser missed them.
EXAMPLES = {
    "service.core.jobs.labels": 2,
    "service.core.grants": 2,
    "service.core.scoring.calibration": 2,
    "service.core.scoring.distances": 4,
    "service.core.scoring.migration": 1,
    "service.core.scoring.similarity": 3,
    "service.core.scoring.reference": 3,
    "service.core.scoring.normalization": 5,
    "service.core.scoring.probability": 4,
    "service.modelling.calibration.linear": 5,
    "service.modelling.calibration.flow": 6,
    "service.modelling.calibrator": 5,
}


@pytest.mark.parametrize(("name", "least"), EXAMPLES.items())
def test_examples_give_the_documented_output(name: str, least: int) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted >= least
