"""Clients that are slow, silent or without end: none of them holds a connection or memory for ever."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.load import metric
from tests.processes import Serve, Server, environment, free_port, wait_until
from tests.security.conftest import key_line

HEAD = b"POST /similarity HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"pairs": [["a boat", "a gate"]]}).encode()
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


@contextlib.contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), PATIENCE) as made:
        yield made


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


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_connection_that_says_nothing_is_closed(strict: Server) -> None:
    before = closed(strict, "headers")
    with connected(strict) as connection:
        assert until_closed(connection) == b""
    assert closed(strict, "headers") == before + 1


def test_headers_a_byte_at_a_time_are_given_up(strict: Server) -> None:
    with connected(strict) as connection:
        answer = drip(connection, HEAD + b"x: " + b"y" * 1000, 0.1)
    assert status_of(answer) == 408
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error_type"] == "Validation"


def test_a_body_a_byte_at_a_time_is_given_up(strict: Server) -> None:
    before = closed(strict, "body")
    with connected(strict) as connection:
        connection.sendall(HEAD + b"content-length: 100000\r\n\r\n")
        assert status_of(drip(connection, b"x" * 1000, 0.1)) == 408
    assert closed(strict, "body") == before + 1
    left = 'isosim_request_duration_seconds_count{route="/similarity",status="499"}'
    wait_until(lambda: left in strict.client.get("/metrics").text)


def test_a_body_in_chunks_a_byte_at_a_time_is_given_up(strict: Server) -> None:
    with connected(strict) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        assert status_of(drip(connection, b"1\r\nx\r\n" * 1000, 0.1)) == 408


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
     HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"e" * 200_000,
     HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nt: " + b"e" * 200_000],
    ids=["request line", "header", "headers", "chunk extension", "trailer"],
)  # fmt: skip
def test_what_stands_before_and_around_a_body_has_an_end(strict: Server, endless: bytes) -> None:
    before = closed(strict, "headers")
    with connected(strict) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(endless)
        answer = until_closed(connection)
    if answer:  # it is lost where the kernel resets what was still being sent
        assert status_of(answer) in (400, 431)
    assert closed(strict, "headers") <= before + 1


def test_an_idle_connection_is_closed_and_a_used_one_is_kept(strict: Server) -> None:
    with connected(strict) as connection:
        for _ in range(3):
            connection.sendall(GET)
            assert status_of(answered(connection)) == 200
            time.sleep(0.7)  # together longer than any limit of one request
        begun = time.monotonic()
        assert until_closed(connection) == b""
        assert time.monotonic() - begun < PATIENCE


def test_a_body_that_ends_after_its_answer_does_not_leave_the_connection_open_for_ever(strict: Server) -> None:
    with connected(strict) as connection:
        connection.sendall(HEAD.replace(b"/similarity", b"/nope") + b"content-length: 10\r\n\r\n12345")
        assert status_of(answered(connection)) == 404
        time.sleep(0.3)
        connection.sendall(b"67890")
        assert until_closed(connection) == b""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers with other limits for connections, and with settings."""
    with contextlib.ExitStack() as stack:
        yield lambda limits, **settings: stack.enter_context(started(with_limits(**limits), tmp_path, **settings))


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
            busy.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY[:1])  # within its second
        wait_until(lambda: full(strict), seconds=5, every=0.01)


def test_strangers_who_were_answered_and_send_on_keep_nobody_out(guarded: Callable[..., Server], store: Path) -> None:
    """Once answered, a body that does not end makes room like an idle connection, and has seconds left."""
    keys = store.parent / "keys"
    keys.write_text(key_line("k", "read"))
    limits = {"body_timeout": 300, "max_connections": 8}
    server = guarded(limits, model_store=store, encoder="tiny", api_keys_file=keys)
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(20):
            stranger = stack.enter_context(connected(server))
            strangers.append(stranger)
            stranger.sendall(HEAD + b"content-length: 1000000\r\n\r\n")
            assert status_of(answered(stranger)) == 401
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
            assert status_of(idle.recv(65536)) == 200
        assert httpx.get(server.url + "/domains", timeout=PATIENCE).status_code == 200
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


