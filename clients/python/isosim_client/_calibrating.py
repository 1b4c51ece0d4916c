"""Calls about calibrations and their jobs. The arguments are documented at the methods of `Client`."""

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
    labels: Iterable[LabelledPair] = (),
    kind: str = "matches",
    force: bool = False,
    column: str | int | None = None,
    charset: str | None = None,
    sheet: str | None = None,
    header: bool | None = None,
    idempotency_key: IdempotencyKey = True,
) -> Call[Job]:
    """Posts unlabelled text of a domain; a background job fits a calibration to it."""
    reading = {"column": column, "charset": charset, "sheet": sheet, "header": header}
    given = {
        name: str(value).lower() if name == "header" else value for name, value in reading.items() if value is not None
    }
    upload = Upload(source, many(labels, "labels"), read=bool(given))
    query: dict[str, str | int | float] = {
        "domain": domain, "method": method, "promote": promote, "seed": seed, "kind": kind, **given,
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
    kind: str = "matches",
    version: int | None = None,
    promote: str = "if_better",
    seed: int = 0,
    seen: Domain | None = None,
    idempotency_key: IdempotencyKey = True,
) -> Call[Job]:
    """Posts labelled pairs; a background job learns probabilities from them and makes a new version of the domain."""
    query: dict[str, str | int | float] = {"kind": kind, "promote": promote, "seed": seed}
    if version is not None:
        query["version"] = version
    upload = Upload((), many(labels, "labels"))
    path, key = f"domains/{segment(domain)}/labels", keyed(idempotency_key)

    return starting_from(
        seen,
        domain,
        lambda start: Call(method="POST", path=path, query=query | start, upload=upload, parse=answer(Job), **key),
    )


def path_of(job: Job | str) -> str:
    return f"calibrate/{segment(job.id if isinstance(job, Job) else job)}"


def job(job: Job | str) -> Call[Job]:
    """The state of a job, with its progress. At the end, the state also has the report or the error."""
    return Call(method="GET", path=path_of(job), parse=answer(Job))


def jobs() -> Call[tuple[Job, ...]]:
    """All recorded jobs, newest first, without their reports."""
    return Call(method="GET", path="calibrate", parse=lambda value: read(Jobs, value).jobs)


def cancel(job: Job | str) -> Call[Job]:
    """Cancels a job: its text is deleted, and it makes no version."""
    return Call(method="DELETE", path=path_of(job), parse=answer(Job), repeat=Repeat.IF_REFUSED)
