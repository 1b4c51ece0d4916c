"""`isosim encoder` as a shell runs it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.encoder.remote_server import RemoteServer
from tests.processes import command
from tests.text import sentences

DIM = 24


def listed(store: Path) -> Any:
    return json.loads(command("encoder", "list", "--json", model_store=store).stdout)["encoders"]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with RemoteServer().running() as running:
        yield running


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the encoder `ours`, whose vectors its users bring."""
    store = tmp_path_factory.mktemp("brought") / "store"
    words = ("encoder", "add", "ours", "--dimensions", DIM, "--unit-vectors")
    unmade = command(*words, model_store=store)
    assert (unmade.returncode, "isosim store init" in unmade.stderr, store.exists()) == (1, True, False)
    assert command("store", "init", model_store=store).returncode == 0
    added = command(*words, model_store=store)
    assert (added.returncode, added.stdout.strip()) == (0, "ours"), added.stderr
    return store


@pytest.fixture(scope="module")
def unit_vectors() -> Any:
    made = np.random.default_rng(0).normal(size=(400, DIM)) + 0.5
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def test_an_encoder_is_added_listed_checked_calibrated_and_removed(server: RemoteServer, tmp_path: Path) -> None:
    store, key, text = tmp_path / "store", tmp_path / "key", tmp_path / "text.txt"
    key.write_text("a-secret-key")
    assert command("store", "init", model_store=store).returncode == 0
    added = command(
        "encoder", "add", "far", "--url", server.url, "--model", "m", "--key-file", key, "--prompt", "p: ",
        "--max-length", "50", model_store=store,
    )  # fmt: skip
    assert (added.returncode, added.stdout.strip()) == (0, "far"), added.stderr
    assert "a-secret-key" not in added.stdout + added.stderr
    (one,) = listed(store)
    assert (one["kind"], one["model"], one["dim"], one["url"]) == ("remote", "m", 16, server.url)
    assert (one["prompt"], one["max_length"], one["key_file"]) == ("p: ", 50, str(key))
    checked = command("encoder", "check", "far", model_store=store)
    assert checked.stdout.startswith("far: the server gives the same vectors as at the registration")
    assert json.loads(command("encoder", "check", "far", "--json", model_store=store).stdout)["off"] < 1e-6
    server.seed = 1
    swapped = command("encoder", "check", "far", model_store=store)
    assert (swapped.returncode, "encoder_changed" in swapped.stderr) == (1, True)
    server.seed = 0

    text.write_text("\n".join(sentences(300)))
    asked = len(server.requests)
    words, given = ("calibrate", text, "--domain", "d"), dict[str, Any](model_store=store, encoder="far")
    refused = command(*words, **given, max_remote_texts=250)
    assert "at most 250 are allowed; post fewer, or raise ISOSIM_MAX_REMOTE_TEXTS" in refused.stderr
    assert (refused.returncode, len(server.requests)) == (1, asked)
    done = command(*words, **given)
    assert done.stdout.startswith("d@1: "), done.stderr
    assert {"p: " + sentence for sentence in sentences(300)} <= set(server.texts)

    undecided = command("encoder", "remove", "far", model_store=store)
    assert (undecided.returncode, "with which 1 domain is served" in undecided.stderr) == (1, True)
    removed = command("encoder", "remove", "far", "--yes", model_store=store)
    assert (removed.stdout, listed(store)) == ("encoder far is removed\n", [])


def test_an_exported_encoder_is_listed_and_neither_checked_nor_removed(store: Path) -> None:
    (one,) = listed(store)
    assert (one["id"], one["kind"], one["url"]) == ("tiny", "onnx", None)
    for what in (["check", "tiny"], ["remove", "tiny", "--yes"]):
        refused = command("encoder", *what, model_store=store)
        assert (refused.returncode, "was exported" in refused.stderr) == (1, True)


def test_vectors_are_calibrated_from_a_file_with_labels_and_from_lines_with_texts(
    brought: Path, unit_vectors: Any, tmp_path: Path
) -> None:
    store = shutil.copytree(brought, tmp_path / "store")
    (one,) = listed(store)
    assert (one["kind"], one["dim"], one["unit_vectors"], one["url"]) == ("vectors", DIM, True, None)
    assert "no server to check" in command("encoder", "check", "ours", model_store=store).stderr

    np.save(tmp_path / "v.npy", unit_vectors)
    rows = np.random.default_rng(1).integers(0, 400, (60, 2))
    labels = [f"{int(unit_vectors[a] @ unit_vectors[b] > 0.2)},{a},{b}\n" for a, b in rows]
    (tmp_path / "labels.csv").write_text("".join(["label,a,b\n", *labels]))
    given: dict[str, Any] = {"model_store": store, "encoder": "ours"}
    done = command("calibrate", tmp_path / "v.npy", "--domain", "d", "--labels", tmp_path / "labels.csv", **given)
    assert done.stdout.startswith("d@1: identity\n"), done.stderr
    assert "not judged: how much the vectors depend on the surface" in done.stdout
    assert "  promoted: " in done.stdout
    assert "sent without texts" not in done.stdout.partition("  promoted: ")[2], done.stdout

    lines = ({"vector": row.tolist(), "text": text} for row, text in zip(unit_vectors, sentences(400), strict=True))
    (tmp_path / "v.ndjson").write_text("\n".join(map(json.dumps, lines)))
    made = command("calibrate", tmp_path / "v.ndjson", "--domain", "d", "--json", **given)
    assert set(json.loads(made.stdout)["report"]["not_judged"]) == {"out_of_domain", "recognition"}, made.stderr
    miles = command("threshold", "d@1", "--fmr", "0.01", "--unit", "miles", **given)
    assert "is not one of 'cosine_distance'" in miles.stderr
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
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr


def test_files_that_are_not_the_encoders_are_named_with_the_remedy(
    brought: Path, store: Path, unit_vectors: Any, tmp_path: Path
) -> None:
    vectors, texts = tmp_path / "v.npy", tmp_path / "t.txt"
    np.save(vectors, unit_vectors)
    texts.write_text("\n".join(sentences(300)))
    for encoder, words, said in (
        ("tiny", ("calibrate", vectors, "--domain", "d"), "isosim encoder add NAME --dimensions N"),
        ("tiny", ("calibrate", texts, "--domain", "d", "--column", "e"), "'e'; the columns are text"),
        ("ours", ("calibrate", texts, "--domain", "d"), 'expected {"vector": […]}'),
        ("ours", ("similarity", texts), ""),
        ("ours", ("embed", texts), ""),
        ("ours", ("bundle", "default", "-o", tmp_path / "b.onnx"), ""),
    ):
        refused = command(*words, model_store=brought if encoder == "ours" else store, encoder=encoder)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
        assert "Traceback" not in refused.stderr
    looked = command("doctor", model_store=brought, encoder="ours", port=0)
    assert "ours, vectors, " in looked.stdout
