"""Shadow scoring: the new encoder also scores pairs that the old encoder has scored, for comparison only."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from isosim.arrays import Rows
from isosim.encoders.embedding import Embedder, Embeddings
from isosim.encoders.texts import Text
from isosim.errors import IsosimError
from isosim.migration.encoders import Encoders, LoadedEncoder, Resolution
from isosim.redis_connection import end
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.comparison import Batch, Comparison, ComparisonResult
from isosim.scoring.similarity import Scores, score

log = logging.getLogger("isosim")

WAITING = 32  # largest number of shadow requests in the queue
# Largest number of pairs of one client request that are scored. A client can send 512 pairs (the default of
# ISOSIM_MAX_PAIRS). Scoring all of them would delay the next client request by seconds.
MOST_PAIRS = 32
PATIENCE = 1.0  # seconds that pairs wait for an idle server before they are dropped
LOOK = 0.01  # seconds between two checks whether the server is idle
Dropped = Literal["full", "busy", "failed"]


class ShadowRequest(NamedTuple):
    """Pairs that the old version has scored: their texts with the new encoder's prompt, and the old scores."""

    calibration: Calibration
    new: LoadedEncoder
    texts: list[Text]
    left: Rows
    right: Rows
    rates: npt.NDArray[np.float64]  # (P,) false-match rates
    similarities: npt.NDArray[np.float64]


@dataclass
class Shadow:
    """A task that scores pairs with the new encoder while no request is queued. It runs on one event loop.

    `background` is a second embedder for the server's next encoder. Its threads have the lowest priority.
    """

    encoders: Encoders
    background: Embedder | None
    on_compared: Callable[[str, Batch], None]  # called with the domain and the pairs that both encoders have scored
    on_dropped: Callable[[Dropped], None]
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self._waiting: asyncio.Queue[ShadowRequest] = asyncio.Queue(WAITING)
        self._windows: dict[str, Comparison] = {}

    def offer(self, resolution: Resolution, embeddings: Embeddings, left: Rows, right: Rows, scores: Scores) -> None:
        """Queues a sample of the pairs that a domain's old champion has scored; returns at once."""
        domain = resolution.calibration.domain
        new = self._compared(domain)
        if new is None or scores.percentile is None or embeddings.brought:
            return
        if len(scores.readable) == 0 or self.chance() >= self.encoders.migrations[domain].shadow:
            return
        request = self._sample(resolution, new, embeddings, left, right, scores)
        try:
            self._waiting.put_nowait(request)
        except asyncio.QueueFull:
            self.on_dropped("full")

    def _compared(self, domain: str) -> LoadedEncoder | None:
        """The new encoder, if it also scores the domain's pairs for comparison; None if it does not."""
        migration = self.encoders.migrations.get(domain)
        if self.background is None or migration is None or migration.finished or not migration.shadow:
            return None
        new = self.encoders.find(migration.new)
        # The background embedder can only use the server's next encoder. So a server whose own encoder is already the
        # new encoder does not compare.
        return new if new is self.encoders.next else None

    def _sample(
        self,
        resolution: Resolution,
        new: LoadedEncoder,
        embeddings: Embeddings,
        left: Rows,
        right: Rows,
        scores: Scores,
    ) -> ShadowRequest:
        assert scores.percentile is not None  # noqa: S101 - checked by `offer`
        readable = scores.readable
        some = readable[np.unique(np.linspace(0, len(readable) - 1, min(len(readable), MOST_PAIRS)).astype(np.intp))]
        rows, places = np.unique(np.concatenate([left[some], right[some]]), return_inverse=True)
        prompt, prefix = resolution.encoder.artifact.spec.prompt, new.artifact.spec.prompt
        return ShadowRequest(
            resolution.calibration,
            new,
            [with_prompt(embeddings.asked[row], prompt, prefix) for row in rows],
            places[: len(some)],
            places[len(some) :],
            1.0 - scores.percentile[some],
            scores.similarity[some].astype(np.float64),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the task until the block ends; does nothing without a next encoder."""
        if self.background is None:
            yield
            return
        task = asyncio.create_task(self._work(self.background), name="shadow")
        try:
            yield
        finally:
            await end(task)

    async def _work(self, background: Embedder) -> None:
        while True:
            # The request gets no variable, because a variable would keep the texts in memory until the next request.
            await self._attend(await self._waiting.get(), background)

    async def _attend(self, request: ShadowRequest, background: Embedder) -> None:
        try:
            if not await self._idle():
                self.on_dropped("busy")
            elif self._compared(request.calibration.domain) is request.new:  # if the migration has not ended
                await self._score(request, background)
        except IsosimError as error:
            self.on_dropped("failed")
            log.debug("shadow scoring for domain %s failed: %s", request.calibration.domain, error)
        except Exception:  # one failed comparison must not end the task
            self.on_dropped("failed")
            log.exception("shadow scoring failed")

    async def _idle(self) -> bool:
        """Waits until no text of a request is queued. Returns False if that takes longer than PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while self.encoders.queued:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK)
        return True

    async def _score(self, request: ShadowRequest, background: Embedder) -> None:
        old = request.calibration
        new = await request.new.registry.resolve(DomainRef(old.domain))
        embeddings = await background.embed(request.texts)
        left, right = embeddings.rows[request.left], embeddings.rows[request.right]
        scores = await asyncio.to_thread(score, new, embeddings.texts, embeddings.vectors, left, right)
        if self._compared(old.domain) is not request.new:
            return
        if scores.percentile is None:
            self.on_dropped("failed")  # a champion without a reference has no rates to compare
            return
        # Only pairs that both encoders can read. `_sample` has checked this for the old encoder.
        readable = scores.readable
        if len(readable) == 0:
            return
        batch = Batch(
            request.rates[readable],
            1.0 - scores.percentile[readable],
            request.similarities[readable],
            scores.similarity[readable].astype(np.float64),
        )
        self._window(old.domain, (old.version, new.version)).observe(batch)
        self.on_compared(old.domain, batch)

    def _window(self, domain: str, versions: tuple[int, int]) -> Comparison:
        """The comparison of a domain's two champions; a new comparison if a champion has changed.

        Also removes the comparisons of domains whose migration is over.
        """
        for gone in self._windows.keys() - self.encoders.migrations.keys():
            del self._windows[gone]
        window = self._windows.get(domain)
        if window is None or window.versions != versions:
            window = self._windows[domain] = Comparison(versions)
        return window

    def measure(self, domain: str, versions: tuple[int, int]) -> ComparisonResult | None:
        """The comparison of these two versions on requests to this process.

        None if the two versions have not been compared. This method may be called from any thread.
        """
        window = self._windows.get(domain)
        return None if window is None or window.versions != versions else window.measure()


def with_prompt(text: Text, prompt: str, prefix: str) -> Text:
    """Replaces the prompt of a text by `prefix`, the prompt of another encoder."""
    assert isinstance(text.content, str)  # noqa: S101 - only requests for vectors may contain token ids
    return Text(prefix + text.content.removeprefix(prompt), text.side)
