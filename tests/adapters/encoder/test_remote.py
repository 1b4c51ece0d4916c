import base64
import contextlib
import itertools
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.encoders.embeddings_api import checked_url
from isosim.encoders.remote import (
    REQUEST_TEXTS,
    EstimatedTokens,
    RemoteEncoder,
    RemoteTokenizer,
)
from isosim.errors import (
    BackendFailure,
    EncoderChanged,
    EncoderUnreachable,
    InvalidInput,
    IsosimError,
    Overloaded,
)
from isosim.export.remote import PROBES
from isosim.jobs.offline import RemoteTexts, open_texts, requests_of
from tests.adapters.encoder.remote_server import RemoteServer

TEXTS = ["one", "two words", "a third text", "älter", "五"]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with RemoteServer().running() as running:
        yield running


def encoder(server: RemoteServer, **options: Any) -> RemoteEncoder:
    endpoint = options.pop("endpoint", {})
    return RemoteEncoder(server.artifact(**endpoint), **{"seconds": 5.0} | options)


def ask(one: RemoteEncoder, texts: list[str]) -> Any:
    return one.run(one.prepare([EstimatedTokens(text) for text in texts]))


@pytest.mark.parametrize("encoding", ["base64", "float"])
def test_a_run_gives_each_text_its_vector_and_asks_for_one_probe_beside(server: RemoteServer, encoding: str) -> None:
    one = encoder(server, endpoint={"encoding": encoding})
    for _ in range(6):
        assert ask(one, TEXTS) == pytest.approx(server.vectors(TEXTS), abs=1e-6)
    probes = [[text for text in request["input"] if text in PROBES] for request in server.requests]
    assert [len(found) for found in probes] == [1] * 6
    assert len({found[0] for found in probes}) == len(PROBES)
    assert {request.get("encoding_format") for request in server.requests} == {
        "base64" if encoding == "base64" else None
    }
    assert {request["model"] for request in server.requests} == {"m"}
    assert one.state == "ok"


def test_another_model_behind_the_name_answers_nothing_and_the_first_one_is_taken_again(server: RemoteServer) -> None:
    events: list[str] = []
    one = encoder(server, on_request=lambda event, _: events.append(event))
    ask(one, TEXTS)
    server.seed = 1
    with pytest.raises(EncoderChanged, match="encoder_changed"):
        ask(one, TEXTS)
    assert (one.state, events) == ("changed", ["ok", "changed"])
    asked = len(server.requests)
    with pytest.raises(EncoderChanged):  # without a request: it would be discarded
        ask(one, TEXTS)
    assert len(server.requests) == asked
    with pytest.raises(EncoderChanged):
        one.check()
    server.seed = 0
    one.check()
    assert one.state == "ok"
    assert ask(one, TEXTS) == pytest.approx(server.vectors(TEXTS))


def test_another_dimension_is_another_model(server: RemoteServer) -> None:
    one = encoder(server)
    server.dim = 32
    with pytest.raises(EncoderChanged, match="32 dimensions, not 16"):
        ask(one, TEXTS)
    assert one.state == "changed"


def test_a_text_that_breaks_the_server_takes_nothing_from_others(server: RemoteServer) -> None:
    def breaks(server: RemoteServer, texts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        status = 500 if "breaks" in texts else 200
        return status, json.dumps({"data": server.entries(texts)}).encode(), {}

    server.answer = breaks
    one = encoder(server)
    for _ in range(3):
        with pytest.raises(BackendFailure) as error:
            ask(one, ["breaks", "good"])
        assert not isinstance(error.value, EncoderUnreachable)  # the batcher asks for each text alone then
        assert ask(one, ["good"]) == pytest.approx(server.vectors(["good"]))
    assert one.state == "ok"
    with pytest.raises(BackendFailure, match="gives no vectors for these texts"):
        RemoteTexts(server.artifact())(["good", "breaks", "fine"])


def test_a_server_that_hangs_gets_no_more_requests(server: RemoteServer) -> None:
    one = encoder(server, seconds=0.9)
    ask(one, TEXTS)
    server.wait = 2.0
    while one.state != "down":
        assert "in time" in str(failure(one))
    before = len(server.requests)
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(lambda _: isinstance(failure(one), EncoderUnreachable), range(8)))
    assert ended == [True] * 8
    assert len(server.requests) == before


