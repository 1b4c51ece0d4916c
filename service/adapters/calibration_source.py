"""Stored versions made ready to serve on this process's encoder."""

from collections.abc import Iterable, Mapping

from service.adapters.domain_changes import ChangeWatch
from service.adapters.domain_store import DomainStore
from service.adapters.onnx_engine import OnnxCalibrator
from service.core.calibration import Calibration
from service.core.errors import EncoderMismatch
from service.core.registry import Named

OVERHEAD = 100_000  # bytes of objects beside the arrays: measured 10,000 (identity) to 140,000 (loadtest/domains.py)


class StoredCalibrations:
    def __init__(self, store: DomainStore, calibrator: OnnxCalibrator, encoder_digest: str) -> None:
        self.store, self.calibrator, self.encoder_digest = store, calibrator, encoder_digest
        self.watch = ChangeWatch(store)

    def changes(self, resident: Mapping[str, frozenset[int]]) -> set[str]:
        return self.watch.changes(resident)

    def named(self, domain: str) -> Named:
        aliases = self.store.aliases(domain, self.encoder_digest)
        return Named(aliases.champion, aliases.previous)

    def exists(self, domain: str) -> bool:
        return bool(self.store.versions(domain))

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        return self.store.missing(domain, versions)

    def load(self, domain: str, version: int) -> Calibration:
        """Raises NotFound, EncoderMismatch or CorruptArtifact."""
        encoder = self.store.manifest(domain, version)["encoder"]
        if encoder["digest"] != self.encoder_digest:
            raise EncoderMismatch(
                f"encoder_mismatch: version {version} of {domain!r} was made for encoder {encoder['id']} "
                f"({encoder['digest'][:12]}), this server runs {self.encoder_digest[:12]}"
            )
        stored = self.store.load(domain, version)
        transform = None if stored.weights is None else self.calibrator.bind(stored.weights)
        levels = tuple(stored.manifest.get("levels", ()))
        method = stored.manifest["method"]
        size = stored.size + OVERHEAD
        return Calibration(domain, version, method, self.encoder_digest, transform, stored.model, levels, size)
