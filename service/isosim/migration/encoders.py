"""Holds a server's own encoder and its next encoder, and chooses the encoder for each request."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from isosim.domains.calibrations import StoredCalibrations
from isosim.domains.migrations import MigrationStore
from isosim.domains.store import DomainStore
from isosim.encoders.brought import NoEncoder
from isosim.encoders.device import Execution
from isosim.encoders.embedding import Embedder
from isosim.encoders.onnx_engine import OnnxCalibrator, OnnxEncoder
from isosim.encoders.remote import RemoteEncoder, RemoteTokenizer
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import Conflict, EncoderMismatch
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.moves import Migration
from isosim.scoring.registry import Registry

log = logging.getLogger("isosim")

MOST_KNOWN = 4096  # largest number of entries in `Encoders._digest_of`


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder in memory, with its tokenizer, embedder and calibrations."""

    artifact: EncoderArtifact
    tokenizer: FastTokenizer | RemoteTokenizer | NoEncoder
    graph: OnnxEncoder | RemoteEncoder | NoEncoder
    embedder: Embedder
    registry: Registry

    @classmethod
    def load(
        cls,
        artifact: EncoderArtifact,
        providers: list[str],
        execution: Execution,
        registry: Callable[[StoredCalibrations], Registry],
        domains: DomainStore,
        *,
        gpu_memory: int = 0,
        remote: Mapping[str, Any],
        **embedding: Any,
    ) -> Self:
        """Opens the graphs, which takes seconds. The caller must enter `embedder` as a context and close `registry`.

        Args:
            registry: function that makes the registry of the encoder's calibrations.
            gpu_memory: bytes that ONNX Runtime may take on a GPU; 0: no limit.
            remote: arguments for `RemoteEncoder`, used if the encoder is remote.
            embedding: further arguments for `Embedder`.

        Raises:
            Unavailable, CorruptArtifact: a graph cannot be opened.
        """
        spec = artifact.spec
        tokenizer = tokenizer_of(artifact)
        # The encoder is loaded before the calibrator, not in parallel: the memory peaks of both would add up.
        graph: OnnxEncoder | RemoteEncoder | NoEncoder
        if artifact.kind == "vectors":
            graph = NoEncoder(artifact.id, spec.dim)
        elif artifact.remote is not None:
            graph = RemoteEncoder(artifact, requests=execution.plan.runs, **remote)
        else:
            graph = OnnxEncoder(
                artifact.encoder,
                providers,
                execution.threads,
                spec.pad_token_id,
                threads_alone=execution.threads_alone,
                memory=gpu_memory,
            )
        # The calibrator always runs on the CPU. It takes 0.2 ms for a pair there, and 0.9 ms on a GPU. 32 pairs take
        # 1.1 ms on both (loadtest/README.md). Only for hundreds of pairs is a GPU faster.
        calibrator = OnnxCalibrator(artifact.calibrator, ["CPUExecutionProvider"])
        embedder = Embedder(tokenizer, graph, encoder_digest=artifact.digest, plan=execution.plan, **embedding)
        return cls(
            artifact, tokenizer, graph, embedder, registry(StoredCalibrations(domains, calibrator, artifact.digest))
        )

    @property
    def digest(self) -> str:
        return self.artifact.digest

    @property
    def remote(self) -> RemoteEncoder | None:
        return self.graph if isinstance(self.graph, RemoteEncoder) else None


def tokenizer_of(artifact: EncoderArtifact) -> FastTokenizer | RemoteTokenizer | NoEncoder:
    """The encoder's tokenizer, or a substitute if the encoder is remote or callers send vectors."""
    if artifact.kind == "vectors":
        return NoEncoder(artifact.id, artifact.spec.dim)
    if artifact.remote is not None:
        return RemoteTokenizer(artifact.id, artifact.spec.max_length)
    return FastTokenizer(artifact.tokenizer, artifact.spec.max_length, artifact.every_prompt)


class Resolution(NamedTuple):
    """The version that scores a request, and the version's encoder."""

    calibration: Calibration
    encoder: LoadedEncoder


