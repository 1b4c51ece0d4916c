"""All errors of this package.

IsosimError
├── ApiError                  the server answered with an error; its type may be unknown to this client
│   ├── EmptyInput            the request contains no input
│   ├── InvalidInput          a field breaks its rule; the message names field and limit
│   │   └── TokenizerFailure  a text cannot be turned into tokens
│   ├── TooLarge              the body exceeds the server's limit
│   ├── UnsupportedMedia      the route does not read this content type
│   ├── Unauthorized          no key or a wrong one
│   ├── Forbidden             the key lacks the needed scope, or is not for this domain
│   ├── NotFound              no such domain, version, job or route
│   │   └── MethodNotAllowed
│   ├── Conflict              the current state does not allow the request
│   ├── Overloaded            the server is full; `retry_after` says when to try again
│   ├── BackendFailure        the encoder failed on this input
│   ├── NotReady              the server is starting, stopping or broken
│   ├── Unavailable           a component that this request needs is missing; the message says how to get it
│   └── ServerFault           an error inside the server; its log has the details under `request_id`
├── NoAnswer                  no complete answer arrived
│   ├── ConnectionFailed      no connection: the request was not carried out
│   ├── ConnectionLost        the connection broke: the request may have been carried out
│   └── TimedOut              the server was silent for too long: the request may have been carried out
├── UnexpectedAnswer          the answer is not from isosim, or a field has a wrong type
│   └── IncompatibleServer    the server's contract has another major version than this client's
├── JobError                  a job that the client waited for ended without success; `job` is its last state
│   ├── JobFailed             the message contains the job's error
│   └── JobCancelled
└── WaitTimeout               the time to wait is over; the job continues, and `job` has its last state

Wrong arguments that the client itself detects, such as one string instead of a list, raise TypeError or ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._answers import Job, Match

__all__ = [
    "ApiError",
    "BackendFailure",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "EmptyInput",
    "Forbidden",
    "IncompatibleServer",
    "InvalidInput",
    "IsosimError",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "MethodNotAllowed",
    "NoAnswer",
    "NotFound",
    "NotReady",
    "Overloaded",
    "ServerFault",
    "TimedOut",
    "TokenizerFailure",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnsupportedMedia",
    "WaitTimeout",
]

QUOTED = 200  # maximum number of characters quoted from an unknown answer; enough to recognize a proxy's page


class IsosimError(Exception):
    """Base of all errors of this package. An attribute is None if the server sent no value for it."""

    status: int | None = None
    error_type: str | None = None
    request_id: str | None = None
    # What can be done: `action` and `arguments` for programs, `text` for people, with which the message ends.
    remedy: dict[str, Any] | None = None
    reason = ""  # the message without the remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, unpickling calls the class with `args`, but an error has other arguments than its message.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ApiError(IsosimError):
    """The server answered with an error. The server's log also has the `request_id`."""

    retry_after: float | None  # seconds, as requested by the server

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_type: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        should_retry: bool = True,
        remedy: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message if remedy is None else f"{message}; {remedy['text']}")
        self.reason, self.remedy = message, remedy
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
    """No complete answer arrived.

    After an error of a subclass, the client retries a request that can be sent twice without harm. After NoAnswer
    itself, it does not retry.
    """


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
    """A job ended without success; `job` is its last state."""

    def __init__(self, message: str, job: Job | Match) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobError):
    pass


class JobCancelled(JobError):
    pass


class WaitTimeout(IsosimError):
    """The time to wait is over; `job` is the job's last state, or None if none has arrived."""

    def __init__(self, message: str, job: Job | Match | None) -> None:
        super().__init__(message)
        self.job = job


# The server's `error_type` -> the error of this package. The server's own table is in service/isosim/api/errors.py.
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
    """The error for an answer. If the answer has no `error`, like a proxy's page, the message quotes the answer."""
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
        remedy=remedy_of(found),
    )


def remedy_of(body: dict[str, Any]) -> dict[str, Any] | None:
    remedy = body.get("remedy")
    kinds = {"action": str, "arguments": dict, "text": str}
    known = isinstance(remedy, dict) and all(isinstance(remedy.get(name), kind) for name, kind in kinds.items())
    return remedy if known else None


ENDS: dict[str, type[JobError]] = {"failed": JobFailed, "cancelled": JobCancelled}


def job_error(job: Job | Match) -> JobError:
    """The error for a job that ended without success."""
    why = f": {job.error}" if job.error else ""
    domain = getattr(job, "domain", None)
    what = f"match {job.id}" if domain is None else f"calibration {job.id} of {domain!r}"
    return ENDS.get(job.status, JobError)(f"{what} {job.status}{why}", job)
