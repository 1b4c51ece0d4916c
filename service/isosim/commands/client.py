"""The Python client of a command: to the app in this process, or to a server (`--server`)."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import isosim_client
from isosim.commands.shared import log_changes, stored, unknown_domain
from isosim.errors import IsosimError, NotFound
from isosim.scoring.calibration import DomainRef
from isosim_client import Client, Domain, Retries

HERE = "http://isosim"  # of the app in this process
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="ISOSIM_SERVER",
        help="ask this server, for example http://127.0.0.1:8000, instead of the model store; the API key comes from "
        "ISOSIM_API_KEY",
    ),
]


@contextmanager
def connected(server: str | None, *, model_store: Path | None, encoder: str | None = None) -> Iterator[Client]:
    """A client of the server, or without one of the app in this process.

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
            from isosim.server.embedded import AppTransport  # noqa: PLC0415 - the web framework; a server needs none

            transport = stack.enter_context(AppTransport(settings))
            client = Client(HERE, transport=transport, retries=Retries(times=0))
        else:
            try:
                client = Client(server, os.environ.get("ISOSIM_API_KEY"))
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--server") from error
        stack.enter_context(client)
        try:
            yield client
        except isosim_client.IsosimError as error:
            raise IsosimError(str(error)) from error


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
        NotFound: there is no such domain or version; the message lists the known domains.
    """
    ref = DomainRef.parse(domain)
    state = state_of(client, ref.name)
    number = {"champion": state.champion, "previous": state.previous}.get(str(ref.version), ref.version)
    if number is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version}; calibrate it, or name another version")
    encoders = {one.version: one.encoder for one in state.versions}
    return PinnedVersion(ref.name, int(number), encoders.get(int(number)))


def state_of(client: Client, domain: str) -> Domain:
    """A domain's versions and champion. Raises NotFound, which lists the known domains."""
    try:
        return client.domain(domain)
    except isosim_client.NotFound:
        raise unknown_domain(domain, [one.domain for one in client.domains()]) from None
