"""The body of a calibration is made while it is sent, by both clients, and is the same for every kind of source."""

import asyncio
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from stubs import Stub, job, response, says

from isosim_client import AsyncClient, Client
from isosim_client._upload import CHUNK, Upload

LINE = "A sentence of one hundred characters, more or less, that is followed by many others of its own kind.\n"
LINES = 100_000  # 10 MB


class Meter(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Reads a body piece by piece and forgets it. `lead` is the most lines that were made before they were read."""

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


def post(kind: type[Client | AsyncClient], meter: Meter, source: Any) -> None:
    client = kind(transport=meter)
    posted = client.calibrate(source, domain="large")
    if isinstance(client, AsyncClient):
        asyncio.run(posted)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_sentences_are_made_as_they_are_sent(kind: type[Client | AsyncClient]) -> None:
    meter = Meter()
    post(kind, meter, meter.lines())
    assert meter.made == LINES
    assert meter.lead <= 2 * CHUNK / len(LINE)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_large_file_is_not_held_in_memory(kind: type[Client | AsyncClient], tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text(LINE * LINES)
    meter = Meter()
    tracemalloc.start()
    post(kind, meter, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert meter.taken == path.stat().st_size
    assert peak < 3_000_000  # of 10 MB


def test_a_slow_source_does_not_hold_the_event_loop() -> None:
    def slow() -> Iterator[str]:
        for _ in range(5):
            time.sleep(0.02)
            yield "a" * CHUNK

    async def use() -> int:
        ticks, posted = 0, asyncio.create_task(AsyncClient(transport=Meter()).calibrate(slow(), domain="d"))
        while not posted.done():
            ticks += 1
            await asyncio.sleep(0.005)
        return ticks

    assert asyncio.run(use()) >= 8


LABELS = [("a", "b", 1)]
LABEL_LINE = b'{"a":"a","b":"b","label":1}\n'
NDJSON, TEXT, DETECTED = "application/x-ndjson", "text/plain", "application/octet-stream"


def body(source: Any, labels: Any = ()) -> tuple[str, bytes]:
    upload = Upload(source, labels)
    return upload.content_type, b"".join(upload.chunks())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t.txt", TEXT), ("T.TXT", TEXT), ("t", TEXT), ("t.jsonl", NDJSON), ("T.NDJSON", NDJSON), ("t.csv", DETECTED),
        ("t.xlsx", DETECTED), ("corpus.de", DETECTED),
    ],
)  # fmt: skip
def test_a_file_is_sent_unchanged_with_the_type_of_its_suffix(name: str, kind: str, tmp_path: Path) -> None:
    content = "\ufeffone\r\ntwö\n\n3".encode("utf-16")
    (tmp_path / name).write_bytes(content)
    assert body(tmp_path / name) == (kind, content)
    assert Upload(tmp_path / name, read=True).content_type == DETECTED


@pytest.mark.parametrize("name", ["t.txt", "corpus.de"])
def test_labels_follow_the_sentences_as_ndjson(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes("\ufeffone\r\ntwö\n".encode())
    (tmp_path / "t.ndjson").write_bytes(b'"one"\n"two"')
    assert body(["one"], LABELS) == (NDJSON, b'"one"\n' + LABEL_LINE)
    assert body(tmp_path / name, LABELS) == (NDJSON, '"one"\n"twö"\n'.encode() + LABEL_LINE)
    assert body(tmp_path / "t.ndjson", LABELS) == (NDJSON, b'"one"\n"two"\n' + LABEL_LINE)


def test_a_table_is_a_file_and_is_sent_without_labels(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="add_labels"):
        Upload(tmp_path / "tickets.csv", LABELS)
    with pytest.raises(TypeError, match="add_labels"):
        Upload(tmp_path / "tickets.txt", LABELS, read=True)
    with pytest.raises(TypeError, match="a table must be a file"):
        Upload(["a sentence"], read=True)


def test_a_sentence_may_have_a_line_break() -> None:
    assert body(["one\nsentence"]) == (NDJSON, b'"one\\nsentence"\n')


def test_a_source_that_can_be_read_again_is_sent_again(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("one\n")
    for source in (tmp_path / "t.txt", ["one"], dict.fromkeys(["one"])):
        upload = Upload(source)
        assert b"".join(upload.chunks()) == b"".join(upload.chunks())
        assert not upload.spent
    with (tmp_path / "t.txt").open() as lines:
        upload = Upload(lines)
        assert not upload.spent  # a connection that failed before has read nothing
        next(upload.chunks())
        assert upload.spent


def test_an_error_of_the_source_reaches_the_caller(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise LookupError("the database is away")

    stub = Stub(says(202, job("queued")))
    with pytest.raises(LookupError, match="database"):
        stub.ask(lambda client: client.calibrate(broken(), domain="d"))
    with pytest.raises(FileNotFoundError):
        stub.ask(lambda client: client.calibrate(tmp_path / "missing.txt", domain="d"))
