"""The examples in the docstrings of the mathematics run, and give what stands beside them."""

import doctest
import importlib

import pytest

# Lines that are run, by module: fewer would mean that examples were lost, or that the parser missed them.
EXAMPLES = {
    "service.core.jobs.labels": 2,
    "service.core.scoring.similarity": 3,
    "service.core.scoring.reference": 3,
    "service.core.scoring.normalization": 5,
    "service.core.scoring.probability": 4,
    "service.modelling.calibration.linear": 5,
    "service.modelling.calibration.flow": 6,
    "service.modelling.calibrator": 5,
}


@pytest.mark.parametrize(("name", "least"), EXAMPLES.items())
def test_examples_give_what_stands_beside_them(name: str, least: int) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted >= least
