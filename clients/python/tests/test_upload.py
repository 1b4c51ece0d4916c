"""Text is made while it is sent, by either client, and is the same whichever way it was given."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from stubs import Stub, job, response, says

from isosim_client import AsyncClient, Client
from isosim_client._upload import CHUNK, Upload

LINE = "A sentence of one hundred characters, more or less, that is followed by many others of its own kind.\n"
LINES = 300_000  # 30 MB


class Meter(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Reads a body piece by piece and forgets it; `lead` is the most that was made before it was asked for."""

    def __init__(self) -> None:
        self.made = self.taken = self.lead = 0

    def lines(self) -> Iterator[str]:
        for _ in range(LINES):
            self.made += 1
            yield LINE

    def take(self, chunk: bytes) -> None:
        self.lead = max(self.lead, self.made - self.taken // len(LINE))
        self.taken += len(chunk)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.SyncByteStream)
        for chunk in request.stream:
            self.take(chunk)
        return response(202, job("queued"))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        async for chunk in request.stream:
            self.take(chunk)
        return response(202, job("queued"))


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> object:
    """Posts a calibration of a source with either client."""

    def plain(meter: Meter, source: object) -> None:
        Client(transport=meter).calibrate(source, domain="large")  # type: ignore[arg-type]

    def awaited(meter: Meter, source: object) -> None:
        asyncio.run(AsyncClient(transport=meter).calibrate(source, domain="large"))  # type: ignore[arg-type]

    return plain if request.param == "sync" else awaited


def test_sentences_are_made_as_they_are_sent(send) -> None:  # type: ignore[no-untyped-def]
    meter = Meter()
    send(meter, meter.lines())
    assert meter.made == LINES
    assert meter.lead <= 2 * CHUNK / len(LINE)