@pytest.mark.parametrize(
    "request_", [GET, HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY], ids=["GET", "POST"]
)
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
    scored = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\nno size\r\n"
    for invalid in (b"no request\r\n\r\n", chunked, HEAD + b"x: " + b"y" * 120_000):
        with connected(strict) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(numbered(scored, 3) + invalid + GET)
            answers = until_closed(connection)
        assert order_of(answers) == [0, 1, 2]
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", answers)
        assert statuses[:3] == [b"200"] * 3
        assert statuses[3:] in ([], [b"400"], [b"431"])  # an error of its own only if nothing was waited for any more
        assert answers.count(b"connection: close\r\n") == 1


def test_a_request_whose_body_becomes_invalid_is_refused_once(strict: Server) -> None:
    with connected(strict) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        time.sleep(0.1)
        connection.sendall(b"no size\r\n")
        answer = until_closed(connection)
    assert status_of(answer) == 400
    assert answer.count(b"HTTP/1.1") == 1


@pytest.fixture(scope="module")
def locked(module_serve: Serve, module_store: Path) -> Server:
    keys = module_store.parent / "keys"
    keys.write_text(key_line("k", "read"))
    return module_serve(model_store=module_store, encoder="tiny", api_keys_file=keys)


def test_a_trailer_is_not_taken_for_a_header(locked: Server) -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    with connected(locked) as connection:
        connection.sendall(chunked + b"authorization: Bearer k\r\nx-request-id: trailer\r\n\r\n")
        answer = answered(connection)
    assert status_of(answer) == 401
    assert b"x-request-id: trailer" not in answer


@pytest.mark.parametrize(
    "length", [b"0" * 5000 + b"5", b"0" * 20, b"9" * 5000, b"9" * 19], ids=["", "20", "nines", "19"]
)
def test_a_content_length_that_is_no_length_is_refused_before_the_key(locked: Server, length: bytes) -> None:
    for path in (b"/similarity", b"/calibrate", b"/domains/default/champion", b"/nope"):
        with connected(locked) as connection:
            connection.sendall(HEAD.replace(b"/similarity", path) + b"content-length: " + length + b"\r\n\r\n12345")
            connection.shutdown(socket.SHUT_WR)
            assert status_of(until_closed(connection)) == (413 if length == b"9" * 19 else 400)
    assert locked.client.get("/readyz").status_code == 200


NUMBER = st.one_of(
    st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n),
    st.sampled_from([b"", b"+5", b"0x5", b"5 5", b"5,5", b"5;5", b"1e3", b"\xb2", b"NaN", b"0" * 4301, b"7" * 9000]),
    st.integers(0, 6000).map(lambda n: b"0" * n + b"5"),
    st.binary(max_size=20).map(lambda some: re.sub(rb"[\r\n]", b"", some)),
)
ODD = st.binary(max_size=40).map(lambda some: re.sub(rb"[\r\n]", b"", some))
TARGET = st.one_of(
    st.sampled_from(
        [b"/similarity", b"/v1/models", b"/domains", b"/domains/default/threshold?fmr=", b"/livez", b"*", b"//", b"/%",
         b"http://x/livez", b"http://[::1", b"x:99999999", b"/%00%ff%2e%2e/", b"/v2/models/isosim/infer",
         b"/domains?limit=",
         b"/calibrate/", b"/console/../livez", b"/v1/models/isosim/default@", b"/domains/default/versions/"]
    ),
    ODD.map(lambda some: b"/" + some),
)  # fmt: skip
METHOD = st.sampled_from(
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"get", b"X"]
)
HEADER = st.one_of(
    st.tuples(st.just(b"content-length"), NUMBER),
    st.tuples(
        st.just(b"transfer-encoding"), st.sampled_from([b"chunked", b"Chunked", b"chunked, chunked", b"gzip", b""])
    ),
    st.tuples(st.just(b"expect"), st.sampled_from([b"100-continue", b"100-Continue, x", b"200", b""])),
    st.tuples(st.just(b"connection"), st.sampled_from([b"close", b"upgrade", b"keep-alive, x", b",,,"])),
    st.tuples(st.just(b"upgrade"), ODD),
    st.tuples(
        st.just(b"content-type"), st.sampled_from([b"application/json", b"text/plain; charset=\xff", b";;;", b""])
    ),
    st.tuples(
        st.sampled_from(
            [b"host", b"authorization", b"origin", b"x-request-id", b"x-isosim-split-key", b"content-encoding",
             b"cookie",
             b"inference-header-content-length", b"idempotency-key", b"traceparent", b"access-control-request-method",
             b"sec-fetch-site", b"if-none-match", b"range", b"accept-encoding", b"forwarded", b"x-forwarded-for"]
        ),
        ODD | NUMBER,
    ),
    st.tuples(st.integers(0, 600).map(lambda n: b"x" * n), ODD),
)  # fmt: skip
CHUNK = st.tuples(st.one_of(NUMBER, st.integers(0, 2**70).map(lambda n: b"%x" % n)), ODD).map(
    lambda pair: pair[0] + b"\r\n" + pair[1] + b"\r\n"
)
BODIES = st.one_of(st.just(BODY), ODD, st.lists(CHUNK, max_size=3).map(b"".join))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    version = draw(
        st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b""])
    )
    headers = draw(st.lists(HEADER, max_size=6)) * draw(st.sampled_from([1, 1, 1, 500]))
    target = draw(TARGET) + draw(st.one_of(st.just(b""), NUMBER))
    lines = [draw(METHOD) + b" " + target + b" " + version, b"host: x", *(b": ".join(pair) for pair in headers)]
    return b"\r\n".join([*lines, b"", b""]) + draw(BODIES)


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


