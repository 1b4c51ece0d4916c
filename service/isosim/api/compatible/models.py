"""Model names in compatible bodies: `isosim`, `isosim/<domain>[@version]`; the suffix `:raw` means raw vectors."""

import re
from typing import NamedTuple

from isosim.access.grants import Grant
from isosim.api.scoring.request import ScoringRequest
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.domains.champions import Champion, Standing
from isosim.encoders.loaded import LoadedEncoder
from isosim.errors import Action, InvalidInput, NotFound, UnknownModel
from isosim.scoring.calibration import DEFAULT, DomainRef
from isosim.scoring.distances import Space

NAME = re.compile(r"isosim(?:/(?P<domain>[^:/]+))?(?P<raw>:raw)?")


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
        UnknownModel: there is no such model.
        Forbidden: the key may not use the model's domain.
        EncoderMismatch: this server does not run the domain's encoder.
    """
    try:
        ref, space = parse(name)
        if version is not None:
            if ref.version != "champion" or not version.isascii() or not version.isdigit():
                raise InvalidInput("`version` is not a number, or a version was sent twice")
            ref = DomainRef.parse(f"{ref.name}@{version}")
        return await ScoringRequest.begin(service, trace, ref, space)
    except (InvalidInput, NotFound):
        asked = name[:80] if version is None else f"{name[:80]} version {version[:20]}"
        unknown = UnknownModel(f"no model {asked!r}").with_remedy(Action.LIST_MODELS)
        unknown.field = "model"
        raise unknown from None


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
    every = (default or Served(DEFAULT, service.encoder, None), *found)
    return [one for one in every if grant.may_use(one.domain)]


def of(service: Service, domain: str, standing: Standing) -> Served | None:
    """None if the domain has no champion for this server's encoder."""
    champion = standing.champions.get(service.encoder.digest)
    return None if champion is None else Served(domain, service.encoder, champion)
