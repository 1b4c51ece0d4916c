"""What the shell offers after TAB: domains and encoders of the store."""

from pathlib import Path

import typer

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.core.errors import IsosimError
from service.settings import Settings

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
