"""The Python client of a command: to the app in this process, or to a server (`--server`)."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import isosim_client
from isosim.commands.shared import EncoderId, Store, log_changes, stored, with_options
from isosim.commands.terminal import REMEDIES, bar, remark
from isosim.domains.store import DomainStore
from isosim.errors import Action, Conflict, IsosimError, NotFound
from isosim.jobs.job import Job
from isosim.jobs.store import JobStore
from isosim.scoring.calibration import DomainRef
from isosim.settings import Settings
from isosim.store.blobs import opened
from isosim_client import Client, Match, Retries
from isosim_client import Job as ClientJob

if TYPE_CHECKING:
    from isosim.worker.supervisor import Worker

HERE = "http://isosim"  # of the app in this process
PATIENCE = 1e6  # s; the app in this process answers, however long it takes
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="ISOSIM_SERVER",
        help="ask this server, for example http://127.0.0.1:8000, instead of the model store; the API key comes from "
        "ISOSIM_API_KEY",
    ),
]


class JobRunner:
    """Runs the jobs that a command creates, and no others of the store, each by a worker in a thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._running: list[tuple[Job, Worker, threading.Thread]] = []

    async def run(self, job: Job) -> None:
        from isosim.worker.calibrating import FOREGROUND  # noqa: PLC0415 - most commands create no job
        from isosim.worker.supervisor import CHILD, Worker  # noqa: PLC0415

        blobs = opened(self.settings.model_store)
        worker = Worker(self.settings, JobStore(blobs), DomainStore(blobs), None, (*CHILD, FOREGROUND))
        thread = threading.Thread(target=worker.serve, kwargs={"burst": True, "only": job.id}, name="worker")
        thread.start()
        self._running.append((job, worker, thread))

    def close(self) -> None:
        """Cancels the jobs that have not ended; one that is publishing is given back."""
        for job, worker, thread in self._running:
            with suppress(NotFound, Conflict):
                worker.jobs.cancel(job.id)
            worker.stop()
            worker.stop()
            thread.join()


@contextmanager
def followed(cancel: Callable[[], object]) -> Iterator[Callable[[ClientJob | Match], None]]:
    """Yields a function that shows the states of a job as a progress bar. Ctrl-C cancels the job by `cancel`."""
    with bar("waiting") as progress:
        try:
            yield lambda state: progress(state.stage, state.progress)
        except KeyboardInterrupt:
            with suppress(isosim_client.IsosimError):
                cancel()
            raise


def finished(client: Client, job: ClientJob) -> ClientJob:
    """Waits for a job's end, and prints its notices. Raises isosim_client.JobError if it has not succeeded."""
    for notice in client.job(job).notices:
        remark(f"isosim: {notice}")
    with followed(lambda: client.cancel(job)) as progress:
        return client.wait(job, progress=progress)


@contextmanager
def connected(server: Server = None, model_store: Store = None, encoder: EncoderId = None) -> Iterator[Client]:
    """A client of the server, or without one of the app in this process. The parameters are options of `asking`.

    Raises:
        typer.BadParameter: both a server and options of the app are given, or the server's address is invalid.
        IsosimError: the app cannot start, or the body of the `with` statement raises an error of the client.
    """
    if server is not None and (model_store is not None or encoder is not None):
        raise typer.BadParameter("a server has its own; give one of them", param_hint="--server or --model-store")
    with ExitStack() as stack:
        if server is None:
            settings = stored(model_store=model_store, encoder=encoder)
            log_changes(settings)
            from isosim.server.embedded import served  # noqa: PLC0415 - the web framework; a server needs none

            runner = JobRunner(settings)
            stack.enter_context(closing(runner))  # after the app, which may be creating a job when it is interrupted
            transport = stack.enter_context(served(settings, runner.run))
            client = Client(HERE, transport=transport, timeout=PATIENCE, retries=Retries(times=0))
        else:
            try:
                client = Client(server, os.environ.get("ISOSIM_API_KEY"))
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--server") from error
        stack.enter_context(client)
        try:
            yield client
        except isosim_client.IsosimError as error:
            if error.remedy is None or error.remedy["action"] not in REMEDIES:  # a newer server words its own
                raise IsosimError(str(error)) from error
            raise IsosimError(error.reason).with_remedy(
                Action(error.remedy["action"]), **error.remedy["arguments"]
            ) from error


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The command of a function that gets a client as its parameter `client`, with the options that say which one."""
    return with_options(connected, "client", command)


class PinnedVersion(NamedTuple):
    """A version, for all requests of a command."""

    domain: str
    version: int
    encoder: str | None  # digest; None for version 0 of `default`, which no calibration made

    def __str__(self) -> str:
        return f"{self.domain}@{self.version}"


def pinned(client: Client, domain: str) -> PinnedVersion:
    """The version that name, name@3 or name@previous names now.

    Raises:
        InvalidInput: `domain` is not a valid reference.
        NotFound: the domain has no such version.
    """
    ref = DomainRef.parse(domain)
    state = client.domain(ref.name)
    number = {"champion": state.champion, "previous": state.previous}.get(str(ref.version), ref.version)
    if number is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version}; calibrate it, or name another version")
    encoders = {one.version: one.encoder for one in state.versions}
    return PinnedVersion(ref.name, int(number), encoders.get(int(number)))
