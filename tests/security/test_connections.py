"""Clients that are slow, silent or without end: none of them holds a connection or memory for ever."""

import contextlib
import json
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.load import metric
from tests.faults.raw import connected, head, status
from tests.processes import Serve, Server, environment, free_port, wait_until
from tests.security.conftest import key_file

HEAD = head("/similarity").removesuffix(b"\r\n")
BODY = json.dumps({"pairs": [["a boat", "a gate"]]}).encode()
SCORED = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
PATIENCE = 20.0  # s until a connection must have been closed, on a machine that is busy


@contextlib.contextmanager
def started(command: list[str], folder: Path, **settings: Any) -> Iterator[Server]:
    """A server that a command starts."""
    port = free_port()
    url, log = f"http://127.0.0.1:{port}", folder / f"started-{port}.log"
    with log.open("wb") as file:
        popen = subprocess.Popen(
            command, env=environment(port=port, **settings), stdout=file, stderr=file, start_new_session=True
        )
    server = Server(popen, log, url, httpx.Client(base_url=url, timeout=60))
    try:
        wait_until(lambda: httpx.get(url + "/readyz").status_code == 200, 120)
        yield server
    finally:
        server.kill()


def with_limits(**limits: float) -> list[str]:
    """The command of a server with other limits for connections (guarded.py)."""
    return [sys.executable, "-m", "tests.security.guarded", json.dumps(limits)]


@pytest.fixture(scope="module")
def strict_server(module_store: Path) -> Iterator[Server]:
    command = with_limits(header_timeout=1, body_timeout=2, keep_alive=2, max_connections=8)
    with started(command, module_store.parent, model_store=module_store, encoder="tiny") as server:
        yield server


@pytest.fixture
def strict(strict_server: Server) -> Server:
    """A server with little patience, after the connections of the last test are gone."""
    wait_until(lambda: metric(strict_server, "isosim_connections ") <= 1)
    return strict_server


def closed(server: Server, reason: str) -> float:
    """How many connections it has closed for a reason."""
    return metric(server, f'isosim_connections_closed_total{{reason="{reason}"}}')


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            received += more
    return received


def drip(connection: socket.socket, data: bytes, every: float) -> bytes:
    """Sends byte after byte until the server has closed, and gives what it said."""
    connection.settimeout(every)
    received = b""
    deadline = time.monotonic() + PATIENCE
    sent = 0
    while time.monotonic() < deadline:
        try:
            if sent < len(data):
                connection.sendall(data[sent : sent + 1])
                sent += 1
            if not (more := connection.recv(65536)):
                return received
            received += more
        except TimeoutError:
            continue
        except OSError:
            return received
    raise AssertionError(f"the connection is still open after {sent} bytes; received {received!r}")


def answered(connection: socket.socket) -> bytes:
    """One whole answer of a few bytes."""
    received = b""
    while b"}" not in received:
        more = connection.recv(65536)
        assert more, received
        received += more
    return received


def test_a_connection_that_says_nothing_is_closed(strict: Server) -> None:
    before = closed(strict, "headers")
    with connected(strict) as connection:
        assert until_closed(connection) == b""
    assert closed(strict, "headers") == before + 1


@pytest.mark.parametrize(
    ("begun", "dripped", "reason"),
    [
        (b"", HEAD + b"x: " + b"y" * 1000, "headers"),
        (HEAD + b"content-length: 100000\r\n\r\n", b"x" * 1000, "body"),
        (CHUNKED, b"1\r\nx\r\n" * 1000, "body"),
    ],
    ids=["headers", "body", "chunks"],
)
def test_what_comes_a_byte_at_a_time_is_given_up(strict: Server, begun: bytes, dripped: bytes, reason: str) -> None:
    before = closed(strict, reason)
    with connected(strict) as connection:
        connection.sendall(begun)
        answer = drip(connection, dripped, 0.1)
    assert status(answer) == 408
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error_type"] == "Validation"
    assert closed(strict, reason) == before + 1
    if reason == "body":
        left = 'isosim_request_duration_seconds_count{route="/similarity",status="499"}'
        wait_until(lambda: left in strict.client.get("/metrics").text)


