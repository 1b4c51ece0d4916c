"""Registers an encoder that runs on another server. Checks the server's answers, stores its vectors of probe texts, and
makes a calibrator."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx

from isosim.arrays import Vectors
from isosim.encoders.embeddings_api import EmbeddingsClient, Refusal, checked_url
from isosim.encoders.remote import TOLERANCE, check, probes_of
from isosim.encoders.store import CALIBRATOR, EncoderArtifact, EncoderStore, Endpoint
from isosim.errors import BackendFailure, EncoderUnreachable, InvalidInput
from isosim.export.brought import LEAST_DIM, check_same, spec_of
from isosim.export.graph import export_calibrator
from isosim.scoring.similarity import normalized

PROBES = (
    "In 2019 about 1,000 people heard Zoë's café band play guitar – naïve, isn't it?",
    "The invoice is overdue by thirty days.",
    "Der Zug nach Wien fährt um sieben Uhr ab.",
    "function add(a, b) { return a + b }",
)
SECONDS = 60.0  # timeout of one request; long, because the server may have to load the model first
ALIKE = 0.9999  # vectors of different texts with at least this cosine are treated as equal

Say = Callable[[str], None]


def register(
    store: Path,
    name: str,
    url: str,
    model: str,
    say: Say,
    *,
    key_file: Path | None = None,
    prompt: str = "",
    max_length: int = 8192,
) -> EncoderArtifact:
    """Adds a remote encoder, or changes the address or key file of a registered one.

    Raises:
        EncoderUnreachable, BackendFailure: the server does not answer, or its vectors are not usable.
        EncoderChanged: the encoder is registered, and the server at the new address gives other vectors.
        InvalidInput: the address is not valid, or the name belongs to another encoder.
    """
    encoders = EncoderStore.at(store)
    # Symbolic links in the path are not resolved, because Kubernetes replaces their target when the Secret changes.
    key = None if key_file is None else str(key_file.absolute())
    endpoint = Endpoint(checked_url(url), model, key)
    known = encoders.find(name) if name in encoders.ids() else None  # raises if the registered encoder is damaged
    if known is not None:
        was = model if known.remote is None else known.remote.model
        prompts, lengths = (known.spec.prompt, prompt), (known.spec.max_length, max_length)
        check_same(known, "remote", {"model": (was, model), "prompt": prompts, "max-length": lengths})
    endpoint, vectors = answers(endpoint, say)
    if known is not None:
        return readdressed(encoders, known, endpoint, say)
    say(f"the server answers with {vectors.shape[1]} dimensions, encoded as {endpoint.encoding}; making the calibrator")
    registration = encoders.registration(name)
    spec = spec_of("remote", model, [model, registration], vectors.shape[1], prompt, max_length)
    probes = [{"text": one.text, "pooled": one.pooled} for one in probes_of(PROBES, vectors)]

    def write(folder: Path) -> dict[str, object]:
        onnx.save(export_calibrator(spec.dim), folder / CALIBRATOR)
        return {"kind": "remote", "remote": vars(endpoint), "registration": registration, "probes": probes}

    artifact = encoders.add(name, spec, write)
    say(f"encoder {name} is registered; isosim stores only the vectors of {len(PROBES)} fixed probe texts")
    return artifact


def answers(endpoint: Endpoint, say: Say) -> tuple[Endpoint, Vectors]:
    """The endpoint with an encoding that the server supports (base64 or float), and the vectors (N, D) of the probes.

    Raises:
        EncoderUnreachable, BackendFailure: the server does not answer, or its vectors are not usable.
        InvalidInput: the vectors have too few dimensions.
    """
    say(f"asking {endpoint.url}")
    try:
        vectors = asked(endpoint)
    except BackendFailure as error:
        if not isinstance(error.__cause__, Refusal) or error.__cause__.status not in (400, 422):
            raise
        # The server may not support base64.
        endpoint = Endpoint(endpoint.url, endpoint.model, endpoint.key_file, "float")
        vectors = asked(endpoint)
    if vectors.shape[1] < LEAST_DIM:
        raise InvalidInput(f"the server's vectors have {vectors.shape[1]} dimensions; at least {LEAST_DIM} are needed")
    # Each probe is also sent alone, because vectors of a quantized encoder may depend on the other texts of a batch.
    again = np.concatenate([asked(endpoint, [probe]) for probe in PROBES])
    off = np.linalg.norm(again - vectors, axis=1) / np.linalg.norm(vectors, axis=1)
    if not off.max() <= TOLERANCE / 2:
        raise BackendFailure(
            "the server gives the same text different vectors alone and in a batch (their distance is "
            f"{off.max():.3f} times their norm; at most {TOLERANCE / 2:g} is allowed), so scores would not be "
            "reproducible. Check whether the server runs several models under this model name, or quantizes per batch"
        )
    cosines = (normalized(vectors) @ normalized(vectors).T)[np.triu_indices(len(vectors), 1)]
    if not cosines.max() < ALIKE:
        raise BackendFailure(
            f"the server gives different texts the same vector (cosine {cosines.max():.5f}); check that the model is "
            "an embedding model"
        )
    return endpoint, vectors


def asked(endpoint: Endpoint, texts: Sequence[str] = PROBES) -> Vectors:
    """Requests the vectors (N, D) of these texts. Raises EncoderUnreachable or BackendFailure."""

    async def ask() -> Vectors:
        async with EmbeddingsClient(endpoint, 1) as client:
            return await client(texts, None, SECONDS)

    try:
        return asyncio.run(ask())
    except Refusal as refusal:
        kind = EncoderUnreachable if refusal.status in (0, 401, 403, 404) else BackendFailure
        raise kind(f"{endpoint.url}: {refusal.why}") from refusal


def readdressed(encoders: EncoderStore, known: EncoderArtifact, endpoint: Endpoint, say: Say) -> EncoderArtifact:
    """Checks that the server at the new address returns the probes' stored vectors. Then stores the address."""
    moved = EncoderArtifact(known.id, known.spec, known.folder, remote=endpoint, probes=known.probes, kind="remote")
    off = check(moved, SECONDS)
    say(f"encoder {known.id} at {endpoint.url} gives the registered vectors (relative difference {off:.0e})")
    return encoders.readdress(known, endpoint)
