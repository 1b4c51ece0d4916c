"""Checks that this machine computes the same vector of a known sentence as the machine of the export.

A wrong kernel, a provider of lower precision or a tokenizer of another release gives wrong scores that look plausible.
Only the comparison with a known vector reveals them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.batching import BatchingPlan
from isosim.encoders.engines import open_encoder
from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import ENCODER, TOKENIZER, EncoderArtifact, Probe
from isosim.encoders.texts import Tokenize
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import CorruptArtifact, TokenizerFailure

SENTENCE = "In 2019 about 1,000 people heard Zoë's café band play guitar – naïve, isn't it?"
LONGER = " ".join([SENTENCE] * 3)  # a longer text: in a batch with it, SENTENCE is padded
# Largest accepted ratio ‖computed − known‖ / ‖known‖: TOLERANCE for encoders in fp32, REDUCED_TOLERANCE for all others.
# Wrong vectors give a ratio of 0.1 or more. The ratio of correct vectors on other instruction sets and GPUs, or in
# other batches, is unmeasured. Other batches change the scores of pairs by 1e-7 (loadtest/README.md).
TOLERANCE, REDUCED_TOLERANCE = 1e-3, 2e-2


def take(folder: Path, spec: EncoderSpec) -> dict[str, object] | None:
    """The probe for the manifest: the sentence, and its vector from the encoder graph in `folder`. None if the sentence
    cannot be tokenized."""
    encoder = open_encoder(folder / ENCODER, spec, spec.cpu_engine, BatchingPlan(threads=0))
    try:
        (tokens,) = FastTokenizer(folder / TOKENIZER, spec.max_length)([SENTENCE], "right")
    except TokenizerFailure:  # the vocabulary lacks a word of the sentence and has no token for unknown words
        return None
    return {"text": SENTENCE, "pooled": [float(f"{x:.7g}") for x in encoder([tokens.ids])[0]]}


def check(
    artifact: EncoderArtifact, tokenizer: Tokenize, encoder: Callable[[Sequence[Sequence[int]]], Vectors]
) -> float | None:
    """Computes the sentence's vector twice, alone and with a longer text, and compares both with the known vector.

    Returns the larger of the two ratios ‖computed − known‖ / ‖known‖; None if the export stored no probe.

    Raises:
        CorruptArtifact: the ratio is above TOLERANCE (encoders in fp32) or REDUCED_TOLERANCE (all others).
    """
    probe: Probe | None = artifact.probe
    if probe is None:
        return None
    tokens = tokenizer([probe.text, LONGER], "right")
    alone, padded = encoder([tokens[0].ids])[0], encoder([one.ids for one in tokens])[0]
    known = np.asarray(probe.pooled, np.float32)
    worst = max(difference(alone, known), difference(padded, known))
    limit = TOLERANCE if artifact.spec.precision == "fp32" else REDUCED_TOLERANCE
    if not worst <= limit:  # also True for NaN
        raise CorruptArtifact(
            f"encoder {artifact.id} gives another vector here than at its export: the norm of the difference is "
            f"{worst:.1e} of the exported vector's norm, and at most {limit:.0e} is accepted; export it again on this "
            "machine, or try another engine"
        )
    return worst


def difference(computed: Vectors, known: Vectors) -> float:
    if computed.shape != known.shape:
        return float("inf")
    return float(np.linalg.norm(computed - known) / np.linalg.norm(known))