class Encoders:
    """The server's own encoder, its next encoder if there is one, and the migrations between the two encoders."""

    def __init__(
        self,
        store: MigrationStore,
        *,
        on_champion: Callable[[Calibration], None] = lambda _: None,
        on_no_champion: Callable[[str], None] = lambda _: None,
        on_gone: Callable[[str], None] = lambda _: None,
        heard: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Starts without encoders; see `add`.

        Args:
            on_champion: called with a version when it starts to serve its domain.
            on_no_champion: called with a domain when no version in memory serves this domain any longer.
            on_gone: called with a domain that has lost its champion or was deleted.
            heard: returns the store's change counter (the "bell") as the last refresh of a registry read it; None if
                the store has no counter. While the counter stays the same, the migrations need not be read again.
        """
        self.store, self.heard = store, heard
        self.on_champion, self.on_no_champion, self.on_gone = on_champion, on_no_champion, on_gone
        self.all: list[LoadedEncoder] = []
        self.migrations: Mapping[str, Migration] = {}
        self._refreshing = asyncio.Lock()
        self._digest_of: dict[tuple[str, int], str] = {}  # (domain, version) -> digest; version numbers are not reused

    def add(self, loaded_encoder: LoadedEncoder) -> None:
        """Adds an encoder. The first call must add the server's own encoder; a second call adds the next encoder."""
        self.all.append(loaded_encoder)

    @property
    def first(self) -> LoadedEncoder:
        return self.all[0]

    @property
    def next(self) -> LoadedEncoder | None:
        return self.all[1] if len(self.all) > 1 else None

    @property
    def alive(self) -> bool:
        """Whether the batchers of all encoders still run; if not, the server must be restarted."""
        return all(loaded_encoder.embedder.batcher.alive for loaded_encoder in self.all)

    @property
    def fault(self) -> str | None:
        """Why this isosim server is not ready: a remote encoder has not answered yet, or now runs another model.

        None if this server is ready. It stays ready if a remote encoder has answered before and cannot be reached now:
        this server still scores cached texts, and the other isosim servers depend on the same remote encoder.
        """
        for one in self.all:
            if one.remote is not None and self._answers(one) and (one.remote.state == "changed" or not one.remote.met):
                return str(one.remote.failure or f"the server of encoder {one.artifact.id} has not answered yet")
        return None

    def _answers(self, encoder: LoadedEncoder) -> bool:
        """Whether requests need this encoder: it is the server's own, or a domain has moved to it."""
        return encoder is self.first or encoder.digest in {migration.new for migration in self.migrations.values()}

    @property
    def queued(self) -> int:
        """Number of texts that were admitted and are not finished."""
        return sum(loaded_encoder.embedder.batcher.queued for loaded_encoder in self.all)

    @property
    def resident(self) -> int:
        """Size in bytes of all calibrations in memory."""
        return sum(loaded_encoder.registry.size for loaded_encoder in self.all)

    @property
    def behind(self) -> bool:
        """Whether a changed champion could not be loaded."""
        return any(loaded_encoder.registry.behind for loaded_encoder in self.all)

    def set_cpu_contended(self, cpu_contended: bool) -> None:
        """Tells all batchers whether other work, such as a calibration job, uses the processor."""
        for loaded_encoder in self.all:
            loaded_encoder.embedder.batcher.set_cpu_contended(cpu_contended)

    def find(self, digest: str) -> LoadedEncoder | None:
        return next((loaded_encoder for loaded_encoder in self.all if loaded_encoder.digest == digest), None)

    def require_next(self) -> LoadedEncoder:
        """The next encoder. Raises Conflict if the server has none."""
        if self.next is None:
            raise Conflict("this server has no next encoder; set ISOSIM_NEXT_ENCODER to one in the store and restart")
        return self.next

    def home_encoder(self, domain: str) -> LoadedEncoder:
        """The encoder to which a domain belongs: the server's own, or the one to which the domain has moved.

        If this server does not run the latter, it is the server's own, and `active_encoder` refuses requests.
        """
        migration = self.migrations.get(domain)
        return self.first if migration is None else self.find(migration.new) or self.first

    def active_encoder(self, domain: str) -> LoadedEncoder:
        """The encoder for a domain's requests.

        Raises:
            EncoderMismatch: the domain has moved to an encoder that this server does not run. The old encoder is not
                used instead, because its scores would differ from those of the other servers.
        """
        home = self.home_encoder(domain)
        migration = self.migrations.get(domain)
        if migration is not None and home.digest == migration.old:
            raise EncoderMismatch(
                f"encoder_mismatch: domain {domain!r} has moved to encoder {migration.new_id} "
                f"({migration.new[:12]}), which this server does not run (name it in ISOSIM_NEXT_ENCODER or "
                f"ISOSIM_ENCODER); versions of the old encoder remain available by number ({domain}@1)"
            )
        return home

    def pair(self, domain: str) -> tuple[LoadedEncoder, LoadedEncoder]:
        """The old and the new encoder of a domain's migration; without a migration, this server's own and next encoder.

        Raises:
            Conflict: this server does not run both encoders.
        """
        migration = self.migrations.get(domain)
        if migration is None:
            return self.first, self.require_next()
        old, new = self.find(migration.old), self.find(migration.new)
        if old is None or new is None:
            lacking = migration.old_id if old is None else migration.new_id
            raise Conflict(f"this server does not run encoder {lacking}; name it in ISOSIM_NEXT_ENCODER and restart")
        return old, new

    async def resolve(self, ref: DomainRef) -> Resolution:
        """The calibration and the encoder that a request for `ref` uses.

        A numbered version uses the encoder for which it was made.

        Raises:
            NotFound, CorruptArtifact: there is no such version, or it cannot be read.
            EncoderMismatch: this server does not run the encoder of the version, or the encoder to which the domain has
                moved.
        """
        if isinstance(ref.version, int):
            return await self._numbered(ref)
        active = self.active_encoder(ref.name)
        return Resolution(await active.registry.resolve(ref), active)

    def holds(self, ref: DomainRef) -> bool:
        """Whether the version that `ref` names is in memory."""
        return any(loaded_encoder.registry.holds(ref) for loaded_encoder in self.all)

    async def _numbered(self, ref: DomainRef) -> Resolution:
        """Resolves a numbered version by trying each encoder's registry, which refuses versions of other encoders."""
        place = (ref.name, int(ref.version))
        known = self.find(self._digest_of.get(place, ""))
        if self.next is None or known is not None:
            encoder = known or self.first
            return Resolution(await encoder.registry.resolve(ref), encoder)
        try:
            resolution = Resolution(await self.first.registry.resolve(ref), self.first)
        except EncoderMismatch as error:
            try:
                resolution = Resolution(await self.next.registry.resolve(ref), self.next)
            except EncoderMismatch:
                raise error from None
        if len(self._digest_of) >= MOST_KNOWN:
            self._digest_of.clear()
        self._digest_of[place] = resolution.calibration.encoder
        return resolution

    def is_champion(self, calibration: Calibration) -> bool:
        """Whether a calibration is the domain's champion for the encoder to which the domain belongs."""
        return self.home_encoder(calibration.domain).registry.champions.get(calibration.domain) is calibration

    async def refresh(self, domain: str | None = None) -> None:
        """Reads the changes in the store, first the champions and then the migrations, and applies them.

        Args:
            domain: the domain that has changed; None if it is not known.

        Raises:
            CorruptArtifact, Unavailable: the migrations cannot be read; the migrations in memory stay in use.
        """
        for loaded_encoder in self.all:
            await loaded_encoder.registry.refresh(domain)
        await self.refresh_migrations(self.heard() if domain is None else None)

    async def follow(self, domain: str) -> None:
        """Applies a change that was just stored.

        A failure is only logged, because the next check of the store (`store_watch.py`) applies the change.
        """
        try:
            await self.refresh(domain)
        except Exception:  # answering the request with an error would suggest that nothing was changed
            log.exception("a change was made, but the model store could not be read after it")

    async def refresh_migrations(self, bell: str | None = None) -> None:
        """Reads the migrations, unless the store's change counter shows that they have not changed.

        Args:
            bell: the change counter as just read from the store; None: read the migrations in any case.
        """
        async with self._refreshing:  # one read at a time, so that an older state cannot replace a newer one
            migrations = await asyncio.to_thread(self.store.look, bell)
            before, self.migrations = self.migrations, migrations
        for domain in before.keys() | migrations.keys():
            if before.get(domain) != migrations.get(domain):
                self._tell(domain)

    def _tell(self, domain: str) -> None:
        """Calls `on_champion` or `on_no_champion` for a domain whose migration changed."""
        champion = self.home_encoder(domain).registry.champions.get(domain) if self.all else None
        if champion is not None:
            self.on_champion(champion)
        else:
            self.on_no_champion(domain)

    def loaded(self, calibration: Calibration) -> None:
        """Called when a registry has loaded a champion.

        Calls `on_champion` if the domain uses the encoder for which the champion was made.
        """
        if self.home_encoder(calibration.domain).digest == calibration.encoder:
            self.on_champion(calibration)

    def gone(self, domain: str, encoder: str) -> None:
        """Called when a domain has lost its champion for `encoder` or was deleted.

        Calls `on_gone` if the domain uses `encoder`.
        """
        if self.home_encoder(domain).digest == encoder:
            self.on_gone(domain)

    def remove(self, domain: str) -> None:
        """Forgets a deleted domain."""
        for loaded_encoder in self.all:
            loaded_encoder.registry.remove(domain)

    def dropped(self, domain: str, encoder: str) -> None:
        """Called when `encoder`'s champion has left memory. Calls `on_no_champion` if the domain uses `encoder`."""
        if self.home_encoder(domain).digest == encoder:
            self.on_no_champion(domain)
