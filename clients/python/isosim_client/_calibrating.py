"""Calls about calibrations and their jobs."""

from __future__ import annotations

from collections.abc import Iterable

from ._answers import Domain, Job, Jobs
from ._call import Call, IdempotencyKey, answer, keyed, many, segment
from ._domains import starting_from
from ._reading import read
from ._retries import Repeat
from ._upload import LabelledPair, Source, Upload


def calibrate(
    source: Source,
    *,
    domain: str,
    method: str = "auto",
    promote: str = "if_better",
    seed: int = 0,
    normalization: str = "none",
    labels: Iterable[LabelledPair] = (),
    force: bool = False,
    idempotency_key: IdempotencyKey = True,
) -> Call[Job]:
    """Posts unlabelled text of a domain; a job fits a calibration to it in the background.

    Args:
        source: a `pathlib.Path` to a file with one sentence a line (`.ndjson` and `.jsonl`: one JSON value a line), or
            an iterable of sentences. Either is read while it is sent, not into memory. At least 200 distinct sentences.
        domain: its name alone, without a version.
        method: `auto`, or one of those the server names in its refusal of any other.
        promote: `if_better`, `always` or `never`.
        seed: the same text, settings and seed give the same version.
        normalization: `none`, `as-norm` or `csls`.
        labels: (text, text, 0 or 1 or a grade) each, for probabilities.
        force: takes each line as a sentence although the lines look like the rows of a table.
        idempotency_key: True makes one; a string is yours; False sends none, and then nothing is ever sent twice.

    Returns:
        The accepted job; `wait` for it.

    Raises:
        EmptyInput, InvalidInput: no text, too little, a table, or a bad line, which is named.
        TooLarge: more bytes than the server takes. Conflict: the key was used for something else.
        Unavailable: nothing runs jobs there. Overloaded: too many wait.
        OSError, UnicodeDecodeError: the file cannot be read.
    """
    upload = Upload(source, labels)
    query: dict[str, str | int | float] = {
        "domain": domain, "method": method, "promote": promote, "seed": seed, "normalization": normalization,
    }  # fmt: skip
    if force:
        query["force"] = "true"
    return Call(
        method="POST", path="calibrate", query=query, upload=upload, parse=answer(Job), **keyed(idempotency_key)
    )


def add_labels(
    domain: str,
    labels: Iterable[LabelledPair],
    *,
    version: int | None = None,
    promote: str = "always",
    seed: int = 0,
    seen: Domain | None = None,
    idempotency_key: IdempotencyKey = True,
) -> Call[Job]:
    """Posts labelled pairs; a job makes a new version of the domain that has probabilities.

    Args:
        domain: its name alone.
        labels: (text, text, 0 or 1 or a grade) each; 20 pairs or more.
        version: to start from; else the champion.
        promote: `always`, `if_better` or `never`.
        seed: the same labels and seed give the same version.
        seen: the domain as it was when you decided; else it is looked at first.
        idempotency_key: as for `calibrate`.

    Raises:
        InvalidInput: too few pairs, or all of one kind. NotFound: no such domain.
        Conflict: the domain has no reference yet, or another champion than `seen`.
    """
    body = {"labels": many(labels, "labels"), "promote": promote, "seed": seed}
    if version is not None:
        body["version"] = version
    path, key = f"domains/{segment(domain)}/labels", keyed(idempotency_key)

    def change(start: dict[str, int]) -> Call[Job]:
        start.pop("revision", None)
        return Call(method="POST", path=path, body=body | start, parse=answer(Job), **key)

    return starting_from(seen, domain, change)


def path_of(job: Job | str) -> str:
    return f"calibrate/{segment(job.id if isinstance(job, Job) else job)}"


def job(job: Job | str) -> Call[Job]:
    """How far a job is; its report when it has succeeded, its error when it has failed.

    Raises:
        NotFound: no such job, or its record is gone.
    """
    return Call(method="GET", path=path_of(job), parse=answer(Job))


def jobs() -> Call[tuple[Job, ...]]:
    """All jobs on record, the newest first."""
    return Call(method="GET", path="calibrate", parse=lambda value: read(Jobs, value).jobs)


def cancel(job: Job | str) -> Call[Job]:
    """Stops a job. Its text is deleted and no version appears.

    Raises:
        NotFound: no such job. Conflict: it has ended, or is publishing its result.
    """
    return Call(method="DELETE", path=path_of(job), parse=answer(Job), repeat=Repeat.IF_REFUSED)


def retry(job: Job | str) -> Call[Job]:
    """Runs an interrupted job again, on the text it still has.

    Raises:
        NotFound: no such job. Conflict: it runs or has ended. Unavailable: nothing runs jobs there.
    """
    return Call(method="POST", path=f"{path_of(job)}/retry", parse=answer(Job), repeat=Repeat.IF_REFUSED)
