"""A reader of the log that is slow, stops or leaves never holds up who logs."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from isosim.observability.sink import PAUSE, PIECE, QueuedSink
from tests.processes import wait_until

LINE = b"x" * 299 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading and writing end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # the test has closed it


def read(fd: int, wanted: int) -> bytes:
    found = b""
    while len(found) < wanted:
        found += os.read(fd, 65536)
    return found


def test_lines_arrive_whole_and_in_order(pipe: tuple[int, int]) -> None:
    sink = QueuedSink(pipe[1])
    lines = [b"%d " % number + b"y" * (number % 700) + b"\n" for number in range(2000)]
    writer = threading.Thread(target=lambda: [sink.write(line) for line in lines])
    writer.start()
    assert read(pipe[0], sum(map(len, lines))) == b"".join(lines)
    writer.join()
    assert sink.dropped == 0
    sink.close()


def test_nobody_waits_for_a_reader_that_has_stopped_and_what_does_not_fit_is_counted(pipe: tuple[int, int]) -> None:
    capacity = 100 * len(LINE)
    sink = QueuedSink(pipe[1], capacity)
    slowest = 0.0
    for _ in range(2000):  # the pipe's 64 KiB and the queue hold a fifth of them
        start = time.perf_counter()
        sink.write(LINE)
        slowest = max(slowest, time.perf_counter() - start)
    assert slowest < 0.5
    dropped = sink.dropped
    assert dropped > 1000
    kept = (2000 - dropped) * len(LINE)
    assert len(read(pipe[0], kept)) == kept
    sink.write(b"again\n")
    assert read(pipe[0], 6) == b"again\n"
    assert sink.dropped == dropped
    sink.close()


def test_a_close_writes_what_waits_and_gives_up_in_time(pipe: tuple[int, int]) -> None:
    sink = QueuedSink(pipe[1])
    sink.write(b"last\n")
    sink.close()
    assert read(pipe[0], 5) == b"last\n"
    sink.write(b"later\n")  # by whatever ends after it
    assert read(pipe[0], 6) == b"later\n"
    stalled = QueuedSink(pipe[1])
    for _ in range(1000):
        stalled.write(LINE)
    start = time.monotonic()
    stalled.close(0.2)
    assert time.monotonic() - start < 5
    read(pipe[0], 1000 * len(LINE))  # or its writer goes on into the next test's pipe, which gets the same number


def test_a_close_is_heard_while_the_writer_pauses(pipe: tuple[int, int]) -> None:
    """A line's writing waits a moment for more lines; a process that ends within it need not wait out the close."""
    for part in range(1, 6):
        sink = QueuedSink(pipe[1])
        sink.write(LINE)
        time.sleep(PAUSE * part / 8)
        start = time.monotonic()
        sink.close(10.0)
        assert time.monotonic() - start < 5
        assert read(pipe[0], len(LINE)) == LINE


def test_a_reader_that_left_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    sink = QueuedSink(pipe[1])
    os.close(pipe[0])
    sink.write(LINE)
    wait_until(lambda: sink.dropped == 1)
    sink.close()


def test_lines_of_two_processes_do_not_tear_each_other(pipe: tuple[int, int]) -> None:
    """An API and its calibration share stderr: each piece is one a pipe takes whole."""
    sink = QueuedSink(pipe[1])
    mine = [b"a%04d" % number + b"a" * 500 + b"\n" for number in range(2000)]
    theirs = [b"b%04d" % number + b"b" * 500 + b"\n" for number in range(500)]
    other = threading.Thread(target=lambda: [os.write(pipe[1], line) for line in theirs])
    other.start()
    writer = threading.Thread(target=lambda: [sink.write(line) for line in mine])
    writer.start()
    found = read(pipe[0], sum(map(len, [*mine, *theirs]))).splitlines(keepends=True)
    assert sorted(found) == sorted([*mine, *theirs])
    assert max(map(len, found)) < PIECE
    for thread in (other, writer):
        thread.join()
    sink.close()
