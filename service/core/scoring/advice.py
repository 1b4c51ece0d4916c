"""The threshold advisor: which similarity to ask for."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.core.errors import Conflict, InvalidInput
from service.core.scoring.calibration import DomainModel
from service.core.scoring.reference import COUNTED, TOLERANCE, ReferenceDistribution

SMALLEST_FMR = 1e-7  # nothing that text could teach
NO_REFERENCE = "domain {!r} has no reference; give it text: POST /calibrate"


@dataclass(frozen=True)
class Advice:
    """A similarity, the 95 % interval of it, and what it rests on."""

    target: dict[Literal["fmr", "precision"], float]
    similarity: float
    interval: tuple[float, float]
    pairs: int  # random pairs, or labelled ones
    extrapolated: bool  # the sample cannot count it: below 10 / pairs, or as near to 1


def advise(model: DomainModel, domain: str, *, fmr: float | None, precision: float | None, raw: bool = False) -> Advice:
    """For a false-match rate, or for a precision among pairs like the labelled ones.

    Raises:
        Conflict: the domain has no reference, or no labels that a precision could come from.
        InvalidInput: a rate or precision outside its range, or one that no threshold reaches.
    """
    if precision is not None:
        return for_precision(model, domain, precision, raw=raw)
    assert fmr is not None  # noqa: S101 - callers give one of the two
    if not SMALLEST_FMR <= fmr < 1:
        raise InvalidInput(f"fmr: {fmr:g}; a false-match rate is at least {SMALLEST_FMR:g} and less than 1")
    reference = model.raw_reference if raw else model.reference
    if reference is None:
        raise Conflict(NO_REFERENCE.format(domain))
    check_reachable(reference, domain, fmr)
    interval = reference.interval(fmr)
    beyond = bool(reference.extrapolated(np.array([fmr]))[0])
    return Advice({"fmr": fmr}, reference.threshold(fmr), interval, reference.pairs, beyond)


def check_reachable(reference: ReferenceDistribution, domain: str, fmr: float) -> None:
    """Raises InvalidInput, naming the rates to ask for, where pairs tie so that no threshold comes near this one."""
    lower, upper = reference.reachable(fmr)
    if lower >= fmr / TOLERANCE:
        return
    tie = int(np.flatnonzero(reference.gaps[:, 1] >= upper)[-1])
    share, at = reference.tied_rates[tie], reference.tied[tie]
    instead = f"the smallest rate that a threshold reaches is {rounded(upper):g}"
    if lower > 0:
        instead = f"a threshold reaches {lower:.3g} or less, and {rounded(upper):g} or more"
    raise InvalidInput(
        f"fmr: {fmr:g} cannot be reached in {domain!r}, where {share:.2%} of the random pairs have one similarity, "
        f"{at:.4f}, because their texts repeat; {instead}"
    )


def rarity(percentile: float, pairs: int) -> str:
    """How rarely one of the domain's random pairs scores as high, as far as so many pairs can tell."""
    rate = 1 - percentile
    if rate < COUNTED / pairs:
        most = pairs if rate < 1 / pairs else pairs // COUNTED
        return f"fewer than 1 in {most:,}"
    times = float(f"{1 / rate:.2g}")
    return f"1 in {times:g}" if times < 10 else f"1 in {times:,.0f}"


def rounded(rate: float) -> float:
    """To three digits, upwards: a rate that is asked for has to be at least the one that is reached."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.ceil(rate / unit) * unit:.3g}")


def for_precision(model: DomainModel, domain: str, precision: float, *, raw: bool) -> Advice:
    labelled = model.probability
    if labelled is None:
        raise Conflict(f"domain {domain!r} was given no labels; give it some: POST /domains/{domain}/labels")
    if raw or model.normalization is not None:
        raise Conflict("a precision rests on calibrated similarities without item normalization; ask for fmr")
    try:
        similarity, low, high = labelled.precision_threshold(precision)
    except ValueError as error:
        raise InvalidInput(f"precision: {error}") from None
    return Advice({"precision": precision}, similarity, (low, high), labelled.pairs, extrapolated=False)
