"""Calls about domains, versions, aliases (champion and previous) and thresholds.

The arguments are documented at the methods of `Client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ._answers import Domain, Domains, SavedTarget, Threshold, Thresholds, Version
from ._call import Call, answer, many, nothing, segment
from ._reading import read
from ._retries import Repeat
from ._scoring import Space, Unit
from .errors import Forbidden, IsosimError

T = TypeVar("T")


def domains(*, after: str = "", contains: str = "") -> Call[tuple[Domain, ...]]:
    """Up to 1,000 domains with their versions, sorted by name."""
    query = {name: value for name, value in (("after", after), ("contains", contains)) if value}
    return Call(method="GET", path="domains", query=query, parse=lambda value: read(Domains, value).domains)


def domain(name: str) -> Call[Domain]:
    """One domain: its champion and previous version, all versions, and drift."""
    return Call(method="GET", path=f"domains/{segment(name)}", parse=answer(Domain))


def version(domain: str, version: int) -> Call[Version]:
    """A version: where it comes from, its files and its report."""
    return Call(method="GET", path=path_of(domain, version), parse=answer(Version))


def path_of(domain: str, version: int) -> str:
    return f"domains/{segment(domain)}/versions/{segment(version)}"


def threshold(
    domain: str,
    *,
    fmr: float | None = None,
    precision: float | None = None,
    false_hit_rate: float | None = None,
    gallery: int | None = None,
    space: Space | None = None,
    unit: Unit | None = None,
) -> Call[Threshold]:
    """The smallest similarity at which pairs match, for a target. Give one of `fmr`, `precision`, `false_hit_rate`."""
    rates = {"fmr": fmr, "precision": precision, "false_hit_rate": false_hit_rate, "gallery": gallery}
    given = rates | {"space": space, "unit": unit}
    query: dict[str, str | float] = {name: value for name, value in given.items() if value is not None}
    path = f"domains/{segment(domain)}/threshold"
    return Call(method="GET", path=path, query=query, parse=answer(Threshold))


def thresholds(domain: str) -> Call[Thresholds]:
    """The saved thresholds of a domain, with their similarities for the domain's current version."""
    return Call(method="GET", path=f"domains/{segment(domain)}/thresholds", parse=answer(Thresholds))


def save_threshold(
    domain: str,
    name: str,
    *,
    fmr: float | None = None,
    precision: float | None = None,
    false_hit_rate: float | None = None,
    gallery: int | None = None,
    seen: Domain | None = None,
) -> Call[SavedTarget]:
    """Saves a target under a name. Give one of `fmr`, `precision` and `false_hit_rate`."""
    given = {"fmr": fmr, "precision": precision, "false_hit_rate": false_hit_rate, "gallery": gallery}
    body = {name: value for name, value in given.items() if value is not None} | seen_revision(seen)
    return Call(method="PUT", path=threshold_path(domain, name), body=body, parse=answer(SavedTarget))


def delete_threshold(domain: str, name: str, *, seen: Domain | None = None) -> Call[None]:
    """Deletes a saved threshold."""
    start = seen_revision(seen)
    return Call(
        method="DELETE",
        path=threshold_path(domain, name),
        query=start,
        parse=nothing,
        # Without a revision, a repeated request gets 404 if the first request has deleted the threshold.
        repeat=repeatability(start),
    )


def threshold_path(domain: str, name: str) -> str:
    return f"domains/{segment(domain)}/thresholds/{segment(name)}"


def seen_revision(seen: Domain | None) -> dict[str, int]:
    return {} if seen is None or seen.revision is None else {"revision": seen.revision}


def promote(domain: str, version: int, *, without: Iterable[str] = (), seen: Domain | None = None) -> Call[Domain]:
    """Makes a version the champion. All servers that share the store use the version within two seconds."""
    path = f"domains/{segment(domain)}/champion"
    body = {"version": version, **named(without)}
    return starting_from(
        seen,
        domain,
        lambda start: Call(method="PUT", path=path, body=body | start, parse=answer(Domain)),
    )


def named(without: Iterable[str]) -> dict[str, list[str]]:
    names = many(without, "without")
    return {"without": names} if names else {}


def rollback(domain: str, *, without: Iterable[str] = (), seen: Domain | None = None) -> Call[Domain]:
    """Swaps the champion and the previous version. They are swapped only once if the client retries the request."""
    path = f"domains/{segment(domain)}/rollback"
    body = named(without)
    return starting_from(
        seen,
        domain,
        lambda start: Call(
            method="POST", path=path, body=body | start or None, parse=answer(Domain), repeat=repeatability(start)
        ),
    )


def delete_domain(domain: str) -> Call[None]:
    """Deletes a domain with all its versions, and cancels its calibrations. Safe to repeat."""
    return Call(method="DELETE", path=f"domains/{segment(domain)}", parse=nothing)


def delete_version(domain: str, version: int, *, seen: Domain | None = None) -> Call[None]:
    """Deletes a version permanently. Its number is not used again. A second deletion raises no error."""
    path = path_of(domain, version)
    return starting_from(
        seen,
        domain,
        lambda start: Call(method="DELETE", path=path, query=start, parse=nothing, repeat=repeatability(start)),
    )


def starting_from(seen: Domain | None, domain: str, change: Callable[[dict[str, int]], Call[T]]) -> Call[T]:
    """A call that changes a domain only if it still has the revision of `seen`. If `seen` is None, the client first
    reads the domain.

    Args:
        change: makes the call from a dictionary with the expected `revision`. The dictionary is empty if the API key
            may not read the domain.
    """
    if seen is None:
        look: Callable[[Any], Any] = answer(Domain)

        def unread(error: IsosimError) -> Any:
            if not isinstance(error, Forbidden):
                raise error
            return Domain(domain=domain)

        return Call(
            method="GET",
            path=f"domains/{segment(domain)}",
            parse=look,
            rescue=unread,
            then=lambda found: starting_from(found, domain, change),
        )
    return change(seen_revision(seen))


def repeatability(start: dict[str, int]) -> Repeat:
    """Whether a change may be sent again. SAFE if the request states the expected revision: a server that has already
    made the change then reports success."""
    return Repeat.SAFE if start else Repeat.IF_REFUSED
