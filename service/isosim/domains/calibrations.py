"""Loads stored versions for serving with this process's encoders."""

import asyncio
from collections.abc import Collection
from pathlib import Path

from isosim.domains.domain import Domain, Version
from isosim.domains.registry import Registry
from isosim.domains.store import DomainStore
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EncoderMismatch
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.store.blobs import opened

# Bytes of a calibration besides its arrays. Measured (loadtest/README.md): 10,000 (method `identity`) to 140,000.
OVERHEAD = 100_000


class StoredCalibrations:
    """The domains of a store, for a `Registry`. `calibrators`: one for each encoder of this process, by digest."""

    def __init__(self, store: DomainStore) -> None:
        self.store, self.watch = store, store.watch()
        self.calibrators: dict[str, OnnxCalibrator] = {}

    def read(self, name: str) -> Domain:
        return self.store.read(name)

    def changes(self, resident: Collection[str]) -> set[str]:
        return self.watch.changes(resident)

    def load(self, name: str, version: Version) -> Calibration:
        """Loads a version, ready to score. Raises NotFound, EncoderMismatch or CorruptArtifact."""
        calibrator = self.calibrators.get(version.encoder)
        if calibrator is None:
            here = " and ".join(digest[:12] for digest in self.calibrators)
            raise EncoderMismatch(
                f"encoder_mismatch: version {version.number} of {name!r} was made for encoder {version.encoder_id} "
                f"({version.encoder[:12]}); this server runs {here}"
            )
        stored = self.store.load(name, version)
        transform = None if stored.weights is None else calibrator.bind(stored.weights)
        size = stored.size + OVERHEAD
        return Calibration(
            name, version.number, version.method, version.encoder, transform, stored.model, version.levels, size
        )


def load_calibration(store: Path, artifact: EncoderArtifact, domain: DomainRef, *, gpu: bool) -> Calibration:
    """Loads the version that `domain` refers to now; a later promotion or rollback does not change the result.

    Raises:
        NotFound, EncoderMismatch, CorruptArtifact: as for `Registry.resolve`.
    """
    source = StoredCalibrations(DomainStore(opened(store)))
    source.calibrators[artifact.digest] = OnnxCalibrator(artifact.calibrator, gpu=gpu)
    return asyncio.run(Registry(source, artifact.digest).resolve(domain))
