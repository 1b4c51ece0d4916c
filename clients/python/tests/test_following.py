"""A job is followed across broken connections until it ends. Its end is the result or an error."""

from typing import Any

import httpx2
import pytest
from stubs import Step, Stub, job, says

from isosim_client import ConnectionFailed, IsosimError, Job, JobCancelled, JobError, JobFailed, NotFound, WaitTimeout

RUNNING, DONE = says(200, job("running", progress=0.5)), says(200, job("succeeded", version=2))
REFUSED = httpx2.ConnectError("refused")
STOPPING = says(503, {"error": "stopping", "error_type": "Unhealthy", "request_id": "r"}, retry_after="5")


def wait(stub: Stub, **options: Any) -> Job:
    found: Job = stub.ask(lambda client: client.wait("j1", **options), times=2)
    return found


def statuses(stub: Stub, job: Job | str = "j1") -> list[str]:
    """What both clients tell while they wait."""
    told: list[str] = []
    stub.ask(lambda client: client.wait(job, progress=lambda state: told.append(state.status)), times=2)
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    return told[: len(told) // 2]


def test_every_change_is_told_until_the_end() -> None:
    stub = Stub(says(200, job("queued")), RUNNING, RUNNING, says(200, job("publishing")), DONE)
    accepted = Job(job="j1", domain="letters", status="queued")
    assert statuses(stub, accepted) == ["queued", "running", "publishing", "succeeded"]
    assert {(one.method, one.url.path) for one in stub.requests} == {("GET", "/calibrate/j1")}


def test_the_longer_a_job_runs_the_less_often_it_is_looked_at() -> None:
    stub = Stub(*[RUNNING] * 60, DONE)
    assert wait(stub).version == 2
    assert (stub.time.pauses[0], stub.time.pauses[-1]) == (0.1, 5.0)
    assert stub.time.pauses == sorted(stub.time.pauses)


@pytest.mark.parametrize("lost", [httpx2.ReadError("reset"), httpx2.ReadTimeout("silent"), REFUSED, STOPPING])
def test_retries_are_counted_anew_after_each_state(lost: Step) -> None:
    stub = Stub(*[RUNNING, lost] * 9, DONE)
    assert statuses(stub) == ["running", "succeeded"]


@pytest.mark.parametrize(
    ("last", "error", "requests"),
    [(REFUSED, ConnectionFailed, 4), (says(404, {"error": "no job 'j1'", "error_type": "NotFound"}), NotFound, 2)],
)
def test_an_error_that_does_not_heal_ends_the_wait(last: Step, error: type[IsosimError], requests: int) -> None:
    stub = Stub(RUNNING, last)
    with pytest.raises(error):
        wait(stub)
    assert len(stub.requests) == requests


@pytest.mark.parametrize(
    ("status", "error"),
    [("failed", JobFailed), ("cancelled", JobCancelled), ("evaporated", JobError)],
)
def test_a_job_that_made_no_version_raises_with_its_state(status: str, error: type[JobError]) -> None:
    stub = Stub(RUNNING, says(200, job(status, error="out of paper")))
    with pytest.raises(error, match=f"j1 of 'letters' {status}: out of paper") as caught:
        wait(stub)
    assert type(caught.value) is error
    assert caught.value.job.status == status


def test_a_wait_ends_in_time_and_leaves_the_job_alone() -> None:
    stub = Stub(RUNNING)
    with pytest.raises(WaitTimeout, match="it is running") as caught:
        wait(stub, timeout=3.5)
    assert caught.value.job is not None
    assert caught.value.job.progress == 0.5
    assert 3 < sum(stub.time.pauses) < 3.5
    assert {request.method for request in stub.requests} == {"GET"}


def test_silence_does_not_prolong_a_short_wait() -> None:
    stub = Stub(RUNNING, httpx2.ReadTimeout("silent"), takes=2.0)
    with pytest.raises(WaitTimeout):
        wait(stub, timeout=5.0)
    assert [request.extensions["timeout"]["read"] for request in stub.requests] == pytest.approx([5.0, 2.7, 0.2])


def test_the_end_counts_even_if_it_is_late() -> None:
    with pytest.raises(WaitTimeout):
        wait(Stub(RUNNING, DONE, takes=2.0), timeout=1.0)
    assert wait(Stub(DONE, takes=2.0), timeout=1.0).version == 2