def test_a_large_file_is_not_held_in_memory(send, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "large.txt"
    path.write_text(LINE * LINES)
    meter = Meter()
    tracemalloc.start()
    send(meter, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert meter.taken == path.stat().st_size
    assert peak < 3_000_000  # of 30 MB


def body(source: object, labels: object = ()) -> tuple[str, bytes]:
    upload = Upload(source, labels)  # type: ignore[arg-type]
    return upload.content_type, b"".join(upload.chunks())


LABELS = [("a", "b", 1)]
LABEL_LINE = b'{"a":"a","b":"b","label":1}\n'


def test_a_file_goes_as_it_is(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\ntwo\n\nthree"
    (tmp_path / "t.txt").write_bytes(content)
    assert body(tmp_path / "t.txt") == ("text/plain", content)
    (tmp_path / "t.jsonl").write_bytes(b'"one"\n{"text": "two"}')
    assert body(tmp_path / "t.jsonl") == ("application/x-ndjson", b'"one"\n{"text": "two"}')


def test_labels_follow_the_text_as_ndjson(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("\ufeffone\r\ntwö\n".encode())
    (tmp_path / "t.ndjson").write_bytes(b'"one"\n"two"')
    assert body(["one"], LABELS) == ("application/x-ndjson", b'"one"\n' + LABEL_LINE)
    assert body(tmp_path / "t.txt", LABELS) == ("application/x-ndjson", '"one"\n"twö"\n'.encode() + LABEL_LINE)
    assert body(tmp_path / "t.ndjson", LABELS) == ("application/x-ndjson", b'"one"\n"two"\n' + LABEL_LINE)


def test_a_sentence_may_hold_a_line_break() -> None:
    assert body(["one\nsentence"])[1] == b'"one\\nsentence"\n'


def test_what_can_be_read_again_is_sent_again(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("one\n")
    for source in (tmp_path / "t.txt", ["one"], dict.fromkeys(["one"])):
        upload = Upload(source)
        assert b"".join(upload.chunks()) == b"".join(upload.chunks())
        assert not upload.spent
    with (tmp_path / "t.txt").open() as lines:
        upload = Upload(lines)
        assert not upload.spent  # a connection that failed before has taken nothing
        next(upload.chunks())
        assert upload.spent


class RefusingOnce(httpx2.BaseTransport):
    """Makes no connection the first time, so that nothing of the body is read."""

    def __init__(self) -> None:
        self.calls = 0
        self.content = b""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.calls += 1
        if self.calls == 1:
            raise httpx2.ConnectError("refused")
        self.content = request.read()
        return response(202, job("queued"))


def test_an_iterator_that_was_not_touched_is_sent_again() -> None:
    transport = RefusingOnce()
    with Client(transport=transport, sleep=lambda _: None) as client:
        client.calibrate(iter(["a"]), domain="d")
    assert (transport.calls, transport.content) == (2, b'"a"\n')


def test_what_the_callers_source_raises_reaches_the_caller(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise LookupError("the database is away")

    client = Stub(says(202, job("queued"))).client()
    with pytest.raises(LookupError, match="database"):
        client.calibrate(broken(), domain="d")
    with pytest.raises(FileNotFoundError):
        client.calibrate(tmp_path / "missing.txt", domain="d")


def test_the_options_travel_in_the_query() -> None:
    stub = Stub(says(202, job("queued")))
    stub.client().calibrate(["a"], domain="d", method="flow", promote="never", seed=7)
    request = stub.requests[0]
    assert dict(request.url.params) == {
        "domain": "d", "method": "flow", "promote": "never", "seed": "7", "kind": "matches",
    }  # fmt: skip
    assert request.headers["content-type"] == "application/x-ndjson"
    assert request.headers["transfer-encoding"] == "chunked"


def test_a_table_is_sent_on_purpose_only() -> None:
    stub = Stub(says(202, job("queued")), says(202, job("queued")))
    stub.client().calibrate(["1,a"], domain="d")
    stub.client().calibrate(["1,a"], domain="d", force=True)
    assert [dict(request.url.params).get("force") for request in stub.requests] == [None, "true"]


def test_a_slow_source_does_not_hold_the_event_loop() -> None:
    async def use() -> int:
        ticks, done = 0, asyncio.Event()

        def slow() -> Iterator[str]:
            import time

            for _ in range(5):
                time.sleep(0.02)
                yield "a" * CHUNK

        async def tick() -> None:
            nonlocal ticks
            while not done.is_set():
                ticks += 1
                await asyncio.sleep(0.005)

        task = asyncio.create_task(tick())
        client = AsyncClient(transport=Meter())
        await client.calibrate(slow(), domain="d")
        done.set()
        await task
        return ticks

    assert asyncio.run(use()) >= 8


def test_a_table_is_posted_alone(tmp_path: Path) -> None:
    (tmp_path / "tickets.csv").write_text("id,text\n1,a b c\n")
    assert Upload(tmp_path / "tickets.csv").content_type == "application/octet-stream"
    with pytest.raises(TypeError, match="add_labels"):
        Upload(tmp_path / "tickets.csv", [("a", "b", 1)])
    with pytest.raises(TypeError, match="a table must be a file"):
        Upload(["a sentence"], read=True)


def test_lines_under_any_other_name_may_have_labels_beside_them(tmp_path: Path) -> None:
    (tmp_path / "corpus.de").write_text("Wo ist meine Rechnung?\n")
    assert Upload(tmp_path / "corpus.de").content_type == "application/octet-stream"
    upload = Upload(tmp_path / "corpus.de", [("a", "b", 1)])
    assert upload.content_type == "application/x-ndjson"
    assert b"".join(upload.chunks()).splitlines()[0] == b'"Wo ist meine Rechnung?"'


def test_the_case_of_a_suffix_makes_no_difference(tmp_path: Path) -> None:
    assert Upload(tmp_path / "TICKETS.JSONL").content_type == "application/x-ndjson"
    assert Upload(tmp_path / "TICKETS.CSV").content_type == "application/octet-stream"


def test_a_text_that_is_not_utf_8_is_sent_as_a_file_whose_encoding_the_server_finds_out(tmp_path: Path) -> None:
    (tmp_path / "utf16.txt").write_text("café\n", encoding="utf-16")
    (tmp_path / "utf8.txt").write_text("café\n", encoding="utf-8")
    assert Upload(tmp_path / "utf16.txt").content_type == "application/octet-stream"
    assert Upload(tmp_path / "utf8.txt").content_type == "text/plain"


def test_bytes_and_one_string_for_labels_are_told_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"one\ntwo\n")
    with Stub(says(202, job("queued"))).client() as client:
        with pytest.raises(TypeError, match=r"the sentences are bytes; give pathlib.Path"):
            client.calibrate((tmp_path / "lines.txt").open("rb"), domain="d")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"give a list of labelled pairs, .* not one string; .*isosim label FILE"):
            client.add_labels("d", "good.tsv")  # type: ignore[arg-type]
