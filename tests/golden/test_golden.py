"""A store and an archive as 1.0 writes them are read by this code: scores, thresholds, history.

Until 1.0 is published, `ISOSIM_RECORD=1 pytest tests/golden` writes them again after a deliberate change of a format;
afterwards they never change, and a later format is a further pair of them.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Serve, Server, command
from tests.text import sentences

HERE = Path(__file__).parent
STORE, ARCHIVE, EXPECTED = HERE / "store", HERE / "domains.tar", HERE / "expected.json"
PAIRS = [["aba cab", "cab aba"], ["a bb ccc", "dd e"], ["ab", "ab"]]
CLOSE = 1e-5  # of a score: rounding errors depend on the processor


def read(server: Server) -> dict[str, Any]:
    """What callers and operators see of what is stored."""
    found: dict[str, Any] = {}
    for domain in ("letters", "letters@1", "letters@previous", "words"):
        body = {"pairs": PAIRS, "domain": domain} | ({"threshold": "same"} if domain == "letters" else {})
        answer = server.client.post("/similarity", json=body).raise_for_status().json()
        columns = {"version", "method", "cosine", "similarity", "percentile", "probability", "match"}
        found[f"similarity {domain}"] = {name: column for name, column in answer.items() if name in columns}
    for path in ("/domains", "/domains/letters", "/domains/letters/history", "/domains/letters/versions/2",
                 "/domains/letters/threshold?fmr=0.05", "/domains/gone/history"):  # fmt: skip
        found[path] = server.client.get(path).raise_for_status().json()
    return found


def stored(found: dict[str, Any]) -> dict[str, Any]:
    """Without what is measured at this moment."""
    for one in (*found["/domains"]["domains"], found["/domains/letters"]):
        one.pop("drift", None)
    return found


def same(found: Any, expected: Any, place: str = "") -> None:
    """Recorded fields are there with the recorded values; further ones may be."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), place
        for key, value in expected.items():
            same(found[key], value, f"{place}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{place}/{number}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=CLOSE), place
    else:
        assert found == expected, place


def record(serve: Serve, store: Path) -> None:
    """Makes a store of the records that stay: fitted versions, a saved threshold, a deleted domain, history."""
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("letters", sentences(400), method="whitening", promote="always")
    server.calibrate("letters", sentences(600), method="flow", promote="always")
    server.client.put("/domains/letters/thresholds/same", json={"fmr": 0.05}).raise_for_status()
    for name in ("words", "gone"):
        server.calibrate(name, sentences(300), method="sn", promote="always")
    server.client.delete("/domains/gone").raise_for_status()
    expected = stored(read(server))
    server.kill()
    shutil.rmtree(STORE, ignore_errors=True)
    shutil.copytree(store, STORE, ignore=shutil.ignore_patterns("input", "results", "matches", "jobs", ".locks"))
    ARCHIVE.unlink(missing_ok=True)
    done = command("domains", "export", "--all", "-o", ARCHIVE, model_store=store, encoder="tiny")
    assert done.returncode == 0, done.stderr
    EXPECTED.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def test_a_store_of_1_0_is_read(serve: Serve, store: Path, tmp_path: Path) -> None:
    if os.environ.get("ISOSIM_RECORD"):
        record(serve, store)
    shutil.copytree(STORE, tmp_path / "golden")
    server = serve(model_store=tmp_path / "golden", encoder="tiny")
    same(stored(read(server)), json.loads(EXPECTED.read_text()))


def test_an_archive_of_1_0_is_imported(serve: Serve, tmp_path: Path) -> None:
    shutil.copytree(STORE / "encoders", tmp_path / "new" / "encoders")
    given: dict[str, Any] = {"model_store": tmp_path / "new", "encoder": "tiny"}
    assert command("store", "init", model_store=tmp_path / "new").returncode == 0
    done = command("domains", "import", ARCHIVE, "--promote", "--yes", **given)
    assert done.returncode == 0, done.stderr
    server, expected = serve(**given), json.loads(EXPECTED.read_text())
    for domain in ("letters", "letters@1", "words"):
        body = {"pairs": PAIRS, "domain": domain} | ({"threshold": "same"} if domain == "letters" else {})
        same(server.client.post("/similarity", json=body).raise_for_status().json(), expected[f"similarity {domain}"])
