"""Shadow scoring beside requests: what it takes, what it leaves, what it keeps."""

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from isosim.domains.migrations import MigrationStore
from isosim.encoders.batching import BatchingPlan, PendingText
from isosim.encoders.embedding import Embedder, Embeddings, MemoryCache
from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.texts import Text, VectorCodec
from isosim.errors import NotFound
from isosim.migration.encoders import Encoders, LoadedEncoder
from isosim.migration.shadow import MOST_PAIRS, WAITING, Shadow, ShadowRequest
from isosim.scoring.calibration import Calibration, DomainModel, DomainRef
from isosim.scoring.comparison import Batch
from isosim.scoring.moves import Migration
from isosim.scoring.registry import DomainAliases, Registry
from isosim.scoring.similarity import score
from tests.core.encoding.fake_encoder import DIM, FakeEncoder, letters
from tests.core.scoring.references import REFERENCE

SPEC = EncoderSpec("test", "w", "t", "mean", 1, 8, "o:", "fp32", DIM, 0)
OLD, NEW = SPEC, replace(SPEC, weights="v", prompt="n:")


class Versions:
    """One version of every domain for an encoder, with a reference."""

    def __init__(self, digest: str, version: int) -> None:
        self.digest, self.version, self.gone = digest, version, False

    def changes(self, resident: Mapping[str, frozenset[int]]) -> set[str]:
        return set(resident)

    def named(self, domain: str) -> DomainAliases:
        return DomainAliases(None if self.gone else self.version, None)

    def exists(self, domain: str) -> bool:
        return not self.gone

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        return set(versions) if self.gone else set()

    def load(self, domain: str, version: int) -> Calibration:
        if self.gone:
            raise NotFound(domain)
        return Calibration(domain, version, "identity", self.digest, None, DomainModel(reference=REFERENCE))


@dataclass
class Tally:
    scored: list[Batch] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def observe_shadow(self, domain: str, batch: Batch) -> None:
        self.scored.append(batch)

    def observe_shadow_dropped(self, reason: str) -> None:
        self.dropped[reason] += 1


@dataclass
class Scene:
    shadow: Shadow
    encoders: Encoders
    tally: Tally
    old: FakeEncoder
    new: FakeEncoder  # as the shadow reaches it
    versions: Versions  # of the new encoder

    async def answered(self, texts: list[str], ref: DomainRef = DomainRef("news")) -> None:  # noqa: B008 - frozen
        """A request for the scores of neighbours, by the old champion unless another version is named."""
        resolution = await self.encoders.resolve(ref)
        calibration = resolution.calibration
        embeddings = await resolution.encoder.embedder.embed([Text("o:" + text) for text in texts])
        left, right = embeddings.rows[::2], embeddings.rows[1::2]
        found = score(calibration, embeddings.texts, embeddings.vectors, left, right)
        if self.encoders.is_champion(calibration):  # as the scoring routes do (api/scoring/pipeline.py)
            self.shadow.offer(resolution, embeddings, left, right, found)

    async def until(self, done: Any) -> None:
        async with asyncio.timeout(20):
            while not done():  # noqa: ASYNC110 - of threads and other tasks, which tell nobody
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def scene(folder: Path, shadow: float = 1.0, chance: Any = lambda: 0.0) -> AsyncIterator[Scene]:
    store, tally = MigrationStore(folder), Tally()
    store.set("news", Migration(OLD.digest, "old", NEW.digest, "new", shadow=shadow), expected=None)
    encoders, fakes = Encoders(store), [FakeEncoder(), FakeEncoder()]
    plan = BatchingPlan(max_batch_tokens=1000, max_queued_texts=1000, max_wait=60)
    with contextlib.ExitStack() as stack:
        sources = [Versions(spec.digest, version) for version, spec in enumerate((OLD, NEW), 1)]
        for spec, encoder, source in zip((OLD, NEW), fakes, sources, strict=True):
            made = embedder(spec, encoder, plan)
            stack.enter_context(made)
            tokenizer: Any = letters
            graph: Any = encoder
            serving = LoadedEncoder(
                EncoderArtifact(spec.weights, spec, folder), tokenizer, graph, made, Registry(source, spec.digest)
            )
            encoders.add(serving)
        background = stack.enter_context(embedder(NEW, fakes[1], replace(plan, background=True)))
        await encoders.refresh_migrations()
        found = Shadow(encoders, background, tally.observe_shadow, tally.observe_shadow_dropped, chance)
        async with found.running():
            yield Scene(found, encoders, tally, *fakes, sources[1])


