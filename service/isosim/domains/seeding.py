"""Copies the encoders of an image, with their default calibrations, into the mounted model store."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from isosim.domains.domain import Domain, Version
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import IsosimError
from isosim.scoring.calibration import DEFAULT
from isosim.store.artifacts import MANIFEST, locked, verified
from isosim.store.blobs import opened

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
                    there = DomainStore(opened(source))
                    champion = there.read(DEFAULT).served(digest).champion
                    if champion is not None:
                        with there.files(DEFAULT, champion) as (version, folder):
                            adopt_default(DomainStore(opened(store)), version, folder)
    return copied


@contextmanager
def passing_over(failed: FailureHandler | None) -> Iterator[None]:
    try:
        yield
    except (IsosimError, OSError) as error:
        if failed is None:
            raise
        failed(error)


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
    """`adopt_default` for a folder that has a manifest. Raises CorruptArtifact."""
    manifest = verified(folder)
    version = Version(
        number=0, encoder=manifest["encoder"]["digest"], encoder_id=manifest["encoder"]["id"],
        method=manifest["method"], files={}, upload="", created="", sentences=manifest["sentences"],
        seed=manifest["seed"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="isosim-") as place:
        for name in manifest["files"]:
            shutil.copyfile(folder / name, Path(place, name))
        return adopt_default(domains, version, Path(place))
