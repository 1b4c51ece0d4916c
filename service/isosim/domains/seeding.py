"""Default calibrations, which an export or an image brings: they become versions of the domain `default`."""

from dataclasses import replace
from pathlib import Path

from isosim.domains.domain import Domain, Version
from isosim.domains.store import DomainStore
from isosim.scoring.calibration import DEFAULT
from isosim.store.artifacts import verified


def seed_default(domains: DomainStore, seed: DomainStore, digest: str) -> int | None:
    """Publishes the champion that `default` of another store has for an encoder.

    Returns its number; None if there is no such champion, or if `default` already has a champion for the encoder.

    Raises:
        CorruptArtifact: the version cannot be read.
        OSError: the store cannot be written.
    """
    champion = seed.read(DEFAULT).served(digest).champion
    if champion is None:
        return None
    with seed.files(DEFAULT, champion) as (version, folder):
        return adopt_default(domains, version, folder)


def adopt_default(domains: DomainStore, version: Version, folder: Path) -> int | None:
    """Publishes a default calibration from elsewhere as champion, and returns its number.

    Returns None if `default` already has a champion for the encoder. Safe to repeat, also at the same time.

    Args:
        version: facts about the calibration.
        folder: its files, which the caller has verified, and no others.
    """
    digest = version.encoder
    if domains.read(DEFAULT).served(digest).champion is not None:
        return None
    own = replace(version, job=f"default-{digest}")  # a second process finds the version that the first has published
    number = domains.publish(DEFAULT, folder, own, promote=lambda now: now.served(digest).champion is None).number

    def step(now: Domain) -> Domain:
        return now if now.served(digest).champion is not None else now.promoted(DEFAULT, digest, number)

    domains.change(DEFAULT, step)  # does nothing unless the record was rebuilt without its champion
    return number


def adopt_shipped(domains: DomainStore, folder: Path) -> int | None:
    """`adopt_default` for a folder of a manifest and its files. Raises CorruptArtifact."""
    manifest = verified(folder)
    version = Version(
        number=0, encoder=manifest["encoder"]["digest"], encoder_id=manifest["encoder"]["id"],
        method=manifest["method"], files={}, upload="", created="", sentences=manifest["sentences"],
        seed=manifest["seed"],
    )  # fmt: skip
    return adopt_default(domains, version, folder)
