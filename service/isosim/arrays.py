"""Types of the numpy arrays that pass between modules, for N texts, P pairs and vectors of D dimensions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]  # (N, D), or (D,) for a single vector
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.intp]  # indices into another array
Integers = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
Arrays = Mapping[str, npt.NDArray[Any]]  # stored arrays by their names
Weights = dict[str, npt.NDArray[Any]]
