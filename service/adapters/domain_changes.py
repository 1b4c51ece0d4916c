"""Which domains of a store changed: writers announce it, and a full look finds what was not announced.

A writer leaves an empty file or object `<ns>-<domain>` after it has replaced a domain's aliases; a reader lists those
it has not seen yet. A look therefore costs the same however many domains are resident. In a folder no clock matters:
every name that is new to a reader is news to it. In a bucket a reader lists the last minutes by its own clock.

An announcement may be missing: an older release makes none in a folder, a full disk or a missing permission prevents
it, or a bucket's writer has a clock that is minutes behind. Each resident domain is therefore also compared with the
store once in FULL_LOOK: all together in a bucket, where that is one listing, and a few at each look in a folder.
"""

import math
import threading
import time
from collections.abc import Hashable, Mapping

from service.adapters.domain_store import DomainStore

FULL_LOOK = 60.0  # s in which each resident domain is compared with the store
FEWEST = 16  # domains of a folder that a look compares: all of a small server; measured 0.16 ms of a core


class ChangeWatch:
    """One reader's view of a store's changes. Safe from any thread."""

    def __init__(self, store: DomainStore) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._announced: frozenset[str] = frozenset()  # what the last look listed
        self._stamps: dict[str, Hashable] = {}  # of resident domains, when they were last compared
        self._waiting: list[str] = []  # domains this round has still to compare, the next one last
        self._compared = -math.inf  # s, monotonic: the last comparison

    def changes(self, resident: Mapping[str, frozenset[int]]) -> set[str]:
        """Domains that may have changed since the last call; others than the resident may be among them.

        Args:
            resident: the domains that the caller serves, each with its versions in memory.

        Raises:
            OSError: the store cannot be read; the next call tells what this one would have told.
        """
        with self._lock:
            now = time.monotonic()
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
            self._announced = announced
            return changed

    def _next(self, resident: Mapping[str, frozenset[int]], elapsed: float) -> list[str]:
        """The domains to compare now: a share by the time that has passed, so that a round takes FULL_LOOK at most.

        After a pause in which announcements may have been swept (a stopped process), these are all.
        """
        if self.store.distant and elapsed < FULL_LOOK:
            return []
        share = math.ceil(len(resident) * min(1.0, elapsed / FULL_LOOK))
        if not self._waiting or share == len(resident):
            self._waiting = list(resident)
            self._stamps = {domain: stamp for domain, stamp in self._stamps.items() if domain in resident}
        return self._waiting[-max(FEWEST, share) :]
