"""A reader of the log that is slow, stops or leaves never holds up who logs."""

import os
import select
import threading
import time
from collections.abc import Iterator

import pytest

from isosim.observability.logs import LineFormatter, LineQueue
from tests.processes import wait_until

LINE = b"x" * 299 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading and writing end. Not closed: the queue's thread may still write."""
    yield os.pipe()


def queue(pipe: tuple[int, int], capacity: int = 10_000) -> LineQueue:
    return LineQueue(LineFormatter("json"), pipe[1], capacity)


def read(fd: int, wanted: int) -> bytes:
    found = b""
    while len(found) < wanted:
        found += os.read(fd, 65536)
    return found


def test_lines_arrive_whole_and_in_order(pipe: tuple[int, int]) -> None:
    lines = queue(pipe)
    written = [b"%d " % number + b"y" * (number % 700) + b"\n" for number in range(2000)]
    for line in written:
        lines.enqueue(line)
    assert read(pipe[0], sum(map(len, written))) == b"".join(written)
    assert lines.dropped == 0


def test_logging_never_waits_for_a_reader_that_has_stopped_and_what_does_not_fit_is_counted(
    pipe: tuple[int, int],
) -> None:
    lines, slowest = queue(pipe, 100), 0.0
    for _ in range(2000):  # the pipe's 64 KiB and the queue hold a fifth of them
        start = time.perf_counter()
        lines.enqueue(LINE)
        slowest = max(slowest, time.perf_counter() - start)
    assert slowest < 0.5
    dropped = lines.dropped
    assert dropped > 1000
    kept = (2000 - dropped) * len(LINE)
    assert len(read(pipe[0], kept)) == kept
    lines.enqueue(b"again\n")
    assert read(pipe[0], 6) == b"again\n"
    assert lines.dropped == dropped


def test_a_flush_waits_until_lines_are_written_and_gives_up_in_time(pipe: tuple[int, int]) -> None:
    lines = queue(pipe)
    for _ in range(3):
        lines.enqueue(LINE)
        start = time.monotonic()
        lines.flush(10.0)
        assert time.monotonic() - start < 5
        assert select.select([pipe[0]], [], [], 0.0)[0]
        assert read(pipe[0], len(LINE)) == LINE
    for _ in range(1000):
        lines.enqueue(LINE)
    start = time.monotonic()
    lines.flush(0.2)
    assert time.monotonic() - start < 5


def test_a_reader_that_left_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    lines = queue(pipe)
    os.close(pipe[0])
    lines.enqueue(LINE)
    wait_until(lambda: lines.dropped == 1)


def test_lines_of_two_processes_do_not_tear_each_other(pipe: tuple[int, int]) -> None:
    """A server and its worker share stderr: each write is one that a pipe takes whole."""
    lines = queue(pipe)
    mine = [b"a%04d" % number + b"a" * 500 + b"\n" for number in range(2000)]
    theirs = [b"b%04d" % number + b"b" * 500 + b"\n" for number in range(500)]
    other = threading.Thread(target=lambda: [os.write(pipe[1], line) for line in theirs])
    other.start()
    for line in mine:
        lines.enqueue(line)
    found = read(pipe[0], sum(map(len, [*mine, *theirs]))).splitlines(keepends=True)
    assert sorted(found) == sorted([*mine, *theirs])
    other.join()
