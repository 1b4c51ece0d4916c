"""The client for programs without asyncio.

The methods are documented here. `AsyncClient` repeats the docstrings without the examples. The functions that build the
calls repeat only the first lines. A test compares the signatures and docstrings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import httpx2

from . import _calibrating, _domains, _scoring
from ._answers import Domain, Job, Ranked, SavedTarget, Similarity, Threshold, Thresholds, Version
from ._call import Call, IdempotencyKey, check_status
from ._following import Following
from ._http import TIMEOUT, request, settings, translated
from ._progress import bar
from ._retries import Retries, Tries
from ._scoring import Space, Unit
from ._upload import LabelledPair, Source
from .errors import IsosimError

T = TypeVar("T")
PATIENT = Retries()


class Client:
    """A client with a connection pool to one isosim server; thread-safe. Close it, or use it in a `with` statement.

    Args:
        base_url: the server's address; it may have a path, for example `https://gateway.example/isosim`.
        api_key: sent as `Authorization: Bearer`.
        timeout: seconds without data from the server, after which a request fails. Connecting may take at most 5 s.
        retries: how often and how long requests are retried.
        transport: an httpx2 transport, for your own certificates, a proxy, or tests.
        sleep: function that waits between attempts; tests replace it.

    If a request fails, the method raises an IsosimError; `help(isosim_client.errors)` lists its subclasses. If the
    failure may be temporary, the method first retries the request.

    Example:
        >>> from isosim_client import Client
        >>> with Client("http://127.0.0.1:8000") as client:
        ...     scores = client.similarity([("Printer is jammed.", "Cannot log in.")], domain="tickets")
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: Retries = PATIENT,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout, self._retries, self._sleep = timeout, retries, sleep
        self._http = httpx2.Client(**settings(base_url, api_key, transport, httpx2.BaseTransport))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    def close(self) -> None:
        """Closes the connections. A closed client cannot be used again."""
        self._http.close()

    def similarity(
        self,
        pairs: Iterable[Sequence[str]],
        *,
        domain: str = "default",
        threshold: str | None = None,
        detail: bool = False,
    ) -> Similarity:
        """Calibrated similarity of sentence pairs.

        Args:
            pairs: tuples (text, text). By default, a server accepts 512 pairs per request.
            domain: `name`, `name@3` or `name@previous`.
            threshold: the name of a saved threshold (see `save_threshold`). `match` of the result then says which
                pairs reach the threshold.
            detail: adds token counts and out-of-domain scores.

        Returns:
            Columns with one entry for each pair, in order.

        Raises:
            EmptyInput, InvalidInput: no pairs, too many pairs, or an empty or too long text.
            NotFound: no such domain, version or threshold. Conflict: the version belongs to another encoder.
            Overloaded: the server was still overloaded after all retries.

        Example:
            >>> pairs = [
            ...     ("A man is playing a guitar.", "Someone plays an instrument."),
            ...     ("A man is playing a guitar.", "Shares fell in London."),
            ... ]
            >>> scores = client.similarity(pairs)
            >>> scores.similarity, scores.percentile
            ((0.667, -0.034), (0.999, 0.217))
        """
        return self._send(_scoring.similarity(pairs, domain=domain, threshold=threshold, detail=detail))

    def embed(
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
        """One vector for each text, in order; for a single string, a list with one vector.

        Args:
            texts: by default, a server accepts 2,048 texts per request.
            domain: `name`, `name@3` or `name@previous`. If you store vectors, name the version: vectors of different
                versions cannot be compared.
            space: `calibrated`, or `raw` for vectors of the frozen encoder.
            normalize: scales vectors to norm 1.
            dimensions: number of leading dimensions to return; fewer than the encoder's only for raw vectors.
            truncate: if False, the server refuses a text that is too long for the encoder. Otherwise it cuts the text.
            truncation_direction: `Right` cuts off the end of the text, `Left` its beginning.

        Raises:
            EmptyInput, InvalidInput, NotFound, Conflict, Overloaded: as for `similarity`.

        Example:
            >>> vectors = client.embed(["A man is playing a guitar.", "Shares fell in London."])
            >>> len(vectors), len(vectors[0])
            (2, 384)
        """
        return self._send(
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

    def rerank(
        self,
        query: str,
        texts: Iterable[str],
        *,
        domain: str = "default",
        raw_scores: bool = False,
        return_text: bool = False,
        gallery: int | None = None,
    ) -> tuple[Ranked, ...]:
        """Ranks texts by their similarity to a query, the most similar first.

        Args:
            query: one text.
            texts: the texts to rank.
            domain: `name`, `name@3` or `name@previous`.
            raw_scores: if True, scores are similarities instead of percentiles.
            return_text: if True, the answer repeats each text.
            gallery: number of entries that were searched to find the texts. The result then has the `false_hit_rate`
                of each text.

        Returns:
            The score of each text, and its index in `texts`. Scores are percentiles, 0-1, or similarities if the
            domain has no random pairs.

        Raises:
            EmptyInput, InvalidInput, NotFound, Conflict, Overloaded: as for `similarity`.

        Example:
            >>> ranked = client.rerank("playing music", ["Shares fell in London.", "A man is playing a guitar."])
            >>> [(text.index, text.score) for text in ranked]
            [(1, 0.998), (0, 0.31)]
        """
        return self._send(
            _scoring.rerank(
                query, texts, domain=domain, raw_scores=raw_scores, return_text=return_text, gallery=gallery
            )
        )

    def ready(self) -> bool:
        """Whether the server accepts requests now: False while it starts or stops, or if it cannot be reached.

        Example:
            >>> client.ready()
            True
        """
        return self._send(_scoring.ready())

    def calibrate(
        self,
        source: Source,
        *,
        domain: str,
        method: str = "auto",
        promote: str = "if_better",
        seed: int = 0,
        labels: Iterable[LabelledPair] = (),
        kind: str = "matches",
        force: bool = False,
        column: str | int | None = None,
        charset: str | None = None,
        sheet: str | None = None,
        header: bool | None = None,
        idempotency_key: IdempotencyKey = True,
    ) -> Job:
        """Posts unlabelled text of a domain; a background job fits a calibration to it.

        Args:
            source: an iterable of sentences, or a `pathlib.Path` to a file: text with one sentence per line, `.ndjson`
                or `.jsonl` with one JSON value per line, or a table (CSV, TSV, Parquet, `.xlsx`). At least 200
                distinct sentences are needed. The client never holds the whole source in memory.
            domain: the domain's name, without a version.
            method: `auto`, or a method of the server; the error for an unknown method lists all methods.
            promote: whether the new version becomes champion: `if_better`, `always` or `never`.
            seed: seed of the random numbers; the same text, settings and seed give the same version.
            labels: labelled pairs, from which probabilities are learned: (text, text, label) or (text, text, label,
                weight).
            kind: what the labels mean: `matches` (1 for a match, 0 for no match; other labels are refused) or `grades`
                (similarities within 0 to 1 or 0 to 5).
            force: for a text file: each line is a sentence, even if the lines look like rows of a table.
            column: name or number of the table column that has the sentences. 1 is the first column.
            charset, sheet, header: encoding of the file, sheet of a workbook, and whether the first row names the
                columns. Needed only if the server does not detect them.
            idempotency_key: True generates a key; a string is used as the key; False sends none and disables retries.

        Returns:
            The accepted job, which runs in the background; `wait` returns its final state.

        Raises:
            EmptyInput, InvalidInput: no text, too few sentences, a table without `column`, or an invalid line, which
                the message names.
            TooLarge: more bytes than the server accepts. Conflict: the idempotency key was used with other content.
            Unavailable: no worker runs jobs on this server. Overloaded: too many jobs are waiting.
            OSError, UnicodeDecodeError: the file cannot be read.

        Example:
            >>> from pathlib import Path
            >>> job = client.calibrate(Path("tickets.txt"), domain="tickets")
            >>> job.status
            'queued'
        """
        return self._send(
            _calibrating.calibrate(
                source,
                domain=domain,
                method=method,
                promote=promote,
                seed=seed,
                labels=labels,
                kind=kind,
                force=force,
                column=column,
                charset=charset,
                sheet=sheet,
                header=header,
                idempotency_key=idempotency_key,
            )
        )

    def add_labels(
        self,
        domain: str,
        labels: Iterable[LabelledPair],
        *,
        kind: str = "matches",
        version: int | None = None,
        promote: str = "if_better",
        seed: int = 0,
        seen: Domain | None = None,
        idempotency_key: IdempotencyKey = True,
    ) -> Job:
        """Posts labelled pairs; a background job learns probabilities from them and makes a new version of the domain.

        Args:
            domain: the domain's name, without a version.
            labels: at least 20 pairs: (text, text, label) or (text, text, label, weight).
            kind: what the labels mean: `matches` (1 for a match, 0 for no match; other labels are refused) or `grades`
                (similarities within 0 to 1 or 0 to 5).
            version: the version to start from; default: the champion.
            promote: whether the new version becomes champion: `if_better`, `always` or `never`. A version that makes a
                saved threshold unreachable is never promoted by itself.
            seed: seed of the random numbers; the same labels and seed give the same version.
            seen: a result of `client.domain()`. No job starts if the domain has changed since then. If None, the
                client reads the domain and uses the result as `seen`.
            idempotency_key: as for `calibrate`.

        Raises:
            InvalidInput: too few pairs, or all of them have the same label. NotFound: no such domain.
            Conflict: the domain has no random pairs yet (calibrate it from text first), or it has changed
                since `seen`.

        Example:
            >>> import csv
            >>> with open("labels.csv", newline="") as file:
            ...     labels = [(a, b, float(label)) for a, b, label in csv.reader(file)]
            >>> job = client.add_labels("tickets", labels)
            >>> job.status
            'queued'
        """
        return self._send(
            _calibrating.add_labels(
                domain,
                labels,
                kind=kind,
                version=version,
                promote=promote,
                seed=seed,
                seen=seen,
                idempotency_key=idempotency_key,
            )
        )

    def job(self, job: Job | str) -> Job:
        """The state of a job, with its progress. At the end, the state also has the report or the error.

        Raises:
            NotFound: no such job, or its record was removed.

        Example:
            >>> newest = client.jobs()[0]
            >>> state = client.job(newest)
            >>> state.status, state.stage, state.progress
            ('running', 'fitting', 0.6)
        """
        return self._send(_calibrating.job(job))

    def jobs(self) -> tuple[Job, ...]:
        """All recorded jobs, newest first, without their reports.

        Example:
            >>> [(job.domain, job.status) for job in client.jobs()]
            [('tickets', 'running'), ('letters', 'queued'), ('films', 'succeeded')]
        """
        return self._send(_calibrating.jobs())

    def cancel(self, job: Job | str) -> Job:
        """Cancels a job: its text is deleted, and it makes no version.

        Raises:
            NotFound: no such job. Conflict: the job has ended, or is publishing its result.

        Example:
            >>> newest = client.jobs()[0]
            >>> client.cancel(newest).status
            'cancelled'
        """
        return self._send(_calibrating.cancel(job))

    def domains(self, *, after: str = "", contains: str = "") -> tuple[Domain, ...]:
        """Up to 1,000 domains with their versions, sorted by name.

        Args:
            after: returns only domains whose names sort after this name. For the next page, give the last name.
            contains: returns only domains whose names contain this text.

        Example:
            >>> [(domain.domain, domain.champion) for domain in client.domains()]
            [('default', 1), ('tickets', 3)]
        """
        return self._send(_domains.domains(after=after, contains=contains))

    def domain(self, name: str) -> Domain:
        """One domain: its champion and previous version, all versions, and drift.

        Raises:
            NotFound: no such domain.

        Example:
            >>> tickets = client.domain("tickets")
            >>> tickets.champion, tickets.previous, [version.version for version in tickets.versions]
            (3, 2, [1, 2, 3])
        """
        return self._send(_domains.domain(name))

    def version(self, domain: str, version: int) -> Version:
        """A version: where it comes from, its files and its report.

        Raises:
            NotFound: no such version.

        Example:
            >>> version = client.version("tickets", 3)
            >>> version.method, version.sentences
            ('soft-whitening', 5000)
        """
        return self._send(_domains.version(domain, version))

    def threshold(
        self,
        domain: str,
        *,
        fmr: float | None = None,
        precision: float | None = None,
        false_hit_rate: float | None = None,
        gallery: int | None = None,
        space: Space | None = None,
        unit: Unit | None = None,
    ) -> Threshold:
        """The smallest similarity at which pairs match, for a target. Give one of `fmr`, `precision`, `false_hit_rate`.

        Args:
            domain: `name`, `name@3` or `name@previous`.
            fmr: false-match rate: share of random pairs that may match, at least 1e-7 and less than 1.
            precision: share of true matches among the pairs that reach the threshold, estimated from labelled pairs.
            false_hit_rate: share of searches that may return a wrong match, at least 1e-6 and less than 1.
            gallery: number of entries in a search; only with `false_hit_rate`.
            space: `calibrated`, the default, or `raw` for a threshold on `Similarity.cosine`. Required with `unit`,
                unless the version uses the method identity: which vectors an index holds.
            unit: also returns the threshold as a distance of this unit, for an index of vectors: `cosine_distance`,
                `l2`, `l2_squared` or `inner_product`.

        Raises:
            InvalidInput: no target, several targets, or a target that is out of range. NotFound: no such domain.
            Conflict: the version has no random pairs (needed for `fmr`), no labels (for `precision`), or no counts of
                false hits (for `false_hit_rate`). Versions of earlier releases have no counts of false hits.

        Example:
            >>> advice = client.threshold("tickets", fmr=0.01)
            >>> advice.similarity, advice.interval
            (0.412, (0.405, 0.419))
        """
        return self._send(
            _domains.threshold(
                domain,
                fmr=fmr,
                precision=precision,
                false_hit_rate=false_hit_rate,
                gallery=gallery,
                space=space,
                unit=unit,
            )
        )

    def thresholds(self, domain: str) -> Thresholds:
        """The saved thresholds of a domain, with their similarities for the domain's current version.

        Raises:
            NotFound: no such domain.

        Example:
            >>> saved = client.thresholds("tickets")
            >>> [(one.name, one.target, one.similarity) for one in saved.thresholds]
            [('duplicates', {'fmr': 0.01}, 0.412)]
        """
        return self._send(_domains.thresholds(domain))

    def save_threshold(
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
        """Saves a target under a name. Give one of `fmr`, `precision` and `false_hit_rate`.

        Pass the name to `similarity` as `threshold`. The target is the same for all versions of the domain. Each
        version has its own similarity threshold for the target.

        Args:
            domain: the domain's name, without a version.
            name: 1 to 64 characters of a-z, 0-9, `.`, `_`, `-`. A target with the same name is replaced.
            fmr, precision, false_hit_rate, gallery: as for `threshold`.
            seen: a result of `client.domain()`. Nothing is saved if the domain has changed since then. If None, the
                client does not check this.

        Returns:
            The saved target. If the current version cannot reach the target, `notice` says why.

        Raises:
            InvalidInput: no target, several targets, or a target that is out of range.
            NotFound: no such domain, or the domain has no version.
            Conflict: the domain has changed since `seen`.

        Example:
            >>> client.save_threshold("tickets", "duplicates", fmr=0.01).target
            {'fmr': 0.01}
            >>> pairs = [("Printer is jammed.", "Paper is stuck."), ("Printer is jammed.", "Cannot log in.")]
            >>> client.similarity(pairs, domain="tickets", threshold="duplicates").match
            (True, False)
        """
        return self._send(
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

    def delete_threshold(self, domain: str, name: str, *, seen: Domain | None = None) -> None:
        """Deletes a saved threshold.

        Args:
            domain: the domain's name, without a version.
            name: the name of the saved threshold.
            seen: a result of `client.domain()`. Nothing is deleted if the domain has changed since then. If None, the
                client does not check this.

        Raises:
            NotFound: no such domain or threshold. Conflict: the domain has changed since `seen`.

        Example:
            >>> client.delete_threshold("tickets", "duplicates")
        """
        self._send(_domains.delete_threshold(domain, name, seen=seen))

    def promote(self, domain: str, version: int, *, without: Iterable[str] = (), seen: Domain | None = None) -> Domain:
        """Makes a version the champion. All servers that share the store use the version within two seconds.

        Args:
            domain: the domain's name, without a version.
            version: the new champion.
            without: names of saved thresholds that the version may make unreachable; otherwise such a change raises
                Conflict, which names them.
            seen: a result of `client.domain()`. Nothing is promoted if the domain has changed since then. If None,
                the client reads the domain and uses the result as `seen`.

        Raises:
            NotFound: no such version.
            Conflict: the domain has changed since `seen`, the version belongs to another encoder, or it makes saved
                thresholds unreachable that `without` does not name.
            Unavailable: the version's files do not match their manifest.

        Example:
            >>> tickets = client.domain("tickets")
            >>> client.promote("tickets", 2, seen=tickets).champion
            2
        """
        return self._send(_domains.promote(domain, version, without=without, seen=seen))

    def rollback(self, domain: str, *, without: Iterable[str] = (), seen: Domain | None = None) -> Domain:
        """Swaps the champion and the previous version. They are swapped only once if the client retries the request.

        Args:
            domain: the domain's name, without a version.
            without: as for `promote`.
            seen: a result of `client.domain()`. Nothing is rolled back if the domain has changed since then. If None,
                the client reads the domain and uses the result as `seen`.

        Raises:
            NotFound: no such domain. Conflict: the domain has no previous version, or has changed since `seen`.

        Example:
            >>> client.rollback("tickets").champion
            2
        """
        return self._send(_domains.rollback(domain, without=without, seen=seen))

    def delete_domain(self, domain: str) -> None:
        """Deletes a domain with all its versions, and cancels its calibrations. Safe to repeat.

        Within two seconds, all servers that share the store answer requests for the domain with 404. Version numbers
        are not used again.

        Raises:
            NotFound: there never was such a domain. Conflict: the domain is `default`, which cannot be deleted.

        Example:
            >>> client.delete_domain("tickets")
        """
        self._send(_domains.delete_domain(domain))

    def delete_version(self, domain: str, version: int, *, seen: Domain | None = None) -> None:
        """Deletes a version permanently. Its number is not used again. A second deletion raises no error.

        Args:
            domain: the domain's name, without a version.
            version: a version that is neither champion nor previous.
            seen: a result of `client.domain()`. Nothing is deleted if the domain has changed since then. If None,
                the client reads the domain and uses the result as `seen`.

        Raises:
            NotFound: there never was such a version.
            Conflict: the version is champion or previous, or the domain has changed since `seen`.

        Example:
            >>> client.delete_version("tickets", 1)
        """
        self._send(_domains.delete_version(domain, version, seen=seen))

    def events(self, job: Job | str, *, timeout: float | None = None) -> Iterator[Job]:
        """Yields a job's state now and after each change, until the job ends. Reconnects if the connection is lost.

        Args:
            job: the job or its id.
            timeout: maximum number of seconds to wait; None waits without limit.

        Raises:
            NotFound: no such job. WaitTimeout: the time is up; the job continues.

        Example:
            >>> newest = client.jobs()[0]
            >>> for job in client.events(newest):
            ...     print(job.status, job.progress)
            running 0.6
            succeeded 1.0
        """
        return self._follow(Following(job, self._retries, timeout))

    def wait(self, job: Job | str, *, progress: bool = True, timeout: float | None = None) -> Job:
        """Waits until a job has ended. Shows a progress bar on a terminal if `isosim-client[progress]` is installed.

        The job continues if the program stops waiting, for example after Ctrl-C or the cancellation of an asyncio task.

        Args:
            job: the job or its id.
            progress: whether to show the bar.
            timeout: maximum number of seconds to wait; None waits without limit.

        Returns:
            The job that has succeeded, with its `version`, `promoted` and `report`.

        Raises:
            JobFailed, JobCancelled: the job ended without success. `error.job` is its last state.
            WaitTimeout: the time is up; the job continues. NotFound: no such job.

        Example:
            >>> newest = client.jobs()[0]
            >>> done = client.wait(newest)
            >>> done.version, done.promoted
            (3, True)
        """
        following = Following(job, self._retries, timeout)
        with bar(progress) as show:
            for state in self._follow(following):
                show(state)
        return following.outcome()

    def _send(self, call: Call[T]) -> T:
        tries = Tries(self._retries)
        while True:
            try:
                content = None if call.upload is None else call.upload.chunks()
                with translated():
                    response = self._http.send(request(self._http, call, tries.timeout(self._timeout), content))
                answer = call.read(response.status_code, response.headers, response.content)
            except IsosimError as error:
                pause = tries.pause_after(error, call.repeatable())
                if pause is not None:
                    self._sleep(pause)
                    continue
                if call.rescue is None:
                    raise
                answer = call.rescue(error)
            if call.then is None:
                return answer
            call = call.then(answer)

    def _follow(self, following: Following) -> Iterator[Job]:
        while not following.ended:
            failure = None
            try:
                with self._open(following.connect(), following.seconds_of_silence()) as chunks:
                    for chunk in chunks:
                        yield from following.feed(chunk)
            except IsosimError as error:
                failure = error
            if not following.ended:
                self._sleep(following.pause(failure))

    @contextmanager
    def _open(self, call: Call[Any], timeout: float) -> Iterator[Iterator[bytes]]:
        with translated():
            response = self._http.send(request(self._http, call, timeout, None), stream=True)
            try:
                if response.status_code != 200:
                    check_status(response.status_code, response.headers, response.read())
                yield response.iter_bytes()
            finally:
                response.close()
