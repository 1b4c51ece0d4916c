"""Parts of a calibration written by hand."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from isosim.scoring.false_hits import FalseHitTable
from isosim.scoring.out_of_domain import Combination, DomainTest, Standardization, Statistics
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


EMPTY = np.empty(0)
GRADED = replace(
    MAP, high=5.0, graded=True, precisions=EMPTY, thresholds=EMPTY, interval_low=EMPTY, interval_high=EMPTY,
    recalls=EMPTY, recall_low=EMPTY, recall_high=EMPTY, precision_low=EMPTY, precision_high=EMPTY,
)  # fmt: skip

RATES = np.logspace(-2, -7, 21)
GALLERIES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 500.0, 1000.0])


def false_hits(spread: float, queries: int = 10**6) -> FalseHitTable:
    """Counts of queries whose rates follow a Gamma law of this shape: share = 1 − (1 + p·G / spread)^−spread."""
    hits = -np.expm1(-spread * np.log1p(np.outer(GALLERIES, RATES) / spread))
    errors = np.full(hits.shape, 0.1)
    return FalseHitTable(RATES, GALLERIES, hits, errors, queries, 1000)


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


def a_test(dim: int = 12, levels: int = 0, *, probe: bool = True, seed: int = 0) -> DomainTest:
    """Any test: numbers of the right kind, whatever they mean."""
    rng = np.random.default_rng(seed)
    edges = np.array([0, dim // 4, dim // 2, dim])
    bands = len(edges) - 1 + 2 + levels
    width = 1 + bands + probe
    rotation, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    whitening = (rotation * rng.uniform(0.5, 3, dim)).astype(np.float32)
    statistics = Statistics(rng.standard_normal(dim), whitening, edges, rng.standard_normal(2 * dim * probe))
    standardization = Standardization(
        np.log([5.0, 20.0, 60.0]),
        rng.standard_normal((3, width)),
        rng.uniform(0.3, 2, (3, width)),
        np.eye(bands) + 0.2 * rng.standard_normal((bands, bands)),
    )
    one_sided = np.array([[-3.0, 0.0, 2.0, 300.0], [-1.0, 0.0, 3.0, 500.0]])
    two_sided = np.array([[-300.0, -2.0, 0.0, 2.0, 300.0], [500.0, 3.0, 0.0, 3.0, 500.0]])
    combination = Combination(
        two_sided,
        one_sided,
        one_sided if probe else np.empty((2, 0)),
        np.array([np.log([5.0, 60.0]), [0.4, -0.3]]),
        np.array([[-2.0, 1.0, 4.0, 600.0], [0.0, 0.7, 4.0, 600.0]]),
    )
    return DomainTest(statistics, standardization, combination)
