"""`isosim encoder` as a shell runs it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.encoder.remote_server import RemoteServer
from tests.commands.conftest import command
from tests.text import sentences


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with RemoteServer().running() as running:
        yield running


def test_an_encoder_is_added_listed_checked_calibrated_and_removed(server: RemoteServer, tmp_path: Path) -> None:
    store, key = tmp_path / "store", tmp_path / "key"
    key.write_text("a-secret-key")
    added = command(
        "encoder", "add", "far", "--url", server.url, "--model", "m", "--key-file", key, "--prompt", "p: ",
        "--max-length", "50", model_store=store,
    )  # fmt: skip
    assert (added.returncode, added.stdout.strip()) == (0, "far"), added.stderr
    assert "a-secret-key" not in added.stdout + added.stderr
    (listed,) = json.loads(command("encoder", "list", "--json", model_store=store).stdout)["encoders"]
    assert (listed["kind"], listed["model"], listed["dim"], listed["url"]) == ("remote", "m", 16, server.url)
    assert (listed["prompt"], listed["max_length"], listed["key_file"]) == ("p: ", 50, str(key))
    checked = command("encoder", "check", "far", model_store=store)
    assert checked.stdout.startswith("far: answers as it was registered; known vectors differ by ")
    assert json.loads(command("encoder", "check", "far", "--json", model_store=store).stdout)["off"] < 1e-6
    server.seed = 1
    swapped = command("encoder", "check", "far", model_store=store)
    assert swapped.returncode == 1
    assert "encoder_changed" in swapped.stderr
    server.seed = 0

    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(300)))
    settings = {"model_store": store, "encoder": "far", "max_remote_texts": 350}
    asked = len(server.requests)
    refused = command("calibrate", text, "--domain", "d", **settings)
    assert refused.returncode == 1
    assert "give --yes to send more than 350" in refused.stderr
    assert len(server.requests) == asked
    done = command("calibrate", text, "--domain", "d", "--yes", **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("d@1: ")
    assert {"p: " + sentence for sentence in sentences(300)} <= set(server.texts)

    undecided = command("encoder", "remove", "far", model_store=store)
    assert undecided.returncode == 1
    assert "with which 1 domain is served" in undecided.stderr
    removed = command("encoder", "remove", "far", "--yes", model_store=store)
    assert removed.stdout == "encoder far is removed\n"
    assert json.loads(command("encoder", "list", "--json", model_store=store).stdout) == {"encoders": []}


def test_an_exported_encoder_is_listed_and_neither_checked_nor_removed(store: Path) -> None:
    (listed,) = json.loads(command("encoder", "list", "--json", model_store=store).stdout)["encoders"]
    assert (listed["id"], listed["kind"], listed["url"]) == ("tiny", "onnx", None)
    for what in (["check", "tiny"], ["remove", "tiny", "--yes"]):
        refused = command("encoder", *what, model_store=store)
        assert refused.returncode == 1
        assert "was exported" in refused.stderr
