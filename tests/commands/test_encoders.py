"""`isosim encoder` as a shell runs it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.encoder.remote_server import RemoteServer
from tests.processes import command
from tests.text import sentences


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with RemoteServer().running() as running:
        yield running


def test_an_encoder_is_added_listed_checked_calibrated_and_removed(server: RemoteServer, tmp_path: Path) -> None:
    store, key = tmp_path / "store", tmp_path / "key"
    key.write_text("a-secret-key")
    assert command("store", "init", model_store=store).returncode == 0
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
    assert checked.stdout.startswith(
        "far: the server gives the same vectors as at the registration (relative difference up to "
    )
    assert json.loads(command("encoder", "check", "far", "--json", model_store=store).stdout)["off"] < 1e-6
    server.seed = 1
    swapped = command("encoder", "check", "far", model_store=store)
    assert swapped.returncode == 1
    assert "encoder_changed" in swapped.stderr
    server.seed = 0

    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(300)))
    settings: dict[str, Any] = {"model_store": store, "encoder": "far", "max_remote_texts": 250}
    asked = len(server.requests)
    refused = command("calibrate", text, "--domain", "d", **settings)
    assert refused.returncode == 1
    assert "at most 250 are allowed; post fewer, or raise ISOSIM_MAX_REMOTE_TEXTS" in refused.stderr
    assert len(server.requests) == asked
    done = command("calibrate", text, "--domain", "d", **settings | {"max_remote_texts": 1000})
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


def unit_vectors(count: int, dim: int = 24) -> Any:
    made = np.random.default_rng(0).normal(size=(count, dim)) + 0.5
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def test_vectors_are_registered_calibrated_from_a_file_and_have_thresholds_in_a_databases_unit(tmp_path: Path) -> None:
    store, vectors = tmp_path / "store", unit_vectors(400)
    unmade = command("encoder", "add", "ours", "--dimensions", "24", "--unit-vectors", model_store=store)
    assert (unmade.returncode, "isosim store init" in unmade.stderr, store.exists()) == (1, True, False)
    assert command("store", "init", model_store=store).returncode == 0
    added = command("encoder", "add", "ours", "--dimensions", "24", "--unit-vectors", model_store=store)
    assert (added.returncode, added.stdout.strip()) == (0, "ours"), added.stderr
    again = command("encoder", "add", "ours", "--dimensions", "24", "--unit-vectors", model_store=store)
    assert (again.returncode, again.stdout.strip()) == (0, "ours"), again.stderr
    (listed,) = json.loads(command("encoder", "list", "--json", model_store=store).stdout)["encoders"]
    assert (listed["kind"], listed["dim"], listed["unit_vectors"], listed["url"]) == ("vectors", 24, True, None)
    assert "no server to check" in command("encoder", "check", "ours", model_store=store).stderr

    np.save(tmp_path / "v.npy", vectors)
    rows = np.random.default_rng(1).integers(0, 400, (60, 2))
    matches = [int(vectors[a] @ vectors[b] > 0.2) for a, b in rows]
    labels = [f"{n},{a},{b}\n" for n, (a, b) in zip(matches, rows, strict=True)]
    (tmp_path / "labels.csv").write_text("".join(["label,a,b\n", *labels]))
    settings: dict[str, Any] = {"model_store": store, "encoder": "ours"}
    done = command("calibrate", tmp_path / "v.npy", "--domain", "d", "--labels", tmp_path / "labels.csv", **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("d@1: identity\n")
    assert "not judged: how much the vectors depend on the surface" in done.stdout
    assert "  promoted: " in done.stdout
    assert "sent without texts" not in done.stdout.partition("  promoted: ")[2], done.stdout

    lines = ({"vector": row.tolist(), "text": text} for row, text in zip(vectors, sentences(400), strict=True))
    (tmp_path / "v.ndjson").write_text("\n".join(map(json.dumps, lines)))
    made = command("calibrate", tmp_path / "v.ndjson", "--domain", "d", "--json", **settings)
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)["report"]
    assert set(report["not_judged"]) == {"out_of_domain", "recognition"}

    assert (
        "is not one of 'cosine_distance'"
        in command("threshold", "d@1", "--fmr", "0.01", "--unit", "miles", **settings).stderr
    )

    assert command("encoder", "remove", "ours", "--yes", model_store=store).stdout == "encoder ours is removed\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give both, or --dimensions"),
        (["--url", "http://127.0.0.1:9/v1"], "give both, or --dimensions"),
        (["--dimensions", "24", "--model", "m"], "--model"),
        (["--unit-vectors", "--url", "http://127.0.0.1:9/v1", "--model", "m"], "needs --dimensions"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    refused = command("encoder", "add", "ours", *options, model_store=tmp_path / "store")
    assert refused.returncode == 2
    assert message in refused.stderr


def test_files_that_are_not_the_encoders_are_named_with_the_remedy(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", unit_vectors(300))
    settings: dict[str, Any] = {"model_store": store, "encoder": "tiny"}
    vectors = command("calibrate", tmp_path / "v.npy", "--domain", "d", **settings)
    assert (vectors.returncode, "isosim encoder add NAME --dimensions N" in vectors.stderr) == (1, True), vectors.stderr
    (tmp_path / "t.txt").write_text("\n".join(sentences(300)))
    assert (
        "no column is called 'e'; the columns are text"
        in command("calibrate", tmp_path / "t.txt", "--domain", "d", "--column", "e", **settings).stderr
    )
    assert command("encoder", "add", "ours", "--dimensions", "24", model_store=store).returncode == 0
    text = command("calibrate", tmp_path / "t.txt", "--domain", "d", model_store=store, encoder="ours")
    assert (text.returncode, 'expected {"vector": […]}' in text.stderr) == (1, True), text.stderr
    for words in (
        ["similarity", tmp_path / "t.txt"],
        ["embed", tmp_path / "t.txt"],
        ["bundle", "default", "-o", tmp_path / "b.onnx"],
    ):
        refused = command(*words, model_store=store, encoder="ours")
        assert refused.returncode == 1, refused
        assert "Traceback" not in refused.stderr
    looked = command("doctor", model_store=store, encoder="ours", port=0)
    assert "ours, vectors, " in looked.stdout
