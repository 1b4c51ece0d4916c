"""Calls about calibrations and their jobs. The arguments are documented at the methods of `Client`."""

from collections.abc import Iterable

from ._answers import Domain, Job
from ._call import Answered, Call, IdempotencyKey, answer, given, keyed, listed, many, segment
from ._domains import starting_from
from ._retries import Repeat
from ._upload import LabelledPair, Source, Upload


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
) -> Call[Job]:
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
        EmptyInput, InvalidInput: no text, too few sentences, a table without `column`, or an invalid line, which
            the message names.
        TooLarge: more bytes than the server accepts. Conflict: the idempotency key was used with other content.
        Unavailable: no worker runs jobs on this server. Overloaded: too many jobs are waiting.
        OSError, UnicodeDecodeError: the file cannot be read.
    """
    reading = given(column=column, charset=charset, sheet=sheet, header=None if header is None else str(header).lower())
    upload = Upload(source, many(labels, "labels", "(text, text, label)"), read=bool(reading))
    query = given(
        domain=domain, method=method, promote=promote, seed=seed, kind=kind, force="true" if force else None, **reading
    )
    return Call(
        method="POST", path="calibrate", query=query, upload=upload, parse=answer(Job), **keyed(idempotency_key)
    )


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
) -> Answered[Job]:
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
        InvalidInput: too few pairs, or all of them have the same label. NotFound: no such domain.
        Conflict: the domain has no random pairs yet (calibrate it from text first), or its champion has changed
            since `seen`.
    """
    query = given(kind=kind, promote=promote, seed=seed, version=version)
    upload = Upload((), many(labels, "labels", "(text, text, label)"))
    path, key = f"domains/{segment(domain)}/labels", keyed(idempotency_key)

    return starting_from(
        seen,
        domain,
        lambda start: Call(method="POST", path=path, query=query | start, upload=upload, parse=answer(Job), **key),
    )


def path_of(job: Job | str) -> str:
    return f"calibrate/{segment(job.id if isinstance(job, Job) else job)}"


def job(job: Job | str) -> Call[Job]:
    """The state of a job, with its progress. At the end, the state also has the report or the error.

    Raises:
        NotFound: no such job, or its record was removed.
    """
    return Call(method="GET", path=path_of(job), parse=answer(Job))


def jobs() -> Call[tuple[Job, ...]]:
    """All recorded jobs, newest first, without their reports."""
    return Call(method="GET", path="calibrate", parse=listed(Job, "jobs"))


def cancel(job: Job | str) -> Call[Job]:
    """Cancels a job: its text is deleted, and it makes no version.

    Raises:
        NotFound: no such job. Conflict: the job has ended, or is publishing its result.
    """
    return Call(method="DELETE", path=path_of(job), parse=answer(Job), repeat=Repeat.IF_REFUSED)
