"""Distances of databases and the cosines they stand for."""

from typing import Any, get_args

import numpy as np
import pytest

from isosim.errors import InvalidInput
from isosim.scoring.distances import Metric, Space, check_metric, cosines_of, distance_of, space_of


@pytest.mark.parametrize("metric", get_args(Metric))
def test_a_distance_gives_back_its_cosine(metric: Any) -> None:
    cosines = np.linspace(-1, 1, 201)
    distances = np.array([distance_of(float(cosine), metric) for cosine in cosines])
    assert np.allclose(cosines_of(distances, metric, "distances"), cosines, atol=1e-12)


def test_distances_are_those_of_unit_vectors() -> None:
    rng = np.random.default_rng(0)
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, 50, 9)))
    cosines = (a * b).sum(1)
    measured = {
        "cosine_distance": 1 - cosines,
        "l2": np.linalg.norm(a - b, axis=1),
        "l2_squared": ((a - b) ** 2).sum(1),
        "inner_product": (a * b).sum(1),
    }
    for metric, values in measured.items():
        assert np.allclose(cosines_of(values, metric, "distances"), cosines, atol=1e-12), metric  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "values", "message"),
    [
        (None, [0.5, 1.01], r"cosines\[1\] is 1\.01; cosines lie in -1 to 1"),
        (None, [float("nan")], r"cosines\[0\] is nan"),
        ("l2", [0.1, -0.1], r"cosines\[1\] is -0\.1; this is not a possible value of l2"),
        ("l2", [1e300], r"cosines\[0\] is 1e\+300"),
        ("l2_squared", [4.01], "4.01"),
        ("cosine_distance", [2.2], "2.2"),
        ("inner_product", [float("-inf")], "-inf"),
    ],
)
def test_what_stands_for_no_cosine_is_named(metric: Any, values: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cosines_of(np.array(values), metric, "cosines")


def test_rounding_of_databases_is_taken() -> None:
    assert cosines_of(np.array([1.0000002, -1.0005]), None, "cosines").tolist() == [1.0, -1.0]
    assert cosines_of(np.array([-1e-7]), "l2_squared", "distances").tolist() == [1.0]


def test_a_domain_that_transforms_vectors_asks_which_ones_are_meant() -> None:
    assert space_of(None, "unit=l2", "news", identity=True) == "calibrated"
    assert [space_of(space, "unit=l2", "news", identity=False) for space in get_args(Space)] == list(get_args(Space))
    with pytest.raises(InvalidInput, match=r"calibrated if your index holds vectors of isosim/news, or raw"):
        space_of(None, "unit=l2", "news", identity=False)


def test_only_vectors_of_one_length_have_other_distances_than_the_cosines() -> None:
    check_metric("cosine_distance", "ours", unit=False)
    check_metric("l2", "ours", unit=True)
    with pytest.raises(InvalidInput, match="l2 determines a cosine only if all vectors have length 1"):
        check_metric("l2", "ours", unit=False)