def embedder(spec: EncoderSpec, encoder: FakeEncoder, plan: BatchingPlan) -> Embedder:
    codec, memory = VectorCodec("float32", DIM), MemoryCache(0)
    return Embedder(letters, encoder, encoder_digest=spec.digest, codec=codec, memory=memory, shared=None, plan=plan)


def test_the_new_encoder_gets_the_same_texts_with_its_own_prompt(tmp_path: Path) -> None:
    async def seen() -> None:
        async with scene(tmp_path) as now:
            await now.answered(["ab", "cd", "ab", "ef"])
            await now.until(lambda: now.tally.scored)
            assert sorted(now.old.seen) == ["o:ab", "o:cd", "o:ef"]
            assert sorted(now.new.seen) == ["n:ab", "n:cd", "n:ef"]
            (batch,) = now.tally.scored
            assert len(batch.old_rates) == 2
            np.testing.assert_allclose(batch.old_rates, REFERENCE.false_match_rate(batch.old_similarities), rtol=1e-6)
            np.testing.assert_allclose(batch.new_rates, REFERENCE.false_match_rate(batch.new_similarities), rtol=1e-6)

    asyncio.run(seen())


def test_while_it_hangs_requests_do_not_and_what_is_too_much_is_dropped(tmp_path: Path) -> None:
    async def hung() -> None:
        async with scene(tmp_path) as now:
            now.new.free.clear()
            await now.answered(["ab", "cd"])
            await now.until(now.new.busy.is_set)
            began = time.monotonic()
            for number in range(WAITING + 10):
                await now.answered([f"a{number}", f"b{number}"])
            assert time.monotonic() - began < 5  # FakeEncoder waits for 30 s
            assert now.tally.dropped == {"full": 10}
            assert not now.tally.scored
            now.new.free.set()
            await now.until(lambda: len(now.tally.scored) == WAITING + 1)

    asyncio.run(hung())


def test_it_waits_for_a_moment_without_requests_and_gives_up_after_a_while(tmp_path: Path) -> None:
    async def busy() -> None:
        async with scene(tmp_path) as now:
            await now.answered(["ab", "cd"])
            await now.until(lambda: now.tally.scored)
            now.old.free.clear()
            waiting = asyncio.create_task(now.answered(["gh", "ij"]))  # a request that is being computed
            await now.until(lambda: now.encoders.queued)
            resolution = await now.encoders.resolve(DomainRef("news"))
            embeddings = await now.encoders.all[1].embedder.embed([Text("o:kl"), Text("o:mn")])
            rows = np.array([0]), np.array([1])
            now.shadow.offer(
                resolution,
                embeddings,
                *rows,
                score(resolution.calibration, embeddings.texts, embeddings.vectors, *rows),
            )
            await now.until(lambda: now.tally.dropped["busy"])
            await now.until(lambda: not any(type(one) is ShadowRequest for one in gc.get_objects()))
            assert "n:kl" not in now.new.seen
            now.old.free.set()
            await waiting
            await now.until(lambda: len(now.tally.scored) == 2)

    asyncio.run(busy())


def test_pairs_that_either_encoder_cannot_read_are_not_compared(tmp_path: Path) -> None:
    async def seen() -> None:
        async with scene(tmp_path) as now:
            await now.answered(["a?", "cd"])
            await now.answered(["ab", "cd", "a?", "ef", "!k", "lm", "gh", "ij"])
            await now.until(lambda: now.tally.scored)
            assert sorted(now.new.seen) == ["n:!k", "n:ab", "n:cd", "n:gh", "n:ij", "n:lm"]
            (batch,) = now.tally.scored
            assert [len(part) for part in (batch.old_rates, batch.new_rates)] == [2, 2]

    asyncio.run(seen())


def kept(before: list[Any]) -> list[Any]:
    """What holds texts in this process, less what tests before this one left `before`."""
    known = {id(one) for one in before}
    return [
        one
        for one in gc.get_objects()
        if type(one) in (ShadowRequest, PendingText, Embeddings) and id(one) not in known
    ]


