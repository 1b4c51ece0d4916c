"""Which calibration answers for a domain: loaded versions, champions, and their replacement while serving."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from service.core.calibration import Calibration, DomainRef
from service.core.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound

log = logging.getLogger(__name__)

DEFAULT = "default"
MOST_PAUSE = 64  # refreshes between two attempts


@dataclass(frozen=True)
class Named:
    """What a domain's aliases stand for, for this process's encoder."""

    champion: int | None
    previous: int | None


class CalibrationSource(Protocol):
    """Where calibrations come from. The calls may block; they run in threads."""

    def changes(self) -> dict[str, int]: ...

    def named(self, domain: str) -> Named: ...

    def exists(self, domain: str) -> bool: ...

    def load(self, domain: str, version: int) -> Calibration: ...


@dataclass
class Miss:
    """A champion that could not be loaded."""

    stamp: int
    pause: int = 1  # refreshes until it is tried again
    left: int = 1


class Registry:
    """Resident calibrations. A champion is replaced in one assignment, after its successor has loaded whole."""

    def __init__(
        self,
        source: CalibrationSource,
        encoder_digest: str,
        *,
        pinned: int = 64,
        on_champion: Callable[[Calibration], None] = lambda _: None,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.source, self.encoder_digest, self.pinned = source, encoder_digest, pinned
        self.on_champion, self.on_failure = on_champion, on_failure
        self.builtin = Calibration(DEFAULT, 0, "identity", encoder_digest)
        self.champions: dict[str, Calibration] = {}
        self._pinned: OrderedDict[tuple[str, int], Calibration] = OrderedDict()
        self._stamps: dict[str, int] = {}
        self._known: set[str] | None = None  # domains with aliases, as the last refresh saw them
        self._misses: dict[str, Miss] = {}
        self._refreshing = asyncio.Lock()

    async def resolve(self, ref: DomainRef) -> Calibration:
        """The calibration a reference means now. A request resolves once and keeps the object.

        Raises:
            NotFound: no such domain, version or alias.
            EncoderMismatch: the domain or version belongs to another encoder.
            CorruptArtifact: its files do not match their manifest.
        """
        if ref.version == "champion":
            calibration = self.champions.get(ref.name)
            if calibration is None and ref.name == DEFAULT and self._known is not None and DEFAULT not in self._known:
                return self.builtin
            return calibration if calibration is not None else await self._load_champion(ref.name)
        if ref.version == "previous":
            previous = (await asyncio.to_thread(self.source.named, ref.name)).previous
            if previous is None:
                raise NotFound(f"domain {ref.name!r} has no previous version")
            return await self._load_pinned(ref.name, previous)
        return await self._load_pinned(ref.name, int(ref.version))

    async def _load_champion(self, domain: str) -> Calibration:
        named = await asyncio.to_thread(self.source.named, domain)
        if named.champion is None:
            if domain == DEFAULT:
                return self.builtin
            if await asyncio.to_thread(self.source.exists, domain):
                raise EncoderMismatch(
                    f"encoder_mismatch: domain {domain!r} has no champion for this server's encoder; "
                    f"name a version ({domain}@1) or promote one"
                )
            raise NotFound(f"no domain {domain!r}; GET /domains lists what there is")
        try:
            calibration = await asyncio.to_thread(self.source.load, domain, named.champion)
        except NotFound as error:  # nobody asked for that version: the domain is broken, not the request
            raise CorruptArtifact(f"the champion of {domain!r} is missing, promote another: {error}") from error
        # Somebody may have been faster. If the champion changed meanwhile, the next refresh sees it: a domain gets
        # its stamp only once it is resident.
        if domain not in self.champions:
            self._set(calibration)
        return self.champions[domain]

    async def _load_pinned(self, domain: str, version: int) -> Calibration:
        champion = self.champions.get(domain)
        if champion is not None and champion.version == version:
            return champion
        if (domain, version) == (DEFAULT, 0):
            return self.builtin
        calibration = self._pinned.get((domain, version))
        if calibration is None:
            calibration = await asyncio.to_thread(self.source.load, domain, version)
            self._pinned[domain, version] = calibration
            while len(self._pinned) > self.pinned:
                self._pinned.popitem(last=False)
        self._pinned.move_to_end((domain, version))
        return calibration

    def _set(self, calibration: Calibration) -> None:
        self.champions[calibration.domain] = calibration
        self.on_champion(calibration)

    async def refresh(self, stamps: dict[str, int] | None = None, *, everything: bool = False) -> None:
        """Takes over what changed in the store; `everything` loads all champions, for a start.

        `stamps`: the source's changes, where they were asked for already.

        A version that cannot be loaded is logged, and the one before keeps serving.
        """
        async with self._refreshing:
            if stamps is None:
                stamps = await asyncio.to_thread(self.source.changes)
            self._known = set(stamps)
            for domain in self.champions.keys() - stamps.keys():
                del self.champions[domain]
            for domain, stamp in stamps.items():
                resident = everything or domain in self.champions or domain == DEFAULT
                if not resident or self._stamps.get(domain) == stamp or not self._is_due(domain, stamp):
                    continue
                if await self._replace(domain):
                    self._stamps[domain] = stamp
                    self._misses.pop(domain, None)

    def _is_due(self, domain: str, stamp: int) -> bool:
        """A champion that could not be loaded is tried again after 1, 2, 4 … refreshes: on a shared volume its files
        may arrive later than its name."""
        miss = self._misses.get(domain)
        if miss is None or miss.stamp != stamp:
            self._misses[domain] = Miss(stamp)
            return True
        miss.left -= 1
        if miss.left > 0:
            return False
        miss.pause = miss.left = min(2 * miss.pause, MOST_PAUSE)
        return True

    async def _replace(self, domain: str) -> bool:
        """False where another look may find more."""
        try:
            named = await asyncio.to_thread(self.source.named, domain)
            current = self.champions.get(domain)
            if named.champion is not None and (current is None or current.version != named.champion):
                self._set(await asyncio.to_thread(self.source.load, domain, named.champion))
        except (IsosimError, OSError) as error:
            if self._misses[domain].pause == 1:  # said once, counted every time
                log.error("champion of %s not loaded, the version before keeps serving: %s", domain, error)
            self.on_failure(domain)
            return False
        return True

    def drop(self, domain: str, version: int) -> None:
        """Forgets a deleted version."""
        self._pinned.pop((domain, version), None)
