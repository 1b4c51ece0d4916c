"""Calls about domains, versions, aliases (champion and previous) and thresholds.

The arguments are documented at the methods of `Client`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ._answers import Domain, SavedTarget, Threshold, Thresholds, Version
from ._call import Answered, Call, answer, given, listed, many, nothing, segment
from ._retries import Repeat
from ._scoring import Space, Unit
from .errors import Forbidden

if TYPE_CHECKING:
    from ._sending import Sender

T = TypeVar("T")


def domains(*, after: str = "", contains: str = "") -> Call[tuple[Domain, ...]]:
    """Up to 1,000 domains with their versions, sorted by name.

    Args:
        after: returns only domains whose names sort after this name. For the next page, give the last name.
        contains: returns only domains whose names contain this text.
    """
    query = given(after=after or None, contains=contains or None)
    return Call(method="GET", path="domains", query=query, parse=listed(Domain, "domains"))


def domain(name: str) -> Call[Domain]:
    """One domain: its champion and previous version, all versions, and drift.

    Raises:
        NotFound: no such domain.
    """
    return Call(method="GET", path=f"domains/{segment(name)}", parse=answer(Domain))


def version(domain: str, version: int) -> Call[Version]:
    """A version: where it comes from, its files and its report.

    Raises:
        NotFound: no such version.
    """
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
    """The smallest similarity at which pairs match, for a target. Give one of `fmr`, `precision`, `false_hit_rate`.

    Args:
        domain: `name`, `name@3` or `name@previous`.
        fmr: false-match rate: share of random pairs that may match, at least 1e-7 and less than 1.
        precision: share of true matches among the pairs that reach the threshold, estimated from labelled pairs.
        false_hit_rate: share of searches that may return a wrong match, at least 1e-6 and less than 1.
        gallery: number of entries in a search; only with `false_hit_rate`.
        space: `calibrated`, the default, or `raw` for a threshold on `Similarity.cosine`. Required with `unit`,
            unless the version uses the method identity: which vectors an index holds.
        unit: also returns the threshold as a distance of this unit, for an index of vectors: `cosine_distance`,
            `l2`, `l2_squared` or `inner_product`.

    Raises:
        InvalidInput: no target, several targets, or a target that is out of range. NotFound: no such domain.
        Conflict: the version has no random pairs (needed for `fmr`), no labels (for `precision`), or no counts of
            false hits (for `false_hit_rate`). Versions of earlier releases have no counts of false hits.
    """
    query = given(fmr=fmr, precision=precision, false_hit_rate=false_hit_rate, gallery=gallery, space=space, unit=unit)
    path = f"domains/{segment(domain)}/threshold"
    return Call(method="GET", path=path, query=query, parse=answer(Threshold))


def thresholds(domain: str) -> Call[Thresholds]:
    """The saved thresholds of a domain, with their similarities for the domain's current version.

    Raises:
        NotFound: no such domain.
    """
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
    """Saves a target under a name. Give one of `fmr`, `precision` and `false_hit_rate`.

    Pass the name to `similarity` as `threshold`. The target is the same for all versions of the domain. Each
    version has its own similarity threshold for the target.

    Args:
        domain: the domain's name, without a version.
        name: 1 to 64 characters of a-z, 0-9, `.`, `_`, `-`. A target with the same name is replaced.
        fmr, precision, false_hit_rate, gallery: as for `threshold`.
        seen: a result of `client.domain()`. Nothing is saved if the domain has changed since then. If None, the
            client does not check this.

    Returns:
        The saved target. If the current version cannot reach the target, `notice` says why.

    Raises:
        InvalidInput: no target, several targets, or a target that is out of range.
        NotFound: no such domain, or the domain has no version.
        Conflict: the domain has changed since `seen`.
    """
    body = given(fmr=fmr, precision=precision, false_hit_rate=false_hit_rate, gallery=gallery) | seen_revision(seen)
    return Call(method="PUT", path=threshold_path(domain, name), body=body, parse=answer(SavedTarget))


def delete_threshold(domain: str, name: str, *, seen: Domain | None = None) -> Call[None]:
    """Deletes a saved threshold.

    Args:
        domain: the domain's name, without a version.
        name: the name of the saved threshold.
        seen: as for `save_threshold`.

    Raises:
        NotFound: no such domain or threshold. Conflict: the domain has changed since `seen`.
    """
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


def promote(domain: str, version: int, *, without: Iterable[str] = (), seen: Domain | None = None) -> Answered[Domain]:
    """Makes a version the champion. All servers that share the store use the version within two seconds.

    Args:
        domain: the domain's name, without a version.
        version: the new champion.
        without: names of saved thresholds that the version may make unreachable; otherwise such a change raises
            Conflict, which names them.
        seen: a result of `client.domain()`. Nothing is changed if the domain has changed since then. If None,
            the client reads the domain and uses the result as `seen`.

    Raises:
        NotFound: no such version.
        Conflict: the domain has changed since `seen`, the version belongs to another encoder, or it makes saved
            thresholds unreachable that `without` does not name.
        Unavailable: the version's files do not match their manifest.
    """
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


def rollback(domain: str, *, without: Iterable[str] = (), seen: Domain | None = None) -> Answered[Domain]:
    """Swaps the champion and the previous version. They are swapped only once if the client retries the request.

    Args:
        domain: the domain's name, without a version.
        without: as for `promote`.
        seen: as for `promote`.

    Raises:
        NotFound: no such domain. Conflict: the domain has no previous version, or has changed since `seen`.
    """
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
    """Deletes a domain with all its versions, and cancels its calibrations. Safe to repeat.

    Within two seconds, all servers that share the store answer requests for the domain with 404. Version numbers
    are not used again.

    Raises:
        NotFound: there never was such a domain. Conflict: the domain is `default`, which cannot be deleted.
    """
    return Call(method="DELETE", path=f"domains/{segment(domain)}", parse=nothing)


def delete_version(domain: str, version: int, *, seen: Domain | None = None) -> Answered[None]:
    """Deletes a version permanently. Its number is not used again. A second deletion raises no error.

    Args:
        domain: the domain's name, without a version.
        version: a version that is neither champion nor previous.
        seen: as for `promote`.

    Raises:
        NotFound: there never was such a version.
        Conflict: the version is champion or previous, or the domain has changed since `seen`.
    """
    path = path_of(domain, version)
    return starting_from(
        seen,
        domain,
        lambda start: Call(method="DELETE", path=path, query=start, parse=nothing, repeat=repeatability(start)),
    )


def starting_from(seen: Domain | None, domain: str, change: Callable[[dict[str, int]], Call[T]]) -> Answered[T]:
    """Changes a domain only if it still has the revision of `seen`. If `seen` is None, first reads the domain.

    Args:
        change: makes the call from a dictionary with the expected `revision`. The dictionary is empty if the API key
            may not read the domain.
    """
    look: Call[Domain] = Call(method="GET", path=f"domains/{segment(domain)}", parse=answer(Domain))

    async def run(sender: Sender) -> T:
        found = seen
        if found is None:
            with contextlib.suppress(Forbidden):
                found = await look(sender)
        return await change(seen_revision(found))(sender)

    return run


def repeatability(start: dict[str, int]) -> Repeat:
    """Whether a change may be sent again. SAFE if the request states the expected revision: a server that has already
    made the change then reports success."""
    return Repeat.SAFE if start else Repeat.IF_REFUSED