def failure(one: RemoteEncoder) -> BaseException | None:
    try:
        ask(one, TEXTS)
    except IsosimError as error:
        return error
    return None


def altered(change: Any) -> Any:
    def answer(server: RemoteServer, texts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps({"data": change(server.entries(texts))}).encode(), {}

    return answer


def encoded(row: Any) -> str:
    return base64.b64encode(np.asarray(row, np.float32).tobytes()).decode()


BAD = {
    "too few": (altered(lambda e: e[:-1]), "5 vectors for 6 texts"),
    "too many": (altered(lambda e: [*e, e[0]]), "7 vectors for 6 texts"),
    "twice the same index": (altered(lambda e: [{**one, "index": 0} for one in e]), "index"),
    "an index beyond": (altered(lambda e: [{**e[0], "index": 99}, *e[1:]]), "index"),
    "an index that is a boolean": (altered(lambda e: [{**e[0], "index": False}, *e[1:]]), "index"),
    "two dimensions": (altered(lambda e: [{**e[0], "embedding": encoded(np.ones(8))}, *e[1:]]), "8, 16 dimensions"),
    "NaN": (altered(lambda e: [{**e[0], "embedding": encoded(np.full(16, math.nan))}, *e[1:]]), "NaN"),
    "infinity": (altered(lambda e: [{**e[0], "embedding": [1e300] * 16}, *e[1:]]), "infinity"),
    "zero": (altered(lambda e: [{**e[0], "embedding": encoded(np.zeros(16))}, *e[1:]]), "zero"),
    "no numbers": (altered(lambda e: [{**e[0], "embedding": ["a"] * 16}, *e[1:]]), "not a valid answer"),
    "broken base64": (altered(lambda e: [{**e[0], "embedding": "%%%"}, *e[1:]]), "not a valid answer"),
    "no list": (lambda *_: (200, b'{"data": 3}', {}), "not a valid answer"),
    "no object": (lambda *_: (200, b"[]", {}), "not a valid answer"),
    "a page": (lambda *_: (200, b"<html>welcome</html>", {}), "no JSON"),
    "a redirect": (lambda *_: (307, b"", {"location": "http://127.0.0.1:1/v1"}), "redirect"),
    "an endless body": (lambda *_: (200, b"[" * 5_000_000, {}), "more than"),
    "a failure without words": (lambda *_: (418, b"\xff\xfe", {}), "418"),
    "a refusal": (lambda *_: (413, b'{"error": {"message": "input too long"}}', {}), "413: input too long"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_an_error_that_says_so_and_the_next_good_one_is_taken(server: RemoteServer, name: str) -> None:
    answer, why = BAD[name]
    one = encoder(server)
    server.answer = answer
    with pytest.raises(BackendFailure, match=why):
        ask(one, TEXTS)
    server.answer = None
    assert ask(one, TEXTS) == pytest.approx(server.vectors(TEXTS))


def test_vectors_out_of_order_are_put_in_order_by_their_index(server: RemoteServer) -> None:
    server.answer = altered(lambda entries: entries[::-1])
    assert ask(encoder(server), TEXTS) == pytest.approx(server.vectors(TEXTS))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nx: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"0"),
    ],
    ids=["body", "headers", "continue", "chunk size"],
)
def test_an_answer_that_trickles_ends_with_the_time_there_is(server: RemoteServer, first: bytes, then: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            listener.settimeout(0.1)
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    threading.Thread(target=trickle, args=(connection,), daemon=True).start()

        def trickle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.recv(100_000)
                connection.sendall(first)
                while not stop.wait(0.05):
                    connection.sendall(then)

        thread = threading.Thread(target=serve)
        thread.start()
        one = encoder(server, endpoint={"url": f"http://127.0.0.1:{listener.getsockname()[1]}/v1"}, seconds=0.6)
        started = time.monotonic()
        with pytest.raises(EncoderUnreachable, match="in time"):
            ask(one, TEXTS)
        assert time.monotonic() - started < 5
        stop.set()
        thread.join()


def test_a_server_that_is_away_is_tried_again_then_left_alone_and_found_again() -> None:
    server = RemoteServer()
    with server.running():
        one = encoder(server)
        ask(one, TEXTS)
        port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(EncoderUnreachable, match="gives no vectors"):
        ask(one, TEXTS)  # in three attempts
    assert one.state == "down"
    started = time.monotonic()
    for _ in range(50):
        with pytest.raises(EncoderUnreachable):
            ask(one, TEXTS)
    assert time.monotonic() - started < 10  # with their pauses, 50 requests would take at least 15 s
    with server.running(port):
        one.check()
        assert ask(one, TEXTS) == pytest.approx(server.vectors(TEXTS))
        assert (one.state, one.failure) == ("ok", None)


def test_a_failure_that_passes_is_not_seen_and_too_much_to_do_is(server: RemoteServer) -> None:
    failures = itertools.chain([503, 500], itertools.repeat(200))

    def flaky(server: RemoteServer, texts: list[str]) -> tuple[int, bytes, dict[str, str]]:
        status = next(failures)
        return status, json.dumps({"data": server.entries(texts)}).encode(), {}

    server.answer = flaky
    assert ask(encoder(server), TEXTS) == pytest.approx(server.vectors(TEXTS))
    server.answer = lambda *_: (429, b'{"message": "slow down"}', {"retry-after": "7"})
    one = encoder(server, seconds=60.0)
    started = time.monotonic()
    with pytest.raises(Overloaded, match="slow down") as error:
        ask(one, TEXTS)
    assert error.value.retry_after == 7
    assert time.monotonic() - started < 2  # whoever asks is told, and need not wait for so long
    assert one.state != "down"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_a_wrong_address_is_not_tried_again(server: RemoteServer, status: int) -> None:
    server.answer = lambda *_: (status, b'{"detail": "no: Bearer a-key"}', {})
    with pytest.raises(EncoderUnreachable, match=f"answers {status}: ") as error:
        ask(encoder(server), TEXTS)
    assert ("a-key" in str(error.value)) == (status == 404)  # some servers repeat the key
    assert len(server.requests) == 1


def test_the_key_is_read_for_each_request_and_said_nowhere(server: RemoteServer, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first-key\n")
    one = encoder(server, endpoint={"key_file": str(file)})
    ask(one, TEXTS)
    file.write_text("second-key")
    ask(one, TEXTS)
    given = [{name.lower(): value for name, value in headers.items()}["authorization"] for headers in server.headers]
    assert given == ["Bearer first-key", "Bearer second-key"]
    for content in ("", "two\nlines", "a b", "é"):
        file.write_text(content)
        with pytest.raises(EncoderUnreachable) as error:
            ask(encoder(server, endpoint={"key_file": str(file)}), TEXTS)
        assert not content or content not in str(error.value)
    file.write_text("a-very-long-key")
    server.answer = lambda *_: (418, b'{"message": "who sends a-very-long-key"}', {})
    with pytest.raises(BackendFailure) as failure:
        ask(encoder(server, endpoint={"key_file": str(file)}), TEXTS)
    assert "a-very-long-key" not in str(failure.value)
    file.unlink()
    one = encoder(server, endpoint={"key_file": str(file)})
    for _ in range(3):
        with pytest.raises(EncoderUnreachable, match=str(file)):
            ask(one, TEXTS)
    assert one.state == "down"


def test_addresses_that_are_no_addresses_of_an_encoder_are_refused() -> None:
    assert checked_url("http://127.0.0.1:8080/v1/") == "http://127.0.0.1:8080/v1"
    assert checked_url("https://api.example.com/v1/embeddings") == "https://api.example.com/v1"
    for url in (
        "ftp://host/v1", "host:8080/v1", "http:///v1", "http://u:p@host/v1", "http://host/v1?key=1", "http://h:x/v1",
        "http://a..b/v1", f"http://{'a' * 64}/v1", "http://a b/v1",
        "http://169.254.169.254/v1", "http://[fe80::1]/v1", "http://[::ffff:169.254.1.1]/v1", "http://[fd00:ec2::254]/",
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            checked_url(url)


def test_a_name_that_stands_for_a_link_local_address_is_refused_before_a_byte_is_sent(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = encoder(server, endpoint={"url": server.url.replace("127.0.0.1", "metadata.example")})
    answers = iter([["169.254.169.254"], ["127.0.0.1", "fe80::1"], ["127.0.0.99", "127.0.0.1"]])

    def resolved(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in next(answers)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    for _ in range(2):
        with pytest.raises(EncoderUnreachable, match="link-local"):
            ask(one, TEXTS)
    assert not server.requests
    assert len(ask(one, TEXTS)) == len(TEXTS)  # nothing listens at the first address


def test_lengths_are_bytes_by_four_and_what_needs_real_tokens_is_refused() -> None:
    tokenize = RemoteTokenizer("far", 3)
    tokens = tokenize(["", "abcd", "abcde", "äöüäö", "x" * 12, "ä" * 7], "right")
    assert [len(one.ids) for one in tokens] == [1, 1, 2, 3, 3, 3]
    assert [one.truncated for one in tokens] == [False] * 5 + [True]
    assert isinstance(tokens[-1].ids, EstimatedTokens)
    assert tokens[-1].ids.text == "ä" * 6
    assert not any(one.unreadable for one in tokens)
    for refused in (
        lambda: tokenize(["a"], "left"),
        lambda: tokenize.pieces(["a"], special=True),
    ):
        with pytest.raises(InvalidInput, match="far runs on another server"):
            refused()


def test_many_texts_go_out_in_requests_side_by_side_and_come_back_in_order(server: RemoteServer) -> None:
    server.wait = 0.02
    texts = [f"text {number} " + "long " * (number % 7) for number in range(400)]
    shares: list[float] = []
    encodings = open_texts(server.artifact())(texts, shares.append)
    assert encodings.vectors == pytest.approx(server.vectors(texts), abs=1e-6)
    assert encodings.tokens.tolist() == [-(-len(text) // 4) for text in texts]
    assert max(len(request["input"]) for request in server.requests) == REQUEST_TEXTS + 1
    assert 1 < server.most_under_way <= 8
    assert sorted(server.texts) == sorted(texts)
    assert shares[-1] == 1.0


def test_a_job_ends_with_the_first_swap_and_waits_for_a_server_that_starts_anew() -> None:
    server = RemoteServer(wait=0.05)
    texts = [f"text {number}" for number in range(600)]
    with server.running():
        port = int(server.url.rsplit(":", 1)[1].split("/")[0])
        begun = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(RemoteTexts(server.artifact()), texts, lambda _: begun.set())
            begun.wait(10)
            server.seed = 1
            with pytest.raises(EncoderChanged):
                running.result(30)
        server.seed = 0
        artifact = server.artifact()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(RemoteTexts(artifact), texts)
        time.sleep(1.0)
        with server.running(port):
            assert running.result(30).vectors == pytest.approx(server.vectors(texts), abs=1e-6)


def test_requests_hold_as_many_texts_as_fit() -> None:
    lengths = np.array([1] * 40 + [9000, 9000, 16_000, 20_000, 5])
    groups = list(requests_of(lengths))
    assert [row for group in groups for row in group] == list(range(45))
    assert [len(group) for group in groups] == [31, 10, 1, 1, 1, 1]


def test_closing_ends_what_is_under_way_and_lets_nothing_more_out(server: RemoteServer) -> None:
    server.wait = 30.0
    one = encoder(server, seconds=60.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(failure, one)
        while not server.requests:
            time.sleep(0.01)
        one.close()
        assert isinstance(failure(one), EncoderUnreachable)
        assert isinstance(running.result(20), EncoderUnreachable)
    one.close()
    assert len(server.requests) == 1
