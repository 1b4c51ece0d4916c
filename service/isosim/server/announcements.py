"""Log lines about a process: its configuration at the start, that it is ready, and how it stops."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from isosim import __version__
from isosim.observability.logs import STARTED, Facts
from isosim.settings import Settings
from isosim.store.blobs import address_of, remote

if TYPE_CHECKING:  # calibration workers import this module, but must not import the modules below
    from isosim.api.trace import Observer
    from isosim.encoders.device import Execution
    from isosim.encoders.spec import Engine
    from isosim.encoders.store import EncoderArtifact

log = logging.getLogger("isosim")


def say(message: str, facts: Facts) -> None:
    log.info(message, extra={"facts": facts})


def starting(
    settings: Settings,
    store_id: str | None,
    encoder: "EncoderArtifact",
    engine: "Engine",
    execution: "Execution",
) -> None:
    """Logs all facts in which two servers of one deployment could differ."""
    facts: dict[str, object] = {"encoder": encoder.id, "encoder_digest": encoder.digest}
    computed = engine if encoder.kind == "onnx" else encoder.kind
    facts |= {"precision": encoder.spec.precision, "engine": computed, "threads": execution.threads}
    say("starting", process(settings, store_id) | facts | asdict(execution.plan))


def worker_starting(settings: Settings, store_id: str | None) -> None:
    say("worker starting", process(settings, store_id) | {"threads": settings.threads or 1})


def process(settings: Settings, store_id: str | None) -> dict[str, object]:
    """The release, the store, and all settings that differ from their defaults, without passwords."""
    changed = settings.model_dump(mode="json", exclude={"redis_url", "redis_password"}, exclude_defaults=True)
    url, store = settings.redis_url, settings.model_store
    return {
        "release": __version__,
        "pid": os.getpid(),
        **changed,
        "redis": None if url is None else redis_address(url.get_secret_value()),
        "model_store": address_of(store) if remote(store) else str(store.absolute()),
        "store_id": store_id,
    }


def listed(domains: int) -> None:
    """Logs how many domains the store has. Fewer than before the restart, or another `store_id`: a store is lost."""
    say("model store listed", {"domains": domains})


def redis_address(url: str) -> str:
    """A Redis URL without user and password."""
    try:
        parts = urlsplit(url)
        place = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "not understood"
    return f"{parts.scheme}://{place}{parts.path}"


def ready(address: str) -> None:
    say("ready", {"url": address, "seconds": round(time.perf_counter() - STARTED, 2)})


@contextmanager
def stopping(observer: "Observer | None", drain: float) -> Iterator[None]:
    """Logs how many requests are in flight when the server begins to stop, and how many of them were cut off."""
    if observer is None:
        yield
        return
    began, aborted = time.perf_counter(), observer.aborted
    say("draining", {"under_way": observer.under_way, "at_most_s": drain})
    try:
        yield
    finally:
        cut_off = observer.aborted - aborted + observer.under_way
        say("stopped", {"aborted": cut_off, "seconds": round(time.perf_counter() - began, 2)})
