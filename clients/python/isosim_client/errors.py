"""Everything that can go wrong, by what it means to the caller.

IsosimError
├── ApiError                  the server answered with an error; the class itself: of a type this release does not know
│   ├── EmptyInput            nothing to work on
│   ├── InvalidInput          a field breaks its rule; the message names field and limit
│   │   └── TokenizerFailure  a text cannot be turned into tokens
│   ├── TooLarge              the body exceeds the server's limit
│   ├── UnsupportedMedia      a content type the route does not read
│   ├── Unauthorized          no key, or one the server does not know
│   ├── Forbidden             the key lacks the scope
│   ├── NotFound              no such domain, version, job or route
│   │   └── MethodNotAllowed
│   ├── Conflict              the state has changed, or does not allow this
│   ├── Overloaded            full; `retry_after` says when to try again
│   ├── BackendFailure        the encoder failed on this input
│   ├── NotReady              starting, draining or broken
│   ├── Unavailable           a part this request needs is not there; the message says how to get it
│   └── ServerFault           a fault of the server's; its log has it under `request_id`
├── NoAnswer                  no whole answer came
│   ├── ConnectionFailed      no connection: the request was not carried out
│   ├── ConnectionLost        the connection broke: nobody knows whether the request was carried out
│   └── TimedOut              the server was silent for too long: the same
├── UnexpectedAnswer          an answer that is not isosim's: a proxy's page, a field of another kind
│   └── IncompatibleServer    the server's contract has another major version than this client's
├── JobError                  a job that was waited for has ended without a version; `job` has its state
│   ├── JobFailed             its error is the message
│   ├── JobCancelled
│   └── JobInterrupted        its worker died; `retry` runs it again
└── WaitTimeout               the wait is over and the job is not; it goes on, and `job` has its last state

Misuse that needs no server to be seen, such as one string where several are due, is a TypeError or a ValueError.

Example:
    >>> from isosim_client import Client, NotFound
    >>> with Client("http://127.0.0.1:8000") as client:
    ...     try:
    ...         client.embed("a boat", domain="boats")
    ...     except NotFound as error:
    ...         print(error.status, error)
    404 no domain 'boats'; GET /domains lists what there is
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._answers import Job

QUOTED = 200  # characters of an answer that is not understood, enough to recognize a proxy's page


class IsosimError(Exception):
    """Base of all errors of this package; what the server did not say is None."""

    status: int | None = None
    error_type: str | None = None
    request_id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from `args` alone, which would lose the rest on the way out of another process.
        return revive, (type(self), str(self), self.__dict__)


def revive(kind: type[IsosimError], message: str, facts: dict[str, Any]) -> IsosimError:
    error = kind.__new__(kind, message)
    error.__dict__.update(facts)
    return error


class ApiError(IsosimError):
    """The server's message, with `status`, `error_type` and the `request_id` its log knows."""

    retry_after: float | None  # seconds, as the server asked for

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_type: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        should_retry: bool = True,
    ) -> None:
        super().__init__(message)
        self.status, self.error_type, self.request_id = status, error_type, request_id
        self.retry_after, self.should_retry = retry_after, should_retry


class EmptyInput(ApiError):
    pass


class InvalidInput(ApiError):
    pass


class TokenizerFailure(InvalidInput):
    pass


class TooLarge(ApiError):
    pass


class UnsupportedMedia(ApiError):
    pass


class Unauthorized(ApiError):
    pass


class Forbidden(ApiError):
    pass


class NotFound(ApiError):
    pass


class MethodNotAllowed(NotFound):
    pass


class Conflict(ApiError):
    pass


class Overloaded(ApiError):
    pass


class BackendFailure(ApiError):
    pass


class NotReady(ApiError):
    pass


class Unavailable(ApiError):
    pass


class ServerFault(ApiError):
    pass


class NoAnswer(IsosimError):
    """The class itself: for a reason that trying again does not mend."""


class ConnectionFailed(NoAnswer):
    pass


class ConnectionLost(NoAnswer):
    pass


class TimedOut(NoAnswer):
    pass


class UnexpectedAnswer(IsosimError):
    pass


class IncompatibleServer(UnexpectedAnswer):
    pass


class JobError(IsosimError):
    """`job` is the job's last state."""

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobError):
    pass


class JobCancelled(JobError):
    pass


class JobInterrupted(JobError):
    pass


class WaitTimeout(IsosimError):
    """`job` is the last state that was seen, or None."""

    def __init__(self, message: str, job: Job | None) -> None:
        super().__init__(message)
        self.job = job


# The server's table (service/api/errors.py), read backwards.
ERROR_TYPES: dict[str, type[ApiError]] = {
    "Empty": EmptyInput,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "MethodNotAllowed": MethodNotAllowed,
    "Conflict": Conflict,
    "TooLarge": TooLarge,
    "UnsupportedMedia": UnsupportedMedia,
    "Validation": InvalidInput,
    "Tokenizer": TokenizerFailure,
    "Backend": BackendFailure,
    "Overloaded": Overloaded,
    "Unhealthy": NotReady,
    "Unavailable": Unavailable,
    "Internal": ServerFault,
}


def api_error(status: int, headers: Mapping[str, str], content: bytes, retry_after: float | None) -> ApiError:
    """The error an answer stands for. A proxy's answer has no `error_type`; then its text is quoted."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    found = body if isinstance(body, dict) else {}
    message, error_type, request_id = (found.get(name) for name in ("error", "error_type", "request_id"))
    if not isinstance(message, str):
        quoted = content.decode(errors="replace").strip()[:QUOTED]
        message = f"status {status}" + (f": {quoted}" if quoted else "")
    kind = ERROR_TYPES.get(error_type, ApiError) if isinstance(error_type, str) else ApiError
    return kind(
        message,
        status=status,
        error_type=error_type if isinstance(error_type, str) else None,
        request_id=request_id if isinstance(request_id, str) else headers.get("x-request-id"),
        retry_after=retry_after,
        should_retry=headers.get("x-should-retry", "").lower() != "false",
    )


ENDS: dict[str, type[JobError]] = {"failed": JobFailed, "cancelled": JobCancelled, "interrupted": JobInterrupted}


def job_error(job: Job) -> JobError:
    """The error for a job that ended without a version."""
    why = f": {job.error}" if job.error else ""
    return ENDS.get(job.status, JobError)(f"calibration {job.id} of {job.domain!r} {job.status}{why}", job)
