"""Which calibration answers for a domain: loaded versions, champions, and their replacement while serving."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from service.core.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound, UnknownDomain
from service.core.scoring.advice import Target, unknown_threshold
from service.core.scoring.calibration import Calibration, DomainRef

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, int]  # domain, version

DEFAULT = "default"
MOST_REPORTED = 1000  # domains whose failure is remembered as logged
LOADERS = 4  # calibrations read at a time; each takes some 10 ms of a core from a disk
MOST_PAUSE = 64  # refreshes between two attempts
MOST_EVICTED = 4096  # domains whose deletion is still told of after they went for want of room
NO_VERSIONS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class DomainAliases:
    """What a domain's aliases stand for, for this process's encoder."""

    champion: int | None
    previous: int | None
    targets: Mapping[str, Target] = field(default_factory=dict)  # the domain's saved ones, whatever the encoder


class CalibrationSource(Protocol):
    """Where calibrations come from. The calls may block; they run in threads."""

    def changes(self, resident: Mapping[str, frozenset[int]]) -> Iterable[str]:
        """Domains that may have changed since the last call; others than the resident may be among them."""
        ...

    def named(self, domain: str) -> DomainAliases: ...

    def exists(self, domain: str) -> bool: ...

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        """Those of the versions that were deleted."""
        ...

    def load(self, domain: str, version: int) -> Calibration: ...


@dataclass
class Miss:
    """A domain whose change could not be taken over."""

    pause: int = 1  # refreshes until it is tried again
    left: int = 1


class Registry:
    """Resident calibrations. A champion is replaced in one assignment, after its successor has loaded whole.

    A calibration is loaded when it is first asked for, champions and pinned versions alike; those not asked for
    longest go when all together take more than `resident_bytes`. The champion of `default` stays. Whoever holds one
    that goes may use it to the end. A refresh reads again what changed and is resident, pinned versions too: its cost
    depends neither on the number of domains in the store nor on the number of those that are resident.

    on_champion: told of each new champion. on_dropped: of each domain whose champion is resident no more.
    on_gone: of each domain that was served and has no champion any more, because it was deleted.
    """

    def __init__(
        self,
        source: CalibrationSource,
        encoder_digest: str,
        *,
        resident_bytes: int = 2**30,
        on_champion: Callable[[Calibration], None] = lambda _: None,
        on_dropped: Callable[[str], None] = lambda _: None,
        on_gone: Callable[[str], None] = lambda _: None,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.source, self.encoder_digest, self.resident_bytes = source, encoder_digest, resident_bytes
        self.on_champion, self.on_dropped = on_champion, on_dropped
        self.on_gone, self.on_failure = on_gone, on_failure
        self.builtin = Calibration(DEFAULT, 0, "identity", encoder_digest)
        self.champions: dict[str, Calibration] = {}
        self.size = 0  # bytes of what is resident
        self._resident: OrderedDict[Key, Calibration] = OrderedDict()  # champions too; asked for last at the end
        self._loading: dict[tuple[str, int | str], asyncio.Task[Calibration]] = {}
        self._versions: dict[str, frozenset[int]] = {DEFAULT: NO_VERSIONS}  # resident, of each domain; replaced whole
        self._targets: dict[str, Mapping[str, Target]] = {}  # of resident domains, as far as aliases were read
        self._evicted: OrderedDict[str, None] = OrderedDict()  # domains that went for want of room, the last at the end
        self._news: deque[Iterable[str]] = deque()  # what threads have found changed
        self._due = {DEFAULT}  # domains to be compared with the store at the next refresh
        self._identity = False  # `default` had no champion when it was compared last: the identity answers
        self._misses: dict[str, Miss] = {}
        self._reported: dict[str, str] = {}  # by domain the reason that was logged last for a failing request
        self._refreshing = asyncio.Lock()
        self._threads = ThreadPoolExecutor(LOADERS, "calibrations")

    def close(self) -> None:
        """Whoever waits for a load is told that it was cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """In threads of their own: a store that hangs must not take those that scoring, and `refresh`, need."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def holds(self, ref: DomainRef) -> bool:
        """Whether a reference is resolved without the source."""
        if ref.version == "champion":
            return ref.name in self.champions or ref.name == DEFAULT
        return (ref.name, ref.version) in self._resident or (ref.name, ref.version) == (DEFAULT, 0)

    @property
    def behind(self) -> bool:
        """Whether a change in the store was seen and could not be taken over; the version before keeps serving."""
        return bool(self._misses)

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
            if ref.name == DEFAULT and self._identity:
                return self.builtin
            return await self._once((ref.name, "champion"), partial(self._load_champion, ref.name))
        if ref.version == "previous":
            previous = (await self._call(self.source.named, ref.name)).previous
            if previous is None:
                if ref.name != DEFAULT and not await self._call(self.source.exists, ref.name):
                    raise UnknownDomain(ref.name)
                raise NotFound(f"domain {ref.name!r} has no previous version; leave @previous out for the champion")
            return await self._pinned(ref.name, previous)
        return await self._pinned(ref.name, int(ref.version))

    async def target(self, domain: str, name: str) -> Target:
        """The target that a domain has saved under this name.

        A refresh keeps those of resident domains. A name that is not among them may be one that another replica has
        just saved, so that the store is asked before it is refused.

        Raises:
            NotFound: none is saved under it.
            CorruptArtifact: the domain's aliases cannot be read.
        """
        known = self._targets.get(domain)
        if known is None or name not in known:
            known = (await self._call(self.source.named, domain)).targets
            if domain in self._versions:
                self._due.add(domain)  # they may have changed while they were read
                self._targets[domain] = known
        if name not in known:
            raise unknown_threshold(domain, name, known)
        return known[name]

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
        try:
            named = await self._call(self.source.named, domain)
        except (CorruptArtifact, OSError) as error:
            self._report(domain, error)
            raise
        if named.champion is None:
            if domain == DEFAULT:
                return self.builtin
            if await self._call(self.source.exists, domain):
                raise EncoderMismatch(
                    f"encoder_mismatch: no version of domain {domain!r} is promoted for this server's encoder; promote "
                    f"one, or name one in the request ({domain}@1)"
                )
            raise UnknownDomain(domain)
        calibration = self._resident.get((domain, named.champion))  # somebody has pinned it
        if calibration is None:
            try:
                calibration = await self._call(self.source.load, domain, named.champion)
            except NotFound as error:  # nobody asked for that version: the domain is broken, not the request
                self._report(domain, error)
                raise CorruptArtifact(f"the champion of {domain!r} is missing, promote another: {error}") from error
            except (IsosimError, OSError) as error:
                self._report(domain, error)
                raise
        self._due.add(domain)  # it may have changed while it was read, before it was resident
        current = self.champions.get(domain)  # a refresh may have been faster
        if current is None:
            self._set(calibration)
            self._keep_targets(domain, named.targets)
            return calibration
        return current

    def _report(self, domain: str, error: Exception) -> None:
        """Counts a champion that a request asked for in vain, and logs the reason once."""
        self.on_failure(domain)
        if self._reported.get(domain) != str(error):
            if len(self._reported) >= MOST_REPORTED:
                self._reported.clear()
            self._reported[domain] = str(error)
            log.error("champion of %s not loaded, requests for it fail: %s", domain, error)

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
        self._due.add(domain)  # it may have been deleted while it was read
        self._keep(calibration)
        return calibration

    def _set(self, calibration: Calibration) -> None:
        before = self.champions.get(calibration.domain)
        self.champions[calibration.domain] = calibration
        self._reported.pop(calibration.domain, None)
        self.on_champion(calibration)
        if before is not None and before.version != calibration.version:
            self._release((before.domain, before.version))
        self._keep(calibration)

    def _keep(self, calibration: Calibration) -> None:
        """Makes it resident, and lets go of what was not asked for longest."""
        key = (calibration.domain, calibration.version)
        self._release(key)
        self._resident[key] = calibration
        self._versions[key[0]] = self._versions.get(key[0], NO_VERSIONS) | {key[1]}
        self._evicted.pop(key[0], None)
        self.size += calibration.size
        kept = self.champions.get(DEFAULT)
        while self.size > self.resident_bytes:
            oldest = next((other for other in self._resident.values() if other is not kept), None)
            if oldest is None:
                break
            self._release((oldest.domain, oldest.version))
            if self.champions.get(oldest.domain) is oldest:
                self._forget(oldest.domain)
                self._evicted[oldest.domain] = None
                if len(self._evicted) > MOST_EVICTED:
                    self._evicted.popitem(last=False)

    def _release(self, key: Key) -> None:
        calibration = self._resident.pop(key, None)
        if calibration is None:
            return
        self.size -= calibration.size
        domain, version = key
        left = self._versions[domain] - {version}
        if left or domain == DEFAULT:
            self._versions[domain] = left
        else:
            del self._versions[domain]
            self._targets.pop(domain, None)

    def _keep_targets(self, domain: str, targets: Mapping[str, Target]) -> None:
        """Only of a resident domain: nothing would tell of changes to another's."""
        if domain in self._versions:
            self._targets[domain] = targets

    def _forget(self, domain: str) -> None:
        """A champion is resident no more; the next request for it looks at the store anew."""
        champion = self.champions.pop(domain)
        self._release((domain, champion.version))
        self._misses.pop(domain, None)
        self.on_dropped(domain)

    async def refresh(self, changed: str | None = None) -> None:
        """Takes over what changed in the store, of `default` and of what is resident.

        A champion that cannot be loaded is logged, and the one before keeps serving.

        Args:
            changed: a domain that has certainly changed, whether or not that could be announced.
        """
        async with self._refreshing:
            if changed is not None:
                self._due.add(changed)
            await asyncio.to_thread(self._look, self._versions.copy())
            while self._news:
                self._due.update(self._news.popleft())
            self._due = {domain for domain in self._due if domain in self._versions or domain in self._evicted}
            for domain in self._due:
                self._misses.pop(domain, None)  # it changed again: it is tried at once
            for domain, miss in self._misses.items():
                miss.left -= 1
                if miss.left <= 0:
                    self._due.add(domain)
            for domain in list(self._due):  # each is done once it is compared: whoever refreshes may be cancelled
                self._due.discard(domain)
                await self._compare(domain)

    def _look(self, resident: Mapping[str, frozenset[int]]) -> None:
        """In a thread, which goes on where its caller has gone: what it has found is kept for the next refresh."""
        self._news.append(self.source.changes(resident))

    async def _compare(self, domain: str) -> None:
        """Takes over what the store has of a domain: another champion, or fewer versions."""
        try:
            await self._take_over(domain)
        except asyncio.CancelledError:
            self._due.add(domain)
            raise
        except (IsosimError, OSError) as error:
            self.on_failure(domain)
            if domain not in self._versions:  # it went meanwhile; whoever asks for it next loads it anew
                self._misses.pop(domain, None)
                return
            miss = self._misses.get(domain)
            if miss is None:  # said once, counted every time
                self._misses[domain] = Miss()
                log.error("champion of %s not loaded, the version before keeps serving: %s", domain, error)
            else:
                miss.pause = miss.left = min(2 * miss.pause, MOST_PAUSE)
        else:
            self._misses.pop(domain, None)

    async def _take_over(self, domain: str) -> None:
        named = await asyncio.to_thread(self.source.named, domain)
        champion = named.champion
        self._keep_targets(domain, named.targets)  # also where the champion cannot be loaded
        current = self.champions.get(domain)
        if domain == DEFAULT:
            self._identity = champion is None
        if champion is None:
            if current is not None:
                self._forget(domain)
            if domain != DEFAULT:
                self._evicted.pop(domain, None)
                self.on_gone(domain)
        elif (current is None and domain == DEFAULT) or (current is not None and current.version != champion):
            loaded = await asyncio.to_thread(self.source.load, domain, champion)
            if current is None or domain in self.champions:  # else it went meanwhile, and nobody asks for it
                self._set(loaded)
                self._keep_targets(domain, named.targets)
        pinned = self._versions.get(domain, NO_VERSIONS) - {champion}
        for version in await asyncio.to_thread(self.source.missing, domain, pinned) if pinned else ():
            self.drop(domain, version)

    def drop(self, domain: str, version: int) -> None:
        """Forgets a deleted version."""
        champion = self.champions.get(domain)
        if champion is None or champion.version != version:  # a champion that changed meanwhile goes by a refresh
            self._release((domain, version))

    def remove(self, domain: str) -> None:
        """Forgets a deleted domain."""
        if domain in self.champions:
            self._forget(domain)
        for version in self._versions.get(domain, NO_VERSIONS):
            self._release((domain, version))
        self.on_gone(domain)