@pytest.mark.parametrize(
    "smuggled",
    [HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
     HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n12345",
     HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
     HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
     HEAD + b"content-length: +5\r\n\r\n12345", HEAD + b"content-length: -1\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: x\r\nx\0y: 1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01 a TLS hello\r\n\r\n"],
)  # fmt: skip
def test_what_two_servers_might_read_differently_is_refused(strict: Server, smuggled: bytes) -> None:
    with connected(strict) as connection:
        connection.sendall(smuggled)
        answer = until_closed(connection)
    assert status_of(answer) == 400
    assert answer.count(b"HTTP/1.1") == 1


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("upgrade", [UPGRADE, b"Connection: upgrade\r\nUPGRADE: websocket\r\nupgrade: a\r\n"])
def test_a_client_that_asks_for_another_protocol_is_answered_in_this_one(strict: Server, upgrade: bytes) -> None:
    """curl --http2 and Java's HttpClient ask for h2c with their first request; its body may come later."""
    head = HEAD + upgrade + b"content-length: %d\r\n\r\n" % len(BODY)
    with connected(strict) as connection:
        for sent in ([head + BODY], [head, BODY], [head[:70], head[70:] + BODY[:5], BODY[5:]]):
            for part in sent:
                connection.sendall(part)
                time.sleep(0.05)  # a segment of its own
            answer = answered(connection)
            assert status_of(answer) == 200
            assert b'"similarity"' in answer
        chunked = HEAD + upgrade + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
        closing = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n" + upgrade + b"\r\n")
        connection.sendall((head + BODY + chunked) * 5 + GET + closing)
        answers = until_closed(connection)
    assert answers.count(b"HTTP/1.1 200") == 12
    assert answers.count(b'"similarity"') == 10


@pytest.mark.parametrize(
    "head",
    [HEAD + UPGRADE + b"content-length: %d\r\n\r\n" % len(GET), b"CONNECT /livez HTTP/1.1\r\nhost: x\r\n\r\n"],
    ids=["upgrade", "tunnel"],
)
def test_what_follows_a_wish_for_another_protocol_is_not_taken_for_a_request(strict: Server, head: bytes) -> None:
    with connected(strict) as connection:
        connection.sendall(head)
        time.sleep(0.1)  # a segment of its own
        with contextlib.suppress(OSError):
            connection.sendall(GET)
        answer = until_closed(connection)
    assert status_of(answer) in (400, 422)  # a tunnel; a body that is no JSON
    assert answer.count(b"HTTP/1.1") == 1


def test_a_memory_of_slow_senders_is_bounded(serve: Serve, store: Path) -> None:
    """Three hundred bodies that stop short of their end, from clients without a key, hold little each."""
    keys = store.parent / "keys"
    keys.write_text(key_line("k", "read"))
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    server.client.get("/readyz")
    before = server.resident_bytes()
    with contextlib.ExitStack() as stack:
        connections: list[Any] = []
        for _ in range(300):
            connection = stack.enter_context(connected(server))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.send(HEAD + b"content-length: 1900000\r\n\r\n" + b"x" * 1_000_000)
            connections.append(connection)
        wait_until(lambda: metric(server, "isosim_connections ") >= 300)
        assert server.resident_bytes() - before < 300 * 400_000
