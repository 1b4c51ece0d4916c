"""Freezes the release at hand for the upgrade tests: `python -m tests.faults.stores.make ARCHIVE`, in its own tree.

The archive has the model store as the release's server and worker wrote it, what that server answered over HTTP
(`answers.json`), the values that its chart takes (`values.schema.json`), and the release itself, its two wheels
unzipped (`release/`), so that its processes can run beside newer ones. Left out of the wheels are the shipped
calibration, which is for another encoder, and the console's library for diagrams. What comes later has to read such a
store and to answer as the release did; nothing here is made anew.

The answers rest on no text that the encoder does not know and on no random pairs that tie: releases up to 0.1.0 are
known to answer those wrongly.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import onnx
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel

from service.adapters.encoder.store import EncoderArtifact, EncoderStore
from tests.encoders import export
from tests.faults.jobs import becomes, held_job, post
from tests.processes import Process, RedisServer, Server, serve_with, start, wait_until
from tests.text import sentences

LEFT_OUT = ("service/modelling/shipped/", "service/console/vendor/")
LONGEST = 1800.0  # s for a calibration on a busy machine
TEXTS = sentences(1400)
PAIRS = [
    *(TEXTS[n : n + 2] for n in range(1200, 1212, 2)),
    [TEXTS[1300], TEXTS[1300].replace("a ", "the ")],
    [TEXTS[1301], TEXTS[1301].replace("The", "A").replace("the", "a")],
    [" ".join(TEXTS[1302:1310]), TEXTS[1302]],  # cut off
    ["tttt ssss rrrr tttt ssss", "boat boat rain rain boat"],  # unlike the domains' text
]
SCORED = ("default", "news", "news@1", "news@2", "news@previous", "films", "films@1", "films@2", "films@champion")


def checkpoint(folder: Path, seed: int, dim: int) -> Path:
    """A BERT of one layer with random weights; its tokenizer knows every letter of the sentences."""
    folder.mkdir()
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(sentences(1000), vocab_size=400, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=400, hidden_size=dim, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)
    return folder


def add_encoder(store: Path, name: str, seed: int, dim: int) -> EncoderArtifact:
    """An export without what serving does not read and what the exporter notes of the machine it ran on."""
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "store"
        export(exported, name, str(checkpoint(Path(folder) / name, seed, dim)), max_length=40)
        artifact = EncoderStore(exported).find(name)

        def write(place: Path) -> dict[str, object]:
            shutil.copy(artifact.tokenizer, place)
            for path in (artifact.encoder, artifact.calibrator):
                model = onnx.load(path)
                for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
                    part.ClearField("metadata_props")
                    part.ClearField("doc_string")
                onnx.save(model, place / path.name)
            return {}

        return EncoderStore(store).add(artifact.id, artifact.spec, write)


def labels(texts: list[str]) -> list[list[Any]]:
    """Half of the pairs share all but their articles."""
    rng = random.Random(0)
    alike = [[text, text.replace("a ", "the "), 1] for text in texts[:100]]
    return [*alike, *([text, rng.choice(texts), 0] for text in texts[100:200])]


def fill(server: Server) -> None:
    """What a domain can have: every part of a version, versions that nothing names, a deleted one, a migration."""

    def calibrate(domain: str, count: int, method: str, **options: Any) -> None:
        job = post(server, domain, TEXTS[:count], method=method, promote="always", **options)
        becomes(server, job, "succeeded", LONGEST)

    calibrate("default", 300, "identity")
    calibrate("news", 300, "whitening")
    calibrate("news", 1100, "sn", normalization="as-norm", labels=labels(TEXTS[:200]))
    calibrate("films", 500, "flow")
    body = {"labels": labels(TEXTS[200:400]), "promote": "always"}
    posted = server.client.post("/domains/films/labels", json=body).raise_for_status().json()
    assert becomes(server, posted["job"], "succeeded", LONGEST)["promoted"]
    calibrate("films", 300, "identity", encoder="next")
    server.client.post("/domains/films/migration", json={"share": 0.0, "shadow": 0.0}).raise_for_status()
    for _ in range(3):
        calibrate("notes", 250, "centring")
    body = {"domain": "keyed", "texts": TEXTS[:250], "method": "centring"}
    keyed = server.client.post("/calibrate", json=body, headers={"idempotency-key": "kept"}).raise_for_status().json()
    becomes(server, keyed["job"], "succeeded", LONGEST)


def leave_jobs(server: Server, store: Path) -> dict[str, str]:
    """A failed and a cancelled job, and one whose server is killed while it runs."""
    held = held_job(server, server, store, "late")
    body = {"labels": labels(TEXTS[:200]), "version": 1, "promote": "never"}
    failed = server.client.post("/domains/notes/labels", json=body).raise_for_status().json()["job"]
    server.client.delete("/domains/notes/versions/1").raise_for_status()
    cancelled = post(server, "never", TEXTS[:250])
    server.client.delete(f"/calibrate/{cancelled}").raise_for_status()
    held.let_go()
    becomes(server, failed, "failed", LONGEST)
    held = held_job(server, server, store, "late", seed=1)
    server.kill()
    os.kill(held.child, signal.SIGKILL)
    return {"failed": failed, "cancelled": cancelled, "interrupted": held.job}


def questions(store: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests in their order: domains before scores, which `drift` would tell of."""
    asked: list[dict[str, Any]] = [{"path": "/domains"}, {"path": "/domains/films/migration"}, {"path": "/calibrate"}]
    asked += [{"path": f"/calibrate/{job}"} for job in store["jobs"].values()]
    for domain, versions in store["versions"].items():
        asked += [{"path": f"/domains/{domain}/versions/{version}"} for version in versions]
    for domain in (*SCORED, "notes", "keyed"):
        for space in ("calibrated", "raw"):
            asked += [{"path": f"/domains/{domain}/threshold?fmr={fmr}&space={space}"} for fmr in (0.1, 0.01, 0.001)]
    asked += [{"path": f"/domains/{name}/threshold?precision=0.8"} for name in ("news", "films", "default")]
    asked.append({"path": "/domains/films/migration/threshold?similarity=0.3"})
    asked += [{"path": "/similarity", "body": {"pairs": PAIRS, "domain": name, "detail": True}} for name in SCORED]
    flat = [text for pair in PAIRS for text in pair]
    for name in ("default", "news", "films"):
        tei = {"source_sentence": flat[0], "sentences": flat[1:]}
        asked += [
            {"path": "/similarity", "body": {"inputs": tei, "parameters": {"domain": name}}},
            {"path": "/embed", "body": {"inputs": flat, "domain": name}},
            {"path": "/rerank", "body": {"query": flat[0], "texts": flat[1:], "domain": name, "raw_scores": False}},
        ]
    asked.append({"path": "/embed", "body": {"inputs": flat, "space": "raw", "normalize": False}})
    return asked


