"""Registers an encoder that callers run themselves. The callers send its vectors to the service.

The store keeps the encoder's name, its number of dimensions, and a calibrator for its vectors.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import onnx

from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import CALIBRATOR, EncoderArtifact, EncoderStore
from isosim.errors import InvalidInput
from isosim.export.graph import export_calibrator

LEAST_DIM, MOST_DIM = 8, 16_384  # with 16,384 dimensions the calibrator's matrix takes 1 GB


def register(
    store: Path, name: str, dim: int, *, unit: bool, say: Callable[[str], None] = lambda _: None
) -> EncoderArtifact:
    """Adds an encoder, or returns it if it is already registered with the same arguments.

    Args:
        dim: number of dimensions.
        unit: whether all vectors have norm 1. If True, callers may also send Euclidean distances and inner products,
            which then determine the cosine. Cosine distances are accepted for vectors of any norm.

    Raises:
        InvalidInput: the number of dimensions is not supported, or the name belongs to another encoder.
    """
    if not LEAST_DIM <= dim <= MOST_DIM:
        raise InvalidInput(f"dimensions: {dim}; expected {LEAST_DIM} to {MOST_DIM:,}")
    encoders = EncoderStore.at(store)
    if name in encoders.ids():
        known = encoders.find(name)
        given = {"dimensions": (known.spec.dim, dim), "unit-vectors": (known.unit_vectors, unit)}
        check_same(known, "vectors", given)
        return known
    say("making the calibrator")
    registration = encoders.registration(name)
    spec = spec_of("vectors", name, [registration, unit], dim)

    def write(folder: Path) -> dict[str, object]:
        onnx.save(export_calibrator(dim), folder / CALIBRATOR)
        return {"kind": "vectors", "unit_vectors": unit, "registration": registration}

    return encoders.add(name, spec, write)


def spec_of(
    kind: Literal["vectors", "remote"],
    source: str,
    identity: list[Any],
    dim: int,
    prompt: str = "",
    max_length: int = 0,
) -> EncoderSpec:
    """The spec of an encoder that isosim does not compute; `identity` takes the place of the weights."""
    weights = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return EncoderSpec(source, weights, "", kind, 0, max_length, prompt, kind, dim, pad_token_id=0)


def check_same(known: EncoderArtifact, kind: str, given: Mapping[str, tuple[object, object]]) -> None:
    """Raises InvalidInput if `known` is of another kind, or was registered with other options.

    given: option -> its value when `known` was registered, and now.
    """
    what = f"encoder {known.id} exists already"
    if known.kind != kind:
        raise InvalidInput(f"{what} and is of another kind (isosim encoder list shows kinds); choose another name")
    for option, (before, now) in given.items():
        if before != now:
            raise InvalidInput(
                f"{what}, registered with --{option} {before!r}, but this command uses {now!r}; choose another name, "
                f"or remove the registered encoder first: isosim encoder remove {known.id}"
            )