def test_a_slow_upload_that_keeps_the_least_rate_is_let_through(strict: Server) -> None:
    """Longer than the time a body has at first: each thousand bytes earn a second."""
    lines = b"".join(b"a sentence about number %d\n" % number for number in range(600))

    def slowly() -> Iterator[bytes]:
        for start in range(0, len(lines), 2000):
            yield lines[start : start + 2000]
            time.sleep(0.3)

    headers = {"content-type": "text/plain"}
    answer = httpx.post(
        f"{strict.url}/calibrate?domain=d&method=identity", content=slowly(), headers=headers, timeout=60
    )
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    "endless",
    [b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 40_000,
     CHUNKED + b"1;" + b"e" * 200_000, CHUNKED + b"0\r\nt: " + b"e" * 200_000],
    ids=["request line", "header", "headers", "chunk extension", "trailer"],
)  # fmt: skip
def test_what_stands_before_and_around_a_body_has_an_end(strict: Server, endless: bytes) -> None:
    before = closed(strict, "headers")
    with connected(strict) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(endless)
        answer = until_closed(connection)
    if answer:  # it is lost where the kernel resets what was still being sent
        assert status(answer) in (400, 431)
    assert closed(strict, "headers") <= before + 1


def test_an_idle_connection_is_closed_and_a_used_one_is_kept(strict: Server) -> None:
    with connected(strict) as connection:
        for _ in range(3):
            connection.sendall(GET)
            assert status(answered(connection)) == 200
            time.sleep(0.7)  # together longer than any limit of one request
        begun = time.monotonic()
        assert until_closed(connection) == b""
        assert time.monotonic() - begun < PATIENCE


def test_the_longest_idle_connection_makes_room_and_the_server_stays_reachable(strict: Server) -> None:
    """Two hundred connections that say nothing, eight permitted: whoever asks is answered all the same."""
    before = closed(strict, "room")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(strict)) for _ in range(200)]
        for _ in range(20):
            assert httpx.get(strict.url + "/readyz", timeout=PATIENCE).status_code == 200
        assert until_closed(silent[0]) == b""
        assert metric(strict, "isosim_connections ") <= 9
    assert closed(strict, "room") >= before + 192


def test_where_all_connections_are_busy_a_new_one_is_told_to_come_back(strict: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            busy = stack.enter_context(connected(strict))
            busy.sendall(SCORED[:-1])  # within its second
        wait_until(lambda: full(strict), seconds=5, every=0.01)


def test_strangers_who_were_answered_and_send_on_keep_nobody_out(store: Path, tmp_path: Path) -> None:
    """Once answered, a body that does not end makes room like an idle connection, and has seconds left."""
    given = {"model_store": store, "encoder": "tiny", "api_keys_file": key_file(tmp_path, {"k": "read"})}
    with contextlib.ExitStack() as stack:
        command = with_limits(body_timeout=300, max_connections=8)
        server = stack.enter_context(started(command, tmp_path, **given))
        strangers = []
        for _ in range(20):
            stranger = stack.enter_context(connected(server))
            strangers.append(stranger)
            stranger.sendall(HEAD + b"content-length: 1000000\r\n\r\n")
            assert status(answered(stranger)) == 401
        for _ in range(3):
            assert httpx.get(server.url + "/livez", timeout=PATIENCE).status_code == 200
        assert until_closed(strangers[0]) == b""
        drip(strangers[-1], b"x" * 1000, 0.1)
        assert closed(server, "room") >= 1


def test_a_low_limit_of_open_files_does_not_let_idle_connections_keep_others_out(store: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", 'ulimit -n 256; exec "$0" -m isosim.cli serve', sys.executable]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(command, tmp_path, model_store=store, encoder="tiny"))
        assert "at most 64 connections are accepted, not 4096" in server.log.read_text()
        for _ in range(300):
            idle = stack.enter_context(connected(server))
            idle.sendall(GET)
            assert status(idle.recv(65536)) == 200
        assert httpx.get(server.url + "/domains", timeout=PATIENCE).status_code == 200
        assert "Too many open files" not in server.log.read_text()


def test_two_thousand_connections_are_answered_where_the_hard_limit_of_open_files_allows_them(
    store: Path, tmp_path: Path
) -> None:
    command = ["sh", "-c", 'ulimit -Sn 256; exec "$0" -m isosim.cli serve', sys.executable]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(command, tmp_path, model_store=store, encoder="tiny"))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        connections = [stack.enter_context(connected(server)) for _ in range(2000)]
        for connection in connections:
            connection.sendall(GET)
        assert {status(connection.recv(65536)) for connection in connections} == {200}
        assert "Too many open files" not in server.log.read_text()


def full(server: Server) -> bool:
    with connected(server) as connection:
        connection.sendall(GET)
        answer = until_closed(connection) if (first := connection.recv(65536)).startswith(b"HTTP/1.1 503") else first
        return first.startswith(b"HTTP/1.1 503") and b"retry-after" in first and answer == b""


def numbered(request: bytes, count: int) -> bytes:
    return b"".join(request.replace(b"\r\n", b"\r\nx-request-id: n%d\r\n" % n, 1) for n in range(count))


def order_of(answers: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"x-request-id: n(\d+)\r\n", answers)]


