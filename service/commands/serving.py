"""`isosim serve` and `isosim worker`."""

import logging
import os
from typing import Annotated

import typer

from service.commands.exits import complain
from service.commands.shared import EncoderId, Store, need_training, settings_with
from service.core.errors import Unavailable
from service.settings import unread

RedisUrl = Annotated[str | None, typer.Option(help="Redis for cache and jobs (ISOSIM_REDIS_URL)")]


def serve(
    host: Annotated[str | None, typer.Option(help="address to bind (ISOSIM_HOST)")] = None,
    port: Annotated[int | None, typer.Option(help="port to bind (ISOSIM_PORT)")] = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    redis_url: RedisUrl = None,
) -> None:
    """Run the API."""
    from service.api.auth import Keys  # noqa: PLC0415 - its help is there sooner without
    from service.server import Server  # noqa: PLC0415

    settings = settings_with(host=host, port=port, model_store=model_store, encoder=encoder, redis_url=redis_url)
    logging.getLogger().setLevel(settings.log_level.upper())
    say_unread()
    try:
        Keys(settings.api_keys_file)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    server = Server(settings)
    refusal = Refusal()
    logging.getLogger("uvicorn.error").addFilter(refusal)
    try:
        server.run()
    except SystemExit:  # uvicorn's own code for a start that failed
        if refusal.reason is None:
            raise typer.Exit(1) from None
    if refusal.reason is not None:
        raise Unavailable(refusal.reason)
    if server.failed or not server.started:
        raise typer.Exit(1)


class Refusal(logging.Filter):
    """Why the server would not start: uvicorn logs the traceback, and its last line alone is for who started it."""

    reason: str | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith("Traceback"):
            return True
        kind, _, message = text.rstrip().rsplit("\n", 1)[-1].partition(": ")
        if kind.startswith("service.core.errors.") or kind in {"PermissionError", "FileNotFoundError", "OSError"}:
            self.reason = message
            return False
        return True


def worker(
    model_store: Store = None,
    redis_url: RedisUrl = None,
    burst: Annotated[bool, typer.Option(help="stop when the queue is empty")] = False,
) -> None:
    """Run calibrations that the API puts into Redis."""
    need_training()
    settings = settings_with(model_store=model_store, redis_url=redis_url)
    if settings.redis_url is None:
        raise Unavailable("a worker needs Redis (ISOSIM_REDIS_URL); without it the API runs calibrations by itself")
    say_unread()
    # RQ's children read their settings anew.
    os.environ["ISOSIM_MODEL_STORE"] = str(settings.model_store.resolve())
    from service.worker import serve_queue  # noqa: PLC0415

    serve_queue(settings, burst=burst)


def say_unread() -> None:
    """A misspelt setting would be passed over in silence, and what was meant would stay at its default."""
    for name, nearest in unread(os.environ).items():
        if nearest is not None:
            complain(f"{name} is no setting and changes nothing; is {nearest} meant?")
