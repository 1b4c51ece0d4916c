"""An encoder on another server: any server with OpenAI's `POST /v1/embeddings`.

A probe is a text whose vector was stored when the encoder was registered. Every request contains a probe besides its
texts. The vector that the server returns for the probe is compared with the stored vector. If they differ, the server
runs another model under the same name, and the whole answer is rejected.
"""

import asyncio
import contextlib
import copy
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Literal, NoReturn

import numpy as np

from isosim.arrays import Vectors
from isosim.encoders.embeddings_api import EmbeddingsClient, OtherDimension, Refusal
from isosim.encoders.store import EncoderArtifact, Probe
from isosim.encoders.texts import Side, Tokens
from isosim.errors import (
    BackendFailure,
    EncoderChanged,
    EncoderUnreachable,
    InvalidInput,
    IsosimError,
    Overloaded,
)

# Largest accepted ratio ‖answered − registered‖ / ‖registered‖ of a probe's vectors. Measured: at most 0.010 with fp16;
# at least 0.07 with int8, 0.12 without the encoder's prompt, 1.1 with another model (docs/how-to/encoders.md).
TOLERANCE = 0.05
BYTES_A_TOKEN = 4  # bytes of UTF-8 per token, to estimate the number of tokens
REQUESTS = 8  # maximum number of parallel requests, per process
REQUEST_TEXTS = 31  # maximum texts per request, besides the probe: text-embeddings-inference accepts 32 by default
REQUEST_TOKENS = 16_384  # maximum number of estimated tokens per request
ATTEMPTS = 3  # maximum number of attempts per request while a client of the API waits
PATIENT_ATTEMPTS = 10  # maximum number of attempts per request of a job; the 9 pauses add up to 21 to 64 s
# Seconds between attempts: 0.2, 0.4, 0.8 and so on, up to 10. Each pause is then multiplied by a random number from 0.5
# to 1.5.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
CHECK_SECONDS = 10.0  # time limit of a request that contains only the probe
FAILURES = 3  # failures in a row after which no texts are sent until `check` succeeds
# Longest pause (s) between attempts while a client of the API waits. If the server asks for a longer pause, the client
# gets the error at once. Jobs wait longer.
LONGEST_WAIT = 2.0

Event = Literal["ok", "unreachable", "refused", "changed"]
State = Literal["unknown", "ok", "down", "changed"]


