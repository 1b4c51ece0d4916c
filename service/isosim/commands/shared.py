"""Shared by the commands: common options, settings from the command line, and look-ups in the store."""

import importlib.util
import inspect
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from isosim.commands.terminal import remark
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import InvalidInput, Unavailable
from isosim.observability.logs import LineFormatter, direct
from isosim.settings import Settings, unread
from isosim.store.blobs import opened
from isosim.store.identity import identify

Store = Annotated[Path | None, typer.Option("--model-store", help="the model store (ISOSIM_MODEL_STORE)")]
EncoderId = Annotated[
    str | None,
    typer.Option("--encoder", help="an encoder of the store (ISOSIM_ENCODER)"),
]
RedisUrl = Annotated[str | None, typer.Option(help="Redis for cache and limits (ISOSIM_REDIS_URL)")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")]


def with_options(make: Callable[..., Any], name: str, command: Callable[..., None]) -> Callable[..., None]:
    """The command of a function that gets what `make` makes, or opens as a context manager, as its parameter `name`.

    The parameters of `make` are parameters of the command too.
    """
    more = inspect.signature(make).parameters

    def run(**given: Any) -> None:
        made = make(**{option: given.pop(option) for option in more})
        with made if isinstance(made, AbstractContextManager) else nullcontext(made) as value:
            command(**{name: value}, **given)

    own = [one for parameter, one in inspect.signature(command).parameters.items() if parameter != name]
    needed = [one for one in more.values() if one.default is one.empty]
    taken = [*needed, *own, *(one for one in more.values() if one not in needed)]
    vars(run)["__signature__"] = inspect.Signature([one.replace(kind=one.KEYWORD_ONLY) for one in taken])
    run.__annotations__ = {one.name: one.annotation for one in taken}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def settings_with(**given: Any) -> Settings:
    """Settings from the environment, overridden by options of the command line that are not None."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def settings_warnings() -> list[str]:
    """A warning for each `ISOSIM_*` variable that is misspelt and therefore has no effect."""
    near = ((name, nearest) for name, nearest in unread(os.environ).items() if nearest is not None)
    return [f"{name} is not a setting and has no effect; did you mean {nearest}?" for name, nearest in near]


def stored(**given: Any) -> Settings:
    """`settings_with` for commands that read a store; prints warnings about misspelt settings.

    Raises:
        Unavailable: there is no store. Without this error, a wrong path would look like a store without domains.
    """
    settings = settings_with(**given)
    for warning in settings_warnings():
        remark(warning)
    identify(opened(settings.model_store))
    return settings


def domain_store(settings: Settings) -> DomainStore:
    """The store's domains. Changes of them are logged."""
    log_changes(settings)
    return DomainStore(opened(settings.model_store))


def log_changes(settings: Settings) -> None:
    """Logs changes of domains on stderr, as a server and its workers log them."""
    changes = logging.getLogger("isosim.domains.store")
    if not changes.handlers:
        changes.addHandler(direct(LineFormatter(settings.log_format)))
        changes.setLevel(logging.INFO)
        changes.propagate = False


def encoder_of(settings: Settings) -> EncoderArtifact:
    """The settings' encoder, verified. Raises Unavailable if the store has none of this name."""
    return EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder)


def need_training() -> None:
    """Raises Unavailable if the packages for fitting and exporting are not installed."""
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("this command needs PyTorch: pip install 'isosim[train]'")


def need_finetuning() -> None:
    """Raises Unavailable if the packages for training an encoder are not installed."""
    need_training()
    if any(importlib.util.find_spec(name) is None for name in ("sentence_transformers", "datasets", "accelerate")):
        raise Unavailable("this command needs sentence-transformers: pip install 'isosim[finetune]'")


@contextmanager
def whole(output: Path) -> Iterator[BinaryIO]:
    """A file to write that appears under its name only when it is complete. Several processes may write it at once."""
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


def confirmed(question: str, *, yes: bool) -> None:
    """Asks for confirmation on the terminal, unless `yes`.

    Raises:
        InvalidInput: the answer is no, or standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} There is no terminal to answer on; give --yes")
    if not typer.confirm(question, err=True):
        raise InvalidInput("nothing was changed")
