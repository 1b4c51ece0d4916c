"""Python client of isosim: calibrated sentence similarity as a service.

    >>> from isosim_client import Client
    >>> client = Client("http://127.0.0.1:8000")  # add api_key="…" if the server requires a key
    >>> pairs = [
    ...     ("A man is playing a guitar.", "Someone plays an instrument."),
    ...     ("A man is playing a guitar.", "Shares fell in London."),
    ... ]
    >>> client.similarity(pairs).percentile  # the share of the domain's random pairs that score lower
    (0.999, 0.217)

Calibrate your own domain with unlabelled text, and get a similarity threshold for the domain:

    >>> from pathlib import Path
    >>> job = client.calibrate(Path("tickets.txt"), domain="tickets")  # one sentence per line; iterables work too
    >>> client.wait(job).promoted
    True
    >>> advice = client.threshold("tickets", fmr=0.01)  # one random pair in a hundred reaches this threshold
    >>> [similarity >= advice.similarity for similarity in client.similarity(pairs, domain="tickets").similarity]
    [True, False]

`Client` and `AsyncClient` have the same methods. `help(isosim_client.errors)` lists the errors that the methods raise.
"""

from . import errors
from ._answers import (
    Detail,
    Domain,
    Drift,
    Job,
    NamedThreshold,
    PairFlags,
    PairNumbers,
    Ranked,
    SavedTarget,
    SavedThreshold,
    Similarity,
    Threshold,
    Thresholds,
    Version,
    VersionSummary,
)
from ._clients import AsyncClient, Client
from ._retries import Retries
from ._version import CONTRACT, __version__
from .errors import (
    ApiError,
    BackendFailure,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    EmptyInput,
    Forbidden,
    IncompatibleServer,
    InvalidInput,
    IsosimError,
    JobCancelled,
    JobError,
    JobFailed,
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
    "CONTRACT",
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
    "IncompatibleServer",
    "InvalidInput",
    "IsosimError",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "MethodNotAllowed",
    "NamedThreshold",
    "NoAnswer",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PairFlags",
    "PairNumbers",
    "Ranked",
    "Retries",
    "SavedTarget",
    "SavedThreshold",
    "ServerFault",
    "Similarity",
    "Threshold",
    "Thresholds",
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

for _name in __all__:  # so that tracebacks show `isosim_client.Client`, not `isosim_client._clients.Client`
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
