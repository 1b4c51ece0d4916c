"""Registering an encoder that runs on another server."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isosim.encoders.remote import check
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import (
    BackendFailure,
    EncoderChanged,
    EncoderUnreachable,
    InvalidInput,
    Unavailable,
)
from isosim.export.remote import PROBES, register
from tests.adapters.encoder.remote_server import RemoteServer


@pytest.fixture(scope="module")
def server() -> Iterator[RemoteServer]:
    with RemoteServer().running() as running:
        yield running


@pytest.fixture(autouse=True)
def as_it_was(server: RemoteServer) -> None:
    server.seed, server.answer = 0, None
    server.requests.clear()


def add(store: Path, server: RemoteServer, **options: Any) -> EncoderArtifact:
    return register(store, "far", options.pop("url", server.url), options.pop("model", "m"), lambda _: None, **options)


@pytest.fixture(scope="module")
def registered(server: RemoteServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("remote")
    add(store, server, prompt="query: ", max_length=64)
    return store


def test_a_registration_keeps_the_calibrator_where_it_runs_and_known_vectors(
    server: RemoteServer, registered: Path
) -> None:
    artifact = EncoderStore.at(registered).find("far")
    assert sorted(file.name for file in artifact.folder.iterdir()) == ["calibrator.onnx", "manifest.json"]
    assert artifact.remote is not None
    assert (artifact.remote.url, artifact.remote.model, artifact.remote.encoding) == (server.url, "m", "base64")
    assert (artifact.spec.dim, artifact.spec.prompt, artifact.spec.max_length) == (16, "query: ", 64)
    assert [one.text for one in artifact.probes] == list(PROBES)
    check(artifact)
    server.seed = 1
    with pytest.raises(EncoderChanged):
        check(artifact)


def test_the_same_registration_again_moves_it_and_any_other_is_refused(server: RemoteServer, registered: Path) -> None:
    before = EncoderStore.at(registered).find("far")
    (registered / "mounted").write_text("secret-key")
    key = registered / "key"
    key.symlink_to(registered / "mounted")  # as Kubernetes mounts a Secret: the link changes with it
    with RemoteServer().running() as elsewhere:
        moved = add(registered, elsewhere, prompt="query: ", max_length=64, key_file=key)
        assert moved.digest == before.digest
        assert moved.remote is not None
        assert (moved.remote.url, moved.remote.key_file) == (elsewhere.url, str(key))
    assert not any(b"secret-key" in file.read_bytes() for file in moved.folder.iterdir())
    key.unlink()
    (registered / "mounted").unlink()
    with RemoteServer(seed=1).running() as other, pytest.raises(EncoderChanged):
        add(registered, other, prompt="query: ", max_length=64)
    for changed in ({"model": "n"}, {"prompt": ""}, {"max_length": 65}):
        with pytest.raises(InvalidInput, match="isosim encoder remove far"):
            add(registered, server, **{"prompt": "query: ", "max_length": 64} | changed)
    add(registered, server, prompt="query: ", max_length=64)
    assert EncoderStore.at(registered).find("far").remote == before.remote


def test_one_that_was_removed_and_registered_anew_is_another_and_a_server_without_base64_is_asked_for_numbers(
    server: RemoteServer, registered: Path, tmp_path: Path
) -> None:
    encoders = EncoderStore.at(shutil.copytree(registered, tmp_path / "store"))
    first = encoders.find("far")
    encoders.remove(first)
    with pytest.raises(Unavailable):
        encoders.find("far")

    def answer(server: RemoteServer, texts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        if "encoding_format" in server.requests[-1]:
            return 422, b'{"detail": "unknown field encoding_format"}', {}
        return 200, json.dumps({"data": server.entries(texts, as_base64=False)}).encode(), {}

    server.answer = answer
    again = add(tmp_path / "store", server, prompt="query: ", max_length=64)
    assert again.digest != first.digest
    assert again.remote is not None
    assert again.remote.encoding == "float"
    check(again)


def test_nothing_is_asked_for_a_name_that_is_taken_and_once_of_a_server_that_fails(
    server: RemoteServer, store: Path
) -> None:
    """A failure that passes is no sign that a server knows no base64."""
    with pytest.raises(InvalidInput, match="choose another name"):
        register(store, "tiny", server.url, "m", lambda _: None)
    assert not server.requests
    server.answer = lambda *_: (503, b"", {})
    with pytest.raises(BackendFailure):
        add(store, server)
    assert len(server.requests) == 1


def test_what_no_score_could_rest_on_is_not_registered(server: RemoteServer, tmp_path: Path) -> None:
    def one_vector(server: RemoteServer, texts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps({"data": server.entries(["same"] * len(texts))}).encode(), {}

    def by_turns(server: RemoteServer, texts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        server.seed += 1
        return 200, json.dumps({"data": server.entries(texts)}).encode(), {}

    for answer, why in ((one_vector, "different texts the same vector"), (by_turns, "the same text different vectors")):
        server.answer = answer
        with pytest.raises(BackendFailure, match=why):
            add(tmp_path, server)
    with RemoteServer(dim=4).running() as small, pytest.raises(InvalidInput, match="at least 8"):
        add(tmp_path, small)
    with pytest.raises(EncoderUnreachable):
        add(tmp_path, server, url="http://127.0.0.1:9/v1")
    server.answer = lambda *_: (404, b"", {})
    with pytest.raises(EncoderUnreachable, match="/v1"):
        add(tmp_path, server)
    assert EncoderStore.at(tmp_path).ids() == []
