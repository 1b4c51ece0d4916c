"""What one key of several may take: of the queue of jobs, of the space for posted text, of file readers, of streams."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from isosim.access.grants import Grant
from isosim.api.calibration.calibrate import FULL_POSTS
from isosim.api.calibration.files import one_of_few
from isosim.api.state import MAX_EVENT_STREAMS, SHARES, Places
from isosim.errors import Overloaded
from tests.faults.jobs import LONG
from tests.faults.load import metric
from tests.processes import Serve, Server, wait_until
from tests.security.conftest import bearer, key_file
from tests.text import sentences

TEXT = "\n".join(sentences(300)).encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    rated = "read,calibrate domains=rated rate=400/h"
    return key_file(tmp_path, {"a": "read,calibrate", "b": "read,calibrate", "rated": rated})


def calibrate(server: Server, key: str, domain: str = "d", body: bytes = TEXT) -> httpx.Response:
    headers = bearer(key) | {"content-type": "application/x-ndjson" if body[:1] in b'"{' else "text/plain"}
    return server.client.post(f"/calibrate?domain={domain}&method=identity", content=body, headers=headers)


def refused(answer: httpx.Response, reason: str) -> None:
    assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded"), answer.text
    assert reason in answer.json()["error"]
    assert answer.headers["retry-after"] == "60"


def refusals(server: Server) -> float:
    return metric(server, 'isosim_errors_total{error_type="Overloaded"}')


def test_a_key_whose_jobs_hold_its_share_of_the_space_is_refused(serve: Serve, store: Path, keys: Path) -> None:
    text = "\n".join(LONG[:3000]).encode()
    given = {"model_store": store, "encoder": "tiny", "api_keys_file": keys, "local_worker": False}
    server = serve(**given, max_calibration_bytes=200_000)
    posts = FULL_POSTS * 200_000 // SHARES // len(text)
    answers = [calibrate(server, "a", body=text) for _ in range(posts + 2)]
    assert {answer.status_code for answer in answers[: posts - 1]} == {202}
    refused(answers[-1], "MB of text; the limit is 1.2 MB for the API key")
    assert calibrate(server, "b").status_code == 202


def test_a_calibration_costs_its_sentences_and_labels(serve: Serve, store: Path, keys: Path) -> None:
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    refusal = calibrate(server, "rated", "rated", b"too few\n")
    assert refusal.status_code == 422  # costs 1, and 1 for its bytes
    pairs = [*zip(sentences(40), sentences(41)[1:], strict=True)]
    labels = "".join(f'{{"a": "{a}", "b": "{b}", "label": {n % 2}}}\n' for n, (a, b) in enumerate(pairs))
    body = "".join(f'"{sentence}"\n' for sentence in sentences(300)) + labels
    assert calibrate(server, "rated", "rated", body.encode()).status_code == 202  # 382 of 400
    assert server.client.post("/tokenize", json={"inputs": sentences(19)}, headers=bearer("rated")).status_code == 429
    assert server.client.post("/tokenize", json={"inputs": sentences(18)}, headers=bearer("rated")).status_code == 200


def test_one_key_takes_its_share_of_the_queue_and_of_the_event_streams(serve: Serve, store: Path, keys: Path) -> None:
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys, max_queued_jobs=8, local_worker=False)
    assert [calibrate(server, "a").status_code for _ in range(2)] == [202, 202]
    refused(calibrate(server, "a"), "2 jobs are queued or running; the limit is 2 for the API key")
    posted = calibrate(server, "b")
    assert posted.status_code == 202
    client = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None))
    with client, contextlib.ExitStack() as stack:

        def follow(key: str) -> httpx.Response:
            events = f"{server.url}{posted.headers['location']}/events"
            answer = stack.enter_context(client.stream("GET", events, headers=bearer(key)))
            if answer.status_code == 200:
                lines = answer.iter_lines()
                stack.callback(lines.close)  # type: ignore[attr-defined]
                next(lines)
            return answer

        share = MAX_EVENT_STREAMS // SHARES
        assert {follow("a").status_code for _ in range(share)} == {200}
        one_more = follow("a")
        assert one_more.status_code == 429
        assert f"{share} event streams are open for this API key" in one_more.read().decode()
        assert follow("b").status_code == 200
        stack.pop_all().close()
        # Those that have ended make room. No refusal counts as the service's own failure: others were served.
        wait_until(lambda: follow("a").status_code == 200)
    assert metric(server, "isosim_key_limit_refusals_total") == refusals(server) >= 2


def test_one_key_reads_half_of_the_files_that_are_read_at_a_time() -> None:
    service: Any = SimpleNamespace(file_readers=Places(4), share=lambda whole, parts: whole // parts)
    a, b = Grant("a", frozenset()), Grant("b", frozenset())
    with contextlib.ExitStack() as stack:
        for grant in (a, a, b, b):
            if grant is b:
                with pytest.raises(Overloaded, match="2 files are being read for this API key"), one_of_few(service, a):
                    pass
            stack.enter_context(one_of_few(service, grant))
        with pytest.raises(Overloaded, match="4 files are being read, which is the maximum"), one_of_few(service, b):
            pass
    with one_of_few(service, a):
        pass
