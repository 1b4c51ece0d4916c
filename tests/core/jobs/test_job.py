"""The states of a job: which follow which, and that the others are refused."""

import itertools

import pytest

from isosim.errors import Conflict
from isosim.jobs.job import NEXT, Job, JobRequest, Status

QUEUED = Job("0" * 32, JobRequest("news", "digest", "minilm"))


def reach(status: Status) -> Job:
    """A job in this state, by the shortest way from its start."""
    ways = [[QUEUED]]
    while ways[0][-1].status is not status:
        way = ways.pop(0)
        ways += [[*way, way[-1].become(following)] for following in sorted(NEXT[way[-1].status])]
    return ways[0][-1]


@pytest.mark.parametrize(("before", "after"), [*itertools.product(Status, Status)])
def test_a_job_takes_the_steps_of_the_drawing_and_no_others(before: Status, after: Status) -> None:
    job = reach(before)
    if after in NEXT[before]:
        assert job.become(after, error="why") == Job(job.id, job.request, after, error="why")
    else:
        with pytest.raises(Conflict, match=f"is {before}; it cannot become {after}"):
            job.become(after)


def test_what_has_ended_stays_as_it_is_and_everything_else_can_still_be_cancelled() -> None:
    ended = {status for status in Status if status.ended}
    assert ended == {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}
    assert all(Status.CANCELLED in NEXT[status] for status in set(Status) - ended)


def test_only_a_running_job_succeeds_and_only_an_interrupted_one_is_queued_again() -> None:
    assert [status for status in Status if Status.SUCCEEDED in NEXT[status]] == [Status.RUNNING]
    assert [status for status in Status if Status.QUEUED in NEXT[status]] == [Status.INTERRUPTED]
