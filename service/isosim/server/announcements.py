"""Log lines about a process: its configuration at the start, that it is ready, and how it stops."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from isosim import __version__
from isosim.observability.logs import STARTED, Facts
from isosim.settings import Settings
from isosim.store.blobs import address_of, remote

if TYPE_CHECKING:  # calibration workers import this module, but must not import the modules below
    from isosim.api.access_log import Observer
    from isosim.encoders.device import Execution
    from isosim.encoders.store import EncoderArtifact

log = logging.getLogger("isosim")


def say(message: str, facts: Facts) -> None:
    log.info(message, extra={"facts": facts})


def starting(
    settings: Settings,
    store_id: str | None,
    encoder: "EncoderArtifact",
    providers: list[str],
    execution: "Execution",
) -> None:
    """Logs all facts in which two servers of one deployment could differ."""
    plan = execution.plan
    say(
        "starting",
        {
            "release": __version__,
            "pid": os.getpid(),
            "encoder": encoder.id,
            "encoder_digest": encoder.digest,
            "precision": encoder.spec.precision,
            "providers": providers,
            "threads": execution.threads,
            "runs": plan.runs,
            "alone": plan.exclusive,
            "max_batch_tokens": plan.max_batch_tokens,
            "max_batch_texts": plan.max_batch_texts,
            "max_queued_texts": plan.max_queued_texts,
            "max_wait_s": plan.max_wait,
            "max_pairs": settings.max_pairs,
            "max_texts": settings.max_texts,
            "max_characters": settings.max_characters,
            "max_body_bytes": settings.max_body_bytes,
            "memory_cache_bytes": settings.memory_cache_bytes,
            "cache_precision": settings.cache_precision,
            "redis": redis_of(settings),
            "keys": settings.api_keys_file is not None,
            "model_store": place_of(settings.model_store),
            "store_id": store_id,
            "drain_s": settings.drain_seconds,
        },
    )


def following(encoder: "EncoderArtifact", execution: "Execution") -> None:
    """Logs the next encoder. The server runs both encoders while domains migrate to the next one."""
    facts: dict[str, object] = {"encoder": encoder.id, "encoder_digest": encoder.digest}
    say("next encoder", facts | {"precision": encoder.spec.precision, "runs": execution.plan.runs})


def worker_starting(settings: Settings, store_id: str | None) -> None:
    facts: dict[str, object] = {"release": __version__, "pid": os.getpid(), "redis": redis_of(settings)}
    store = {"model_store": place_of(settings.model_store), "store_id": store_id}
    say("worker starting", facts | store | {"threads": settings.worker_threads})


def listed(domains: int) -> None:
    """Logs how many domains the store has. Fewer than before the restart, or another `store_id`: a store is lost."""
    say("model store listed", {"domains": domains})


def place_of(store: Path) -> str:
    """The store's address in object storage, or the absolute path of the store's folder."""
    return address_of(store) if remote(store) else str(store.absolute())


def redis_of(settings: Settings) -> str | None:
    return None if settings.redis_url is None else redis_address(settings.redis_url.get_secret_value())


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
    """Logs how many requests are in flight when the server begins to stop, and how many of them finished."""
    if observer is None:
        yield
        return
    began, answered, aborted = time.perf_counter(), observer.answered, observer.aborted
    observer.drained_by = began + drain
    say("draining", {"under_way": observer.under_way, "at_most_s": drain})
    try:
        yield
    finally:
        facts = {
            "finished": observer.answered - answered,
            "aborted": observer.aborted - aborted + observer.under_way,
            "seconds": round(time.perf_counter() - began, 2),
        }
        say("stopped", facts)
