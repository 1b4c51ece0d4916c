"""An encoder on another server: any server with OpenAI's `POST /v1/embeddings`.

A probe is a text whose vector was stored when the encoder was registered. Requests contain a probe besides their texts.
The vector that the server returns for the probe is compared with the stored vector. If they differ, the server runs
another model under the same name, and the whole answer is rejected.
"""

import copy
import random
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal, NoReturn, overload

import numpy as np

from isosim.arrays import Vectors
from isosim.circuit_breaker import CircuitBreaker
from isosim.encoders.embeddings_api import Conversation, OtherDimension, Refusal
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
# at least 0.07 with int8, 0.12 without the encoder's prompt, 1.1 with another model (docs/how-to/remote-encoder.md).
TOLERANCE = 0.05
BYTES_A_TOKEN = 4  # bytes of UTF-8 per token, to estimate the number of tokens
REQUESTS = 8  # maximum number of parallel requests, per process
REQUEST_TEXTS = 31  # maximum texts per request, besides the probe: text-embeddings-inference accepts 32 by default
REQUEST_TOKENS = 16_384  # maximum number of estimated tokens per request
TRIAL_SECONDS = 10.0  # time limit of the single request that tests whether a failed server answers again
ATTEMPTS = 3  # maximum number of attempts per request while a client of the API waits
PATIENT_ATTEMPTS = 10  # maximum number of attempts per request of a job; the 9 pauses add up to 21 to 64 s
# Seconds between attempts: 0.2, 0.4, 0.8 and so on, up to 10. Each pause is then multiplied by a random number from 0.5
# to 1.5.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
CHECK_SECONDS = 10.0  # time limit of a request that contains only the probe
PROBE_SECONDS = 60.0  # seconds between requests that carry a probe, if `each` is False
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

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> NoReturn:
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
        tokens = []
        for text in texts:
            raw = text.encode()
            most = self.max_length * BYTES_A_TOKEN
            cut = len(raw) > most
            tokens.append(Tokens(EstimatedTokens(raw[:most].decode(errors="ignore") if cut else text), cut))
        return tokens

    def pieces(self, texts: Sequence[str], *, special: bool) -> NoReturn:
        """Always raises InvalidInput."""
        self._refuse("its tokenizer is there, so isosim cannot tell the tokens of a text")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInput(f"encoder {self.name} runs on another server and {what}")


class TextsRefused(BackendFailure):
    """The server works, but it rejects these texts."""


