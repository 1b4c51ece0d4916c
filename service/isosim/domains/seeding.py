"""Default calibrations, which an export or an image brings: they become versions of the domain `default`."""

from pathlib import Path

from isosim.domains.store import REPORT, DomainStore, read_version
from isosim.scoring.registry import DEFAULT
from isosim.store.artifacts import read_json


def seed_default(domains: DomainStore, seed: Path, digest: str) -> int | None:
    """Publishes the champion that the store `seed` has for an encoder in the domain `default`.

    Returns its number; None if there is no such champion, or if `domains` has a champion of its own.

    Raises:
        CorruptArtifact: the version cannot be read.
        Conflict: another process has just promoted a version.
        OSError: the store cannot be written.
    """
    champion = DomainStore(seed).aliases(DEFAULT, digest).champion
    if champion is None:
        return None
    return adopt_default(domains, seed / "domains" / DEFAULT / str(champion), digest)


def adopt_default(domains: DomainStore, version: Path, digest: str) -> int | None:
    """Copies a default calibration from another store into `domains`, promotes the copy, and returns the copy's number.

    Returns None if the domain already has a champion for the encoder.

    Raises:
        CorruptArtifact: the version cannot be read.
        Conflict: another process has just promoted a version.
    """
    aliases = domains.aliases(DEFAULT, digest)
    if aliases.champion is not None:
        return None
    stored = read_version(version)
    facts = {key: stored.manifest[key] for key in ("method", "encoder", "sentences", "seed")}
    number = domains.publish(DEFAULT, facts, read_json(version / REPORT), stored.weights, stored.model)
    domains.promote(DEFAULT, digest, number, expected=aliases)
    return number