@pytest.mark.parametrize("request_", [GET, SCORED], ids=["GET", "POST"])
@pytest.mark.parametrize("size", [37, 10**6], ids=["in pieces", "at once"])
def test_sixteen_requests_sent_ahead_are_answered_in_order(strict: Server, request_: bytes, size: int) -> None:
    sent, answers = numbered(request_, 16), b""
    with connected(strict) as connection:
        for start in range(0, len(sent), size):
            connection.sendall(sent[start : start + size])
        while answers.count(b"HTTP/1.1 200") < 16:
            answers += connection.recv(65536)
    assert order_of(answers) == list(range(16))


def test_a_connection_with_more_unanswered_requests_is_closed(strict: Server) -> None:
    before = closed(strict, "pipelining")
    with connected(strict) as connection:
        connection.sendall(numbered(GET, 200))
        assert order_of(until_closed(connection)) == []
    assert closed(strict, "pipelining") == before + 1


def test_requests_sent_ahead_by_clients_who_never_read_take_neither_memory_nor_time(serve: Serve, store: Path) -> None:
    """Ten thousand requests each are closed at once; sixteen each are answered, and no more is read."""
    server = serve(model_store=store, encoder="tiny")
    for _ in range(5):
        server.client.get("/livez")
    before = server.resident_bytes()
    with contextlib.ExitStack() as stack:
        for count in [10_000] * 50 + [16] * 50:
            sender = stack.enter_context(connected(server))
            sender.setblocking(False)
            with contextlib.suppress(OSError):
                sender.send(b"GET /x HTTP/1.1\r\nhost:x\r\n\r\n" * count)
        slowest, most, begun = 0.0, before, time.monotonic()
        while time.monotonic() < begun + 3:
            asked = time.monotonic()
            assert server.client.get("/livez").status_code == 200
            slowest = max(slowest, time.monotonic() - asked)
            most = max(most, server.resident_bytes())
    assert most - before < 20 * 2_000_000
    assert slowest < 2  # on a machine that is busy; a quiet one took 0.13 (loadtest/README.md)


