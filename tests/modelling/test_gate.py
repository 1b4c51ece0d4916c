"""What `auto` chooses: nothing on a spread space, tempered whitening or a flow on a crowded one."""

import numpy as np
import pytest

from service.modelling.gate import CROWDED, FLOW_SENTENCES, choose
from service.modelling.linear import crowding
from service.modelling.methods import Vectors


def vectors(count: int, wanted: float, dim: int = 64) -> Vectors:
    """Unit vectors around a common direction: the mean cosine of random pairs is about `wanted`."""
    x = np.random.default_rng(0).standard_normal((count, dim))
    x[:, 0] = 0
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    common = np.eye(dim)[0]
    return (np.sqrt(wanted) * common + np.sqrt(1 - wanted) * x).astype(np.float32)


@pytest.mark.parametrize("count", [20, 200, 5000])
def test_a_space_that_is_not_crowded_is_left_alone(count: int) -> None:
    choice = choose(vectors(count, wanted=0.03))
    assert choice.method == "identity"
    assert str(CROWDED) in choice.reason


@pytest.mark.parametrize("crowded", [0.28, 0.6, 0.95])
def test_a_crowded_space_gets_a_flow_where_there_is_text_enough_for_one(crowded: float) -> None:
    assert choose(vectors(FLOW_SENTENCES, crowded)).method == "flow"
    assert choose(vectors(FLOW_SENTENCES - 1, crowded)).method == "tempered"


def test_the_choice_says_how_crowded_the_space_is() -> None:
    x = vectors(1000, 0.4)
    choice = choose(x)
    assert choice.crowding == pytest.approx(crowding(x.astype(np.float64)))
    assert choice.crowding == pytest.approx(0.4, abs=0.01)
    assert f"{choice.crowding:.3f}" in choice.reason


def test_the_length_of_the_vectors_does_not_enter_the_choice() -> None:
    x = vectors(600, 0.4)
    lengths = np.random.default_rng(1).uniform(0.1, 10, (600, 1)).astype(np.float32)
    assert choose(x * lengths).crowding == pytest.approx(choose(x).crowding, rel=1e-5)