def answers(server: Server, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each request with its answer and status."""
    answered = []
    for one in asked:
        response = server.client.request("POST" if "body" in one else "GET", one["path"], json=one.get("body"))
        answered.append({**one, "status": response.status_code, "answer": response.json()})
    return answered


def make(folder: Path) -> None:
    store = folder / "store"
    running: list[Process] = []
    redis = RedisServer(folder)
    settings = {"model_store": store, "encoder": "small", "next_encoder": "next"}
    try:
        add_encoder(store, "small", seed=0, dim=16)
        add_encoder(store, "next", seed=1, dim=24)
        server = serve_with(folder, running, **settings)
        fill(server)
        jobs = leave_jobs(server, store)
        server = serve_with(folder, running, **settings)  # finds the job that ran
        becomes(server, jobs["interrupted"], "interrupted", LONGEST)
        server.stop()
        redis.start()
        worker = Process(start(["worker"], folder / "worker.log", redis_url=redis.url, **settings), folder / "w.log")
        running.append(worker)
        server = serve_with(folder, running, redis_url=redis.url, **settings)
        wait_until(lambda: server.client.post("/calibrate").status_code != 503)
        worker.kill()  # it counts as there for a minute: what is posted now stays queued
        jobs["queued"] = post(server, "later", TEXTS[:250])
        listed = server.client.get("/domains").raise_for_status().json()["domains"]
        versions = {one["domain"]: [version["version"] for version in one["versions"]] for one in listed}
        found = answers(server, questions({"jobs": jobs, "versions": versions}))
        odd = [one for one in found if one["status"] != 200 and "precision" not in one["path"]]
        assert not odd, odd
        (folder / "answers.json").write_text(json.dumps({"jobs": jobs, "questions": found}, indent=1))
        server.stop()
    finally:
        for process in running:
            process.kill()
        redis.kill()
    for lock in store.rglob("*.lock"):
        lock.unlink()


def add_wheels(folder: Path) -> None:
    for source in (".", "clients/python"):
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source],
            check=True,
        )
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.startswith(LEFT_OUT):
                    archive.extract(name, folder / "release")


def pack(folder: Path, archive: Path) -> None:
    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = int(time.time())
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for name in ("store", "answers.json", "values.schema.json", "release"):
            packed.add(folder / name, name, filter=anonymous)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        add_wheels(Path(made))
        make(Path(made))
        shutil.copy("k8s/isosim/values.schema.json", made)
        pack(Path(made), Path(sys.argv[1]).absolute())
