"""The API in the process of a command: the app on a socket of its own, and a transport to it for the Python client.

The app runs on an event loop in a thread of its own, without what a server needs for many callers (`UNLIMITED`) and for
a long life (`build` with `run`).
"""

import asyncio
import logging
import math
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import httpx2
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from isosim.server.app import create_app
from isosim.server.composition import RunJob, build, listening
from isosim.settings import Settings

# What protects a server that many callers share. `allow_anonymous` accepts every Host header.
UNLIMITED = {
    "api_keys_file": None, "allow_anonymous": True, "cors_origins": (), "max_wait": math.inf,
    "request_timeout": math.inf, "max_pairs": 2**31, "max_body_bytes": 2**31, "max_calibration_bytes": 2**40,
    "max_calibration_sentences": 2**31, "max_queued_jobs": 2**31, "local_worker": True, "redis_url": None,
    "metrics_port": None,
}  # fmt: skip


@contextmanager
def served(settings: Settings, run: RunJob) -> Iterator[httpx2.BaseTransport]:
    """Serves the app on a socket in a folder of this user's own, for an `isosim_client.Client` with this transport.

    `run` is called with each job that the caller creates. Raises IsosimError or OSError if the app cannot start, for
    example without an encoder.
    """
    settings = settings.model_copy(update=UNLIMITED)
    # It would report requests that the end of the command cuts off; the app logs its own faults.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    app, started = create_app(settings), Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve(path: str) -> None:
        ended = asyncio.Event()
        try:
            async with build(settings, run) as service:
                listen = partial(asyncio.get_running_loop().create_unix_server, path=path)
                async with listening(app, HttpToolsProtocol, listen, {"service": service}):
                    started.set_result((asyncio.get_running_loop(), ended))
                    await ended.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    with tempfile.TemporaryDirectory(prefix="isosim-") as folder:
        path = f"{folder}/app"
        thread = threading.Thread(target=lambda: asyncio.run(serve(path)), name="app", daemon=True)
        thread.start()
        loop, ended = started.result()
        try:
            with httpx2.HTTPTransport(uds=path) as transport:
                yield transport
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
