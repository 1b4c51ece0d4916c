"""Copies the encoders that an image holds into a model store that lacks them, with their default calibrations.

`python seed.py FROM TO`; several may run at the same time, and one may be ended at any moment.
"""

import shutil
import sys
from pathlib import Path

from service.adapters.artifacts import building, fsync, locked, verified
from service.adapters.domain_store import DomainStore

DEFAULT = "default"


def seed_encoder(found: Path, place: Path) -> None:
    if place.exists():
        return
    with building(place.parent) as folder:
        shutil.copytree(found, folder, dirs_exist_ok=True)
        verified(folder)
        for file in folder.iterdir():
            fsync(file)
        fsync(folder)
        folder.rename(place)
    fsync(place.parent)
    print(f"copied encoder {place.parent.name} ({place.name[:12]})")


def seed_default(found: DomainStore, store: DomainStore, encoder: str) -> None:
    """The image's champion of `default`, where the store has none for this encoder."""
    aliases = store.aliases(DEFAULT, encoder)
    champion = found.aliases(DEFAULT, encoder).champion
    if aliases.champion is not None or champion is None:
        return
    shipped = found.load(DEFAULT, champion)
    facts = {key: shipped.manifest[key] for key in ("method", "encoder", "sentences", "seed")}
    version = store.publish(DEFAULT, facts, found.report(DEFAULT, champion), shipped.weights, shipped.model)
    store.promote(DEFAULT, encoder, version, expected=aliases)
    print(f"installed the default calibration of {encoder[:12]} as default@{version}")


def main(source: Path, target: Path) -> None:
    encoders = sorted(f.parent for f in (source / "encoders").glob("*/*/manifest.json"))
    if not encoders:
        sys.exit(f"no encoder under {source} in this image: set modelStore.seedFrom to where it is, or to nothing")
    with locked(target / "encoders" / ".seeding"):
        for folder in encoders:
            seed_encoder(folder, target / "encoders" / folder.parent.name / folder.name)
            seed_default(DomainStore(source), DomainStore(target), folder.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
