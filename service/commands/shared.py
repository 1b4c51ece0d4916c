"""What the commands share: options, settings given on the command line, and what they ask of the store."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from service.adapters.domain_store import DomainStore
from service.adapters.job_store import JobStore
from service.adapters.object_storage import remote
from service.commands import completion
from service.core.errors import InvalidInput, Unavailable
from service.settings import Settings

Store = Annotated[Path | None, typer.Option("--model-store", help="the model store (ISOSIM_MODEL_STORE)")]
EncoderId = Annotated[
    str | None,
    typer.Option("--encoder", help="an encoder of the store (ISOSIM_ENCODER)", autocompletion=completion.encoder_ids),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


def settings_with(**given: Any) -> Settings:
    """The environment's settings, with what the command line gave instead."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def stored(**given: Any) -> Settings:
    """The same for a command that reads a store.

    Raises:
        Unavailable: there is none; a wrong path must not look like a store without domains.
    """
    settings = settings_with(**given)
    if remote(settings.model_store):
        return settings
    if not settings.model_store.is_dir():
        raise Unavailable(f"no model store at {settings.model_store} (--model-store, ISOSIM_MODEL_STORE)")
    if not any(settings.model_store.iterdir()):  # an OSError says that it cannot be read
        raise Unavailable(f"the model store {settings.model_store} is empty; fill it with: isosim export")
    return settings


def prune(settings: Settings, domain: str) -> None:
    """Deletes a domain's old versions, as a worker does: none that a job which has not ended rests on, and none at all
    where it is not known which jobs there are."""
    try:
        jobs = JobStore(settings.jobs_root)
    except Unavailable:
        return
    DomainStore(settings.model_store).prune(domain, settings.keep_versions, jobs.rested_on()[domain])


def need_training() -> None:
    """Raises Unavailable without the packages that fit and export."""
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("this command needs PyTorch: pip install 'isosim[train]'")


def need_finetuning() -> None:
    """Raises Unavailable without the packages that train an encoder."""
    need_training()
    if any(importlib.util.find_spec(name) is None for name in ("sentence_transformers", "datasets", "accelerate")):
        raise Unavailable("this command needs sentence-transformers: pip install 'isosim[finetune]'")


def confirmed(question: str, *, yes: bool) -> None:
    """Asks on a terminal.

    Raises:
        InvalidInput: nobody is there to be asked, and `--yes` was not given; or the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} Nobody is at a terminal to answer; give --yes")
    if not typer.confirm(question, err=True):
        raise InvalidInput("nothing was changed")