def test_an_invalid_request_ends_the_connection_after_the_answers_to_those_before_it(strict: Server) -> None:
    for invalid in (b"no request\r\n\r\n", CHUNKED + b"3\r\nabc\r\nno size\r\n", HEAD + b"x: " + b"y" * 120_000):
        with connected(strict) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(numbered(SCORED, 3) + invalid + GET)
            answers = until_closed(connection)
        assert order_of(answers) == [0, 1, 2]
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", answers)
        assert statuses[:3] == [b"200"] * 3
        assert statuses[3:] in ([], [b"400"], [b"431"])  # an error of its own only if nothing was waited for any more
        assert answers.count(b"connection: close\r\n") == 1


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize(
    ("sent", "then", "expected"),
    [
        # What two servers might read differently.
        (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"", 400),
        (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n12345", b"", 400),
        (HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", b"", 400),
        (HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", b"", 400),
        (HEAD + b"content-length: +5\r\n\r\n12345", b"", 400),
        (HEAD + b"content-length: -1\r\n\r\n", b"", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx\0y: 1\r\n\r\n", b"", 400),
        (b"GET / HTTP/9.9\r\n\r\n", b"", 400),
        (b"\x16\x03\x01 a TLS hello\r\n\r\n", b"", 400),
        # A body that becomes invalid, and one that ends after its answer.
        (CHUNKED + b"3\r\nabc\r\n", b"no size\r\n", 400),
        (HEAD.replace(b"/similarity", b"/nope") + b"content-length: 10\r\n\r\n12345", b"67890", 404),
        # After an Upgrade header comes a body: it is not valid JSON, or is not read, and is not a second request.
        (HEAD + UPGRADE + b"content-length: %d\r\n\r\n" % len(GET), GET, 422),
        (b"CONNECT /livez HTTP/1.1\r\nhost: x\r\n\r\n", GET, 400),
    ],
    ids=count(),
)
def test_an_invalid_request_gets_one_answer_and_ends_its_connection(
    strict: Server, sent: bytes, then: bytes, expected: int
) -> None:
    with connected(strict) as connection:
        connection.sendall(sent)
        time.sleep(0.2 if then else 0)  # a segment of its own
        with contextlib.suppress(OSError):
            connection.sendall(then)
        answer = until_closed(connection)
    assert (status(answer), answer.count(b"HTTP/1.1")) == (expected, 1)


@pytest.mark.parametrize("upgrade", [UPGRADE, b"Connection: upgrade\r\nUPGRADE: websocket\r\nupgrade: a\r\n"])
def test_a_client_that_asks_for_another_protocol_is_answered_in_this_one(strict: Server, upgrade: bytes) -> None:
    """curl --http2 and Java's HttpClient ask for h2c with their first request; its body may come later."""
    start = HEAD + upgrade + b"content-length: %d\r\n\r\n" % len(BODY)
    with connected(strict) as connection:
        for sent in ([start + BODY], [start, BODY], [start[:70], start[70:] + BODY[:5], BODY[5:]]):
            for part in sent:
                connection.sendall(part)
                time.sleep(0.05)  # a segment of its own
            answer = answered(connection)
            assert (status(answer), b'"similarity"' in answer) == (200, True)
        chunked = CHUNKED.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n") + b"%x\r\n%s\r\n0\r\n\r\n" % (
            len(BODY),
            BODY,
        )
        closing = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n" + upgrade + b"\r\n")
        connection.sendall((start + BODY + chunked) * 5 + GET + closing)
        answers = until_closed(connection)
    assert answers.count(b"HTTP/1.1 200") == 12
    assert answers.count(b'"similarity"') == 10


@pytest.fixture(scope="module")
def locked(module_serve: Serve, module_store: Path) -> Server:
    keys = key_file(module_store.parent, {"k": "read"})
    return module_serve(model_store=module_store, encoder="tiny", api_keys_file=keys)


def test_a_trailer_is_not_taken_for_a_header(locked: Server) -> None:
    trailer = b"authorization: Bearer k\r\nx-request-id: trailer\r\n\r\n"
    with connected(locked) as connection:
        connection.sendall(CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY) + trailer)
        answer = answered(connection)
    assert (status(answer), b"x-request-id: trailer" in answer) == (401, False)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(b"0" * 5000 + b"5", 400), (b"0" * 20, 400), (b"9" * 5000, 400), (b"9" * 19, 413)],
    ids=count(),
)
def test_a_content_length_that_is_no_length_is_refused_before_the_key(
    locked: Server, length: bytes, expected: int
) -> None:
    for path in (b"/similarity", b"/calibrate", b"/domains/default/champion", b"/nope"):
        with connected(locked) as connection:
            connection.sendall(HEAD.replace(b"/similarity", path) + b"content-length: " + length + b"\r\n\r\n12345")
            connection.shutdown(socket.SHUT_WR)
            assert status(until_closed(connection)) == expected
    assert locked.client.get("/readyz").status_code == 200


