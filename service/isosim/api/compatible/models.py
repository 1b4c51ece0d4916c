"""Model names in compatible bodies: `isosim`, `isosim/<domain>[@version]`; the suffix `:raw` means raw vectors."""

import re
from typing import NamedTuple

from isosim.access.grants import Grant
from isosim.api.scoring.request import ScoringRequest
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.domains.champions import Champion, Standing
from isosim.errors import InvalidInput, NotFound, UnknownModel
from isosim.migration.encoders import LoadedEncoder
from isosim.scoring.calibration import DEFAULT, DomainRef
from isosim.scoring.distances import Space

NAME = re.compile(r"isosim(?:/(?P<domain>[^:/]+))?(?P<raw>:raw)?")
LISTED = 40  # maximum number of names in a message


def parse(name: str) -> tuple[DomainRef, Space]:
    """Domain and space of a model name. Raises InvalidInput for names of other models."""
    match = NAME.fullmatch(name)
    if not match:
        raise InvalidInput(f"model {name[:80]!r}")
    return DomainRef.parse(match["domain"] or DEFAULT), "raw" if match["raw"] else "calibrated"


async def begin(service: Service, trace: Trace, name: str, version: str | None = None) -> ScoringRequest:
    """Begins a request to the model called `name`.

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
        return await ScoringRequest.begin(service, trace, ref, space)
    except (InvalidInput, NotFound):
        # The error lists models that the key may use. The list is read from the store, which is charged as one text.
        if trace.grant.rate is not None:
            await service.limits.admit(trace.grant, 1)
        known = await names(service, trace.grant, LISTED // 2 + 1)
        more = " and more (GET /v1/models)" if len(known) > LISTED else ""
        asked = name[:80] if version is None else f"{name[:80]} version {version[:20]}"
        unknown = UnknownModel(f"no model {asked!r}; known: {', '.join(known[:LISTED]) or 'none for this key'}{more}")
        unknown.field = "model"
        raise unknown from None


async def names(service: Service, grant: Grant, most: int) -> list[str]:
    """Model names of the first `most` domains that the key may use and this server can serve; `default` first."""
    answering = (await service.listings.begin(grant, served, service, grant))[:most]
    bare = ["isosim"] if grant.may_use(DEFAULT) else []
    return [*bare, *(f"isosim/{one.domain}{raw}" for one in answering for raw in ("", ":raw"))]


class Served(NamedTuple):
    """A domain that this server can serve. `champion` is None only for `default`, which then is the identity."""

    domain: str
    encoder: LoadedEncoder
    champion: Champion | None


def served(service: Service, grant: Grant) -> list[Served]:
    """The domains that the key may use and this server can serve; `default` first, then by name."""
    there = service.champions.read()
    found = [one for name in there if name != DEFAULT and (one := of(service, name, there[name])) is not None]
    default = of(service, DEFAULT, there.get(DEFAULT, Standing("")))
    every = (default or Served(DEFAULT, service.encoders.first, None), *found)
    return [one for one in every if grant.may_use(one.domain)]


def of(service: Service, domain: str, standing: Standing) -> Served | None:
    """None if the domain has no champion for the encoder that answers for it, or this server does not run that."""
    digest, champion = standing.champion(service.encoders.first.digest)
    encoder = service.encoders.find(digest)
    return None if encoder is None or champion is None else Served(domain, encoder, champion)
