"""Domains in memory: which calibration answers for a domain, and how champions are replaced while serving.

Usage: `calibration = await registry.resolve(DomainRef("tickets", "champion"))`, once per request.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isosim.domains.domain import Domain, Version
from isosim.domains.store import DomainStore
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound, Unavailable, UnknownDomain
from isosim.scoring.advice import Target, unknown_threshold
from isosim.scoring.calibration import DEFAULT, Calibration, DomainRef
from isosim.store.blobs import opened
from isosim.threads import StoreCalls, Turns

log = logging.getLogger(__name__)

Key = tuple[str, int]  # domain, version

MOST_DAMAGED = 1000  # maximum number of entries in `damaged`
LOADERS = 4  # number of threads that load calibrations; one load from a disk takes about 10 ms of a core
# Bytes of a calibration besides its arrays. Measured (loadtest/README.md): 10,000 (method `identity`) to 140,000.
OVERHEAD = 100_000
RETRY = 8  # an attempt to load a champion that could not be loaded is made in every RETRY-th refresh; unmeasured


class StoredCalibrations:
    """The domains of a store, for a `Registry`. `encoder` is the digest of the server's encoder, `calibrator` runs its
    calibrations."""

    def __init__(self, store: DomainStore, encoder: str, calibrator: OnnxCalibrator) -> None:
        self.store, self.watch, self.encoder, self.calibrator = store, store.watch(), encoder, calibrator

    def read(self, name: str) -> Domain:
        return self.store.read(name)

    def changes(self, resident: Collection[str]) -> set[str]:
        return self.watch.changes(resident)

    def load(self, name: str, version: Version) -> Calibration:
        """Loads a version, ready to score. Raises NotFound, EncoderMismatch or CorruptArtifact."""
        if version.encoder != self.encoder:
            raise EncoderMismatch(
                f"encoder_mismatch: version {version.number} of {name!r} was made for encoder {version.encoder_id} "
                f"({version.encoder[:12]}); this server runs {self.encoder[:12]}"
            )
        stored = self.store.load(name, version)
        transform = None if stored.weights is None else self.calibrator.bind(stored.weights)
        size = stored.size + OVERHEAD
        return Calibration(
            name, version.number, version.method, version.encoder, transform, stored.model, version.levels, size
        )


@dataclass
class Resident:
    """A domain in memory."""

    record: Domain
    versions: set[int] = field(default_factory=set)  # those that are loaded
    serving: Calibration | None = None  # the champion that answers; older than the record's if that cannot be loaded
    retry: int = 0  # while a new champion cannot be loaded: refreshes until the next attempt; else 0


def located(error: Exception) -> str:
    """The error's message for the log, with the path or address of a damaged file."""
    return f"{error} ({error.place})" if isinstance(error, CorruptArtifact) and error.place else str(error)


