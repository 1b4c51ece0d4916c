"""Model names in compatible bodies: `isosim`, `isosim/<domain>[@version]`; the suffix `:raw` means raw vectors."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from isosim.access.grants import Grant
from isosim.api import requests
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.domains.domain import Version
from isosim.errors import InvalidInput, IsosimError, NotFound, UnknownModel
from isosim.migration.encoders import Resolution
from isosim.scoring.calibration import DEFAULT, DomainRef
from isosim.scoring.distances import Space

T = TypeVar("T")

NAME = re.compile(r"isosim(?:/(?P<domain>[^:/]+))?(?P<raw>:raw)?")
PAGE = 16  # number of domains that are read from the store together
LISTED = 40  # maximum number of names in a message


@dataclass(frozen=True)
class Model:
    """A model name, with the calibration and encoder that it resolves to."""

    name: str
    resolution: Resolution
    space: Space


def parse(name: str) -> tuple[DomainRef, Space]:
    """Domain and space of a model name. Raises InvalidInput for names of other models."""
    match = NAME.fullmatch(name)
    if not match:
        raise InvalidInput(f"model {name[:80]!r}")
    return DomainRef.parse(match["domain"] or DEFAULT), "raw" if match["raw"] else "calibrated"


async def resolve(service: Service, trace: Trace, name: str, version: str | None = None) -> Model:
    """Finds the model called `name`.

    Args:
        version: the model's version, if the request sends it separately from the name.

    Raises:
        UnknownModel: there is no such model; the message lists those that the key may use.
        Forbidden: the key may not use the model's domain.
        EncoderMismatch: this server does not run the domain's encoder.
    """
    try:
        ref, space = parse(name)
        if version is not None:
            if ref.version != "champion" or not version.isascii() or not version.isdigit():
                raise InvalidInput(
                    "either `version` is not a number, or a version was sent twice: in the name and in `version`"
                )
            ref = DomainRef.parse(f"{ref.name}@{version}")
        return Model(name, await requests.resolve(service, trace, ref), space)
    except (InvalidInput, NotFound):
        # The error lists models that the key may use. The list is read from the store, which is charged as one text.
        if trace.grant.rate is not None:
            await service.limits.admit(replace(trace.grant, concurrent=None), 1)
        known = await names(service, trace.grant, LISTED // 2 + 1)
        more = " and more (GET /v1/models)" if len(known) > LISTED else ""
        asked = name[:80] if version is None else f"{name[:80]} version {version[:20]}"
        unknown = UnknownModel(f"no model {asked!r}; known: {', '.join(known[:LISTED]) or 'none for this key'}{more}")
        unknown.field = "model"
        raise unknown from None


async def names(service: Service, grant: Grant, most: int) -> list[str]:
    """Model names of the first `most` domains that the key may use and this server can serve; `default` first."""
    answering = await service.listings.begin(grant, lambda: list(itertools.islice(champions(service, grant), most)))
    bare = ["isosim"] if grant.may_use(DEFAULT) else []
    return [*bare, *(f"isosim/{domain}{raw}" for domain, _ in answering for raw in ("", ":raw"))]


def permitted(service: Service, grant: Grant) -> list[str]:
    """Domains that the key may use, including those that this server cannot serve; `default` comes first."""
    stored = service.domains.names(wanted=lambda name: name != DEFAULT and grant.may_use(name))
    return [*([DEFAULT] if grant.may_use(DEFAULT) else []), *stored]


def champions(service: Service, grant: Grant) -> Iterator[tuple[str, Version | None]]:
    """Name and champion of each domain that the key may use and this server can serve; `default` may have none."""
    if grant.may_use(DEFAULT):
        yield DEFAULT, champion_of(service, DEFAULT)
    stored = service.domains.names(wanted=lambda name: name != DEFAULT and grant.may_use(name))
    while some := list(itertools.islice(stored, PAGE)):
        there = zip(some, service.domains.read_each(some, partial(champion_of, service)), strict=True)
        yield from ((name, version) for name, version in there if version is not None)


def champion_of(service: Service, domain: str) -> Version | None:
    """The domain's champion; None if it has none, or if its record cannot be read.

    An unreadable domain raises no error here, so that it does not make a whole list of domains fail.
    """
    try:
        record = service.domains.read(domain)
        served = record.served(service.encoders.home(record).digest)
        return None if served.champion is None else record.version(domain, served.champion)
    except (IsosimError, OSError):
        return None
