"""The log of changes to domains: readers look at one object to learn which domains to read again."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from isosim.errors import CorruptArtifact, IsosimError
from isosim.store.blobs import Blobs
from isosim.store.identity import identify
from isosim.store.records import Records

log = logging.getLogger(__name__)

KEPT = 100  # changes in the log; unmeasured
FULL_LOOK = 60.0  # s within which all resident domains are compared with the store; unmeasured
AGAIN = 5.0  # s until another comparison if some domains could not be read
SIDE_BY_SIDE = 16  # requests in parallel; unmeasured


@dataclass(frozen=True)
class Change:
    """A domain's record has reached a revision. Sequences rise by one."""

    sequence: int
    domain: str
    revision: int


@dataclass(frozen=True)
class Changes:
    """The newest KEPT changes, oldest first."""

    last: tuple[Change, ...] = ()


class ChangeLog:
    """The object `changes.json`. It is a hint: a change that it misses is found by the next full comparison."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs, self.records = blobs, Records(blobs, Changes, "")
        self.key = self.records.key("changes")

    def append(self, domain: str, revision: int) -> None:
        """Appends a change. A failure is only logged, because the change itself has succeeded."""

        def step(there: Changes | None) -> Changes:
            before = () if there is None else there.last
            sequence = before[-1].sequence + 1 if before else 1
            return Changes((*before, Change(sequence, domain, revision))[-KEPT:])

        try:
            try:
                self.records.change("changes", step)
            except CorruptArtifact as error:
                log.warning("the log of changes begins anew: %s", error)
                self.records.rebuild("changes", lambda _: Changes())  # readers take it for a gap
        except (IsosimError, OSError) as error:
            log.warning("could not announce a change of domain %s (%s); readers find it within a minute", domain, error)

    def stamp(self) -> str | None:
        """Returns a string that differs after each change of the log; None if there is no log yet."""
        try:
            return self.blobs.stamp(self.key)
        except FileNotFoundError:
            return None

    def read(self) -> tuple[Change, ...]:
        """Raises CorruptArtifact or OSError."""
        try:
            return self.records.read("changes").last
        except FileNotFoundError:
            return ()


class ChangeWatch:
    """Finds the domains that changed since the last call. Thread-safe."""

    def __init__(self, changes: ChangeLog, stamp: Callable[[str], str | None]) -> None:
        """`stamp` returns, for the name of a domain, the stamp of its record (`DomainStore.stamp`)."""
        self.log, self.stamp = changes, stamp
        self._lock = threading.Lock()
        self._looked: str | None = None  # the log's stamp at the last look
        self._seen = 0  # highest sequence that was read
        self._stamps: dict[str, str | None] = {}  # resident domain -> stamp of its record at the last comparison
        self._compared = -math.inf  # time of the last full comparison (monotonic, s)

    def changes(self, resident: Collection[str]) -> set[str]:
        """Domains that may have changed since the last call; may include domains that are not resident.

        A change is missed neither by a reader that slept through more than KEPT changes, because the sequence then has
        a gap, nor after a failed append, because every FULL_LOOK all resident domains are compared with the store.

        Raises:
            OSError, Unavailable: the store cannot be read, or is gone; the next call reports the changes instead.
        """
        with self._lock:
            now, looked = time.monotonic(), self.log.stamp()
            if looked is None and self._looked is not None:
                identify(self.log.blobs)  # raises an error if the whole store is gone: no domain was deleted
            changed: set[str] = set()
            due, seen = now - self._compared >= FULL_LOOK, self._seen
            if looked != self._looked:
                try:
                    last = self.log.read()
                except IsosimError as error:  # the log is only a hint: a damaged one must not stop its readers
                    log.warning("the log of changes cannot be read (%s); all resident domains are compared", error)
                    last = ()
                changed = {change.domain for change in last if change.sequence > seen}
                # Not so after a gap, with a damaged log, or after its deletion: it then begins again with 1.
                continues = bool(last) and last[0].sequence <= seen + 1 <= last[-1].sequence + 1
                due = due or not continues
                seen = last[-1].sequence if last else 0
            if due:
                changed |= self._compare(resident, now)
            self._looked, self._seen = looked, seen
            return changed

    def _compare(self, resident: Collection[str], now: float) -> set[str]:
        """Compares all resident domains with the store; again after AGAIN if some could not be read."""

        def look(name: str) -> tuple[str, str | None] | None:
            try:
                return name, self.stamp(name)
            except OSError as error:
                log.warning("domain %s cannot be compared with the store: %s", name, error)
                return None

        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            stamps = dict(filter(None, pool.map(look, resident)))
        changed = {name for name, stamp in stamps.items() if self._stamps.get(name, "") != stamp}
        kept = {name: stamp for name, stamp in self._stamps.items() if name in resident}
        self._stamps = kept | stamps
        self._compared = now if len(stamps) == len(resident) else now - FULL_LOOK + AGAIN
        return changed
