"""Everything that can go wrong, by what it means to the caller. The API's table gives each its status.

IsosimError
├── EmptyInput               nothing to work on
├── InvalidInput             a field breaks its rule; the message names field and limit
│   └── TokenizerFailure     a text cannot be turned into tokens
├── TooLarge                 the body exceeds its limit
├── UnsupportedMedia         a content type this route does not read
├── Unauthorized · Forbidden no key or a wrong one · a key without the needed scope, or not for this domain
├── NotFound                 no such domain, version, job or route
│   ├── UnknownDomain        no such domain; the message offers the nearest name that the caller may use
│   ├── UnknownModel         the name of a model in a compatible body; the message lists what there is
│   └── MethodNotAllowed
├── Conflict                 the state has changed, or does not allow this
│   └── EncoderMismatch      the version belongs to another encoder
├── Overloaded               full; try again after `retry_after` seconds
├── BackendFailure           the encoder failed on this input
│   └── EncoderUnreachable   the server that runs the encoder does not answer, whatever the input
├── NotReady                 starting, draining or broken
│   └── EncoderChanged       that server gives other vectors than when the encoder was registered
├── Unavailable              a part this request needs is not there; the message says how to get it
│   └── CorruptArtifact      a stored file does not match its manifest
└── JobCancelled             not an answer: stops a worker in its tracks
"""


class IsosimError(Exception):
    """Base of all domain errors; `str(error)` is fit for the caller's eyes."""

    field: str | None = None  # of the body that is at fault, where one is


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
    pass


class NotFound(IsosimError):
    pass


class UnknownDomain(NotFound):
    """`near`: a domain whose name is nearly the same, and that the caller may use."""

    def __init__(self, domain: str, near: str | None = None) -> None:
        remedy = (
            "GET /domains lists what there is" if near is None else f"did you mean {near!r}? GET /domains lists them"
        )
        super().__init__(f"no domain {domain[:80]!r}; {remedy}")
        self.domain = domain


class UnknownModel(NotFound):
    pass


class MethodNotAllowed(NotFound):
    pass


class Conflict(IsosimError):
    pass


class EncoderMismatch(Conflict):
    pass


class Overloaded(IsosimError):
    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds


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
    pass


class JobCancelled(IsosimError):
    pass


class CallerLeft(Exception):
    """The connection of whoever asked is closed. No IsosimError: there is nobody to answer."""
