"""Calibration jobs over HTTP, run by the server's own worker."""

from pathlib import Path
from typing import Any

import pytest

from tests.processes import PAIRS, Serve, Server, score, wait_until
from tests.text import sentences


@pytest.fixture(scope="module")
def posting(module_serve: Serve, module_store: Path) -> Server:
    """One server with a store of its own for the tests, which use domains of their own."""
    return module_serve(model_store=module_store, encoder="tiny")


def test_text_becomes_a_version_that_answers(posting: Server, module_store: Path) -> None:
    texts = sentences(600)
    job = posting.calibrate("told", [*texts, *texts[:50]], seed=3)
    assert (job["status"], job["version"], job["promoted"], job["progress"]) == ("succeeded", 1, True, 1.0), job
    report = job["report"]
    assert (report["posted"], report["sentences"], report["seed"]) == (650, 600, 3)
    answer = wait_until(lambda: score(posting, "told").json())
    assert answer["version"] == 1
    assert all(0 <= p <= 1 for p in answer["percentile"])
    assert not [*module_store.glob("input/*"), *module_store.glob("open/*")]


@pytest.mark.calibration
def test_a_second_calibration_swaps_and_rollback_restores_bit_for_bit(posting: Server) -> None:
    first = posting.calibrate("letters", sentences(600), method="whitening")
    assert first["promoted"]
    before = wait_until(lambda: score(posting, "letters")).content
    second = posting.calibrate("letters", sentences(900), method="sn", promote="always")
    assert (second["version"], second["promoted"]) == (2, True)
    wait_until(lambda: score(posting, "letters").json()["version"] == 2, seconds=5)
    swapped = score(posting, "letters")
    assert swapped.headers["x-compute-tokens"] == "0"  # the cache holds what no calibration changes
    assert swapped.content != before
    assert score(posting, "letters@previous").content == before
    assert score(posting, "letters@1").content == before
    state = posting.client.post("/domains/letters/rollback").json()
    assert (state["champion"], state["previous"]) == (1, 2)
    assert score(posting, "letters").content == before
    assert posting.client.delete("/domains/letters/versions/2").status_code == 409
    assert posting.client.put("/domains/letters/champion", json={"version": 2}).json()["champion"] == 2


def test_jobs_are_listed_newest_first_without_their_reports(posting: Server) -> None:
    """A report has 20 kB: a list of 1,000 jobs had 13 MB and kept the event loop for seconds."""
    never = posting.calibrate("careful", sentences(300), promote="never")
    assert (never["version"], never["promoted"], bool(never["report"])) == (1, False, True)
    jobs = posting.client.get("/calibrate").json()["jobs"]
    created = [job["created"] for job in jobs]
    assert created == sorted(created, reverse=True)
    assert jobs[0] == never | {"report": None}
    assert posting.client.get("/calibrate", params={"limit": 2}).json()["jobs"] == jobs[:2]
    assert posting.client.post("/similarity", json={"pairs": PAIRS, "domain": "careful"}).status_code == 409


TABLE = [f"{number},2026-01-{1 + number % 28:02d},{text},open" for number, text in enumerate(sentences(300))]


def test_rows_of_a_table_are_refused_unless_they_are_meant_and_a_list_is_never_a_table(tiny_server: Server) -> None:
    client = tiny_server.client
    lines: dict[str, Any] = {"content": "\n".join(TABLE), "headers": {"content-type": "text/plain"}}
    refused = client.post("/calibrate?domain=rows&method=sn", **lines)
    assert refused.status_code == 422
    for word in ("look like a table", "split at ','", "format 'csv'", "column 3", "give force"):
        assert word in refused.json()["error"]
    for answer in (
        client.post("/calibrate?domain=rows&method=sn&force=true", **lines),
        client.post("/calibrate", json={"domain": "rows", "texts": TABLE, "method": "sn"}),
    ):
        assert answer.status_code == 202, answer.text
        client.delete(answer.headers["location"])
