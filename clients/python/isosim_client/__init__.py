"""Python client of isosim: calibrated sentence similarity as a service.

`Client` and `AsyncClient` have the same methods; `help(isosim_client.errors)` draws the tree of what they raise.
"""

from . import errors
from ._answers import (
    Detail,
    Domain,
    Drift,
    Job,
    PairFlags,
    PairNumbers,
    Ranked,
    Similarity,
    Threshold,
    Version,
    VersionSummary,
)
from ._async_client import AsyncClient
from ._client import Client
from ._retries import Retries
from ._version import __version__
from .errors import (
    ApiError,
    BackendFailure,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    EmptyInput,
    Forbidden,
    InvalidInput,
    IsosimError,
    JobCancelled,
    JobError,
    JobFailed,
    JobInterrupted,
    MethodNotAllowed,
    NoAnswer,
    NotFound,
    NotReady,
    Overloaded,
    ServerFault,
    TimedOut,
    TokenizerFailure,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnsupportedMedia,
    WaitTimeout,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "BackendFailure",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "Detail",
    "Domain",
    "Drift",
    "EmptyInput",
    "Forbidden",
    "InvalidInput",
    "IsosimError",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobInterrupted",
    "MethodNotAllowed",
    "NoAnswer",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PairFlags",
    "PairNumbers",
    "Ranked",
    "Retries",
    "ServerFault",
    "Similarity",
    "Threshold",
    "TimedOut",
    "TokenizerFailure",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnsupportedMedia",
    "Version",
    "VersionSummary",
    "WaitTimeout",
    "__version__",
    "errors",
]

for _name in __all__:  # tracebacks and reprs name what can be imported
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
