"""A reference distribution written by hand."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from isosim.scoring.probability import ProbabilityMap
from isosim.scoring.reference import ReferenceDistribution

REFERENCE = ReferenceDistribution(
    similarities=np.array([-1.0, -0.2, 0.0, 0.2, 0.4]),
    logits=np.array([20.0, 3.0, 0.5, -2.0, -4.0]),
    shape=0.1,
    scale=0.05,
    tail_error=0.01,
    levels=np.array([1e-1, 1e-2, 1e-3]),
    low=np.array([0.21, 0.43, 0.5]),
    high=np.array([0.22, 0.45, 0.55]),
    relative_error=np.array([0.05, 0.2, np.nan]),
    sentences=200,
    pairs=19_900,
)


MAP = ProbabilityMap(
    knots=np.array([-2.0, 4.0, 10.0]),
    logits=np.array([-5.0, 0.0, 1.0]),
    clip=0.01,
    low=0.0,
    high=1.0,
    graded=False,
    pairs=120,
    precisions=np.array([0.5, 0.7, 0.9]),
    thresholds=np.array([0.4, 0.5, 0.8]),
    interval_low=np.array([0.3, 0.45, 0.7]),
    interval_high=np.array([0.5, 0.55, 0.95]),
    recalls=np.array([0.9, 0.6, 0.2]),
    recall_low=np.array([0.8, 0.5, 0.1]),
    recall_high=np.array([1.0, 0.7, 0.3]),
    precision_low=np.array([0.4, 0.6, 0.8]),
    precision_high=np.array([0.55, 0.75, 0.95]),
)


@st.composite
def references(draw: st.DrawFn) -> ReferenceDistribution:
    """Any knots and any tail."""
    count = draw(st.integers(2, 30))
    steps = st.floats(1e-6, 1)
    similarities = np.cumsum(draw(st.lists(steps, min_size=count, max_size=count)))
    similarities = -1 + 1.9 * (similarities - similarities[0]) / (similarities[-1] - similarities[0])
    logits = 15 - np.cumsum(draw(st.lists(steps, min_size=count, max_size=count)))
    shape, scale = draw(st.sampled_from([0.0]) | st.floats(0.01, 0.9)), draw(st.floats(1e-3, 1))
    return replace(REFERENCE, similarities=similarities, logits=logits, shape=shape, scale=scale)
