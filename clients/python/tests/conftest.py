"""The repository's own real parts, and one server of the client's: fixtures are found by the names they have here."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from isosim_client import Client
from tests.conftest import minilm_store, serve, store, tiny_checkpoint, tiny_store
from tests.processes import Process, Server, serve_with

__all__ = ["minilm_store", "serve", "store", "tiny_checkpoint", "tiny_store"]


@pytest.fixture(scope="session")
def server(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the tiny encoder; each test that changes something has a domain of its own."""
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    running: list[Process] = []
    yield serve_with(folder, running, model_store=folder / "store", encoder="tiny")
    for process in running:
        process.kill()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
