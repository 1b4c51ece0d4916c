"""What is reported of a space and of a scale."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.fitting import evidence


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_the_threshold_error_is_the_logarithm_of_the_factor_a_rate_is_off_by(factor: float) -> None:
    rates = (np.arange(100_000) + 0.5) / 100_000 / factor
    assert evidence.threshold_error(1 - rates) == pytest.approx(abs(np.log(factor)), abs=0.01)


@given(arrays(np.float64, st.integers(1, 500), elements=st.floats(0, 1)))
def test_a_threshold_error_is_finite_and_never_negative(percentiles: npt.NDArray[np.float64]) -> None:
    assert 0 <= evidence.threshold_error(percentiles) < np.inf


def test_the_report_of_a_space_tells_a_crowded_one_from_a_spread_one() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2000, 32)).astype(np.float32)
    crowded = vectors + 5 * np.float32(rng.standard_normal(32))
    wide, narrow = evidence.spread(vectors, rng), evidence.spread(crowded, rng)
    assert wide["mean_random_cosine"] < 0.01
    assert narrow["mean_random_cosine"] > 0.9
    assert wide["effective_rank"] == pytest.approx(32, abs=0.5)
    assert narrow["effective_rank"] < 20
