"""Log lines about a process: its configuration at the start, that it is ready, and how it stops."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from isosim import __version__
from isosim.observability.logs import STARTED
from isosim.settings import Settings
from isosim.store.blobs import address_of, remote

if TYPE_CHECKING:  # calibration workers import this module, but must not import the modules below
    from isosim.api.trace import Observer

log = logging.getLogger("isosim")


def say(message: str, **facts: object) -> None:
    log.info(message, extra={"facts": facts})


def starting(what: str, settings: Settings, store_id: str | None, **facts: object) -> None:
    """Logs all facts in which two processes of one deployment could differ: the release, the store, these `facts`, and
    all settings that differ from their defaults, without passwords."""
    changed = settings.model_dump(mode="json", exclude={"redis_url", "redis_password"}, exclude_defaults=True)
    url, store = settings.redis_url, settings.model_store
    redis = None if url is None else urlsplit(url.get_secret_value())
    stated = {"release": __version__, "pid": os.getpid(), **changed} | {
        "redis": redis and redis._replace(netloc=redis.netloc.rpartition("@")[2], query="", fragment="").geturl(),
        "model_store": address_of(store) if remote(store) else str(store.absolute()),
        "store_id": store_id,
    }
    say(what, **(stated | facts))


def ready(address: str) -> None:
    say("ready", url=address, seconds=round(time.perf_counter() - STARTED, 2))


@contextmanager
def stopping(observer: "Observer | None", drain: float) -> Iterator[None]:
    """Logs how many requests are in flight when the server begins to stop, and how many of them were cut off."""
    if observer is None:
        yield
        return
    began, aborted = time.perf_counter(), observer.aborted
    say("draining", under_way=observer.under_way, at_most_s=drain)
    try:
        yield
    finally:
        cut_off = observer.aborted - aborted + observer.under_way
        say("stopped", aborted=cut_off, seconds=round(time.perf_counter() - began, 2))