class EstimatedTokens(Sequence[int]):
    """A text and its estimated number of tokens, if the tokenizer is on another server."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = max(1, -(-len(text.encode()) // BYTES_A_TOKEN))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError("the tokens of a remote encoder are not known")


class RemoteTokenizer:
    """Takes the place of a tokenizer: estimates lengths, cuts long texts, and refuses requests for real tokens."""

    def __init__(self, name: str, max_length: int) -> None:
        self.name, self.max_length = name, max_length

    def __call__(self, texts: Sequence[str], side: Side) -> list[Tokens]:
        """Cuts texts longer than `max_length` estimated tokens, and marks them as cut. Texts that the server cuts are
        not marked.

        Raises:
            InvalidInput: `side` is "left".
        """
        if side == "left":
            self._refuse("does not cut texts on the left")
        most = self.max_length * BYTES_A_TOKEN
        heads = [(text, text.encode()[:most].decode(errors="ignore")) for text in texts]
        return [Tokens(EstimatedTokens(head), head != text) for text, head in heads]

    def pieces(self, texts: Sequence[str], *, special: bool) -> NoReturn:
        """Always raises InvalidInput."""
        self._refuse("its tokenizer is there, so isosim cannot tell the tokens of a text")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInput(f"encoder {self.name} runs on another server and {what}")


class TextsRefused(BackendFailure):
    """The server works, but it rejects these texts."""


class RemoteEncoder:
    """A `BatchEncoder` whose runs are requests to a server. Thread-safe.

    All requests run on one event loop in a thread of their own, and every request carries a probe.

    Args:
        seconds: time limit of one run, including all attempts.
        patient: True (for jobs): a run keeps trying while the server restarts. False: once the server is down, runs
            fail at once until `check` has succeeded.
        requests: maximum number of parallel requests; one more may be a check.
        on_request: called with the outcome of each request and its duration in seconds.
    """

    def __init__(
        self,
        artifact: EncoderArtifact,
        *,
        seconds: float,
        patient: bool = False,
        requests: int = REQUESTS,
        on_request: Callable[[Event, float], None] = lambda _, __: None,
    ) -> None:
        if artifact.remote is None or not artifact.probes:
            raise ValueError(f"encoder {artifact.id} is not a remote one")
        self.id, self.dim = artifact.id, artifact.spec.dim
        self.probes = [(one.text, np.asarray(one.pooled, np.float32)) for one in artifact.probes]
        self.seconds, self.patient = seconds, patient
        self.on_request = on_request
        self.met = False  # whether the server has ever answered a probe correctly
        self.failure: IsosimError | None = None  # the last failure; None after the next correct answer
        self._failures = 0  # in a row
        self.off = 0.0  # distance of the last probe's vector from the known vector, divided by the known vector's norm
        self._client = EmbeddingsClient(artifact.remote, requests + 1)
        self._turn = 0  # number of requests so far
        self._closed = False
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        threading.Thread(target=asyncio.run, args=(self._serve(),), name=f"remote-{self.id}", daemon=True).start()

    @property
    def state(self) -> State:
        if isinstance(self.failure, EncoderChanged):
            return "changed"
        return "down" if self._failures >= FAILURES else "ok" if self.met else "unknown"

    def prepare(self, ids: Sequence[Any]) -> list[str]:
        """The texts themselves; `ids` are `EstimatedTokens`."""
        return [one.text for one in ids]

    def run(self, prepared: list[str], *, exclusive: bool = False) -> Vectors:
        """Texts -> vectors (N, D).

        Raises:
            EncoderUnreachable: the server sent no answer, or its answer is unusable for a reason other than the texts.
                After FAILURES failures in a row, the error is raised without a request.
            EncoderChanged: the vector of a probe differs from the registered one; the answer is discarded.
            Overloaded: the server is overloaded.
            BackendFailure: the server rejects these texts.
        """
        return self._wait(self._run(prepared, PATIENT_ATTEMPTS if self.patient else ATTEMPTS, forced=self.patient))

    def check(self) -> None:
        """Sends only a probe, even if the server is down, and compares its vector. Raises the errors of `run`."""
        self._wait(self._run([], 1, forced=True))

    def close(self) -> None:
        """Ends all requests in progress, and all pauses between attempts."""
        self._closed = True
        loop, serving = self._started.result()
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(serving.cancel)

    async def _serve(self) -> None:
        """Keeps the connections until `close`. `asyncio.run` then cancels all requests."""
        async with self._client:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - for the type checker
            self._started.set_result((asyncio.get_running_loop(), task))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    def _wait(self, request: Coroutine[Any, Any, Vectors]) -> Vectors:
        """Waits for a request on the loop. Raises EncoderUnreachable if `close` ended it."""
        loop, _ = self._started.result()
        try:
            # The request limits its own time. This limit is for a request that `close` overlooked.
            return asyncio.run_coroutine_threadsafe(request, loop).result(self.seconds + 2 * CHECK_SECONDS)
        except (CancelledError, TimeoutError) as error:
            raise self._ended from error
        except RuntimeError as error:  # the loop has ended, or is ending and starts nothing more
            request.close()
            if not self._closed:
                raise
            raise self._ended from error

    @property
    def _ended(self) -> EncoderUnreachable:
        return EncoderUnreachable(f"requests to the server of encoder {self.id} were ended")

    async def _run(self, texts: list[str], attempts: int, *, forced: bool) -> Vectors:
        until = time.monotonic() + self.seconds
        for attempt in range(1, attempts + 1):
            if not forced and self.failure is not None and self.state in ("down", "changed"):
                raise copy.copy(self.failure)
            started = time.monotonic()
            longest = self.seconds / ATTEMPTS if texts else CHECK_SECONDS
            try:
                return await self._ask(texts, min(until - started, longest))
            except Refusal as refusal:
                self.on_request("refused" if refusal.status else "unreachable", time.monotonic() - started)
                pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)  # noqa: S311
                if refusal.status == 429:
                    pause = max(pause, refusal.retry_after)
                last = attempt == attempts or not refusal.again or time.monotonic() + pause >= until
                last = last or (pause > LONGEST_WAIT and not self.patient)
                error = await self._error_of(refusal, texts, tried=last or attempt >= ATTEMPTS)
                if last or isinstance(error, TextsRefused):
                    raise error from refusal
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, texts: list[str], seconds: float) -> Vectors:
        """Sends the texts and a probe. Raises Refusal, or EncoderChanged if the probe's vector differs."""
        if self._closed:  # the loop may start a request after `close`, before it has ended
            raise self._ended
        started = time.monotonic()
        probe, known = self.probes[self._turn % len(self.probes)]
        self._turn += 1
        try:
            vectors = await self._client([*texts, probe], self.dim, seconds)
        except OtherDimension as other:
            self._changed(other.why)
        self.off = float(np.linalg.norm(vectors[-1] - known) / np.linalg.norm(known))
        if not self.off <= TOLERANCE:
            self._changed(
                f"a known text's vector now differs from the registered vector by {self.off:.2f} of its norm; "
                f"at most {TOLERANCE} is accepted"
            )
        self.met, self.failure, self._failures = True, None, 0
        self.on_request("ok", time.monotonic() - started)
        return vectors[:-1]

    def _changed(self, how: str) -> NoReturn:
        self.on_request("changed", 0.0)
        error = EncoderChanged(
            f"encoder_changed: the server of encoder {self.id} no longer answers as it did at its registration: {how}. "
            "It runs another model under the same name, so its answer is discarded. Start the registered model "
            "again, or register the new one under another name"
        )
        self._fail(error)
        raise error

    async def _error_of(self, refusal: Refusal, texts: list[str], *, tried: bool) -> IsosimError:
        """The error to raise for a refusal. Records a failure of the server, unless the server is overloaded or the
        texts may be the reason.

        `tried`: True for the last attempt, and from the third attempt (ATTEMPTS) on. With status 500 and `tried`, a
        request with only a probe is sent. If the server answers the probe, the texts are the reason for the 500.
        """
        what = f"the server of encoder {self.id} "
        if refusal.status == 429:
            return Overloaded(f"{what}is overloaded: {refusal.why}", refusal.retry_after)
        perhaps, of_texts = refusal.status == 500 and bool(texts), refusal.of_texts
        if perhaps and tried:
            with contextlib.suppress(Refusal):
                await self._ask([], CHECK_SECONDS)  # raises EncoderChanged if the probe's vector differs
                of_texts = True
        if of_texts:
            return TextsRefused(f"{what}gives no vectors for these texts: {refusal.why}")
        down = EncoderUnreachable(f"{what}gives no vectors: {refusal.why}")
        if tried or not perhaps:
            self._fail(down)
        return down

    def _fail(self, error: IsosimError) -> None:
        self.failure = error
        self._failures = FAILURES if isinstance(error, EncoderChanged) else self._failures + 1


def check(artifact: EncoderArtifact, seconds: float = CHECK_SECONDS) -> float:
    """Sends each probe in its own request. Returns the largest ratio ‖answered − registered‖ / ‖registered‖.

    Raises:
        EncoderChanged, EncoderUnreachable, Overloaded, BackendFailure: for the reasons given at `RemoteEncoder.run`.
    """
    encoder = RemoteEncoder(artifact, seconds=seconds)
    differences = []
    try:
        for _ in artifact.probes:
            encoder.check()
            differences.append(encoder.off)
    finally:
        encoder.close()
    return max(differences)


def probes_of(texts: Sequence[str], vectors: Vectors) -> tuple[Probe, ...]:
    """The probes that a registration stores. Their vectors are rounded to seven digits. Repeated answers of a server to
    one text differ by more than this rounding."""
    return tuple(
        Probe(text, [float(f"{x:.7g}") for x in vector.tolist()]) for text, vector in zip(texts, vectors, strict=True)
    )
