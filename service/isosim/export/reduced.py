"""`isosim export --precision`: exports an encoder at a lower precision and compares it with fp32."""

import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from scipy.stats import spearmanr

from isosim.encoders import probe
from isosim.encoders.onnx_engine import OnnxEncoder
from isosim.encoders.store import CALIBRATOR, ENCODER, JOINED, TOKENIZER, EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import InvalidInput
from isosim.export import precision
from isosim.export.graph import check_latents
from isosim.export.precision import Bench, Trial
from isosim.jobs.labelled_pairs import read_sets
from isosim.jobs.text_lines import read_text
from isosim.scoring.similarity import cosine
from isosim.store.artifacts import verified

Say = Callable[[str], None]


@dataclass(frozen=True)
class Evidence:
    """Texts and labelled pairs on which a precision is compared with fp32."""

    text: Path | None  # file with one sentence per line; None: Python's own documentation is used
    sts: Path | None  # folder with sets of labelled pairs; None: only the change of the cosines is checked


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


def mean_spearman(folder: Path, tokenize: FastTokenizer) -> Callable[[OnnxEncoder], float]:
    """Returns a function that computes an encoder's Spearman correlation × 100, averaged over the labelled sets."""
    sets = {
        name: (
            [text for pairs in files for text in pairs.left],
            [text for pairs in files for text in pairs.right],
            np.concatenate([pairs.gold for pairs in files]),
        )
        for name, files in read_sets(folder).items()
    }
    texts = sorted({text for left, right, _ in sets.values() for text in (*left, *right)}, key=len)
    row = {text: number for number, text in enumerate(texts)}
    ids = [tokens.ids for tokens in tokenize(texts, "right")]

    def score(encoder: OnnxEncoder) -> float:
        vectors = np.concatenate([encoder(ids[start : start + 16]) for start in range(0, len(ids), 16)])

        def side(side: list[str]) -> np.ndarray:
            return vectors[[row[text] for text in side]]

        return float(
            100 * np.mean([spearmanr(cosine(side(a), side(b)), gold).statistic for a, b, gold in sets.values()])
        )

    return score


def export_reduced(
    store: Path, fp32: EncoderArtifact, wanted: str, evidence: Evidence, say: Say
) -> EncoderArtifact | None:
    """Adds the encoder at precision `wanted` (int8, fp16 or auto) to the store.

    `auto` tries int8; if int8 does not pass the checks, nothing is added and the result is None. With int8 or fp16, the
    encoder is always added, and the results of the checks are only reported.

    Raises:
        InvalidInput: there are too few sentences, or a labelled set is missing.
        ArithmeticError: the calibrator's outputs in ONNX differ too much from those in torch.
    """
    verified(fp32.folder, JOINED)
    tokenize = FastTokenizer(fp32.tokenizer, fp32.spec.max_length)
    ids = [list(tokens.ids[: precision.LONGEST]) for tokens in tokenize(texts_of(evidence.text), "right")]
    score = None if evidence.sts is None else mean_spearman(evidence.sts, tokenize)
    model = onnx.load(fp32.encoder)
    say("measuring fp32")
    bench = Bench(model, ids[: precision.TRIED], score)
    if wanted == "fp16":
        reduced = precision.half(model)
    else:
        reduced = precision.int8(model, [bench.fp32.prepare([row]) for row in ids], bench, say)
    trial = bench.trial("fp16" if wanted == "fp16" else "int8", reduced)
    say(describe(trial))
    if wanted == "auto" and trial.refused:
        say("no lower precision passed the checks; keeping fp32")
        return None
    facts: dict[str, object] = {"trials": [asdict(trial) | {"refused": trial.refused}]}
    return publish(store, fp32, trial.name, reduced, facts, say)


def describe(trial: Trial) -> str:
    lost = "" if trial.lost is None else f"; loss of mean Spearman: {trial.lost:+.2f} points (negative: a gain)"
    verdict = f"refused: {trial.refused}" if trial.refused else "passes"
    return (
        f"{trial.name}: {trial.speed:.2f} × fp32's speed; cosines change by up to {trial.shift:.0e} if other texts "
        f"share the batch; cosines differ from fp32's by {trial.moved:.4f} on average{lost}; {verdict}"
    )


def publish(
    store: Path, fp32: EncoderArtifact, name: str, reduced: onnx.ModelProto, facts: dict[str, object], say: Say
) -> EncoderArtifact:
    """Adds the encoder of lower precision to the store, together with the fp32 calibrator."""
    spec = replace(fp32.spec, precision=f"{name}-{precision.fingerprint(reduced)}")
    artifact_id = f"{fp32.id}-{name}"
    encoders = EncoderStore.at(store)
    if encoders.has(artifact_id, spec.digest):
        say(f"the store already has encoder {artifact_id} ({spec.digest[:12]})")
        return encoders.find(f"{artifact_id}@{spec.digest}")
    calibrator = onnx.load(fp32.calibrator)

    def write(folder: Path) -> dict[str, object]:
        onnx.save(reduced, folder / ENCODER)
        onnx.save(calibrator, folder / CALIBRATOR)
        onnx.save(precision.join(reduced, calibrator), folder / JOINED)
        shutil.copyfile(fp32.tokenizer, folder / TOKENIZER)
        kept = {"licence": fp32.licence, "prompts": dict(fp32.prompts)}
        return {**facts, **kept, "parity": check_latents(folder / JOINED, spec.dim), "probe": probe.take(folder, spec)}

    artifact = encoders.add(artifact_id, spec, write)
    say(f"encoder {artifact_id} written to {artifact.folder}")
    return artifact
