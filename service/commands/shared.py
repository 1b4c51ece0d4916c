"""Shared by the commands: options, settings given on the command line, and questions to the store."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from service.adapters.domains.store import DomainStore
from service.adapters.encoder.store import EncoderStore
from service.adapters.jobs.store import JobStore
from service.adapters.storage.object_storage import remote
from service.commands.terminal import remark
from service.core.errors import InvalidInput, IsosimError, NotFound, Unavailable
from service.core.scoring.calibration import DomainRef
from service.core.scoring.registry import DEFAULT
from service.core.wording import nearest
from service.settings import Settings, unread

MOST_LISTED = 40  # domains in a message
UNREADABLE = (IsosimError, OSError, ValueError)  # ValueError: a setting that does not hold


def store_of(context: typer.Context) -> Path:
    """The store that the command line, or the environment, names."""
    given = context.params.get("model_store")
    return Path(given) if given else Settings().model_store


def domain_names(context: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """A completion never complains: what cannot be read is not offered."""
    try:
        return DomainStore(store_of(context)).domains()
    except UNREADABLE:
        return []


def versions(context: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """Domains; after an `@` the versions of one."""
    try:
        store = DomainStore(store_of(context))
        name, at, _ = incomplete.partition("@")
        if not at:
            return store.domains()
        return [f"{name}@{version}" for version in store.versions(name)] + [f"{name}@previous"]
    except UNREADABLE:
        return []


def version_numbers(context: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """The versions of the domain that stands before."""
    try:
        return [str(version) for version in DomainStore(store_of(context)).versions(context.params.get("domain") or "")]
    except UNREADABLE:
        return []


def encoder_ids(context: typer.Context, args: list[str], incomplete: str) -> list[str]:
    try:
        return EncoderStore(store_of(context)).ids()
    except UNREADABLE:
        return []


Store = Annotated[Path | None, typer.Option("--model-store", help="the model store (ISOSIM_MODEL_STORE)")]
EncoderId = Annotated[
    str | None,
    typer.Option("--encoder", help="an encoder of the store (ISOSIM_ENCODER)", autocompletion=encoder_ids),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


def settings_with(**given: Any) -> Settings:
    """The environment's settings, with what the command line gave instead."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def misspelt_settings() -> list[str]:
    """A warning of each misspelt variable, which nothing reads: the setting that was meant stays at its default."""
    near = ((name, nearest) for name, nearest in unread(os.environ).items() if nearest is not None)
    return [f"{name} is no setting and changes nothing; is {nearest} meant?" for name, nearest in near]


def stored(**given: Any) -> Settings:
    """The same for a command that reads a store.

    Raises:
        Unavailable: there is none; a wrong path must not look like a store without domains.
    """
    settings = settings_with(**given)
    for misspelt in misspelt_settings():
        remark(misspelt)
    if remote(settings.model_store):
        return settings
    if not settings.model_store.is_dir():
        raise Unavailable(f"no model store at {settings.model_store} (--model-store, ISOSIM_MODEL_STORE)")
    if not any(settings.model_store.iterdir()):  # an OSError says that it cannot be read
        raise Unavailable(f"the model store {settings.model_store} is empty; fill it with: isosim export")
    return settings


def prune(settings: Settings, domain: str) -> None:
    """Deletes a domain's old versions, as a worker does: none that a job which has not ended rests on."""
    jobs = JobStore(settings.jobs_root)
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
        InvalidInput: stdin is no terminal, and `--yes` was not given; or the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} Nobody is at a terminal to answer; give --yes")
    if not typer.confirm(question, err=True):
        raise InvalidInput("nothing was changed")


def known(settings: Settings, domain: str) -> DomainRef:
    """A reference to a domain that the store has.

    Raises:
        InvalidInput: no reference. NotFound: no such domain; the message lists those there are.
    """
    ref = DomainRef.parse(domain)
    domains = DomainStore(settings.model_store)
    if ref.name != DEFAULT and not domains.versions(ref.name):
        names = domains.domains()
        near = nearest(ref.name, names, 0.7)
        hint = f"did you mean {near!r}? " if near is not None else ""
        there = ", ".join(names[:MOST_LISTED]) + (", …" if len(names) > MOST_LISTED else "") or "none"
        raise NotFound(f"no domain {ref.name!r} in {settings.model_store}; {hint}there are: {there}")
    return ref


def stored_version(settings: Settings, domain: str) -> tuple[DomainRef, int, dict[str, Any]]:
    """The version a reference means for the encoder of the settings, with its manifest.

    Raises:
        NotFound: no such version. InvalidInput: it was made for another encoder.
    """
    ref = known(settings, domain)
    artifact = EncoderStore(settings.model_store).find(settings.encoder)
    domains = DomainStore(settings.model_store)
    aliases = domains.aliases(ref.name, artifact.digest)
    version = {"champion": aliases.champion, "previous": aliases.previous}.get(str(ref.version), ref.version)
    if version is None:
        made = f"it was never calibrated for encoder {artifact.id}: isosim calibrate FILE --domain {ref.name}"
        raise NotFound(f"domain {ref.name!r} has no {ref.version}; {made if not aliases.champion else 'name another'}")
    manifest = domains.manifest(ref.name, int(version))
    if manifest["encoder"]["digest"] != artifact.digest:
        raise InvalidInput(f"{ref.name}@{version} was made for encoder {manifest['encoder']['id']}")
    return ref, int(version), manifest
