"""`isosim export --precision`: exports an encoder at a lower precision."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from isosim.encoders import probe
from isosim.encoders.onnx_engine import OnnxEncoder
from isosim.encoders.store import CALIBRATOR, ENCODER, TOKENIZER, EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import InvalidInput
from isosim.export import precision
from isosim.export.graph import check_latents, join
from isosim.jobs.text_lines import read_text
from isosim.store.artifacts import verified

Say = Callable[[str], None]
Reduced = Literal["int8", "fp16", "bf16"]


def texts_of(file: Path | None) -> list[str]:
    """Draws a sample of sentences from the file; without a file, from Python's documentation.

    Raises:
        InvalidInput: there are too few sentences.
    """
    if file is not None:
        sentences = read_text(file)
    else:
        from pydoc_data.topics import topics  # noqa: PLC0415 - loads half a megabyte of English text

        prose = re.sub(r"\s+", " ", " ".join(topics.values()))
        sentences = sorted({sentence for sentence in re.split(r"(?<=[.:])\s", prose) if len(sentence) > 20})
    if len(sentences) < precision.SENTENCES:
        raise InvalidInput(f"--text has {len(sentences)} sentences, at least {precision.SENTENCES} are needed")
    rows = np.random.default_rng(0).choice(len(sentences), precision.SENTENCES, replace=False)
    return [sentences[row] for row in rows]


def export_reduced(store: Path, fp32: EncoderArtifact, wanted: Reduced, text: Path | None, say: Say) -> EncoderArtifact:
    """Adds the encoder at precision `wanted` to the store. `isosim evaluate` shows what it loses on labelled sets.

    `text`: file with one sentence per line, from which int8 takes its ranges; None: Python's own documentation.

    Raises:
        InvalidInput: there are too few sentences, or the graph has nothing to quantize.
        Unavailable: bf16, and OpenVINO is not installed or this processor has no bfloat16.
        ArithmeticError: the calibrator's outputs in ONNX differ too much from those in torch.
    """
    verified(fp32.folder, ENCODER)
    model = onnx.load(fp32.encoder)
    if wanted == "bf16":  # the same graph: OpenVINO converts the numbers when it loads the encoder
        return publish(store, fp32, wanted, "openvino", model, say)
    if wanted == "fp16":
        half = precision.half(model)
        return publish(store, fp32, wanted, precision.fingerprint(half), half, say)
    tokenize = FastTokenizer(fp32.tokenizer, fp32.spec.max_length)
    ids = [list(tokens.ids[: precision.LONGEST]) for tokens in tokenize(texts_of(text), "right")]
    encoder = OnnxEncoder(fp32.encoder, 1)
    quantized = precision.int8(model, [encoder.prepare([row]) for row in ids])
    return publish(store, fp32, wanted, precision.fingerprint(quantized), quantized, say)


def publish(
    store: Path, fp32: EncoderArtifact, name: Reduced, defined_by: str, reduced: onnx.ModelProto, say: Say
) -> EncoderArtifact:
    """Adds the encoder of lower precision to the store, together with the fp32 calibrator. `defined_by`: what decides
    its vectors besides the weights: a hash of the graph, or the engine."""
    spec = replace(fp32.spec, precision=f"{name}-{defined_by}")
    artifact_id = f"{fp32.id}-{name}"
    encoders = EncoderStore.at(store)
    there = encoders.sound(artifact_id, spec.digest)
    if there is not None:
        say(f"the store already has encoder {artifact_id} ({spec.digest[:12]})")
        return there
    calibrator = onnx.load(fp32.calibrator)

    def write(folder: Path) -> dict[str, object]:
        onnx.save(reduced, folder / ENCODER)
        onnx.save(calibrator, folder / CALIBRATOR)
        shutil.copyfile(fp32.tokenizer, folder / TOKENIZER)
        kept = {"licence": fp32.licence, "prompts": dict(fp32.prompts)}
        return {**kept, "parity": check_latents(join(reduced, calibrator), spec.dim), "probe": probe.take(folder, spec)}

    artifact = encoders.add(artifact_id, spec, write)
    say(f"encoder {artifact_id} written to {encoders.blobs.address} ({spec.digest[:12]})")
    return artifact
