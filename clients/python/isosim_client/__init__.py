"""Python client of isosim: calibrated sentence similarity as a service.

    >>> from isosim_client import Client
    >>> client = Client("http://127.0.0.1:8000")  # add api_key="…" if the server requires a key
    >>> scores = client.similarity([("A man is playing a guitar.", "Someone plays an instrument.")])
    >>> scores.percentile  # the share of the domain's random pairs that score lower
    (0.99999...,)

`Client` and `AsyncClient` have the same methods. `help(Client)` describes each of them, `help(isosim_client.errors)`
lists the errors that they raise, and the README shows how to use them together.
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
