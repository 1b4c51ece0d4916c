"""Servers with keys, and requests made of the OpenAPI document."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.jobs.job import JobRequest, Status
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.processes import Process, Server, serve_with
from tests.stores import domains_of, jobs_of, post_job, publish


def key_line(key: str, rest: str) -> str:
    """A line of the key file; all domains if `rest` names none."""
    rest = rest if "domains=" in rest else f"{rest} domains=*"
    return f"{hashlib.sha256(key.encode()).hexdigest()} {rest}\n"


def key_file(folder: Path, keys: Mapping[str, str]) -> Path:
    """A file of keys in a folder, which each grant what they lead to."""
    path = folder / "keys"
    path.write_text("".join(key_line(key, rest) for key, rest in keys.items()))
    return path


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    found: dict[str, Any] = create_app(Settings()).openapi()
    return found


@dataclass
class Keyed:
    """A server with the domains `mine` and `theirs`, a job of each, and keys named after what they grant."""

    server: Server
    keys: Path
    jobs: dict[str, str]

    def ask(self, key: str | None, method: str, path: str, **given: Any) -> httpx.Response:
        headers = bearer(key) | given.pop("headers", {})
        return self.server.client.request(method, path, headers=headers, **given)


SUBSETS = ["read", "calibrate", "admin", "read,calibrate", "read,admin", "calibrate,admin", "read,calibrate,admin"]
RESTRICTED = "restricted"


def furnish(store: Path, encoder: EncoderArtifact, domain: str) -> str:
    """A domain with two versions that change nothing, both promoted in turn, and the job that could have made them."""
    jobs = jobs_of(store)
    for _ in range(2):
        publish(domains_of(store), domain, encoder, sentences=300)
    job = post_job(jobs, JobRequest(domain, encoder.digest, encoder.id))
    attempt = jobs.claim("worker")
    assert attempt is not None
    attempt.end(Status.SUCCEEDED, version=2, promoted=True, report={})
    return job.id


@pytest.fixture(scope="session")
def keyed(tiny_store: Path, tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    restricted = {RESTRICTED: "read,calibrate,admin domains=mine,mine-*"}
    keys = key_file(folder, {scopes: scopes for scopes in SUBSETS} | restricted)
    running: list[Process] = []
    server = serve_with(folder, running, model_store=folder / "store", encoder="tiny", api_keys_file=keys)
    yield Keyed(server, keys, {domain: furnish(folder / "store", tiny, domain) for domain in ("mine", "theirs")})
    for process in running:
        process.kill()
