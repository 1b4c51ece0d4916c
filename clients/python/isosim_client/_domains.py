"""Methods about domains, versions, aliases (champion and previous) and thresholds."""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Iterable

from ._answers import Domain, SavedTarget, Threshold, Thresholds, Version
from ._methods import request
from ._retries import Repeat
from ._scoring import Space, Unit


@request("GET", "domains", under="domains")
def domains(*, after: str = "", contains: str = "") -> tuple[Domain, ...]:
    """Up to 1,000 domains with their versions, sorted by name.

    Args:
        after: returns only domains whose names sort after this name. For the next page, give the last name.
        contains: returns only domains whose names contain this text.
    """


@request("GET", "domains/{name}")
def domain(name: str) -> Domain:
    """One domain: its champion and previous version, all versions, and drift."""


@request("GET", "domains/{domain}/versions/{version}")
def version(domain: str, version: int) -> Version:
    """A version: where it comes from, its files and its report."""


@request("GET", "domains/{domain}/threshold")
def threshold(
    domain: str,
    *,
    fmr: float | None = None,
    precision: float | None = None,
    false_hit_rate: float | None = None,
    gallery: int | None = None,
    space: Space | None = None,
    unit: Unit | None = None,
) -> Threshold:
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
        Conflict: the version has no random pairs (needed for `fmr`), no labels (for `precision`), or no counts of
            false hits (for `false_hit_rate`).
    """


@request("GET", "domains/{domain}/thresholds")
def thresholds(domain: str) -> Thresholds:
    """The saved thresholds of a domain, with their similarities for the domain's current version."""


@request("PUT", "domains/{domain}/thresholds/{name}")
def save_threshold(
    domain: str,
    name: str,
    *,
    fmr: float | None = None,
    precision: float | None = None,
    false_hit_rate: float | None = None,
    gallery: int | None = None,
    seen: Domain | None = None,
) -> SavedTarget:
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
    """


@request("DELETE", "domains/{domain}/thresholds/{name}", repeat=Repeat.IF_REFUSED)
def delete_threshold(domain: str, name: str, *, seen: Domain | None = None) -> None:
    """Deletes a saved threshold.

    Args:
        domain: the domain's name, without a version.
        name: the name of the saved threshold.
        seen: as for `save_threshold`.
    """


@request("PUT", "domains/{domain}/champion", starts=True)
def promote(domain: str, version: int, *, without: Iterable[str] = (), seen: Domain | None = None) -> Domain:
    """Makes a version the champion. All servers that share the store use the version within two seconds.

    Args:
        domain: the domain's name, without a version.
        version: the new champion.
        without: names of saved thresholds that the version may make unreachable; otherwise such a change raises
            Conflict, which names them.
        seen: a result of `client.domain()`. Nothing is changed if the domain has changed since then. If None,
            the client reads the domain and uses the result as `seen`.

    Raises:
        Conflict: the version belongs to another encoder, or it makes saved thresholds unreachable that `without` does
            not name. Unavailable: the version's files do not match their manifest.
    """


@request("POST", "domains/{domain}/rollback", starts=True, repeat=Repeat.IF_REFUSED)
def rollback(domain: str, *, without: Iterable[str] = (), seen: Domain | None = None) -> Domain:
    """Swaps the champion and the previous version. They are swapped only once if the client retries the request.

    Args:
        domain: the domain's name, without a version.
        without: as for `promote`.
        seen: as for `promote`.

    Raises:
        Conflict: the domain has no previous version.
    """


@request("DELETE", "domains/{domain}")
def delete_domain(domain: str) -> None:
    """Deletes a domain with all its versions, and cancels its calibrations. Safe to repeat.

    Within two seconds, all servers that share the store answer requests for the domain with 404. Version numbers
    are not used again.

    Raises:
        Conflict: the domain is `default`, which cannot be deleted.
    """


@request("DELETE", "domains/{domain}/versions/{version}", starts=True, repeat=Repeat.IF_REFUSED)
def delete_version(domain: str, version: int, *, seen: Domain | None = None) -> None:
    """Deletes a version permanently. Its number is not used again. A second deletion raises no error.

    Args:
        domain: the domain's name, without a version.
        version: a version that is neither champion nor previous.
        seen: as for `promote`.

    Raises:
        Conflict: the version is champion or previous.
    """
