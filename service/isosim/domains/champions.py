"""The champions of all domains, for listings: read from the records once, and again only where a record has changed."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from isosim.domains.domain import NAME, Domain
from isosim.domains.store import DomainStore
from isosim.errors import IsosimError
from isosim.store.records import Records

log = logging.getLogger(__name__)

SAVE_SECONDS = 60.0  # s between two writes of the summary by a process


@dataclass(frozen=True)
class Champion:
    """A version that answers for a domain."""

    version: int
    created: str  # ISO 8601


@dataclass(frozen=True)
class Standing:
    """What listings say about a domain."""

    stamp: str  # of the record that was read (`Blobs.stamp`)
    champions: dict[str, Champion] = field(default_factory=dict)  # by digest
    damaged: bool = False

    @classmethod
    def of(cls, stamp: str, domain: Domain) -> "Standing":
        served = ((digest, one.champion) for digest, one in domain.aliases.items())
        versions = {digest: domain.versions[number] for digest, number in served if number in domain.versions}
        champions = {digest: Champion(version.number, version.created) for digest, version in versions.items()}
        return cls(stamp, champions)


@dataclass(frozen=True)
class Summary:
    """The object `champions.json`. It saves a new process from reading all records, and is never trusted beyond the
    stamps that it holds."""

    domains: dict[str, Standing] = field(default_factory=dict)


class Champions:
    """The champions of a store. Thread-safe."""

    def __init__(self, store: DomainStore) -> None:
        self.store, self.summaries = store, Records(store.blobs, Summary, "")
        self._lock = threading.Lock()
        self._known: dict[str, Standing] | None = None
        self._saved = 0.0  # time of the last write of the summary (monotonic, s)

    def read(self) -> Mapping[str, Standing]:
        """The standing of each domain, sorted by name. Costs one listing of the records, and reads those that have
        changed since the last call. Raises OSError."""
        with self._lock:
            known = self._stored() if self._known is None else self._known
            stamps = {name: stamp for name, stamp in self.store.records.stamps() if NAME.fullmatch(name)}
            changed = [name for name, stamp in stamps.items() if name not in known or known[name].stamp != stamp]
            standings = self.store.read_each(changed, lambda name: self._look(name, stamps[name]))
            found = dict(zip(changed, standings, strict=True))
            self._known = {name: found[name] if name in found else known[name] for name in stamps}
            if changed or len(known) != len(stamps):
                self._save()
            return self._known

    def _stored(self) -> dict[str, Standing]:
        try:
            return self.summaries.read("champions").domains
        except (FileNotFoundError, IsosimError):
            return {}

    def _look(self, name: str, stamp: str) -> Standing:
        # The stamp was read first: a change since then is found by the next call.
        try:
            return Standing.of(stamp, self.store.read(name))
        except (IsosimError, OSError):
            return Standing(stamp, damaged=True)

    def _save(self) -> None:
        """Stores the summary, at most every SAVE_SECONDS; without a condition, since its stamps make it safe."""
        now = time.monotonic()
        if self._saved and now - self._saved < SAVE_SECONDS:
            return
        self._saved = now
        try:
            self.summaries.write("champions", Summary(self._known or {}))
        except OSError as error:
            log.warning("the summary of champions could not be stored: %s", error)
