"""Domain errors, by their meaning for the caller. A table in the API maps each to an HTTP status.

IsosimError
├── EmptyInput               the request contains no input
├── InvalidInput             a field breaks its rule; the message names field and limit
│   └── TokenizerFailure     a text cannot be turned into tokens
├── TooLarge                 the body exceeds its limit
├── UnsupportedMedia         the route does not read this content type
├── Unauthorized             the request has no key, or an unknown one
├── Forbidden                the key lacks the scope or domain; on a server without keys: a request from another website
├── NotFound                 no such domain, version, job or route
│   ├── UnknownDomain        no such domain; the message offers the nearest name that the caller may use
│   ├── UnknownModel         unknown model on a route of another service's kind
│   └── MethodNotAllowed
├── Conflict                 the request contradicts the current state, for example of a domain or a job
│   └── EncoderMismatch      the version belongs to another encoder
├── Overloaded               the service is full; try again after `retry_after` seconds
│   └── ShareUsed            the caller has taken its share of it; others are served
├── BackendFailure           the encoder failed on this input
│   └── EncoderUnreachable   the server that runs the encoder cannot be reached or does not answer
├── NotReady                 starting, draining or broken
│   └── EncoderChanged       the encoder's server returns other vectors than when the encoder was registered
├── Unavailable              a component that this request needs is missing; the message says how to get it
│   └── CorruptArtifact      a stored file does not match its manifest
└── JobCancelled             never sent to a caller: stops the worker that runs the job
"""

from enum import StrEnum
from typing import NamedTuple, Self


class Action(StrEnum):
    """What a person can do about an error."""

    ADD_ENCODER = "add_encoder"  # register one whose users bring vectors of length 1
    ADD_LABELS = "add_labels"  # `domain`
    ASK_LESS = "ask_less"  # `precision` that can be had, and number of `pairs` that pass then
    CALIBRATE = "calibrate"  # `domain`
    DELETE_THRESHOLD = "delete_threshold"  # `domain`
    EXPORT = "export"  # `source` of the encoder
    JUDGE = "judge"  # `match`: pairs of it
    LIST_DOMAINS = "list_domains"
    LIST_MODELS = "list_models"
    LIST_THRESHOLDS = "list_thresholds"  # `domain`
    NEW_KEY = "new_key"  # `scope`
    REPAIR = "repair"  # `domain`


class Remedy(NamedTuple):
    """An action and its arguments. Front ends word it: as a route, as a command, or as a button."""

    action: Action
    arguments: dict[str, str]


class IsosimError(Exception):
    """Base of all domain errors. `str(error)` may be shown to the caller; it names no route and no command."""

    field: str | None = None  # the field of the body that caused the error, if known
    remedy: Remedy | None = None

    def with_remedy(self, action: Action, **arguments: str) -> Self:
        self.remedy = Remedy(action, arguments)
        return self


class EmptyInput(IsosimError):
    pass


class InvalidInput(IsosimError):
    pass


class TokenizerFailure(InvalidInput):
    pass


class TooLarge(IsosimError):
    pass


class UnsupportedMedia(IsosimError):
    pass


class Unauthorized(IsosimError):
    pass


class Forbidden(IsosimError):
    domain: str | None = None  # the domain that the key may not use; None if the error has another reason


class NotFound(IsosimError):
    pass


class UnknownDomain(NotFound):
    def __init__(self, domain: str) -> None:
        super().__init__(f"no domain {domain[:80]!r}")
        self.remedy = Remedy(Action.LIST_DOMAINS, {})


class UnknownModel(NotFound):
    pass


class MethodNotAllowed(NotFound):
    def __init__(self, what: str, allowed: str) -> None:
        super().__init__(f"{what} is not allowed; this path allows {allowed}")
        self.allowed = allowed


class Conflict(IsosimError):
    pass


class EncoderMismatch(Conflict):
    pass


class Overloaded(IsosimError):
    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds


class ShareUsed(Overloaded):
    pass


class BackendFailure(IsosimError):
    pass


class EncoderUnreachable(BackendFailure):
    pass


class NotReady(IsosimError):
    pass


class EncoderChanged(NotReady):
    pass


class Unavailable(IsosimError):
    pass


class CorruptArtifact(Unavailable):
    place = ""  # path or address of the damaged file, only for the log; empty if the message contains it


class JobCancelled(IsosimError):
    pass


class CallerLeft(Exception):
    """The caller closed the connection. Not an IsosimError, since no answer can be sent."""
