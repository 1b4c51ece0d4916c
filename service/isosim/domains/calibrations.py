"""Loads stored versions for serving with this process's encoder, and watches the store for changes."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path

from isosim.domains.store import DomainStore
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import CorruptArtifact, EncoderMismatch
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.registry import DomainAliases, Registry

# Bytes of a calibration besides its arrays. Measured with loadtest/domains.py: 10,000 (method `identity`) to 140,000.
OVERHEAD = 100_000


class StoredCalibrations:
    def __init__(self, store: DomainStore, calibrator: OnnxCalibrator, encoder_digest: str) -> None:
        self.store, self.calibrator, self.encoder_digest = store, calibrator, encoder_digest
        self.watch = ChangeWatch(store)

    def changes(self, resident: Mapping[str, frozenset[int]]) -> set[str]:
        return self.watch.changes(resident)

    def named(self, domain: str) -> DomainAliases:
        with self._placed(domain):
            aliases = self.store.aliases(domain, self.encoder_digest)
        return DomainAliases(aliases.champion, aliases.previous, aliases.targets)

    def exists(self, domain: str) -> bool:
        return bool(self.store.versions(domain))

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        return self.store.missing(domain, versions)

    def load(self, domain: str, version: int) -> Calibration:
        """Loads a version, ready to score. Raises NotFound, EncoderMismatch or CorruptArtifact."""
        with self._placed(domain, version):
            return self._load(domain, version)

    @contextlib.contextmanager
    def _placed(self, domain: str, version: int | None = None) -> Iterator[None]:
        """Adds a place to a CorruptArtifact error, for the log: the path or address of the version or domain."""
        try:
            yield
        except CorruptArtifact as error:
            error.place = self.store.storage.where(domain, version)
            raise

    def _load(self, domain: str, version: int) -> Calibration:
        encoder = self.store.manifest(domain, version)["encoder"]
        if encoder["digest"] != self.encoder_digest:
            raise EncoderMismatch(
                f"encoder_mismatch: version {version} of {domain!r} was made for encoder {encoder['id']} "
                f"({encoder['digest'][:12]}); this server runs {self.encoder_digest[:12]}"
            )
        stored = self.store.load(domain, version)
        transform = None if stored.weights is None else self.calibrator.bind(stored.weights)
        levels = tuple(stored.manifest.get("levels", ()))
        method = stored.manifest["method"]
        size = stored.size + OVERHEAD
        return Calibration(domain, version, method, self.encoder_digest, transform, stored.model, levels, size)


def load_calibration(store: Path, artifact: EncoderArtifact, domain: DomainRef, providers: list[str]) -> Calibration:
    """Loads the version that `domain` refers to now; a later promotion or rollback does not change the result.

    Raises:
        NotFound, EncoderMismatch, CorruptArtifact: as for `Registry.resolve`.
    """
    calibrator = OnnxCalibrator(artifact.calibrator, providers)
    source = StoredCalibrations(DomainStore(store), calibrator, artifact.digest)
    return asyncio.run(Registry(source, artifact.digest).resolve(domain))


FULL_LOOK = 60.0  # seconds within which each domain in memory (resident) is compared with the store
# In a folder, minimum number of domains that each call compares. 16 domains take 0.16 ms of CPU time (measured).
FEWEST = 16


class ChangeWatch:
    """Finds domains of a store that have changed since the last call. Thread-safe."""

    def __init__(self, store: DomainStore) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._announced: frozenset[str] = frozenset()  # announcements in the last listing
        self._bell: str | None = None  # value of `DomainStore.bell` at the last listing of announcements
        self._stamps: dict[str, Hashable] = {}  # resident domain -> result of `stamps` at the last comparison
        self._waiting: list[str] = []  # resident domains not yet compared in the current round
        self._compared = -math.inf  # when stamps were last compared (monotonic clock, seconds)

    def changes(self, resident: Mapping[str, frozenset[int]]) -> set[str]:
        """Domains that may have changed since the last call; may include domains that are not resident.

        Args:
            resident: the domains that the caller serves, each with its versions in memory.

        Raises:
            OSError: the store cannot be read; the next call reports the changes instead.
        """
        with self._lock:
            now = time.monotonic()
            # Every announcement changes `bell`. `bell` is read first, then the announcements are listed. A later
            # announcement changes `bell` again, and the next call lists it.
            bell = self.store.bell()
            announced = self._announced
            if bell is None or bell != self._bell:
                announced = frozenset(self.store.announced())
            changed = {name.partition("-")[2] for name in announced - self._announced}
            batch = self._next(resident, now - self._compared)
            if batch:
                due = {domain: resident[domain] for domain in batch if domain in resident}
                stamps = self.store.stamps(due)
                changed |= {domain for domain in due if self._stamps.get(domain) != stamps[domain]}
                self._stamps |= stamps
                del self._waiting[-len(batch) :]
                self._compared = now
            self._announced, self._bell = announced, bell
            return changed

    def _next(self, resident: Mapping[str, frozenset[int]], elapsed: float) -> list[str]:
        """The domains to compare now, `elapsed` seconds after the last comparison.

        In a folder, each call compares a part of the domains: for example 10 % of the domains after 10 % of FULL_LOOK,
        but at least FEWEST. In a bucket, no domains are compared before FULL_LOOK has elapsed.

        If FULL_LOOK has elapsed, all domains are compared. A process that was suspended for a long time then finds
        changes whose announcements were already removed.
        """
        if self.store.distant and elapsed < FULL_LOOK:
            return []
        share = math.ceil(len(resident) * min(1.0, elapsed / FULL_LOOK))
        if not self._waiting or share == len(resident):
            self._waiting = list(resident)
            self._stamps = {domain: stamp for domain, stamp in self._stamps.items() if domain in resident}
        return self._waiting[-max(FEWEST, share) :]
