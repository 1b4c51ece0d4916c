"""The threshold advisor: which similarity to ask for."""

from dataclasses import dataclass
from typing import Literal

from service.core.domain_model import DomainModel
from service.core.errors import Conflict, InvalidInput

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
        InvalidInput: a rate or precision outside its range, or one that the labels do not reach.
    """
    if precision is not None:
        return for_precision(model, domain, precision, raw=raw)
    assert fmr is not None  # noqa: S101 - callers give one of the two
    if not SMALLEST_FMR <= fmr < 1:
        raise InvalidInput(f"fmr: {fmr:g}; a false-match rate is at least {SMALLEST_FMR:g} and less than 1")
    reference = model.raw_reference if raw else model.reference
    if reference is None:
        raise Conflict(NO_REFERENCE.format(domain))
    interval = reference.interval(fmr)
    beyond = min(fmr, 1 - fmr) < 10 / reference.pairs
    return Advice({"fmr": fmr}, reference.threshold(fmr), interval, reference.pairs, beyond)


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
