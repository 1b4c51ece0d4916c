"""Model names of compatible bodies: `isosim`, `isosim/<domain>[@version]`, and with `:raw` the frozen encoder."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from service.api import requests
from service.api.scoring.pipeline import Space
from service.api.state import Service
from service.api.trace import Trace
from service.core.errors import InvalidInput, IsosimError, NotFound, UnknownModel
from service.core.grants import Grant
from service.core.scoring.calibration import DomainRef
from service.core.scoring.registry import DEFAULT
from service.migration.encoders import Resolution

T = TypeVar("T")

NAME = re.compile(r"isosim(?:/(?P<domain>[^:/]+))?(?P<raw>:raw)?")
PAGE = 16  # domains asked for at once
LISTED = 40  # names in a message


@dataclass(frozen=True)
class Model:
    """What a model's name stands for now."""

    name: str
    resolution: Resolution
    space: Space


def parse(name: str) -> tuple[DomainRef, Space]:
    """Raises InvalidInput where this is no name of ours."""
    match = NAME.fullmatch(name)
    if not match:
        raise InvalidInput(f"model {name[:80]!r}")
    return DomainRef.parse(match["domain"] or DEFAULT), "raw" if match["raw"] else "calibrated"


async def resolve(
    service: Service, trace: Trace, name: str, version: str | None = None, *, splits: bool = False
) -> Model:
    """The model of that name; `version` for protocols that keep it apart from the name, `splits` as `requests.resolve`.

    Raises:
        UnknownModel: there is none; the message lists what there is for this key.
        Forbidden: the key may not use its domain.
        EncoderMismatch: its domain belongs to another encoder.
    """
    try:
        ref, space = parse(name)
        if version is not None:
            if ref.version != "champion" or not version.isascii() or not version.isdigit():
                raise InvalidInput("a version in the name and another beside it, or one that is no number")
            ref = DomainRef.parse(f"{ref.name}@{version}")
        return Model(name, await requests.resolve(service, trace, ref, splits=splits), space)
    except (InvalidInput, NotFound):
        if trace.grant.rate is not None:  # the message costs a look into the store
            await service.limits.admit(replace(trace.grant, concurrent=None), 1)
        known = await names(service, trace.grant, LISTED // 2 + 1)
        more = " and more (GET /v1/models)" if len(known) > LISTED else ""
        asked = name[:80] if version is None else f"{name[:80]} version {version[:20]}"
        unknown = UnknownModel(f"no model {asked!r}; there is {', '.join(known[:LISTED]) or 'none for this key'}{more}")
        unknown.field = "model"
        raise unknown from None


async def names(service: Service, grant: Grant, most: int) -> list[str]:
    """The models of the first `most` domains that this server can answer the key for, the default's first."""
    answering = await service.listings.begin(grant, lambda: list(itertools.islice(champions(service, grant), most)))
    bare = ["isosim"] if grant.may_use(DEFAULT) else []
    return [*bare, *(f"isosim/{domain}{raw}" for domain, _ in answering for raw in ("", ":raw"))]


def permitted(service: Service, grant: Grant) -> list[str]:
    """The key's domains, whether or not they can be served here; `default` is the first."""
    stored = service.domains.names(wanted=lambda name: name != DEFAULT and grant.may_use(name))
    return [*([DEFAULT] if grant.may_use(DEFAULT) else []), *stored]


def champions(service: Service, grant: Grant) -> Iterator[tuple[str, int]]:
    """The key's domains that have a champion for the encoder that answers for them here, and its version."""
    if grant.may_use(DEFAULT):
        yield DEFAULT, champion_of(service, DEFAULT) or 0
    stored = service.domains.names(wanted=lambda name: name != DEFAULT and grant.may_use(name))
    while some := list(itertools.islice(stored, PAGE)):
        there = zip(some, service.domains.read_each(some, partial(champion_of, service)), strict=True)
        yield from ((name, version) for name, version in there if version is not None)


def champion_of(service: Service, domain: str) -> int | None:
    """None also where its files cannot be read: one broken domain hides itself, not the others."""
    try:
        return service.domains.aliases(domain, service.encoders.home_encoder(domain).digest).champion
    except (IsosimError, OSError):
        return None
