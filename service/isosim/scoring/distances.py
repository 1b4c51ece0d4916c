"""Converts the distances that vector databases return to cosines, and back."""

from typing import Literal

import numpy as np

from isosim.arrays import Doubles
from isosim.errors import Action, InvalidInput
from isosim.wording import place

Space = Literal["calibrated", "raw"]
Metric = Literal["cosine_distance", "l2", "l2_squared", "inner_product"]
# unit in which a threshold is given
Unit = Literal["similarity", "cosine_distance", "l2", "l2_squared", "inner_product"]
METRICS = (
    "cosine_distance = 1 - cosine; for vectors of length 1 also l2 = sqrt(2 - 2 * cosine), "
    "l2_squared = 2 - 2 * cosine, inner_product = cosine"
)
SLACK = 2e-3  # a cosine may lie this far outside -1 to 1, because databases round to float32, float16 or less


def cosines_of(values: Doubles, metric: Metric | None, name: str) -> Doubles:
    """Cosines (N,) for the values that a database returned; metric None means that the values are cosines.

    Args:
        name: name of the field, for messages.

    Raises:
        InvalidInput: a value is NaN or outside the metric's range; the message names its place.

    >>> cosines_of(np.array([0.0, 1.0, 2.0]), "l2", "distances")
    array([ 1. ,  0.5, -1. ])
    >>> cosines_of(np.array([0.25, 4.0]), "l2_squared", "distances")
    array([ 0.875, -1.   ])
    """
    if metric == "l2" and (values < 0).any():
        cosines = np.where(values < 0, np.nan, 0.0)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            squares = values**2 if metric == "l2" else values
            share = {"cosine_distance": 1.0, "l2": 0.5, "l2_squared": 0.5}.get(metric or "")
            cosines = values if share is None else 1 - share * squares
    usable = np.abs(cosines) <= 1 + SLACK  # False for NaN
    if not usable.all():
        at = int(np.flatnonzero(~usable)[0])
        what = "cosines lie in -1 to 1" if metric is None else f"this is not a possible value of {metric} ({METRICS})"
        raise InvalidInput(f"{place(f'{name}.{at}')} is {values[at]:g}; {what}")
    clipped: Doubles = np.clip(cosines, -1.0, 1.0)
    return clipped


def distance_of(cosine: float, metric: Metric) -> float:
    """The value that a database returns for a cosine; `cosines_of` is the inverse.

    >>> from typing import get_args
    >>> [distance_of(0.5, metric) for metric in get_args(Metric)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if metric == "inner_product":
        return cosine
    distance = 1 - cosine
    return {"cosine_distance": distance, "l2": float(np.sqrt(2 * distance)), "l2_squared": 2 * distance}[metric]


def space_of(space: Space | None, asked: str, domain: str, *, identity: bool) -> Space:
    """The space of the vectors whose cosines or distances are meant; optional for the identity, which keeps vectors.

    Args:
        asked: what was requested, for the message.

    Raises:
        InvalidInput: the domain has other vectors than its encoder, and `space` does not say which ones are meant.
    """
    if space is None and not identity:
        raise InvalidInput(
            f"space: {asked} needs it, because {domain!r} transforms the encoder's vectors. Send calibrated if your "
            f"index holds vectors of isosim/{domain}, or raw if it holds vectors of isosim/{domain}:raw"
        )
    return space or "calibrated"


def check_metric(metric: Metric, encoder: str, *, unit: bool) -> None:
    """Raises InvalidInput if the metric needs vectors of length 1, and the encoder's vectors may have other lengths."""
    if metric != "cosine_distance" and not unit:
        raise InvalidInput(
            f"{metric} determines a cosine only if all vectors have length 1, which is not known for the vectors of "
            f"encoder {encoder}; use cosine_distance or cosines instead, or an encoder that requires length 1"
        ).with_remedy(Action.ADD_ENCODER)
