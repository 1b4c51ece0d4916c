"""`isosim serve` and `isosim worker`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from isosim.commands.shared import EncoderId, RedisUrl, Store, need_training, settings_warnings, settings_with
from isosim.commands.terminal import in_one_line
from isosim.errors import IsosimError, Unavailable
from isosim.jobs.pulse import HUNG, silences
from isosim.observability import logs
from isosim.settings import Settings
from isosim.store.blobs import Blobs, opened
from isosim.store.blobs import check as check_conditions
from isosim.store.identity import create, identify

log = logging.getLogger("isosim")


def serve(
    host: Annotated[str | None, typer.Option(help="address to bind (ISOSIM_HOST)")] = None,
    port: Annotated[int | None, typer.Option(help="port to bind (ISOSIM_PORT)")] = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    redis_url: RedisUrl = None,
    init: Annotated[bool, typer.Option("--init", help="make a model store if there is none; images do")] = False,
) -> None:
    """Run the API."""
    from isosim.access.key_file import Keys  # noqa: PLC0415 - keeps `--help` fast
    from isosim.server.process import Server  # noqa: PLC0415

    settings = settings_with(host=host, port=port, model_store=model_store, encoder=encoder, redis_url=redis_url)
    with logged(settings, queued=True):
        try:
            Keys(settings.api_keys_file)
        except OSError as error:
            raise Unavailable(f"ISOSIM_API_KEYS_FILE: {in_one_line(error)}") from None
        except ValueError as error:
            raise Unavailable(str(error)) from None
        blobs = opened(settings.model_store)
        if init:
            made(blobs)
        identify(blobs)
        server = Server(settings)
        state = server.app.state

        def wanted(record: logging.LogRecord) -> bool:  # not the traceback of a failed start if one line tells why
            known = isinstance(state.failure, IsosimError | OSError)
            return not (known and record.getMessage().startswith("Traceback"))

        logging.getLogger("uvicorn.error").addFilter(wanted)
        with suppress(SystemExit):  # raised by uvicorn if the start fails
            server.run()
        if isinstance(state.failure, IsosimError | OSError):
            raise state.failure
        if state.failure is not None:  # the log has its traceback, without the message
            raise Unavailable(f"{type(state.failure).__name__}: {state.failure}")
        if server.failed or not server.started:
            raise typer.Exit(1)


def made(blobs: Blobs) -> None:
    """Makes a model store if there is none. If the volume cannot be written, `identify` tells whether there is one."""
    try:
        create(blobs)
    except OSError as error:
        log.warning("could not write store.json into %s: %s", blobs.address, in_one_line(error))


@contextmanager
def logged(settings: Settings, *, queued: bool = False) -> Iterator[None]:
    """Configures the log. With a JSON log, an error that ends the process is logged, and the exit code is 1. With a
    text log, the error is raised."""
    logs.configure(settings.log_level, settings.log_format, queued=queued)
    for warning in settings_warnings():
        log.warning(warning)
    try:
        yield
    except (IsosimError, OSError) as error:
        if not logs.structured():
            raise
        log.critical("%s", in_one_line(error))
        raise typer.Exit(1) from None
    finally:
        logs.flush()


def worker(
    model_store: Store = None,
    redis_url: RedisUrl = None,
    burst: Annotated[bool, typer.Option(help="stop when there is no job to run")] = False,
    check: Annotated[bool, typer.Option("--check", help="check that the workers of this machine do not hang")] = False,
) -> None:
    """Run calibrations of the model store. On SIGTERM, a worker gives its calibration back to other workers after
    ISOSIM_DRAIN_SECONDS, unless it has ended by then."""
    from isosim.server import announcements  # noqa: PLC0415

    if check:
        check_workers()
        return
    need_training()
    settings = settings_with(model_store=model_store, redis_url=redis_url)
    with logged(settings):
        blobs = opened(settings.model_store)
        store_id = identify(blobs)
        check_conditions(blobs)
        announcements.starting("worker starting", settings, store_id, threads=settings.threads or 1)
        from isosim.worker.supervisor import run  # noqa: PLC0415

        run(settings, burst=burst)


def check_workers() -> None:
    """Raises Unavailable unless a worker of this machine runs and none hangs. Kubernetes asks so whether to restart
    one."""
    found = silences()
    if not found:
        raise Unavailable("no calibration worker runs on this machine; start one with: isosim worker")
    for process, seconds in found.items():
        if seconds > HUNG:
            raise Unavailable(f"the calibration worker with process id {process} has hung for {seconds:.0f} s")
    print(f"workers: {len(found)}; the last sign of life is at most {max(found.values()):.0f} s old")
