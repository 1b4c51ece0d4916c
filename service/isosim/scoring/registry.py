"""Loaded calibrations: which version answers for a domain, and how champions are replaced while serving.

Usage: `calibration = await registry.resolve(DomainRef("tickets", "champion"))`, once per request.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from isosim.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound, UnknownDomain
from isosim.scoring.advice import Target, unknown_threshold
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.threads import StoreCalls, Turns

log = logging.getLogger(__name__)

Key = tuple[str, int]  # domain, version

DEFAULT = "default"
MOST_REPORTED = 1000  # maximum number of entries in `_reported`, and of entries in `damaged`
LOADERS = 4  # number of threads that load calibrations; one load from a disk takes about 10 ms of a core
MOST_PAUSE = 64  # maximum number of refreshes between two attempts to load a champion
MOST_EVICTED = 4096  # maximum number of evicted domains that a refresh checks for deletion
NO_VERSIONS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class DomainAliases:
    """A domain's champion and previous version for this process's encoder, and its saved thresholds."""

    champion: int | None
    previous: int | None
    # Targets of the saved thresholds, by name. A target is a wanted rate, such as a false-match rate of 0.01. The
    # threshold of each version is computed from the target.
    targets: Mapping[str, Target] = field(default_factory=dict)


class CalibrationSource(Protocol):
    """A store of calibrations. Its methods may block; the registry calls them in threads."""

    def changes(self, resident: Mapping[str, frozenset[int]]) -> Iterable[str]:
        """Domains that may have changed since the last call.

        `resident` holds the loaded versions of each domain. The result may contain domains that are not in `resident`.
        """
        ...

    def named(self, domain: str) -> DomainAliases: ...

    def exists(self, domain: str) -> bool: ...

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        """The given versions that no longer exist."""
        ...

    def load(self, domain: str, version: int) -> Calibration: ...


def located(error: Exception) -> str:
    """The error's message for the log, with the path or address of a damaged file."""
    return f"{error} ({error.place})" if isinstance(error, CorruptArtifact) and error.place else str(error)


@dataclass
class Miss:
    """When to retry loading a new champion that could not be loaded."""

    pause: int = 1  # number of refreshes between attempts
    left: int = 1  # number of refreshes until the next attempt


