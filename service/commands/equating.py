"""`isosim threshold --to`: an old encoder's thresholds as the new one's, offline."""

from dataclasses import asdict

import typer

from service.adapters.domain_store import DomainStore
from service.commands.console import print_json, show
from service.commands.versions import stored_version
from service.core.equating import Equated, equate, table
from service.core.errors import Conflict
from service.core.reference import ReferenceDistribution
from service.settings import Settings


def carry_over(settings: Settings, domain: str, to: str, similarity: float | None, *, raw: bool, as_json: bool) -> None:
    """Prints the new encoder's threshold for one of the old, or a table at the usual false-match rates.

    Raises:
        NotFound: the domain has no such version for one of the encoders.
        Conflict: a version has no reference.
    """
    if similarity is not None and not -1 <= similarity <= 1:
        raise typer.BadParameter("a similarity lies in -1 to 1", param_hint="--similarity")
    name, version, old = reference_of(settings, domain, raw=raw)
    new_name, new_version, new = reference_of(settings.model_copy(update={"encoder": to}), name, raw=raw)
    found = table(old, new) if similarity is None else [equate(old, new, similarity)]
    if as_json:
        sides = {"old": f"{name}@{version}", "new": f"{new_name}@{new_version}"}
        print_json({**sides, "thresholds": [asdict(one) for one in found]})
        return
    show(
        ("false-match rate", f"{name}@{version}", f"{new_name}@{new_version}", "95 % interval", ""),
        [row(one) for one in found],
        head=True,
    )


def row(one: Equated) -> tuple[str, ...]:
    low, high = one.interval
    beyond = "extrapolated" if one.extrapolated else ""
    return f"{one.fmr:.3g}", f"{one.similarity:.4f}", f"{one.equivalent:.4f}", f"{low:.4f} to {high:.4f}", beyond


def reference_of(settings: Settings, domain: str, *, raw: bool) -> tuple[str, int, ReferenceDistribution]:
    ref, version, _ = stored_version(settings, domain)
    model = DomainStore(settings.model_store).load(ref.name, version).model
    found = model.raw_reference if raw else model.reference
    if found is None:
        raise Conflict(f"{ref.name}@{version} has no reference; calibrate the domain for encoder {settings.encoder}")
    return ref.name, version, found
