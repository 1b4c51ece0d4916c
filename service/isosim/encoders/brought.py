"""Encoders that isosim does not run: users compute the vectors themselves."""

import base64
from typing import NoReturn

import numpy as np

from isosim.arrays import Floats, Vectors
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput

# Accepted deviation of a norm from 1. Rounding to bfloat16 causes up to 7e-4, to float16 up to 1e-4 (100,000 random
# vectors, D = 384); with more dimensions it is less.
LENGTH_OFF = 1e-3
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
    """A vector (D,) as base64 of little-endian float32. `vector_of` converts it back.

    >>> encoded(np.array([1, 2], np.float32))
    'AACAPwAAAEA='
    """
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


def vector_of(value: object) -> Vectors:
    """A vector (D,) from JSON: a list of numbers, or base64 from `encoded`. Raises InvalidInput for anything else."""
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)
        if isinstance(value, list) and set(map(type, value)) <= {int, float}:
            with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused later
                return np.array(value, np.float64).astype(np.float32)
    except (ValueError, OverflowError):  # no base64, no multiple of 4 bytes, or a number too large for float64
        pass
    raise InvalidInput("is not a vector: send a list of numbers, or little-endian float32 in base64")


def brought_vector(value: object, name: str, dim: int, *, unit: bool) -> Vectors:
    """A vector (D,) from JSON, of `dim` numbers; with `unit`, of length 1.

    Raises:
        InvalidInput: the encoder cannot use the vector. The message begins with `name`, for example `the vector`.
    """
    try:
        # A long list is not converted: a million numbers take 0.1 s.
        vector = value if isinstance(value, list) and len(value) > dim else vector_of(value)
        if len(vector) != dim:
            raise InvalidInput(f"has {len(vector):,} numbers; the encoder's vectors have {dim:,}")
        for why in faults(np.array([vector]), unit=unit).values():
            raise InvalidInput(why)
    except InvalidInput as error:
        raise InvalidInput(f"{name} {error}") from None
    return np.asarray(vector)


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
