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

from . import _answers, errors
from ._answers import *  # noqa: F403 - its __all__
from ._clients import AsyncClient, Client
from ._retries import Retries
from ._version import CONTRACT, __version__
from .errors import *  # noqa: F403 - its __all__

__all__ = ["CONTRACT", "AsyncClient", "Client", "Retries", "__version__", "errors"]
__all__ += _answers.__all__
__all__ += errors.__all__

for _name in __all__:  # so that tracebacks show `isosim_client.Client`, not `isosim_client._clients.Client`
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
