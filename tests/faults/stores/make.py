"""Makes a store as the release at hand writes it: `python -m tests.faults.stores.make FOLDER`, in that release's tree.

A BERT of one layer and 16 dimensions; `news@1` whitening, `news@2` sn with everything a version can have, `films@1`
a flow; a job that was interrupted, with its text; and the scores that were served. Kept as the release wrote it: what
comes later has to read it, or to refuse it with the remedy.
"""

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import onnx
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel

from service.adapters.calibration_source import StoredCalibrations
from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderArtifact, EncoderStore
from service.adapters.job_store import JobStore
from service.adapters.onnx_engine import OnnxCalibrator
from service.core.jobs import JobRequest, LabelledPair
from service.core.similarity import cosine
from service.modelling.embed import OfflineEncoder
from service.modelling.job import Posted, calibrate_job
from tests.conftest import export
from tests.text import sentences

PAIRS = [sentences(12)[n : n + 2] for n in range(0, 12, 2)]


def checkpoint(folder: Path) -> Path:
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(sentences(1000), vocab_size=120, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=120, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)
    return folder


def labels(texts: list[str]) -> list[LabelledPair]:
    """Half of the pairs share their first half."""
    rng = random.Random(0)
    alike = [(text, text.replace("a ", "the "), 1.0) for text in texts[:100]]
    return [*alike, *((text, rng.choice(texts), 0.0) for text in texts[100:200])]


def calibrate(store: Path, artifact: EncoderArtifact, request: JobRequest, posted: Posted) -> None:
    domains = DomainStore(store)
    calibrate_job(request, posted, artifact, domains, lambda _, __: None, threads=1).publish(domains)


def served_files(exported: EncoderArtifact, store: Path) -> EncoderArtifact:
    """What serving reads, without what the exporter notes of the machine it ran on."""

    def write(folder: Path) -> dict[str, object]:
        shutil.copy(exported.tokenizer, folder)
        for path in (exported.encoder, exported.calibrator):
            model = onnx.load(path)
            for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
                part.ClearField("metadata_props")
                part.ClearField("doc_string")
            onnx.save(model, folder / path.name)
        return {}

    return EncoderStore(store).add(exported.id, exported.spec, write)


def make(store: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "store"
        export(other, "small", str(checkpoint(Path(folder))), max_length=32)
        artifact = served_files(EncoderStore(other).find("small"), store)
    request = JobRequest("news", artifact.digest, artifact.id, "whitening", "always", sentences=300)
    calibrate(store, artifact, request, Posted(sentences(300)))
    everything = JobRequest("news", artifact.digest, artifact.id, "sn", "always", normalization="as-norm")
    calibrate(store, artifact, everything, Posted(sentences(1100), labels(sentences(200))))
    flow = JobRequest("films", artifact.digest, artifact.id, "flow", "always")
    calibrate(store, artifact, flow, Posted(sentences(500)))

    jobs = JobStore(store)
    with jobs.spool() as spool:
        spool.extend(sentences(250))
        waiting = JobRequest("late", artifact.digest, artifact.id, "sn", sentences=250)
        job = jobs.create(waiting, spool, ["a notice"], None)
    jobs.begin(job.id)
    jobs.interrupt(job.id)

    served = {}
    source = StoredCalibrations(
        DomainStore(store), OnnxCalibrator(artifact.calibrator, ["CPUExecutionProvider"]), artifact.digest
    )
    encode = OfflineEncoder(artifact, 1)
    left, right = (encode([pair[side] for pair in PAIRS]) for side in (0, 1))
    for domain, version in (("news", 1), ("news", 2), ("films", 1)):
        calibration = source.load(domain, version)
        found = cosine(calibration.latents(left), calibration.latents(right))
        served[f"{domain}@{version}"] = [float(score) for score in found]
    (store / "scores.json").write_text(json.dumps({"job": job.id, "pairs": PAIRS, "similarity": served}, indent=1))
    for lock in store.rglob(".lock"):
        lock.unlink()
    shutil.rmtree(store / "jobs" / "idempotency", ignore_errors=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
