"""Copies the encoders of an image, with their default calibrations, into the mounted model store."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from isosim.domains.store import REPORT, DomainStore, read_version
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import Conflict, IsosimError
from isosim.scoring.registry import DEFAULT
from isosim.store.artifacts import MANIFEST, locked, read_json

FailureHandler = Callable[[Exception], None]


def seed(source: Path, store: Path, failed: FailureHandler | None = None) -> list[EncoderArtifact]:
    """Copies the encoders of `source` that `store` lacks, and the default calibrations of all encoders of `source`.

    A default calibration is skipped if the domain `default` already has a champion for the encoder. Several processes
    may seed the same store at once, and any of them may be killed.

    Args:
        failed: called with the error of each encoder or calibration that cannot be copied; the others are still copied.
            Without `failed`, the first error is raised.

    Returns:
        The encoders that were copied.

    Raises:
        CorruptArtifact: a file of `source` does not match its manifest, or the store's aliases cannot be read.
        OSError: the store cannot be written.
    """
    theirs, mine = EncoderStore(source), EncoderStore(store)
    copied = []
    # One process copies, and the others wait for it instead of making copies of their own.
    with passing_over(failed), locked(mine.root / ".seeding"):
        for name in theirs.ids():
            for manifest in sorted((theirs.root / name).glob(f"*/{MANIFEST}")):
                digest = manifest.parent.name
                if digest.startswith("."):  # an incomplete copy
                    continue
                with passing_over(failed):
                    if not mine.has(name, digest):
                        copied.append(mine.adopt(manifest.parent))
                with passing_over(failed):
                    champion = DomainStore(source).aliases(DEFAULT, digest).champion
                    if champion is not None:
                        with contextlib.suppress(Conflict):  # another process has just promoted a version
                            adopt_default(DomainStore(store), source / "domains" / DEFAULT / str(champion), digest)
    return copied


@contextmanager
def passing_over(failed: FailureHandler | None) -> Iterator[None]:
    try:
        yield
    except (IsosimError, OSError) as error:
        if failed is None:
            raise
        failed(error)


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
