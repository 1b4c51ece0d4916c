"""Model names of compatible bodies: `isosim`, `isosim/<domain>[@version]`, and with `:raw` the frozen encoder."""

import asyncio
import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from service.api.access import calibration_of
from service.api.middleware import Trace
from service.api.scoring import Space
from service.api.state import Service
from service.core.calibration import Calibration, DomainRef
from service.core.errors import InvalidInput, IsosimError, NotFound, UnknownModel
from service.core.grants import Grant
from service.core.registry import DEFAULT

NAME = re.compile(r"isosim(?:/(?P<domain>[^:/]+))?(?P<raw>:raw)?")
LISTED = 40  # names in a message
SIDE_BY_SIDE = 16  # domains looked at at a time where a look is a request; unmeasured


@dataclass(frozen=True)
class Model:
    """What a model's name stands for now."""

    name: str
    calibration: Calibration
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
    """The model of that name; `version` for protocols that keep it apart from the name, `splits` as `calibration_of`.

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
        return Model(name, await calibration_of(service, trace, ref, splits=splits), space)
    except (InvalidInput, NotFound):
        known = await names(service, trace.grant, LISTED // 2 + 1)
        more = " and more (GET /v1/models)" if len(known) > LISTED else ""
        asked = name[:80] if version is None else f"{name[:80]} version {version[:20]}"
        unknown = UnknownModel(f"no model {asked!r}; there is {', '.join(known[:LISTED]) or 'none for this key'}{more}")
        unknown.field = "model"
        raise unknown from None


async def names(service: Service, grant: Grant, most: int | None = None) -> list[str]:
    """The models this server can answer the key for, the default first; of the first `most` domains, or of all."""
    found = await asyncio.to_thread(lambda: list(itertools.islice(servable(service, grant), most)))
    bare = ["isosim"] if grant.may_use(DEFAULT) else []
    return [*bare, *(f"isosim/{domain}{raw}" for domain in found for raw in ("", ":raw"))]


def servable(service: Service, grant: Grant) -> Iterator[str]:
    """The key's domains with a champion for the encoder that answers for them here; reads the store."""
    if grant.may_use(DEFAULT):
        yield DEFAULT
    names = (name for name in service.domains.names() if name != DEFAULT and grant.may_use(name))
    if not service.domains.distant:
        yield from (name for name in names if has_champion(service, name))
        return
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:  # each is a request
        while some := list(itertools.islice(names, SIDE_BY_SIDE)):
            there = pool.map(lambda name: has_champion(service, name), some)
            yield from itertools.compress(some, there)


def has_champion(service: Service, domain: str) -> bool:
    """False also where its files cannot be read: one broken domain hides itself, not the others."""
    try:
        return service.domains.aliases(domain, service.servings.settled(domain).digest).champion is not None
    except (IsosimError, OSError):
        return False
