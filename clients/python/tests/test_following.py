"""A job is followed across broken connections until it ends, and its end is the answer or a typed error."""

import asyncio
import sys
from typing import Any

import httpx2
import pytest
from stubs import Stub, event, job, says, streams

from isosim_client import (
    ConnectionFailed,
    ConnectionLost,
    IsosimError,
    Job,
    JobCancelled,
    JobError,
    JobFailed,
    NotFound,
    TimedOut,
    UnexpectedAnswer,
    WaitTimeout,
)
from isosim_client._following import Events

RUNNING, DONE = event(job("running", progress=0.5)), event(job("succeeded", version=2))
SILENCE = httpx2.ReadTimeout("silent")
REFUSED = httpx2.ConnectError("refused")


def wait(stub: Stub, **options: Any) -> Job:
    """By both clients, which must not differ."""
    steps, outcomes = list(stub.steps), []

    async def awaited() -> Job:
        return await stub.async_client(times=2).wait("j1", **options)

    for run in (lambda: stub.client(times=2).wait("j1", **options), lambda: asyncio.run(awaited())):
        stub.steps = list(steps)
        stub.requests.clear()
        stub.time.pauses.clear()
        try:
            outcomes.append(run())
        except IsosimError as error:
            outcomes.append(error)
    first, second = outcomes
    assert (type(first), str(first)) == (type(second), str(second))
    if isinstance(first, IsosimError):
        raise first
    assert isinstance(first, Job)
    return first


def test_every_change_is_told_until_the_end() -> None:
    stub = Stub(streams(event(job("queued")), RUNNING, event(job("publishing")), DONE))
    statuses = [state.status for state in stub.client().events("j1")]
    assert statuses == ["queued", "running", "publishing", "succeeded"]
    assert stub.requests[0].url.path == "/calibrate/j1/events"
    assert stub.requests[0].headers["accept"] == "text/event-stream"


def test_a_job_is_followed_as_well_as_its_id() -> None:
    stub = Stub(streams(DONE))
    accepted = Job(id="j1", domain="letters", status="queued")
    assert stub.client().wait(accepted).version == 2


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_may_be_cut_anywhere(size: int) -> None:
    # What Python takes for line ends besides LF may stand in a quoted text.
    state = job("succeeded", report={"reason": "a\u2028b\x85c\rd é"})
    content = (
        b": a comment\r\n\r\n" + event(state).replace(b"\n", b"\r\n") + b"data: 1\n\n" + b"data: [1,\ndata: 2]\n\n"
    )
    events = Events()
    found = [e for i in range(0, len(content), size) for e in events.feed(content[i : i + size])]
    assert found == [state, 1, [1, 2]]


def test_an_event_that_is_none_says_so() -> None:
    with pytest.raises(UnexpectedAnswer):
        wait(Stub(streams(b"data: <html>\n\n")))


def test_a_lost_connection_is_made_anew_and_no_state_is_told_twice() -> None:
    stub = Stub(streams(RUNNING, httpx2.ReadError("reset")), REFUSED, streams(RUNNING, DONE))
    assert [state.status for state in stub.client().events("j1")] == ["running", "succeeded"]
    assert len(stub.requests) == 3


def test_silence_is_no_failure_of_a_job_that_takes_its_time() -> None:
    steps = [streams(RUNNING, SILENCE)] * 20
    stub = Stub(*steps, streams(DONE))
    assert wait(stub).version == 2
    assert (len(stub.requests), set(stub.time.pauses)) == (21, {0.0})


def test_a_stream_that_ends_early_is_opened_again() -> None:
    stub = Stub(*[streams(RUNNING)] * 9, streams(DONE))
    assert wait(stub).version == 2
    assert stub.time.pauses == [1.0] * 9