def test_a_memory_of_slow_senders_is_bounded(locked: Server) -> None:
    """Three hundred bodies that stop short of their end, from clients without a key, hold little each."""
    before = locked.resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(connected(locked))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.send(HEAD + b"content-length: 1900000\r\n\r\n" + b"x" * 1_000_000)
        wait_until(lambda: metric(locked, "isosim_connections ") >= 300)
        assert locked.resident_bytes() - before < 300 * 400_000


NUMBERS = [b"", b"+5", b"0x5", b"5 5", b"5,5", b"5;5", b"1e3", b"\xb2", b"NaN", b"0" * 4301, b"7" * 9000]
TARGETS = [
    b"/similarity", b"/v1/models", b"/domains", b"/domains/default/threshold?fmr=", b"/livez", b"*", b"//", b"/%",
    b"http://x/livez", b"http://[::1", b"x:99999999", b"/%00%ff%2e%2e/", b"/v2/models/isosim/infer", b"/domains?limit=",
    b"/calibrate/", b"/console/../livez", b"/v1/models/isosim/default@", b"/domains/default/versions/",
]  # fmt: skip
METHODS = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"get", b"X"]
VALUES = {
    b"transfer-encoding": [b"chunked", b"Chunked", b"chunked, chunked", b"gzip", b""],
    b"expect": [b"100-continue", b"100-Continue, x", b"200", b""],
    b"connection": [b"close", b"upgrade", b"keep-alive, x", b",,,"],
    b"content-type": [b"application/json", b"text/plain; charset=\xff", b";;;", b""],
}
NAMES = [
    b"host", b"authorization", b"origin", b"x-request-id", b"x-isosim-split-key", b"content-encoding", b"cookie",
    b"inference-header-content-length", b"idempotency-key", b"traceparent", b"access-control-request-method",
    b"sec-fetch-site", b"if-none-match", b"range", b"accept-encoding", b"forwarded", b"x-forwarded-for", b"upgrade",
]  # fmt: skip
VERSIONS = [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b""]


def odd(most: int) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=most).map(lambda some: re.sub(rb"[\r\n]", b"", some))


ODD = odd(40)
NUMBER = st.one_of(
    st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n), st.sampled_from(NUMBERS),
    st.integers(0, 6000).map(lambda n: b"0" * n + b"5"), odd(20),
)  # fmt: skip
HEADER = st.one_of(
    st.tuples(st.just(b"content-length"), NUMBER),
    *(st.tuples(st.just(name), st.sampled_from(values)) for name, values in VALUES.items()),
    st.tuples(st.sampled_from(NAMES), ODD | NUMBER),
    st.tuples(st.integers(0, 600).map(lambda n: b"x" * n), ODD),
)
CHUNK = st.builds(b"%b\r\n%b\r\n".__mod__, st.tuples(NUMBER | st.integers(0, 2**70).map(lambda n: b"%x" % n), ODD))
BODIES = st.one_of(st.just(BODY), ODD, st.lists(CHUNK, max_size=3).map(b"".join))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    headers = draw(st.lists(HEADER, max_size=6)) * draw(st.sampled_from([1, 1, 1, 500]))
    target = draw(st.sampled_from(TARGETS) | ODD.map(lambda some: b"/" + some)) + draw(st.just(b"") | NUMBER)
    first = b" ".join([draw(st.sampled_from(METHODS)), target, draw(st.sampled_from(VERSIONS))])
    return b"\r\n".join([first, b"host: x", *(b": ".join(pair) for pair in headers), b"", b""]) + draw(BODIES)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sent=st.lists(requests(), min_size=1, max_size=3).map(b"".join))
def test_no_request_makes_the_server_fail_or_hang(tiny_server: Server, sent: bytes) -> None:
    """Numbers, headers and targets as no client should send them: refused or answered, never a 5xx or silence."""
    with connected(tiny_server) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        answers = until_closed(connection)
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]
    assert all(100 <= status < 500 for status in statuses), answers[:2000]
    assert tiny_server.client.get("/livez").status_code == 200
