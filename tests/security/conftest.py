"""Servers with keys, and requests made of the OpenAPI document."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.settings import Settings
from tests.conftest import Process, Server, serve_with
from tests.text import sentences

SCOPES = ("read", "calibrate", "admin")


def key_line(key: str, rest: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()} {rest}\n"


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


@pytest.fixture(scope="session")
def keyed(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    keys = folder / "keys"
    lines = [key_line(scopes, scopes) for scopes in SUBSETS]
    keys.write_text("".join(lines) + key_line(RESTRICTED, "read,calibrate,admin domains=mine,mine-*"))
    running: list[Process] = []
    server = serve_with(folder, running, model_store=folder / "store", encoder="tiny", api_keys_file=keys)
    all_scopes = SUBSETS[-1]
    server.client.headers.update(bearer(all_scopes))
    jobs = {}
    for domain in ("mine", "theirs"):
        for _ in range(2):  # so that there is a previous version
            done = server.calibrate(domain, sentences(300), method="identity", promote="always")
            assert done["promoted"], done
        jobs[domain] = done["job"]
    del server.client.headers["authorization"]
    yield Keyed(server, keys, jobs)
    for process in running:
        process.kill()