class RemoteEncoder:
    """A `BatchEncoder` whose runs are requests to a server. Thread-safe.

    Args:
        seconds: time limit of one run, including all attempts.
        each: True: every request carries a probe. False: a request carries a probe only if the last correct probe is
            more than a minute old, or if a request has failed since then.
        patient: True (for jobs): a run keeps trying while the server restarts. False: a run fails at once while the
            server is down.
        requests: size of the connection pool.
        on_request: called with the outcome of each request and its duration in seconds.
    """

    def __init__(
        self,
        artifact: EncoderArtifact,
        *,
        seconds: float,
        each: bool = True,
        patient: bool = False,
        requests: int = REQUESTS,
        on_request: Callable[[Event, float], None] = lambda _, __: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if artifact.remote is None or not artifact.probes:
            raise ValueError(f"encoder {artifact.id} is not a remote one")
        self.id, self.dim = artifact.id, artifact.spec.dim
        self.converse = Conversation(artifact.remote, requests)
        self.probes, self.known = artifact.probes, [np.asarray(one.pooled, np.float32) for one in artifact.probes]
        self.seconds, self.each, self.patient, self.clock = seconds, each, patient, clock
        self.on_request = on_request
        self.state: State = "unknown"
        self.met = False  # whether the server has answered a probe correctly at least once
        self.failure: IsosimError | None = None  # the last failure; None after the next correct probe
        self._breaker = CircuitBreaker(clock=clock)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._turn = count()
        self._trying = False  # True while the circuit is open and one request tests the server
        # Number of failures so far. After a failure, the server may run another model. `_ask` therefore rejects an
        # answer without a probe if another request failed meanwhile and no probe has been correct since.
        self._failures = 0
        self._probed = -np.inf  # start time (s) of the last request whose probe was correct
        self.off = 0.0  # distance of the last probe's vector from the known vector, divided by the known vector's norm

    def prepare(self, ids: Sequence[Any]) -> list[str]:
        """The texts themselves; `ids` are `EstimatedTokens`."""
        return [one.text for one in ids]

    def run(self, prepared: list[str], *, exclusive: bool = False) -> Vectors:
        """Texts -> vectors (N, D).

        Raises:
            EncoderUnreachable: the server sent no answer, or its answer is unusable for a reason other than the texts.
                After several failures in a row, the error is raised without a request.
            EncoderChanged: the vector of a probe differs from the registered one; the answer is discarded.
            Overloaded: the server is overloaded.
            BackendFailure: the server rejects these texts.
        """
        return self._run(prepared, PATIENT_ATTEMPTS if self.patient else ATTEMPTS, forced=self.patient)

    def check(self) -> None:
        """Sends only a probe, even if the circuit is open, and compares its vector. Raises the errors of `run`."""
        self._run([], 1, forced=True)

    def close(self) -> None:
        """Ends all requests in progress, and all pauses between attempts."""
        self._stopped.set()
        self.converse.close()

    def _run(self, texts: list[str], attempts: int, *, forced: bool) -> Vectors:
        until = self.clock() + self.seconds
        for attempt in range(1, attempts + 1):
            trial = not forced and self._begin_trial()
            started = self.clock()
            longest = TRIAL_SECONDS if trial else CHECK_SECONDS if not texts else self.seconds / ATTEMPTS
            try:
                return self._ask(texts, min(until - started, longest))
            except Refusal as refusal:
                self.on_request("refused" if refusal.status else "unreachable", self.clock() - started)
                pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)  # noqa: S311
                if refusal.status == 429:
                    pause = max(pause, refusal.retry_after)
                last = attempt == attempts or not refusal.again or self.clock() + pause >= until
                last = last or self._stopped.is_set() or (pause > LONGEST_WAIT and not self.patient)
                error = self._error_of(refusal, texts, tried=last or attempt >= ATTEMPTS)
                if last or isinstance(error, TextsRefused):
                    raise error from refusal
            finally:
                if trial:
                    self._trying = False
            self._stopped.wait(pause)
        raise AssertionError("the last attempt returns or raises")

    def _begin_trial(self) -> bool:
        """Whether this request is a trial: it tests whether a failed server works again.

        False while the circuit is closed. While the circuit is open, one request at a time becomes a trial. All other
        requests raise the last failure.
        """
        with self._lock:
            if not self._breaker.is_open:
                return False
            if self.failure is not None and (self._trying or not self._breaker.allows()):
                raise copy.copy(self.failure)
            self._trying = True
            return True

    def _ask(self, texts: list[str], seconds: float) -> Vectors:
        with self._lock:
            started, failures = self.clock(), self._failures
            due = not texts or self.each or started - self._probed > PROBE_SECONDS
            turn = next(self._turn) % len(self.probes)
        try:
            vectors = self.converse([*texts, self.probes[turn].text] if due else texts, self.dim, seconds)
        except OtherDimension as other:
            self._changed(other.why)
        if due:
            off = float(np.linalg.norm(vectors[-1] - self.known[turn]) / np.linalg.norm(self.known[turn]))
            if not off <= TOLERANCE:
                self._changed(
                    f"a known text's vector now differs from the registered vector by {off:.2f} of its norm; "
                    f"at most {TOLERANCE} is accepted"
                )
            self.off = off
        with self._lock:
            if failures == self._failures:
                self._probed = started if due else self._probed
            elif not due and self.failure is not None:
                # Another request failed meanwhile, so the server may have been restarted with another model. This
                # request had no probe, so its answer cannot be verified.
                raise copy.copy(self.failure)
            self._breaker.succeeded()
            if due:
                self.state, self.failure, self.met = "ok", None, True
        self.on_request("ok", self.clock() - started)
        return vectors[: len(texts)]

    def _changed(self, how: str) -> NoReturn:
        self.on_request("changed", 0.0)
        error = EncoderChanged(
            f"encoder_changed: the server of encoder {self.id} no longer answers as it did at its registration: {how}. "
            "It runs another model under the same name, so its answer is discarded. Start the registered model "
            "again, or register the new one under another name"
        )
        self._fail("changed", error)
        raise error

    def _error_of(self, refusal: Refusal, texts: list[str], *, tried: bool) -> IsosimError:
        """The error to raise for a refusal. Records a failure of the server, unless the server is overloaded or the
        texts may be the reason.

        `tried`: True for the last attempt, and from the third attempt (ATTEMPTS) on. With status 500 and `tried`, a
        request with only a probe is sent. If the server answers the probe, the texts are the reason for the 500.
        """
        what = f"the server of encoder {self.id} "
        if refusal.status == 429:
            return Overloaded(f"{what}is overloaded: {refusal.why}", refusal.retry_after)
        down = EncoderUnreachable(f"{what}gives no vectors: {refusal.why}")
        perhaps = refusal.status == 500 and bool(texts)
        if refusal.of_texts or (perhaps and tried and self._answers_probe()):
            return TextsRefused(f"{what}gives no vectors for these texts: {refusal.why}")
        if tried or not perhaps:
            self._fail("down", down)
        return down

    def _answers_probe(self) -> bool:
        """Whether the server answers a probe without texts. Raises EncoderChanged if the probe's vector differs."""
        try:
            self._ask([], CHECK_SECONDS)
        except Refusal:
            return False
        return True

    def _fail(self, state: State, error: IsosimError) -> None:
        with self._lock:
            self.failure, self._probed = error, -np.inf
            self._failures += 1
            self._breaker.failed()
            if state == "changed":  # opens the circuit at once; other failures open it only if several occur in a row
                self._breaker.open()
            if self._breaker.is_open:
                self.state = state


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
