"""A reference distribution written by hand."""

import numpy as np

from service.core.scoring.reference import ReferenceDistribution

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
