"""Methods about calibrations and their jobs."""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Callable, Iterable

from ._answers import Domain, Job
from ._call import Answered
from ._following import followed
from ._methods import Given, IdempotencyKey, answered, request, segment, state_of
from ._retries import Repeat
from ._upload import LabelledPair, Source, Upload, many

READING = {"column", "charset", "sheet", "header"}  # arguments that say how to read a file


def sentences(given: Given) -> Upload:
    labels = many(given.pop("labels", ()), "labels")
    return Upload(given.pop("source"), labels, read=bool(READING & given.keys()))


def labelled(given: Given) -> Upload:
    return Upload((), many(given.pop("labels"), "labels"))


@request("POST", "calibrate", prepare=sentences)
def calibrate(
    source: Source,
    *,
    domain: str,
    method: str = "auto",
    promote: str = "if_better",
    seed: int = 0,
    labels: Iterable[LabelledPair] = (),
    kind: str = "matches",
    force: bool = False,
    column: str | int | None = None,
    charset: str | None = None,
    sheet: str | None = None,
    header: bool | None = None,
    idempotency_key: IdempotencyKey = True,
) -> Job:
    """Posts unlabelled text of a domain; a background job fits a calibration to it.

    Args:
        source: an iterable of sentences, or a `pathlib.Path` to a file: text with one sentence per line, `.ndjson`
            or `.jsonl` with one JSON value per line, or a table (CSV, TSV, Parquet, `.xlsx`). At least 200
            distinct sentences are needed. The client never holds the whole source in memory.
        domain: the domain's name, without a version.
        method: `auto`, or a method of the server; the error for an unknown method lists all methods.
        promote: whether the new version becomes champion: `if_better`, `always` or `never`.
        seed: seed of the random numbers; the same text, settings and seed give the same version.
        labels: labelled pairs, from which probabilities are learned: (text, text, label) or (text, text, label,
            weight).
        kind: what the labels mean: `matches` (1 for a match, 0 for no match; other labels are refused) or `grades`
            (similarities within 0 to 1 or 0 to 5).
        force: for a text file: each line is a sentence, even if the lines look like rows of a table.
        column: name or number of the table column that has the sentences. 1 is the first column.
        charset, sheet, header: encoding of the file, sheet of a workbook, and whether the first row names the
            columns. Needed only if the server does not detect them.
        idempotency_key: True generates a key; a string is used as the key; False sends none and disables retries.

    Returns:
        The accepted job, which runs in the background; `wait` returns its final state.

    Raises:
        Conflict: the idempotency key was used with other content. Overloaded: too many jobs are waiting.
        Unavailable: no worker runs jobs on this server.
        OSError, UnicodeDecodeError: the file cannot be read.
    """


@request("POST", "domains/{domain}/labels", prepare=labelled, starts=True)
def add_labels(
    domain: str,
    labels: Iterable[LabelledPair],
    *,
    kind: str = "matches",
    version: int | None = None,
    promote: str = "if_better",
    seed: int = 0,
    seen: Domain | None = None,
    idempotency_key: IdempotencyKey = True,
) -> Job:
    """Posts labelled pairs; a background job learns probabilities from them and makes a new version of the domain.

    Args:
        domain: the domain's name, without a version.
        labels: at least 20 pairs: (text, text, label) or (text, text, label, weight).
        kind: what the labels mean: `matches` (1 for a match, 0 for no match; other labels are refused) or `grades`
            (similarities within 0 to 1 or 0 to 5).
        version: the version to start from; default: the champion.
        promote: whether the new version becomes champion: `if_better`, `always` or `never`. A version that makes a
            saved threshold unreachable is never promoted by itself.
        seed: seed of the random numbers; the same labels and seed give the same version.
        seen: a result of `client.domain()`. No job starts if the champion has changed since then. If None, the
            client reads the domain and uses the result as `seen`.
        idempotency_key: as for `calibrate`.

    Raises:
        Conflict: the domain has no random pairs yet; calibrate it from text first.
    """


@request("GET", "calibrate/{job}")
def job(job: Job | str) -> Job:
    """The state of a job, with its progress. At the end, the state also has the report or the error.

    Raises:
        NotFound: no such job, or its record was removed.
    """


@request("GET", "calibrate", under="jobs")
def jobs() -> tuple[Job, ...]:
    """All recorded jobs, newest first, without their reports."""


@request("DELETE", "calibrate/{job}", repeat=Repeat.IF_REFUSED)
def cancel(job: Job | str) -> Job:
    """Cancels a job: its text is deleted, and it makes no version.

    Raises:
        NotFound: no such job. Conflict: the job has ended, or is publishing its result.
    """


@answered
def wait(
    job: Job | str, *, progress: Callable[[Job], object] | None = None, timeout: float | None = None
) -> Answered[Job]:
    """Waits until a job has ended.

    The job continues if the program stops waiting, for example after Ctrl-C or the cancellation of an asyncio task.

    Args:
        job: the job or its id.
        progress: called with each new state, for example to show `stage` and `progress`.
        timeout: maximum number of seconds to wait; None waits without limit.

    Returns:
        The job that has succeeded, with its `version`, `promoted` and `report`.

    Raises:
        JobFailed, JobCancelled: the job ended without success. `error.job` is its last state.
        WaitTimeout: the time is up; the job continues. NotFound: no such job.
    """
    return followed(state_of(Job, f"calibrate/{segment(job)}"), progress, timeout)
