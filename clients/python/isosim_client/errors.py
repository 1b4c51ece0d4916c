"""All errors of this package. `help(isosim_client.errors)` begins with their tree.

Wrong arguments that the client itself detects, such as one string instead of a list, raise TypeError or ValueError.
"""

from __future__ import annotations

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


ERROR_TYPES: dict[str, type[ApiError]] = {}  # by the server's `error_type`


class ApiError(IsosimError):
    """The server answered with an error, of a type that this client may not know."""

    retry_after: float | None  # seconds, as requested by the server

    def __init_subclass__(cls, error_type: str) -> None:
        ERROR_TYPES[error_type] = cls

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


class EmptyInput(ApiError, error_type="Empty"):
    """The request contains no input."""


class InvalidInput(ApiError, error_type="Validation"):
    """A field breaks its rule; the message names field and limit."""


class TokenizerFailure(InvalidInput, error_type="Tokenizer"):
    """A text cannot be turned into tokens."""


class TooLarge(ApiError, error_type="TooLarge"):
    """The body exceeds the server's limit."""


class UnsupportedMedia(ApiError, error_type="UnsupportedMedia"):
    """The route does not read this content type."""


class Unauthorized(ApiError, error_type="Unauthorized"):
    """No key or a wrong one."""


class Forbidden(ApiError, error_type="Forbidden"):
    """The key lacks the needed scope, or is not for this domain."""


class NotFound(ApiError, error_type="NotFound"):
    """No such domain, version, job or route."""


class MethodNotAllowed(NotFound, error_type="MethodNotAllowed"):
    pass


class Conflict(ApiError, error_type="Conflict"):
    """The current state does not allow the request."""


class Overloaded(ApiError, error_type="Overloaded"):
    """The server is full; `retry_after` says when to try again."""


class BackendFailure(ApiError, error_type="Backend"):
    """The encoder failed on this input."""


class NotReady(ApiError, error_type="Unhealthy"):
    """The server is starting, stopping or broken."""


class Unavailable(ApiError, error_type="Unavailable"):
    """A component that this request needs is missing; the message says how to get it."""


class ServerFault(ApiError, error_type="Internal"):
    """An error inside the server; its log has the details under `request_id`."""


class NoAnswer(IsosimError):
    """No complete answer arrived.

    After an error of a subclass, the client retries a request that can be sent twice without harm. After NoAnswer
    itself, it does not retry.
    """


class ConnectionFailed(NoAnswer):
    """No connection: the request was not carried out."""


class ConnectionLost(NoAnswer):
    """The connection broke: the request may have been carried out."""


class TimedOut(NoAnswer):
    """The server was silent for too long: the request may have been carried out."""


class UnexpectedAnswer(IsosimError):
    """The answer is not from isosim, or a field has a wrong type."""


class IncompatibleServer(UnexpectedAnswer):
    """The server's contract has another major version than this client's."""


class JobError(IsosimError):
    """A job ended without success; `job` is its last state."""

    def __init__(self, message: str, job: Job | Match) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobError):
    """The message contains the job's error."""


class JobCancelled(JobError):
    pass


class WaitTimeout(IsosimError):
    """The time to wait is over; `job` is the job's last state, or None if none has arrived."""

    def __init__(self, message: str, job: Job | Match | None) -> None:
        super().__init__(message)
        self.job = job