def test_no_text_is_kept_once_it_is_scored(tmp_path: Path) -> None:
    before = kept([])

    async def scored() -> None:
        async with scene(tmp_path) as now:
            await now.answered(["ab", "cd"])
            await now.until(lambda: now.tally.scored)
            await now.until(lambda: not kept(before))

    asyncio.run(scored())


def test_what_waits_when_a_migration_ends_is_forgotten_and_the_next_one_begins_at_nothing(tmp_path: Path) -> None:
    before = kept([])

    async def ended() -> None:
        async with scene(tmp_path) as now:
            store, started = now.encoders.store, now.encoders.migrations["news"]
            now.new.free.clear()
            await now.answered(["ab", "cd"])
            await now.until(now.new.busy.is_set)
            for pair in (["ef", "gh"], ["ij", "kl"]):
                await now.answered(pair)
            store.set("news", None, expected=started)
            await now.encoders.refresh_migrations()
            now.new.free.set()
            await now.until(lambda: not kept(before))
            assert sorted(now.new.seen) == ["n:ab", "n:cd"]
            assert (now.tally.scored, now.tally.dropped) == ([], {})
            store.set("news", started, expected=None)
            await now.encoders.refresh_migrations()
            assert now.shadow.measure("news", (1, 2)) is None
            await now.answered(["mn", "op"])
            await now.until(lambda: now.tally.scored)
            seen = now.shadow.measure("news", (1, 2))
            assert seen is not None
            assert seen.pairs == 1

    asyncio.run(ended())


def test_a_failure_is_counted_and_the_next_request_is_scored(tmp_path: Path) -> None:
    async def failing() -> None:
        async with scene(tmp_path) as now:
            now.versions.gone = True
            await now.answered(["ab", "cd"])
            await now.until(lambda: now.tally.dropped["failed"])
            now.versions.gone = False
            await now.answered(["ab", "cd"])
            await now.until(lambda: now.tally.scored)

    asyncio.run(failing())


def test_only_the_sampled_requests_are_scored_and_of_a_large_one_a_part(tmp_path: Path) -> None:
    chances = iter([0.29, 0.31, 0.0])

    async def sampled() -> None:
        async with scene(tmp_path, shadow=0.3, chance=lambda: next(chances)) as now:
            await now.answered(["ab", "cd"])
            await now.answered(["ef", "gh"])
            await now.answered([f"{side}{number}" for number in range(100) for side in "xy"])
            await now.until(lambda: len(now.tally.scored) == 2)
            assert "n:ef" not in now.new.seen
            assert len(now.tally.scored[1].old_rates) == MOST_PAIRS
            assert {"n:x0", "n:y0", "n:x99", "n:y99"} <= set(now.new.seen)  # from all of it

    asyncio.run(sampled())


def test_only_champions_are_compared_and_another_one_begins_anew(tmp_path: Path) -> None:
    async def promoted() -> None:
        async with scene(tmp_path) as now:
            await now.answered(["ij", "kl"], DomainRef("news", 7))
            await now.answered(["ab", "cd"])
            await now.until(lambda: now.tally.scored)
            assert "n:ij" not in now.new.seen
            first = now.shadow.measure("news", (1, 2))
            assert first is not None
            assert first.pairs == 1
            now.versions.version = 3
            assert now.encoders.next is not None
            await now.encoders.next.registry.refresh()
            await now.answered(["ab", "cd", "ef", "gh"])
            await now.until(lambda: len(now.tally.scored) == 2)
            assert now.shadow.measure("news", (1, 2)) is None
            second = now.shadow.measure("news", (1, 3))
            assert second is not None
            assert second.pairs == 2

    asyncio.run(promoted())


def test_its_threads_have_what_others_leave(tmp_path: Path) -> None:
    async def priorities() -> None:
        async with scene(tmp_path) as now:
            await now.answered(["ab", "cd"])
            await now.until(lambda: now.tally.scored)
            threads = [thread.native_id or 0 for thread in threading.enumerate()]
            background = [one for one in threads if os.getpriority(os.PRIO_PROCESS, one) == 19]
            assert len(background) == 2  # the tokenizer's and the encoder's
            assert {os.sched_getscheduler(one) for one in background} == {os.SCHED_IDLE}
            assert os.getpriority(os.PRIO_PROCESS, 0) < 19
            assert os.sched_getscheduler(0) == os.SCHED_OTHER

    asyncio.run(priorities())