class Registry:
    """Calibrations in memory ("resident"): champions, and versions that requests name by number or as `previous`.

    A calibration is loaded at the first request for it. A champion is replaced in one assignment, after its successor
    has loaded completely. When the resident calibrations take more than `resident_bytes`, the least recently used ones
    are evicted, except the champion of `default`. A request that already uses an evicted calibration goes on with it. A
    refresh compares only resident domains and at most MOST_EVICTED evicted domains with the store.

    calls: threads that read the store for requests; LOADERS of its own by default.
    on_champion: called with each new champion.
    on_dropped: called with a domain when its champion leaves memory without a successor, for example by eviction.
    on_gone: called with a domain when `remove` forgets it, or (except for `default`) when a refresh finds that the
        domain has no champion in the store.
    on_failure: called with a domain when its champion could not be loaded.
    """

    def __init__(
        self,
        source: CalibrationSource,
        encoder_digest: str,
        *,
        resident_bytes: int = 2**30,
        calls: StoreCalls | None = None,
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
        self.size = 0  # bytes of all resident calibrations
        self._resident: OrderedDict[Key, Calibration] = OrderedDict()  # by last use, the latest at the end
        self._loading: dict[tuple[str, int | str], asyncio.Task[Calibration]] = {}
        self._versions: dict[str, frozenset[int]] = {
            DEFAULT: NO_VERSIONS
        }  # resident versions of each domain; a set is never edited, only replaced, because a thread may be reading it
        self._targets: dict[str, Mapping[str, Target]] = {}  # saved targets of resident domains whose aliases were read
        self._evicted: OrderedDict[str, None] = OrderedDict()  # domains evicted to save memory, the latest at the end
        self._news: deque[Iterable[str]] = deque()  # changed domains that `_look` has read, for the next refresh
        self._due = {DEFAULT}  # domains to be compared with the store at the next refresh
        self._identity = False  # True: `default` has no champion in the store, so requests for it use `builtin`
        self._misses: dict[str, Miss] = {}
        self.damaged: set[Key] = set()  # versions whose files were damaged at the last load
        self._reported: dict[str, str] = {}  # domain -> last logged reason for a failed load
        self._refreshing = asyncio.Lock()
        self._calls, self._owned = calls or StoreCalls(LOADERS), calls is None
        self._call = Turns(self._calls, LOADERS)

    def close(self) -> None:
        """Ends the registry's own threads, if it has any."""
        if self._owned:
            self._calls.close()

    def holds(self, ref: DomainRef) -> bool:
        """Whether the calibration that a reference names is in memory; also True for the champion of `default`."""
        if ref.version == "champion":
            return ref.name in self.champions or ref.name == DEFAULT
        return (ref.name, ref.version) in self._resident or (ref.name, ref.version) == (DEFAULT, 0)

    @property
    def behind(self) -> bool:
        """Whether a changed champion could not be loaded; the previous version keeps serving."""
        return bool(self._misses)

    async def resolve(self, ref: DomainRef) -> Calibration:
        """The calibration that a reference names now.

        A request calls this once and keeps the result, because a reference may soon name another version.

        Raises:
            NotFound: no such domain, version or alias.
            EncoderMismatch: the domain or version belongs to another encoder.
            CorruptArtifact: the files of the version do not match their manifest.
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
                raise NotFound(f"domain {ref.name!r} has no previous version; leave out @previous to use the champion")
            return await self._pinned(ref.name, previous)
        return await self._pinned(ref.name, int(ref.version))

    async def target(self, domain: str, name: str) -> Target:
        """The target that is saved for a domain under this name.

        Targets of resident domains are in memory. An unknown name is looked up in the store before it is refused,
        because another replica may just have saved it.

        Raises:
            NotFound: no target has this name.
            CorruptArtifact: the domain's aliases cannot be read.
        """
        known = self._targets.get(domain)
        if known is None or name not in known:
            known = (await self._call(self.source.named, domain)).targets
            if domain in self._versions:
                # The store's targets may have changed after `known` was read, so the next refresh reads them again.
                self._due.add(domain)
                self._targets[domain] = known
        if name not in known:
            raise unknown_threshold(domain, name, known)
        return known[name]

    async def _once(
        self, key: tuple[str, int | str], load: Callable[[], Coroutine[Any, Any, Calibration]]
    ) -> Calibration:
        """Concurrent requests for a calibration share one load. If one of them is cancelled, the load goes on."""
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(load(), name=f"load-{key[0]}@{key[1]}")
            task.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(task)

    def _loaded(self, key: tuple[str, int | str], task: asyncio.Task[Calibration]) -> None:
        del self._loading[key]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved; asyncio would otherwise log it

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
                    f"a version of this encoder, or name one in the request ({domain}@N)"
                )
            raise UnknownDomain(domain)
        calibration = self._resident.get((domain, named.champion))  # not None if a request named the version by number
        if calibration is None:
            try:
                calibration = await self._load(domain, named.champion)
            except NotFound as error:  # no 404, because the request did not name this version
                self._report(domain, error)
                raise CorruptArtifact(f"the champion of {domain!r} is missing ({error}); promote another") from error
            except (IsosimError, OSError) as error:
                self._report(domain, error)
                raise
        self._due.add(domain)  # the next refresh applies changes made while the champion was being loaded
        current = self.champions.get(domain)  # set if a refresh has loaded a champion meanwhile
        if current is None:
            self._set(calibration)
            self._keep_targets(domain, named.targets)
            return calibration
        return current

    async def _load(
        self, domain: str, version: int, call: Callable[..., Coroutine[Any, Any, Calibration]] | None = None
    ) -> Calibration:
        """Loads a version in a thread, and remembers whether its files are damaged.

        Raises:
            CorruptArtifact: the files are damaged; the message names the remedy.
        """
        try:
            calibration = await (call or self._call)(self.source.load, domain, version)
        except CorruptArtifact as error:
            if len(self.damaged) >= MOST_REPORTED:
                self.damaged.clear()
            self.damaged.add((domain, version))
            told = CorruptArtifact(f"{error}; promote another version, or restore this one from a backup")
            told.place = error.place
            raise told from error
        self.damaged.discard((domain, version))
        return calibration

    def _report(self, domain: str, error: Exception) -> None:
        """Reports that a request failed because a champion could not be loaded; logs a repeated reason only once."""
        self.on_failure(domain)
        if self._reported.get(domain) != str(error):
            if len(self._reported) >= MOST_REPORTED:
                self._reported.clear()
            self._reported[domain] = str(error)
            log.error("champion of %s not loaded (%s); requests for the domain fail", domain, located(error))

    async def _pinned(self, domain: str, version: int) -> Calibration:
        if (domain, version) == (DEFAULT, 0):
            return self.builtin
        calibration = self._resident.get((domain, version))
        if calibration is not None:
            self._resident.move_to_end((domain, version))
            return calibration
        return await self._once((domain, version), partial(self._load_pinned, domain, version))

    async def _load_pinned(self, domain: str, version: int) -> Calibration:
        calibration = await self._load(domain, version)
        self._due.add(domain)  # the next refresh drops the version if it was deleted during the load
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
        """Makes a calibration resident. Evicts the least recently used ones while `size` exceeds `resident_bytes`."""
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
        """Keeps the targets in memory if the domain is resident.

        A refresh updates only the targets of resident domains.
        """
        if domain in self._versions:
            self._targets[domain] = targets

    def _forget(self, domain: str) -> None:
        """Drops a domain's champion; the next request for it reads the store."""
        champion = self.champions.pop(domain)
        self._release((domain, champion.version))
        self._misses.pop(domain, None)
        self.on_dropped(domain)

    async def refresh(self, changed: str | None = None) -> None:
        """Applies changes in the store to `default` and to resident domains.

        If a new champion cannot be loaded, this is logged, and the previous champion keeps serving.

        Args:
            changed: a domain that has changed; it is compared with the store even if the store reports no change.
        """
        async with self._refreshing:
            if changed is not None:
                self._due.add(changed)
            await asyncio.to_thread(self._look, self._versions.copy())
            while self._news:
                self._due.update(self._news.popleft())
            self._due = {domain for domain in self._due if domain in self._versions or domain in self._evicted}
            for domain in self._due:
                self._misses.pop(domain, None)  # the domain has changed again: retry at once
            for domain, miss in self._misses.items():
                miss.left -= 1
                if miss.left <= 0:
                    self._due.add(domain)
            for domain in list(self._due):  # after a cancellation, the next refresh does the rest
                self._due.discard(domain)
                await self._compare(domain)

    def _look(self, resident: Mapping[str, frozenset[int]]) -> None:
        """Reads from the store which domains have changed.

        Runs in a thread. If the refresh is cancelled, the thread goes on, and the next refresh uses its result.
        """
        self._news.append(self.source.changes(resident))

    async def _compare(self, domain: str) -> None:
        """Applies a domain's changes, and schedules a retry if its champion cannot be loaded."""
        try:
            await self._take_over(domain)
        except asyncio.CancelledError:
            self._due.add(domain)
            raise
        except (IsosimError, OSError) as error:
            self.on_failure(domain)
            if domain not in self._versions:  # evicted meanwhile; the next request loads it
                self._misses.pop(domain, None)
                return
            miss = self._misses.get(domain)
            if miss is None:  # only the first failure is logged; `on_failure` counts all
                self._misses[domain] = Miss()
                log.error("champion of %s not loaded (%s); the previous version keeps serving", domain, located(error))
            else:
                miss.pause = miss.left = min(2 * miss.pause, MOST_PAUSE)
        else:
            self._misses.pop(domain, None)

    async def _take_over(self, domain: str) -> None:
        named = await asyncio.to_thread(self.source.named, domain)
        champion = named.champion
        self._keep_targets(domain, named.targets)  # before the champion is loaded, because loading may fail
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
            loaded = await self._load(domain, champion, asyncio.to_thread)
            # If the old champion left memory during the load, `loaded` is not used.
            if current is None or domain in self.champions:
                self._set(loaded)
                self._keep_targets(domain, named.targets)
        pinned = self._versions.get(domain, NO_VERSIONS) - {champion}
        for version in await asyncio.to_thread(self.source.missing, domain, pinned) if pinned else ():
            self.drop(domain, version)

    def drop(self, domain: str, version: int) -> None:
        """Forgets a deleted version, unless it is the champion in memory.

        A deleted champion serves until a refresh has loaded its successor.
        """
        champion = self.champions.get(domain)
        if champion is None or champion.version != version:
            self._release((domain, version))

    def remove(self, domain: str) -> None:
        """Forgets a deleted domain."""
        if domain in self.champions:
            self._forget(domain)
        for version in self._versions.get(domain, NO_VERSIONS):
            self._release((domain, version))
        self.on_gone(domain)
