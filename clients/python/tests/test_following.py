"""A job is followed across broken connections until it ends. Its end is the result or an error."""

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
RESET = httpx2.ReadError("reset")
REFUSED = httpx2.ConnectError("refused")


def wait(stub: Stub, **options: Any) -> Job:
    found: Job = stub.ask(lambda client: client.wait("j1", **options), times=2)
    return found


def test_every_change_is_yielded_until_the_end() -> None:
    stub = Stub(streams(event(job("queued")), RUNNING, RUNNING, event(job("publishing")), DONE))
    accepted = Job(id="j1", domain="letters", status="queued")
    states = stub.ask(lambda client: client.events(accepted))
    assert [state.status for state in states] == ["queued", "running", "publishing", "succeeded"]
    assert stub.requests[0].url.path == "/calibrate/j1/events"
    assert stub.requests[0].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_may_be_cut_anywhere(size: int) -> None:
    # Python's `splitlines` also splits at characters that may occur in a text.
    state = job("succeeded", report={"reason": "a\u2028b\x85c\rd é"})
    content = (
        b": a comment\r\n\r\n" + event(state).replace(b"\n", b"\r\n") + b"data: 1\n\n" + b"data: [1,\ndata: 2]\n\n"
    )
    events = Events()
    found = [e for i in range(0, len(content), size) for e in events.feed(content[i : i + size])]
    assert found == [state, 1, [1, 2]]


def test_an_event_that_is_not_json_is_an_unexpected_answer() -> None:
    with pytest.raises(UnexpectedAnswer):
        wait(Stub(streams(b"data: <html>\n\n")))


def test_a_lost_connection_is_made_anew_and_no_state_is_yielded_twice() -> None:
    stub = Stub(streams(RUNNING, RESET), REFUSED, streams(RUNNING, DONE))
    assert [state.status for state in stub.ask(lambda client: client.events("j1"))] == ["running", "succeeded"]
    assert len(stub.requests) == 3


@pytest.mark.parametrize(
    ("stream", "pause"),
    [
        (streams(RUNNING, SILENCE), 0.0),  # a job may be silent for longer than the client waits for a sign of life
        (streams(RUNNING), 1.0),  # the stream ended early
        (streams(RUNNING, RESET), 0.5),
    ],
)
def test_retries_are_counted_anew_after_each_state(stream: Any, pause: float) -> None:
    stub = Stub(*[stream] * 9, streams(DONE))
    assert wait(stub).version == 2
    assert stub.time.pauses == [pause] * 9


@pytest.mark.parametrize(
    ("first", "then", "error"),
    [
        (streams(RUNNING, RESET), REFUSED, ConnectionFailed),
        (streams(b""), streams(b""), ConnectionLost),
        (streams(SILENCE), streams(SILENCE), TimedOut),
    ],
)
def test_a_server_that_stays_away_ends_the_wait(first: Any, then: Any, error: type[IsosimError]) -> None:
    stub = Stub(first, then)
    with pytest.raises(error):
        wait(stub)
    assert len(stub.requests) == 3


def test_a_server_that_stops_is_waited_for() -> None:
    stopping = says(503, {"error": "stopping", "error_type": "Unhealthy", "request_id": "r"}, retry_after="5")
    assert wait(Stub(streams(RUNNING), stopping, streams(DONE))).version == 2


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


def test_silence_does_not_prolong_a_short_wait() -> None:
    stub = Stub(streams(RUNNING, SILENCE), takes=2.0)
    with pytest.raises(WaitTimeout):
        wait(stub, timeout=5.0)
    assert [request.extensions["timeout"]["read"] for request in stub.requests] == [5, 3, 1]


def test_states_do_not_prolong_a_wait_but_the_end_counts_even_if_it_is_late() -> None:
    busy = [event(job("running", progress=p / 10)) for p in range(9)]
    with pytest.raises(WaitTimeout):
        wait(Stub(streams(*busy, DONE), takes=2.0), timeout=1.0)
    assert wait(Stub(streams(DONE), takes=2.0), timeout=1.0).version == 2


def test_progress_is_told_of_each_state() -> None:
    told: list[float] = []
    wait(Stub(streams(RUNNING, DONE)), progress=lambda state: told.append(state.progress))
    assert told == [0.5, 0.0] * 2  # by both clients


def test_a_reader_that_leaves_early_closes_the_stream() -> None:
    stub = Stub(streams(RUNNING, DONE))
    with stub.client() as client:
        for state in client.events("j1"):
            assert state.status == "running"
            break
    assert len(stub.requests) == 1
