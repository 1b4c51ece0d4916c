"""The reference distribution as it is stored and asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.reference import ReferenceDistribution

knots = st.lists(st.floats(-1, 1), min_size=1, max_size=50, unique=True).map(sorted)


@given(knots, st.integers(1, 10**9), st.data())
def test_what_is_stored_is_what_is_read(similarities: list[float], pairs: int, data: st.DataObject) -> None:
    count = len(similarities)
    shares = data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count).map(sorted))
    reference = ReferenceDistribution(np.array(similarities), np.array(shares), pairs)
    again = ReferenceDistribution.from_arrays(reference.arrays())
    np.testing.assert_array_equal(again.similarities, reference.similarities)
    np.testing.assert_array_equal(again.probabilities, reference.probabilities)
    assert (again.pairs, type(again.pairs)) == (pairs, int)


@pytest.mark.parametrize("missing", ["similarities", "probabilities", "pairs"])
def test_a_missing_array_is_an_error(missing: str) -> None:
    arrays = ReferenceDistribution(np.array([0.0]), np.array([1.0]), 5).arrays()
    del arrays[missing]
    with pytest.raises(KeyError):
        ReferenceDistribution.from_arrays(arrays)


def test_between_two_knots_the_percentile_is_interpolated_and_beyond_them_it_is_0_and_1() -> None:
    reference = ReferenceDistribution(np.array([0.0, 0.5]), np.array([0.2, 0.8]), 5)
    found = reference.percentile(np.array([-0.1, 0.0, 0.25, 0.5, 0.6], np.float32))
    np.testing.assert_allclose(found, [0, 0.2, 0.5, 0.8, 1], atol=1e-12)
