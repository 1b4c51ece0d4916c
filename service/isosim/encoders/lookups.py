"""Lookups in the shared cache, combined across requests that arrive together."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isosim.encoders.texts import Judge, PooledVector, SharedCache, VectorCodec, judge_together

# Maximum number of concurrent lookups; each lookup may serve several requests. If Redis hangs, 3 lookups time out
# together. These 3 failures in a row open the cache's circuit breaker (`circuit_breaker.FAILURES`).
LOOKUPS = 3
# Maximum number of keys in a combined lookup. A request with more keys gets a lookup of its own, without the
# out-of-domain test. Its texts are tested when they are scored.
MOST_KEYS = 256

Found = list[PooledVector | None]


class Question(NamedTuple):
    """Keys that one request looks up, and the future that receives the result."""

    keys: Sequence[bytes]
    judge: Judge | None
    answer: "asyncio.Future[Found]"


class SharedLookups:
    """Combines the cache lookups of several requests into one Redis command.

    Lookups are combined if they are requested in the same iteration of the event loop, or while `LOOKUPS` other lookups
    are running. Then each domain's out-of-domain test is called once, with all texts that were found for the domain.
    Lives on one event loop.
    """

    def __init__(self, shared: SharedCache, codec: VectorCodec) -> None:
        self.shared, self.codec = shared, codec
        self._asked: deque[Question] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def find(self, keys: Sequence[bytes], judge: Judge | None) -> Found:
        """The cached vector of each key, or None."""
        loop = asyncio.get_running_loop()
        question = Question(keys, judge, loop.create_future())
        if not self._asked:
            loop.call_soon(self._begin)
        self._asked.append(question)
        return await question.answer

    def close(self) -> None:
        """Ends all lookups. Open lookups return misses."""
        while self._asked:
            question = self._asked.popleft()
            if not question.answer.done():
                question.answer.set_result([None] * len(question.keys))
        for task in self._under_way:
            task.cancel()

    def _begin(self) -> None:
        while self._asked and len(self._under_way) < LOOKUPS:
            questions: list[Question] = []
            count = 0
            while self._asked and (not questions or count + len(self._asked[0].keys) <= MOST_KEYS):
                question = self._asked.popleft()
                if not question.answer.done():  # already done if the request was cancelled
                    questions.append(question)
                    count += len(question.keys)
            if questions:
                task = asyncio.get_running_loop().create_task(self._look_up(questions), name="shared-cache-lookup")
                self._under_way.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        self._begin()

    async def _look_up(self, questions: list[Question]) -> None:
        keys = [key for question in questions for key in question.keys]
        found: Found = [None] * len(keys)
        try:
            entries = await self.shared.get(keys)
            found = [None if e is None else self.codec.decode(key, e) for key, e in zip(keys, entries, strict=True)]
            if len(keys) <= MOST_KEYS:  # testing more texts in one call would block the event loop
                judges = [question.judge for question in questions for _ in question.keys]
                judge_together(zip(judges, found, strict=True))
        finally:
            start = 0
            for question in questions:
                end = start + len(question.keys)
                if not question.answer.done():
                    question.answer.set_result(found[start:end])
                start = end