def test_patience_begins_anew_with_every_sign_of_life() -> None:
    stub = Stub(*[streams(RUNNING, httpx2.ReadError("reset"))] * 9, streams(DONE))
    assert wait(stub).version == 2
    assert stub.time.pauses == [0.5] * 9


def test_a_server_that_stays_away_ends_the_wait() -> None:
    stub = Stub(streams(RUNNING, httpx2.ReadError("reset")), REFUSED)
    with pytest.raises(ConnectionFailed):
        wait(stub)
    assert len(stub.requests) == 3


@pytest.mark.parametrize(("piece", "error"), [(b"", ConnectionLost), (SILENCE, TimedOut)])
def test_a_server_that_says_nothing_at_all_ends_the_wait(piece: bytes | Exception, error: type[IsosimError]) -> None:
    stub = Stub(streams(piece))
    with pytest.raises(error):
        wait(stub)
    assert len(stub.requests) == 3


def test_a_server_that_drains_is_waited_for() -> None:
    full = says(503, {"error": "stopping", "error_type": "Unhealthy", "request_id": "r"}, retry_after="5")
    stub = Stub(streams(RUNNING), full, streams(DONE))
    assert wait(stub).version == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [("failed", JobFailed), ("cancelled", JobCancelled), ("evaporated", JobError)],
)
def test_a_job_that_made_no_version_raises_with_its_state(status: str, error: type[JobError]) -> None:
    stub = Stub(streams(RUNNING, event(job(status, error="out of paper"))))
    with pytest.raises(error, match=f"j1 of 'letters' {status}: out of paper") as caught:
        wait(stub)
    assert type(caught.value) is error
    assert caught.value.job.status == status


def test_an_unknown_job_is_not_found() -> None:
    stub = Stub(says(404, {"error": "no calibration job 'j1'", "error_type": "NotFound", "request_id": "r"}))
    with pytest.raises(NotFound):
        wait(stub)
    assert len(stub.requests) == 1


def test_a_wait_ends_in_time_and_leaves_the_job_alone() -> None:
    stub = Stub(streams(RUNNING))
    with pytest.raises(WaitTimeout, match="it is running") as caught:
        wait(stub, timeout=3.5)
    assert caught.value.job is not None
    assert caught.value.job.progress == 0.5
    assert stub.time.pauses == [1.0, 1.0, 1.0]
    assert {request.method for request in stub.requests} == {"GET"}


def test_a_wait_that_is_short_is_not_prolonged_by_silence() -> None:
    stub = Stub(streams(RUNNING, SILENCE), takes=2.0)
    with pytest.raises(WaitTimeout):
        wait(stub, timeout=5.0)
    read = [request.extensions["timeout"]["read"] for request in stub.requests]
    assert read == [5, 3, 1]


def test_a_busy_job_does_not_talk_the_time_away() -> None:
    stub = Stub(streams(*[event(job("running", progress=p / 10)) for p in range(9)], DONE), takes=2.0)
    with pytest.raises(WaitTimeout):
        wait(stub, timeout=1.0)


def test_an_end_that_comes_late_is_an_end() -> None:
    assert wait(Stub(streams(DONE), takes=2.0), timeout=1.0).version == 2


class Terminal:
    """Standard error, as rich and a person see it."""

    def __init__(self, *, tty: bool) -> None:
        self.tty, self.written, self.encoding = tty, "", "utf-8"

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("tty", "progress", "drawn"), [(True, True, True), (False, True, False), (True, False, False)])
def test_a_bar_is_drawn_on_a_terminal_alone(
    tty: bool, progress: bool, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tty=tty)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    ended = event(job("succeeded", stage="succeeded [v1]", progress=1.0))
    Stub(streams(RUNNING, ended)).client().wait("j1", progress=progress)
    assert ("letters: succeeded [v1]" in terminal.written) is drawn
    assert ("100%" in terminal.written) is drawn


def test_without_rich_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(tty=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    Stub(streams(DONE)).client().wait("j1")
    assert terminal.written == ""