class Registry:
    """Calibrations in memory: champions, and versions that requests name by number or as `previous`.

    A calibration is loaded at the first request for it. A champion is replaced in one assignment, after its successor
    has loaded completely. When all calibrations take more than `resident_bytes`, the least recently used ones are
    evicted, except the champion of `default`. A request that already uses an evicted calibration goes on with it. A
    refresh reads only resident domains, and of these only what has changed.

    calls: threads that read the store for requests; the registry uses at most LOADERS of them.
    """

    def __init__(self, source: StoredCalibrations, *, resident_bytes: int = 2**30, calls: StoreCalls) -> None:
        self.source, self.encoder, self.resident_bytes = source, source.encoder, resident_bytes
        self.size = 0  # bytes of all loaded calibrations
        self.failures = 0  # failed attempts to load a champion
        self.away = False  # whether the store could not be looked at in the last refresh
        self.damaged: set[Key] = set()  # versions whose files were damaged at the last load
        self._builtin = Calibration(DEFAULT, 0, "identity", self.encoder)  # the identity without reference
        self._domains = {DEFAULT: Resident(Domain())}
        self._loaded: OrderedDict[Key, Calibration] = OrderedDict()  # by last use, the latest at the end
        self._loading: dict[DomainRef, asyncio.Task[Calibration]] = {}
        self._due = {DEFAULT}  # domains to be read again at the next refresh
        self._refreshing = asyncio.Lock()
        self._call = Turns(calls, LOADERS)

    def is_champion(self, calibration: Calibration) -> bool:
        """Whether a calibration is the stored champion that answers for its domain."""
        resident = self._domains.get(calibration.domain)
        return calibration.version > 0 and resident is not None and resident.serving is calibration

    def champions(self) -> dict[str, Calibration]:
        """The stored champions that answer for the domains in memory, by domain."""
        found = {name: resident.serving for name, resident in list(self._domains.items())}
        return {name: one for name, one in found.items() if one is not None and one.version}

    @property
    def behind(self) -> bool:
        """Whether a changed champion could not be loaded; the previous version keeps serving."""
        return any(resident.retry for resident in self._domains.values())

    async def resolve(self, ref: DomainRef) -> Calibration:
        """The calibration that a reference names now.

        A request calls this once and keeps the result, because a reference may soon name another version.

        Raises:
            NotFound: no such domain, version or alias.
            EncoderMismatch: the version belongs to another encoder, or the domain has no champion for this one.
            CorruptArtifact: the domain's record or the version's files are damaged.
        """
        found = self.in_memory(ref)
        return await self._once(ref) if found is None else found

    def in_memory(self, ref: DomainRef) -> Calibration | None:
        """The calibration that `resolve` returns, if it is in memory; it is then the most recently used one."""
        found = self._look_up(ref)
        if found is not None and found.version:
            self._loaded.move_to_end((found.domain, found.version))
        return found

    def _look_up(self, ref: DomainRef) -> Calibration | None:
        resident = self._domains.get(ref.name)
        if resident is None:
            return None
        if ref.version == "champion":
            return resident.serving
        if (ref.name, ref.version) == (DEFAULT, 0):
            return self._builtin
        number = ref.version if isinstance(ref.version, int) else resident.record.served(self.encoder).previous
        return self._loaded.get((ref.name, number or 0))

    async def target(self, domain: str, name: str) -> Target:
        """The target that is saved for a domain under this name.

        Targets of resident domains are in memory. An unknown name is looked up in the store before it is refused,
        because another replica may just have saved it.

        Raises:
            NotFound: no target has this name.
            CorruptArtifact: the domain's record cannot be read.
        """
        resident = self._domains.get(domain)
        if resident is not None and name in resident.record.targets:
            return resident.record.targets[name]
        record = await self._call(self.source.read, domain)
        if domain in self._domains:
            self._know(domain, record)
            self._due.add(domain)  # what else has changed, the next refresh applies
        if name not in record.targets:
            raise unknown_threshold(domain, name)
        return record.targets[name]

    async def _once(self, ref: DomainRef) -> Calibration:
        """Concurrent requests for a calibration share one load. If one of them is cancelled, the load goes on."""
        task = self._loading.get(ref)
        if task is None:
            task = self._loading[ref] = asyncio.create_task(self._find(ref), name=f"load-{ref.name}@{ref.version}")
            task.add_done_callback(lambda done: self._ended(ref, done))
        return await asyncio.shield(task)

    def _ended(self, ref: DomainRef, task: asyncio.Task[Calibration]) -> None:
        del self._loading[ref]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved; asyncio would otherwise log it

    async def _find(self, ref: DomainRef) -> Calibration:
        """Reads the domain's record, then loads the version that a reference names, unless it is in memory."""
        name = ref.name
        try:
            record = await self._call(self.source.read, name)
        except (CorruptArtifact, OSError) as error:
            if ref.version == "champion":
                self._report(name, error)
            raise
        if self.away and not record.versions:  # its volume is lost; no domain was deleted
            raise Unavailable("the model store cannot be read")
        if ref.version == "champion":
            return await self._serving(name, record)
        number = ref.version if isinstance(ref.version, int) else record.served(self.encoder).previous
        if number is None:
            record.check(name)
            raise NotFound(f"domain {name!r} has no previous version; leave out @previous to use the champion")
        return await self._pinned(name, record, number)

    async def _serving(self, name: str, record: Domain) -> Calibration:
        champion = record.served(self.encoder).champion
        if champion is None:
            if name == DEFAULT:
                return self._builtin
            if record.versions:
                raise EncoderMismatch(
                    f"encoder_mismatch: no version of domain {name!r} is promoted for this server's encoder; promote "
                    f"a version of this encoder, or name one in the request ({name}@N)"
                )
            raise UnknownDomain(name)
        try:
            calibration = await self._load(name, record, champion)
        except NotFound as error:
            now = await self._call(self.source.read, name)
            if now.revision != record.revision:  # the domain was deleted meanwhile, or has another champion
                return await self._serving(name, now)
            self._report(name, error)
            # No 404, because the request did not name this version.
            raise CorruptArtifact(f"the champion of {name!r} is missing ({error}); promote another") from error
        except (IsosimError, OSError) as error:
            self._report(name, error)
            raise
        resident = self._resident(name, record)
        if resident.serving is not None:  # a refresh has loaded a champion meanwhile
            return resident.serving
        self._serve(calibration)
        return calibration

    async def _pinned(self, name: str, record: Domain, number: int) -> Calibration:
        calibration = await self._load(name, record, number)
        self._resident(name, record)
        self._keep(calibration)
        return calibration

    async def _load(
        self,
        name: str,
        record: Domain,
        number: int,
        call: Callable[..., Coroutine[Any, Any, Calibration]] | None = None,
    ) -> Calibration:
        """The version in memory, or else loads it in a thread, and remembers whether its files are damaged.

        Raises:
            CorruptArtifact: the files are damaged; the message names the remedy.
        """
        if (name, number) in self._loaded:
            return self._loaded[name, number]
        try:
            calibration = await (call or self._call)(self.source.load, name, record.version(name, number))
        except CorruptArtifact as error:
            if len(self.damaged) >= MOST_DAMAGED:
                self.damaged.clear()
            self.damaged.add((name, number))
            told = CorruptArtifact(f"{error}; promote another version, or restore this one from a backup")
            told.place = error.place
            raise told from error
        self.damaged.discard((name, number))
        return self._loaded.get((name, number), calibration)  # another call may have loaded it meanwhile

    def _report(self, domain: str, error: Exception) -> None:
        """Counts and logs a request that failed because a champion could not be loaded."""
        self.failures += 1
        log.error("champion of %s not loaded (%s); requests for the domain fail", domain, located(error))

    def _resident(self, name: str, record: Domain) -> Resident:
        """The domain in memory, with a record at least as new as `record`. The next refresh reads it again, and so
        applies what has changed since `record` was read."""
        self._due.add(name)
        self._domains.setdefault(name, Resident(record))
        return self._know(name, record)

    def _know(self, name: str, record: Domain, before: Domain | None = None) -> Resident:
        """Replaces the record of a resident domain, unless it is older.

        If the known record still is `before`, an older one replaces it too: a copy of the store was put back.
        """
        resident = self._domains[name]
        if record.revision >= resident.record.revision or resident.record is before:
            resident.record = record
        return resident

    def _serve(self, calibration: Calibration) -> None:
        name, resident = calibration.domain, self._domains[calibration.domain]
        before, resident.serving = resident.serving, calibration
        if calibration.version:
            resident.versions.add(calibration.version)  # so that the domain stays when the former champion goes
        if before is not None and before.version != calibration.version:
            facts = {"domain": name, "from": before.version, "to": calibration.version}
            log.info("another version answers", extra={"facts": facts})
            self._release((name, before.version))  # before `_keep`, so that no other calibration has to go
        if calibration.version:
            self._keep(calibration)

    def _keep(self, calibration: Calibration) -> None:
        """Keeps a calibration in memory. Evicts the least recently used ones while `size` exceeds `resident_bytes`."""
        key = (calibration.domain, calibration.version)
        if key not in self._loaded:
            self.size += calibration.size
            self._loaded[key] = calibration
        self._loaded.move_to_end(key)
        self._domains[key[0]].versions.add(key[1])
        kept = self._domains[DEFAULT].serving
        while self.size > self.resident_bytes:
            oldest = next((one for one in self._loaded.values() if one is not kept), None)
            if oldest is None:
                break
            self._release((oldest.domain, oldest.version))

    def _release(self, key: Key) -> None:
        """Forgets a calibration, and its domain with the last one."""
        calibration = self._loaded.pop(key, None)
        if calibration is None:
            return
        self.size -= calibration.size
        name, number = key
        resident = self._domains[name]
        resident.versions.discard(number)
        if resident.serving is calibration:
            resident.serving, resident.retry = None, 0  # the next request for it reads the store
        if not resident.versions and name != DEFAULT:
            del self._domains[name]

    async def refresh(self, changed: str | None = None) -> None:
        """Applies changes in the store to `default` and to resident domains.

        If a new champion cannot be loaded, this is logged, and the previous champion keeps serving.

        Args:
            changed: a domain that has changed; it is read again even if the store reports no change.
        """
        async with self._refreshing:
            if changed is not None:
                self._due.add(changed)
            try:
                self._due.update(await asyncio.to_thread(self.source.changes, list(self._domains)))
                self.away = False
            except asyncio.CancelledError:  # the thread goes on, and what it finds is lost
                self._due.update(self._domains)
                raise
            except Exception:
                self.away = True
                raise
            for name, resident in self._domains.items():
                if name in self._due:
                    resident.retry = 0  # the domain has changed again
                elif resident.retry == 1:
                    self._due.add(name)
                elif resident.retry:
                    resident.retry -= 1
            self._due &= self._domains.keys()
            for name in list(self._due):  # after a cancellation, the next refresh does the rest
                self._due.discard(name)
                try:
                    await self._take_over(name)
                except asyncio.CancelledError:
                    self._due.add(name)
                    raise
                except (IsosimError, OSError) as error:
                    self._postpone(name, error)

    def _postpone(self, name: str, error: Exception) -> None:
        """Counts and logs that a domain's changes could not be applied; a later refresh tries again."""
        self.failures += 1
        resident = self._domains.get(name)
        if resident is None:  # evicted meanwhile; the next request loads it
            return
        if not resident.retry:  # only the first failure is logged
            log.error("champion of %s not loaded (%s); the previous version keeps serving", name, located(error))
        resident.retry = RETRY

    async def _take_over(self, name: str) -> None:
        """Applies a domain's changes. Raises an error if its champion cannot be loaded."""
        resident = self._domains.get(name)
        before = None if resident is None else resident.record
        record = await asyncio.to_thread(self.source.read, name)
        if name not in self._domains:
            return
        record = self._know(name, record, before).record  # before the champion is loaded, because loading may fail
        try:
            await self._replace(name, record)
        finally:
            if (resident := self._domains.get(name)) is not None:
                serving = set() if resident.serving is None else {resident.serving.version}
                for number in resident.versions - set(resident.record.versions) - serving:
                    self._release((name, number))
        if resident is not None:
            resident.retry = 0

    async def _replace(self, name: str, record: Domain) -> None:
        """Replaces the champion in memory if the record names another."""
        current, champion = self._domains[name].serving, record.served(self.encoder).champion
        if champion is None:
            if name == DEFAULT:
                self._serve(self._builtin)
            elif current is not None:
                self._release((name, current.version))
        elif (current is None and name == DEFAULT) or (current is not None and current.version != champion):
            loaded = await self._load(name, record, champion, asyncio.to_thread)
            resident = self._domains.get(name)
            # Not used if the old champion left memory during the load, or if a newer record names another champion;
            # the next refresh reads that record.
            if resident is None or resident.record.served(self.encoder).champion != champion:
                return
            if name == DEFAULT or resident.serving is not None:
                self._serve(loaded)

    async def follow(self, domain: str) -> None:
        """Applies a change that was just stored.

        A failure is only logged, because the next check of the store (`store_watch.py`) applies the change.
        """
        try:
            await self.refresh(domain)
        except Exception:  # answering the request with an error would suggest that nothing was changed
            log.exception("a change was made, but the model store could not be read after it")


def load_calibration(store: Path, artifact: EncoderArtifact, domain: DomainRef, *, gpu: bool) -> Calibration:
    """Loads the version that `domain` refers to now; a later promotion or rollback does not change the result.

    Raises:
        NotFound, EncoderMismatch, CorruptArtifact: as for `Registry.resolve`.
    """
    calibrator = OnnxCalibrator(artifact.calibrator, gpu=gpu)
    source = StoredCalibrations(DomainStore(opened(store)), artifact.digest, calibrator)
    with closing(StoreCalls(1)) as calls:
        return asyncio.run(Registry(source, calls=calls).resolve(domain))
