"""Which calibration answers for a domain: loaded versions, champions, and their replacement while serving."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from service.core.calibration import Calibration, DomainRef
from service.core.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, int]  # domain, version

DEFAULT = "default"
LOADERS = 4  # calibrations read at a time; each takes some 10 ms of a core from a disk
MOST_PAUSE = 64  # refreshes between two attempts


@dataclass(frozen=True)
class Named:
    """What a domain's aliases stand for, for this process's encoder."""

    champion: int | None
    previous: int | None


class CalibrationSource(Protocol):
    """Where calibrations come from. The calls may block; they run in threads."""

    def changes(self, domains: Collection[str]) -> dict[str, int]:
        """Of the domains that have aliases, a stamp each that differs after they changed."""
        ...

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
    """Resident calibrations. A champion is replaced in one assignment, after its successor has loaded whole.

    A calibration is loaded when it is first asked for, champions and pinned versions alike; those not asked for
    longest go when all together take more than `resident_bytes`. The champion of `default` stays. Whoever holds one
    that goes may use it to the end. Only what is resident is looked at again, so that a store may hold any number.
    """

    def __init__(
        self,
        source: CalibrationSource,
        encoder_digest: str,
        *,
        resident_bytes: int = 2**30,
        on_champion: Callable[[Calibration], None] = lambda _: None,
        on_dropped: Callable[[str], None] = lambda _: None,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.source, self.encoder_digest, self.resident_bytes = source, encoder_digest, resident_bytes
        self.on_champion, self.on_dropped, self.on_failure = on_champion, on_dropped, on_failure
        self.builtin = Calibration(DEFAULT, 0, "identity", encoder_digest)
        self.champions: dict[str, Calibration] = {}
        self.size = 0  # bytes of what is resident
        self._resident: OrderedDict[Key, Calibration] = OrderedDict()  # champions too; asked for last at the end
        self._loading: dict[tuple[str, int | str], asyncio.Task[Calibration]] = {}
        self._stamps: dict[str, int] = {}  # of resident champions
        self._known: set[str] | None = None  # of `default` and the champions: those with aliases at the last refresh
        self._misses: dict[str, Miss] = {}
        self._refreshing = asyncio.Lock()
        self._threads = ThreadPoolExecutor(LOADERS, "calibrations")

    def close(self) -> None:
        """Whoever waits for a load is told that it was cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """In threads of their own: a store that hangs must not take those that scoring, and `refresh`, need."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def resolve(self, ref: DomainRef) -> Calibration:
        """The calibration a reference means now. A request resolves once and keeps the object.

        Raises:
            NotFound: no such domain, version or alias.
            EncoderMismatch: the domain or version belongs to another encoder.
            CorruptArtifact: its files do not match their manifest.
        """
        if ref.version == "champion":
            champion = self.champions.get(ref.name)
            if champion is not None:
                self._resident.move_to_end((ref.name, champion.version))
                return champion
            if ref.name == DEFAULT and self._known is not None and DEFAULT not in self._known:
                return self.builtin
            return await self._once((ref.name, "champion"), partial(self._load_champion, ref.name))
        if ref.version == "previous":
            previous = (await self._call(self.source.named, ref.name)).previous
            if previous is None:
                raise NotFound(f"domain {ref.name!r} has no previous version")
            return await self._pinned(ref.name, previous)
        return await self._pinned(ref.name, int(ref.version))

    async def _once(
        self, key: tuple[str, int | str], load: Callable[[], Coroutine[Any, Any, Calibration]]
    ) -> Calibration:
        """Callers who ask for the same at the same time wait for one load; one that leaves does not end it."""
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(load(), name=f"load-{key[0]}@{key[1]}")
            task.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(task)

    def _loaded(self, key: tuple[str, int | str], task: asyncio.Task[Calibration]) -> None:
        del self._loading[key]
        if not task.cancelled():
            task.exception()  # where all callers have left, nobody else asks for it

    async def _load_champion(self, domain: str) -> Calibration:
        named = await self._call(self.source.named, domain)
        if named.champion is None:
            if domain == DEFAULT:
                return self.builtin
            if await self._call(self.source.exists, domain):
                raise EncoderMismatch(
                    f"encoder_mismatch: domain {domain!r} has no champion for this server's encoder; "
                    f"name a version ({domain}@1) or promote one"
                )
            raise NotFound(f"no domain {domain!r}; GET /domains lists what there is")
        calibration = self._resident.get((domain, named.champion))  # somebody has pinned it
        if calibration is None:
            try:
                calibration = await self._call(self.source.load, domain, named.champion)
            except NotFound as error:  # nobody asked for that version: the domain is broken, not the request
                self.on_failure(domain)
                raise CorruptArtifact(f"the champion of {domain!r} is missing, promote another: {error}") from error
            except (IsosimError, OSError):
                self.on_failure(domain)
                raise
        # A refresh may have been faster. If the champion changed meanwhile, the next refresh sees it: a domain gets
        # its stamp only once it is resident.
        current = self.champions.get(domain)
        if current is None:
            self._set(calibration)
            return calibration
        return current

    async def _pinned(self, domain: str, version: int) -> Calibration:
        if (domain, version) == (DEFAULT, 0):
            return self.builtin
        calibration = self._resident.get((domain, version))
        if calibration is not None:
            self._resident.move_to_end((domain, version))
            return calibration
        return await self._once((domain, version), partial(self._load_pinned, domain, version))

    async def _load_pinned(self, domain: str, version: int) -> Calibration:
        calibration = await self._call(self.source.load, domain, version)
        self._keep(calibration)
        return calibration

    def _set(self, calibration: Calibration) -> None:
        before = self.champions.get(calibration.domain)
        self.champions[calibration.domain] = calibration
        self.on_champion(calibration)
        if before is not None and before.version != calibration.version:
            self._release((before.domain, before.version))
        self._keep(calibration)

    def _keep(self, calibration: Calibration) -> None:
        """Makes it resident, and lets go of what was not asked for longest."""
        key = (calibration.domain, calibration.version)
        self._release(key)
        self._resident[key] = calibration
        self.size += calibration.size
        kept = self.champions.get(DEFAULT)
        while self.size > self.resident_bytes:
            oldest = next((other for other in self._resident.values() if other is not kept), None)
            if oldest is None:
                break
            self._release((oldest.domain, oldest.version))
            if self.champions.get(oldest.domain) is oldest:
                self._forget(oldest.domain)

    def _release(self, key: Key) -> None:
        calibration = self._resident.pop(key, None)
        if calibration is not None:
            self.size -= calibration.size

    def _forget(self, domain: str) -> None:
        """A champion is resident no more; the next request for it looks at the store anew."""
        champion = self.champions.pop(domain)
        self._release((domain, champion.version))
        self._stamps.pop(domain, None)
        self._misses.pop(domain, None)
        self.on_dropped(domain)

    async def refresh(self) -> None:
        """Takes over what changed in the store, of `default` and of the champions that are resident.

        A version that cannot be loaded is logged, and the one before keeps serving.
        """
        async with self._refreshing:
            asked = {DEFAULT, *self.champions}
            stamps = await asyncio.to_thread(self.source.changes, asked)
            self._known = set(stamps)
            for domain in (asked - stamps.keys()) & self.champions.keys():
                self._forget(domain)
            for domain, stamp in stamps.items():
                wanted = domain in self.champions or domain == DEFAULT
                if not wanted or self._stamps.get(domain) == stamp or not self._is_due(domain, stamp):
                    continue
                if await self._replace(domain):
                    self._misses.pop(domain, None)
                    if domain in self.champions or domain == DEFAULT:  # it may have gone meanwhile
                        self._stamps[domain] = stamp

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
                loaded = await asyncio.to_thread(self.source.load, domain, named.champion)
                if current is None or domain in self.champions:  # else it has gone, and nobody asks for it
                    self._set(loaded)
        except (IsosimError, OSError) as error:
            if self._misses[domain].pause == 1:  # said once, counted every time
                log.error("champion of %s not loaded, the version before keeps serving: %s", domain, error)
            self.on_failure(domain)
            return False
        return True

    def drop(self, domain: str, version: int) -> None:
        """Forgets a deleted version."""
        champion = self.champions.get(domain)
        if champion is None or champion.version != version:  # a champion that changed meanwhile goes by a refresh
            self._release((domain, version))
