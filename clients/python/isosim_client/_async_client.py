"""The client for asyncio: the same methods, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import httpx2

from . import _calibrating, _domains, _scoring
from ._answers import Domain, Job, Ranked, SavedTarget, Similarity, Threshold, Thresholds, Version
from ._call import Call, IdempotencyKey, check_status
from ._client import PATIENT
from ._following import Following
from ._http import TIMEOUT, request, settings, translated
from ._progress import bar
from ._retries import Retries, Tries
from ._scoring import Space
from ._upload import LabelledPair, Source
from .errors import IsosimError

T = TypeVar("T")


async def beside_the_loop(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Chunks, each made in a thread: a file, or the caller's iterable, may take its time."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


class AsyncClient:
    """`Client` for asyncio: the same arguments, the same methods, each awaited. Use it in an `async with`.

    `events` is for `async for`. The examples of `Client`'s methods hold with an `await` in front.

    Args:
        base_url: the server's address, with the path below which a gateway serves it, if any.
        api_key: sent as `Authorization: Bearer`.
        timeout: seconds that the server may be silent in one request; 5 at most to connect.
        retries: how patiently requests are sent again.
        transport: httpx2's, for certificates, proxies and tests.
        sleep: waits between tries; for tests.

    Example:
        >>> import asyncio
        >>> from isosim_client import AsyncClient
        >>> async def calibrate(texts):
        ...     async with AsyncClient("http://127.0.0.1:8000") as client:
        ...         job = await client.calibrate(texts, domain="tickets")
        ...         async for state in client.events(job):
        ...             print(state.status, state.progress)
        ...         return await client.threshold("tickets", fmr=0.01)
        >>> with open("tickets.txt") as texts:
        ...     advice = asyncio.run(calibrate(texts))
        running 0.6
        succeeded 1.0
        >>> advice.similarity
        0.412
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: Retries = PATIENT,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._timeout, self._retries, self._sleep = timeout, retries, sleep
        self._http = httpx2.AsyncClient(**settings(base_url, api_key, transport, httpx2.AsyncBaseTransport))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    async def close(self) -> None:
        """Closes the connections. A closed client sends nothing more."""
        await self._http.aclose()

    async def similarity(
        self,
        pairs: Iterable[Sequence[str]],
        *,
        domain: str = "default",
        threshold: str | None = None,
        detail: bool = False,
    ) -> Similarity:
        """Calibrated similarity of sentence pairs.

        Args:
            pairs: (text, text) each; a server takes 512 a request unless set otherwise.
            domain: `name`, `name@3` or `name@previous`.
            threshold: the name of a saved threshold (`save_threshold`); adds `match`, whether each pair reaches it.
            detail: adds token counts and out-of-domain scores.

        Returns:
            Columns, one entry a pair, in order.

        Raises:
            EmptyInput, InvalidInput: no pair, an empty or too long text, too many pairs.
            NotFound: no such domain, version or threshold. Conflict: it belongs to another encoder.
            Overloaded: still full when the patience ended.
        """
        return await self._send(_scoring.similarity(pairs, domain=domain, threshold=threshold, detail=detail))

    async def embed(
        self,
        texts: str | Iterable[str],
        *,
        domain: str = "default",
        space: Space = "calibrated",
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool | None = None,
        truncation_direction: Literal["Right", "Left"] = "Right",
    ) -> list[list[float]]:
        """Vectors of texts, one each, in order; a list of one for a single string.

        Args:
            texts: a server takes 1024 a request unless set otherwise.
            domain: `name`, `name@3` or `name@previous`; pin the version of vectors that are stored.
            space: `calibrated`, or `raw` for the frozen encoder's.
            normalize: to length 1.
            dimensions: the first so many, of raw vectors only.
            truncate: False refuses a text that is longer than the encoder reads, instead of cutting it.
            truncation_direction: the side that is cut.

        Raises:
            EmptyInput, InvalidInput, NotFound, Conflict, Overloaded: as for `similarity`.
        """
        return await self._send(
            _scoring.embed(
                texts,
                domain=domain,
                space=space,
                normalize=normalize,
                dimensions=dimensions,
                truncate=truncate,
                truncation_direction=truncation_direction,
            )
        )

    async def rerank(
        self,
        query: str,
        texts: Iterable[str],
        *,
        domain: str = "default",
        raw_scores: bool = False,
        return_text: bool = False,
        gallery: int | None = None,
    ) -> tuple[Ranked, ...]:
        """Texts by how similar they are to a query, the best first.

        Args:
            query: one text.
            texts: what to rank.
            domain: `name`, `name@3` or `name@previous`.
            raw_scores: similarities instead of percentiles.
            return_text: repeats each text in the answer.
            gallery: how many entries the texts were found among; adds each one's `false_hit_rate`.

        Returns:
            An index into `texts` and a score each. Scores are percentiles, 0-1; similarities where the domain has no
            reference.

        Raises:
            EmptyInput, InvalidInput, NotFound, Conflict, Overloaded: as for `similarity`.
        """
        return await self._send(
            _scoring.rerank(
                query, texts, domain=domain, raw_scores=raw_scores, return_text=return_text, gallery=gallery
            )
        )

    async def ready(self) -> bool:
        """Whether the server takes requests now: False while it starts or stops, or cannot be reached."""
        return await self._send(_scoring.ready())

    async def calibrate(
        self,
        source: Source,
        *,
        domain: str,
        method: str = "auto",
        promote: str = "if_better",
        seed: int = 0,
        normalization: str = "none",
        labels: Iterable[LabelledPair] = (),
        force: bool = False,
        idempotency_key: IdempotencyKey = True,
    ) -> Job:
        """Posts unlabelled text of a domain; a job fits a calibration to it in the background.

        Args:
            source: a `pathlib.Path` to a file with one sentence a line (`.ndjson` and `.jsonl`: one JSON value a line),
                or an iterable of sentences. Either is read while it is sent, not into memory. At least 200 distinct
                sentences.
            domain: its name alone, without a version.
            method: `auto`, or one of those the server names in its refusal of any other.
            promote: `if_better`, `always` or `never`.
            seed: the same text, settings and seed give the same version.
            normalization: `none`, `as-norm` or `csls`.
            labels: (text, text, 0 or 1 or a grade) each, or with a weight, for probabilities.
            force: takes each line as a sentence although the lines look like the rows of a table.
            idempotency_key: True makes one; a string is yours; False sends none, and then nothing is ever sent twice.

        Returns:
            The accepted job; `wait` for it.

        Raises:
            EmptyInput, InvalidInput: no text, too little, a table, or a bad line, which is named.
            TooLarge: more bytes than the server takes. Conflict: the key was used for something else.
            Unavailable: nothing runs jobs there. Overloaded: too many wait.
            OSError, UnicodeDecodeError: the file cannot be read.
        """
        return await self._send(
            _calibrating.calibrate(
                source,
                domain=domain,
                method=method,
                promote=promote,
                seed=seed,
                normalization=normalization,
                labels=labels,
                force=force,
                idempotency_key=idempotency_key,
            )
        )

    async def add_labels(
        self,
        domain: str,
        labels: Iterable[LabelledPair],
        *,
        version: int | None = None,
        promote: str = "always",
        seed: int = 0,
        seen: Domain | None = None,
        idempotency_key: IdempotencyKey = True,
    ) -> Job:
        """Posts labelled pairs; a job makes a new version of the domain that has probabilities.

        Args:
            domain: its name alone.
            labels: (text, text, 0 or 1 or a grade) each, or with a weight; 20 pairs or more.
            version: to start from; else the champion.
            promote: `always`, `if_better` or `never`.
            seed: the same labels and seed give the same version.
            seen: the domain as it was when you decided; else it is looked at first.
            idempotency_key: as for `calibrate`.

        Raises:
            InvalidInput: too few pairs, or all of one kind. NotFound: no such domain.
            Conflict: the domain has no reference yet, or another champion than `seen`.
        """
        return await self._send(
            _calibrating.add_labels(
                domain, labels, version=version, promote=promote, seed=seed, seen=seen, idempotency_key=idempotency_key
            )
        )

    async def job(self, job: Job | str) -> Job:
        """How far a job is; its report when it has succeeded, its error when it has failed.

        Raises:
            NotFound: no such job, or its record is gone.
        """
        return await self._send(_calibrating.job(job))

    async def jobs(self) -> tuple[Job, ...]:
        """All jobs on record, the newest first."""
        return await self._send(_calibrating.jobs())

    async def cancel(self, job: Job | str) -> Job:
        """Stops a job. Its text is deleted and no version appears.

        Raises:
            NotFound: no such job. Conflict: it has ended, or is publishing its result.
        """
        return await self._send(_calibrating.cancel(job))

    async def retry(self, job: Job | str) -> Job:
        """Runs an interrupted job again, on the text it still has.

        Raises:
            NotFound: no such job. Conflict: it runs or has ended. Unavailable: nothing runs jobs there.
        """
        return await self._send(_calibrating.retry(job))

    async def domains(self, *, after: str = "", contains: str = "") -> tuple[Domain, ...]:
        """Up to 1,000 domains, with their versions, by name.

        Args:
            after: the last name of the page before.
            contains: only domains with this in their name.
        """
        return await self._send(_domains.domains(after=after, contains=contains))

    async def domain(self, name: str) -> Domain:
        """One domain: champion, previous, versions, drift.

        Raises:
            NotFound: no such domain.
        """
        return await self._send(_domains.domain(name))

    async def version(self, domain: str, version: int) -> Version:
        """A version's provenance, files and measured report.

        Raises:
            NotFound: no such version.
        """
        return await self._send(_domains.version(domain, version))

    async def threshold(
        self,
        domain: str,
        *,
        fmr: float | None = None,
        precision: float | None = None,
        false_hit_rate: float | None = None,
        gallery: int | None = None,
        space: Space = "calibrated",
    ) -> Threshold:
        """Which similarity to ask for. Give one of `fmr`, `precision` and `false_hit_rate`.

        Args:
            domain: `name`, `name@3` or `name@previous`.
            fmr: share of random pairs that may match, 1e-7 to 1.
            precision: share of matches that shall be right, among pairs like the labelled ones.
            false_hit_rate: share of searches that may end with a wrong match, 1e-6 up to 1.
            gallery: with `false_hit_rate`: how many entries are searched.
            space: `raw` for a threshold on `cosine`.

        Raises:
            InvalidInput: none or several were given, or out of range. NotFound: no such domain.
            Conflict: the domain's version cannot tell: no reference, no labels, or from before searches were counted.
        """
        return await self._send(
            _domains.threshold(
                domain, fmr=fmr, precision=precision, false_hit_rate=false_hit_rate, gallery=gallery, space=space
            )
        )

    async def thresholds(self, domain: str) -> Thresholds:
        """The saved thresholds of a domain, with their similarities in the version that answers.

        Raises:
            NotFound: no such domain.
        """
        return await self._send(_domains.thresholds(domain))

    async def save_threshold(
        self,
        domain: str,
        name: str,
        *,
        fmr: float | None = None,
        precision: float | None = None,
        false_hit_rate: float | None = None,
        gallery: int | None = None,
        seen: Domain | None = None,
    ) -> SavedTarget:
        """Saves a target under a name, which `similarity` takes. Give one of `fmr`, `precision` and `false_hit_rate`.

        It holds for every version: each gives it a similarity of its own.

        Args:
            domain: its name alone.
            name: 1 to 64 of a-z, 0-9, `.`, `_`, `-`; what was saved under it before is replaced.
            fmr, precision, false_hit_rate, gallery: as for `threshold`.
            seen: the domain as it was when you decided; where it has changed since, nothing is saved.

        Returns:
            What was saved. Its `notice` says why the version that answers now cannot reach it, if so.

        Raises:
            InvalidInput: none or several were given, or out of range. NotFound: no such domain, or it has no version.
            Conflict: the domain is no longer as `seen`.
        """
        return await self._send(
            _domains.save_threshold(
                domain,
                name,
                fmr=fmr,
                precision=precision,
                false_hit_rate=false_hit_rate,
                gallery=gallery,
                seen=seen,
            )
        )

    async def delete_threshold(self, domain: str, name: str, *, seen: Domain | None = None) -> None:
        """Deletes a saved threshold.

        Args:
            domain: its name alone.
            name: that it was saved under.
            seen: the domain as it was when you decided; where it has changed since, nothing is deleted.

        Raises:
            NotFound: no such domain, or nothing is saved under the name. Conflict: the domain is no longer as `seen`.
        """
        await self._send(_domains.delete_threshold(domain, name, seen=seen))

    async def promote(self, domain: str, version: int, *, seen: Domain | None = None) -> Domain:
        """Makes a version the champion. Every server of the store answers with it within two seconds.

        Args:
            domain: its name alone.
            version: the one that shall answer.
            seen: the domain as it was when you decided; else it is looked at first.

        Raises:
            NotFound: no such version. Conflict: the domain is no longer as `seen`, or the version is another encoder's.
            Unavailable: its files do not match their manifest.
        """
        return await self._send(_domains.promote(domain, version, seen=seen))

    async def rollback(self, domain: str, *, seen: Domain | None = None) -> Domain:
        """Swaps champion and previous, once, however often the request has to be sent.

        Args:
            domain: its name alone.
            seen: the domain as it was when you decided; else it is looked at first.

        Raises:
            NotFound: no such domain. Conflict: it has no previous version, or is no longer as `seen`.
        """
        return await self._send(_domains.rollback(domain, seen=seen))

    async def delete_domain(self, domain: str) -> None:
        """Deletes a domain with all its versions, and cancels its calibrations. Repeating it does no harm.

        Every server of the store answers 404 within two seconds. Version numbers are not given again.

        Raises:
            NotFound: there never was such a domain. Conflict: it is `default`.
        """
        await self._send(_domains.delete_domain(domain))

    async def delete_version(self, domain: str, version: int, *, seen: Domain | None = None) -> None:
        """Deletes a version permanently. Its number is not used again; a second call raises no error.

        Args:
            domain: its name alone.
            version: neither champion nor previous.
            seen: the domain as it was when you decided; else it is looked at first.

        Raises:
            NotFound: no such version. Conflict: it is champion or previous, or the domain is no longer as `seen`.
        """
        await self._send(_domains.delete_version(domain, version, seen=seen))

    def events(self, job: Job | str, *, timeout: float | None = None) -> AsyncIterator[Job]:
        """A job's state, now and whenever it changes, until it ends; a lost connection is made anew.

        Args:
            job: or its id.
            timeout: seconds in all.

        Raises:
            NotFound: no such job. WaitTimeout: the time is up; the job goes on.
        """
        return self._follow(Following(job, self._retries, timeout))

    async def wait(self, job: Job | str, *, progress: bool = True, timeout: float | None = None) -> Job:
        """Follows a job to its end, with a bar on a terminal (extra `progress`).

        An interrupt, or the end of the task that waits, leaves the job alone.

        Args:
            job: or its id.
            progress: False draws nothing.
            timeout: seconds.

        Returns:
            The job that has succeeded: its version, whether it was promoted, its report.

        Raises:
            JobFailed, JobCancelled, JobInterrupted: it ended otherwise; each has the `job`.
            WaitTimeout: the time is up; the job goes on. NotFound: no such job.
        """
        following = Following(job, self._retries, timeout)
        with bar(progress) as show:
            async for state in self._follow(following):
                show(state)
        return following.outcome()

    async def _send(self, call: Call[T]) -> T:
        tries = Tries(self._retries)
        while True:
            try:
                content = None if call.upload is None else beside_the_loop(call.upload.chunks())
                with translated():
                    response = await self._http.send(request(self._http, call, tries.timeout(self._timeout), content))
                answer = call.read(response.status_code, response.headers, response.content)
            except IsosimError as error:
                pause = tries.pause_after(error, call.repeatable())
                if pause is not None:
                    await self._sleep(pause)
                    continue
                if call.rescue is None:
                    raise
                answer = call.rescue(error)
            if call.then is None:
                return answer
            call = call.then(answer)

    async def _follow(self, following: Following) -> AsyncIterator[Job]:
        while not following.ended:
            failure = None
            try:
                async with self._open(following.connect(), following.seconds_of_silence()) as chunks:
                    async for chunk in chunks:
                        for state in following.feed(chunk):
                            yield state
            except IsosimError as error:
                failure = error
            if not following.ended:
                await self._sleep(following.pause(failure))

    @asynccontextmanager
    async def _open(self, call: Call[Any], timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        with translated():
            response = await self._http.send(request(self._http, call, timeout, None), stream=True)
            try:
                if response.status_code != 200:
                    check_status(response.status_code, response.headers, await response.aread())
                yield response.aiter_bytes()
            finally:
                await response.aclose()
