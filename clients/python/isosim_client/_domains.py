"""Calls about domains, their versions, and who answers for them."""

from __future__ import annotations

from ._answers import Domain, Domains, Threshold, Version
from ._call import Call, answer, nothing, segment
from ._reading import read
from ._retries import Repeat
from ._scoring import Space


def domains(*, after: str = "", contains: str = "") -> Call[tuple[Domain, ...]]:
    """Up to 1,000 domains, with their versions, by name.

    Args:
        after: the last name of the page before.
        contains: only domains with this in their name.
    """
    query = {name: value for name, value in (("after", after), ("contains", contains)) if value}
    return Call(method="GET", path="domains", query=query, parse=lambda value: read(Domains, value).domains)


def domain(name: str) -> Call[Domain]:
    """One domain: champion, previous, versions, drift.

    Raises:
        NotFound: no such domain.
    """
    return Call(method="GET", path=f"domains/{segment(name)}", parse=answer(Domain))


def version(domain: str, version: int) -> Call[Version]:
    """A version's provenance, files and measured report.

    Raises:
        NotFound: no such version.
    """
    return Call(method="GET", path=path_of(domain, version), parse=answer(Version))


def path_of(domain: str, version: int) -> str:
    return f"domains/{segment(domain)}/versions/{segment(version)}"


def threshold(
    domain: str, *, fmr: float | None = None, precision: float | None = None, space: Space = "calibrated"
) -> Call[Threshold]:
    """Which similarity to ask for. Give one of `fmr` and `precision`.

    Args:
        domain: `name`, `name@3` or `name@previous`.
        fmr: share of random pairs that may match, 1e-7 to 1.
        precision: share of matches that shall be right, among pairs like the labelled ones.
        space: `raw` for a threshold on `cosine`.

    Raises:
        InvalidInput: none or both were given, or out of range. NotFound: no such domain.
        Conflict: the domain has no reference, or no labels.
    """
    given: dict[str, float | None] = {"fmr": fmr, "precision": precision}
    query: dict[str, str | float] = {name: value for name, value in given.items() if value is not None}
    path = f"domains/{segment(domain)}/threshold"
    return Call(method="GET", path=path, query=query | {"space": space}, parse=answer(Threshold))


def promote(domain: str, version: int) -> Call[Domain]:
    """Makes a version the champion. Every server of the store answers with it within two seconds.

    Raises:
        NotFound: no such version. Conflict: somebody else was faster, or it belongs to another encoder.
        Unavailable: its files do not match their manifest.
    """
    path = f"domains/{segment(domain)}/champion"
    return Call(method="PUT", path=path, body={"version": version}, parse=answer(Domain))


def rollback(domain: str) -> Call[Domain]:
    """Swaps champion and previous. Sent again only where the first one was certainly refused: two are none.

    Raises:
        NotFound: no such domain. Conflict: it has no previous version, or somebody else was faster.
    """
    path = f"domains/{segment(domain)}/rollback"
    return Call(method="POST", path=path, parse=answer(Domain), repeat=Repeat.IF_REFUSED)


def delete_domain(domain: str) -> Call[None]:
    """Deletes a domain with all its versions, and cancels its calibrations. Repeating it does no harm.

    Every server of the store answers 404 within two seconds. Version numbers are not given again.

    Raises:
        NotFound: there never was such a domain. Conflict: it is `default`.
    """
    return Call(method="DELETE", path=f"domains/{segment(domain)}", parse=nothing)


def delete_version(domain: str, version: int) -> Call[None]:
    """Deletes a version for good; its number is not given again.

    Raises:
        NotFound: no such version. Conflict: it is champion or previous.
    """
    return Call(method="DELETE", path=path_of(domain, version), parse=nothing, repeat=Repeat.IF_REFUSED)
