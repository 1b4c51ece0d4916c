"""Encoders that isosim does not run: users compute the vectors themselves."""

import base64
import binascii
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from isosim.arrays import Floats, Vectors
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput

# Accepted deviation of a norm from 1. Rounding to bfloat16 causes up to 7e-4, to float16 up to 1e-4 (100,000 random
# vectors, D = 384); with more dimensions it is less.
LENGTH_OFF = 1e-3
NO_VECTOR = "is not a vector: send a list of numbers, or little-endian float32 in base64"
SHORTEST, LONGEST = 1e-12, 1e12  # smallest and largest accepted norm; float32 can represent the squares of both


class NoEncoder:
    """Used instead of an encoder and its tokenizer if users compute the vectors themselves; refuses every text."""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raises InvalidInput, which says what to send instead of texts."""
        raise InvalidInput(
            f"encoder {self.name} cannot score texts, because its users bring their own vectors; send "
            f'vectors of {self.dim} numbers (POST /similarity {{"vectors": [[a, b], …]}}), or cosines or distances '
            "(POST /percentile)"
        )

    pieces = prepare = run = __call__


def refuse_texts(artifact: EncoderArtifact) -> None:
    """Raises InvalidInput if users of this encoder compute the vectors themselves."""
    if artifact.kind == "vectors":
        NoEncoder(artifact.id, artifact.spec.dim)()


def encoded(vector: Vectors) -> str:
    """A vector (D,) as base64 of little-endian float32. `decoded` converts it back.

    >>> encoded(np.array([1, 2], np.float32))
    'AACAPwAAAEA='
    """
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


def decoded(text: str) -> Vectors:
    """Converts base64 from `encoded` back to a vector (D,). Raises InvalidInput for any other text."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(NO_VECTOR) from None
    if not content or len(content) % 4:
        raise InvalidInput(f"decodes from base64 to {len(content)} bytes; float32 needs a multiple of 4, at least 4")
    vector: Vectors = np.frombuffer(content, "<f4").astype(np.float32)
    return vector


def vector_of(value: object) -> Vectors:
    """A vector (D,) from JSON: a list of numbers or base64. Raises InvalidInput for anything else."""
    if isinstance(value, str):
        return decoded(value)
    if not isinstance(value, list) or not value:
        raise InvalidInput(NO_VECTOR)
    if not set(map(type, value)) <= {int, float}:
        odd = next(number for number, one in enumerate(value) if type(one) not in (int, float))
        raise InvalidInput(f"has a value of type {type(value[odd]).__name__} instead of a number at index {odd}")
    try:
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused later
            vector: Vectors = np.array(value, np.float64).astype(np.float32)
    except OverflowError:
        raise InvalidInput("contains a number too large for float64") from None
    return vector


def brought_vector(value: object, name: str, dim: int, *, unit: bool) -> Vectors:
    """A vector (D,) from JSON, of `dim` numbers; with `unit`, of length 1.

    Raises:
        InvalidInput: the encoder cannot use the vector. The message begins with `name`, for example `the vector`.
    """
    if isinstance(value, list) and len(value) > dim:  # before its numbers are converted: a million of them take 0.1 s
        raise InvalidInput(f"{name} {wrong_length(len(value), dim)}")
    try:
        vector = vector_of(value)
    except InvalidInput as error:
        raise InvalidInput(f"{name} {error}") from None
    if (why := fault_of(vector, dim, unit=unit)) is not None:
        raise InvalidInput(f"{name} {why}")
    return vector


def fault_of(vector: npt.NDArray[np.floating], dim: int, *, unit: bool) -> str | None:
    """The reason why a vector cannot be used; None if it can.

    >>> fault_of(np.zeros(2), 2, unit=False)
    'is a vector of zeros, which has no direction'
    """
    if len(vector) != dim:
        return wrong_length(len(vector), dim)
    return next(iter(faults(vector[None], unit=unit).values()), None)


def wrong_length(length: int, dim: int) -> str:
    return f"has {length:,} numbers; the encoder's vectors have {dim:,}"


def faults(vectors: Floats, *, unit: bool) -> dict[int, str]:
    """The unusable rows of vectors (N, D): row -> reason. With `unit`, vectors must have norm 1."""
    squares = np.vecdot(vectors, vectors, dtype=np.float64)
    usable = (squares >= SHORTEST**2) & (squares <= LONGEST**2)  # False for NaN
    if unit:
        usable &= np.abs(np.sqrt(squares) - 1) <= LENGTH_OFF
    return {row: fault(float(squares[row])) for row in np.flatnonzero(~usable).tolist()}


def fault(square: float) -> str:
    if not np.isfinite(square):
        return "holds NaN or infinity"
    if square <= 0:
        return "is a vector of zeros, which has no direction"
    if not SHORTEST**2 <= square <= LONGEST**2:
        return f"has the norm {square**0.5:.3g}; {SHORTEST:g} to {LONGEST:g} are accepted: scale the vectors"
    return f"has the norm {square**0.5:.5g}, not 1; the encoder was registered with unit vectors"
