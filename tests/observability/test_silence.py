"""No text and no key reaches the log, at any level, however a request ends."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isosim.jobs.job import JobRequest, Status
from isosim.jobs.store import JobStore
from isosim.observability.logs import OURS
from tests.observability.conftest import event, events, hang_up, lines_of
from tests.observability.indiscreet import KINDS
from tests.processes import RedisServer, Server, environment
from tests.security.conftest import key_file
from tests.stores import jobs_of, post_job
from tests.text import sentences

TEXT = "Zanzibar-marker text, secret"
KEY = "key-marker-of-ours"
MARKERS = re.compile(r"zanzibar|marker", re.I)
JSON = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
BODIES = [  # path, body: each is refused, or answered, with the marker in it
    ("/similarity", {"pairs": [[TEXT, TEXT + "."]], "detail": True}),
    ("/similarity", {"pairs": [[TEXT, 7]]}),
    ("/similarity", {"pairs": [[TEXT, ""]]}),
    ("/similarity", {"pairs": [[TEXT, "x" * 10_001]]}),
    ("/similarity", {"pairs": [[TEXT, "b"]], TEXT: 1}),
    ("/similarity", {"pairs": [[TEXT, "b"]], "domain": TEXT}),
    ("/similarity", {"pairs": [[TEXT, "b"]], "domain": "zanzibar-marker"}),
    ("/similarity", {"inputs": {"source_sentence": TEXT, "sentences": [TEXT]}}),
    ("/embed", {"inputs": TEXT, "prompt_name": TEXT}),
    ("/embed", {"inputs": TEXT * 50, "truncate": False}),
    ("/rerank", {"query": TEXT, "texts": [TEXT]}),
    ("/v1/embeddings", {"model": TEXT, "input": TEXT}),
    ("/v1/embeddings", {"model": "isosim", "input": TEXT}),
    ("/tokenize", {"inputs": TEXT}),
    ("/calibrate", {"domain": "d", "texts": [TEXT, TEXT]}),
    ("/calibrate", {"domain": TEXT, "texts": [TEXT]}),
    ("/domains/default/labels", {"labels": [[TEXT, TEXT, "x"]]}),
]


def test_no_text_and_no_key_is_logged_however_a_request_ends(
    indiscreet: Callable[..., Server], store: Path, tmp_path: Path
) -> None:
    keys = key_file(tmp_path, {KEY: "read,calibrate,admin domains=* somebody"})
    server = indiscreet(model_store=store, encoder="tiny", api_keys_file=keys, log_level="debug")
    client = server.client
    client.headers["authorization"] = f"Bearer {KEY}"
    statuses = {client.post(path, json=body).status_code for path, body in BODIES}
    assert {200, 400, 404, 422} <= statuses
    for content in (b'{"pairs": [["' + TEXT.encode(), TEXT.encode() + b"\xff", b"\xff" * 9, b" " * 2_000_001):
        client.post("/similarity", content=content, headers=JSON)
        client.post(f"/calibrate?domain={TEXT}", content=content, headers={"content-type": "text/plain"})
        client.post("/calibrate?domain=d", content=content, headers={"content-type": "application/x-ndjson"})
    for path in (f"/{TEXT}", f"/domains/{TEXT}", f"/calibrate/{TEXT}", f"/v1/models/{TEXT}", f"/livez?q={TEXT}"):
        assert client.get(path).status_code in (200, 404, 422)
    assert client.put(f"/similarity?q={TEXT}").status_code == 405
    assert client.post("/similarity", content=TEXT, headers={"content-type": TEXT}).status_code == 415
    assert client.get("/domains", headers={"authorization": f"Bearer {KEY}x"}).status_code == 401
    assert client.get("/domains", headers={"authorization": f"Basic {KEY}"}).status_code == 401
    for kind in KINDS:  # the words of some errors are logged: they are ours, and quote no caller
        client.post(f"/fail/{kind}", content="the store is away" if kind in {one.__name__ for one in OURS} else TEXT)
    assert client.post("/aside", content=TEXT).status_code == 200
    upgrade = f"GET /{TEXT.split(maxsplit=1)[0]} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
    hang_up(server, upgrade.encode() + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    hang_up(server, upgrade.encode() + f"content-length: 900\r\n\r\n{TEXT}".encode())
    hang_up(server, f"{KEY} {TEXT}\r\n\r\n".encode())
    event(server.log, message="POST /aside 200")
    server.stop()

    said = server.log.read_text()
    assert not MARKERS.search(said), MARKERS.findall(said)
    assert len(lines_of(server.log)) > 60
    raised = {line["error"].split(":")[0].rpartition(".")[2] for line in lines_of(server.log) if "error" in line}
    assert {"ValidationError", "KeyError", "JSONDecodeError", "ExceptionGroup", "RuntimeError", "OSError"} <= raised
    refused = {line.get("error_type") for line in events(server.log, logger="isosim.access")}
    assert {"Validation", "Internal", "NotFound", "Unauthorized", "TooLarge", "Backend", "Overloaded"} <= refused


# Python runs a file of this name at its start: numpy then fails in words that it was given, as libraries do.
QUOTING = f"""
import numpy
WORDS = {TEXT!r}
def eigh(*_, **__): raise ValueError(WORDS)
numpy.linalg.eigh = eigh
"""


@pytest.fixture
def quoting_job(store: Path) -> tuple[JobStore, str]:
    """A queued job that needs `numpy.linalg.eigh`."""
    from isosim.encoders.store import EncoderStore

    artifact, jobs = EncoderStore.at(store).find("tiny"), jobs_of(store)
    wanted = JobRequest("d", artifact.digest, artifact.id, "whitening", sentences=300)
    return jobs, post_job(jobs, wanted, sentences(300)).id


def check_failure(log: Path, jobs: JobStore, job: str) -> None:
    assert "unexpected error (ValueError)" in str(jobs.read(job).error)
    assert not MARKERS.search(log.read_text())
    assert events(log, message="calibration ended", job=job, status="failed", level="error")
    assert any("error" in line and line.get("stack") for line in events(log, job=job))


def test_a_worker_logs_no_text(quoting_job: tuple[JobStore, str], redis_server: RedisServer, tmp_path: Path) -> None:
    jobs, job = quoting_job
    log = tmp_path / "worker.log"
    (tmp_path / "sitecustomize.py").write_text(QUOTING)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as file:
        subprocess.run(
            [sys.executable, "-m", "isosim.cli", "worker", "--burst"], stdout=file, stderr=file, check=True,
            env=environment(model_store=jobs.blobs.address, redis_url=redis_server.url, log_level="debug")
            | {"PYTHONPATH": path}, timeout=120,
        )  # fmt: skip
    assert jobs.read(job).status is Status.FAILED
    check_failure(log, jobs, job)
    started = event(log, message="worker starting")
    assert started["redis"] == redis_server.url
