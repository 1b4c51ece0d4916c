"""The client for programs without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx2

from . import _calibrating, _domains, _scoring
from ._answers import Job
from ._call import Call, check_status
from ._following import Following
from ._http import TIMEOUT, request, settings, translated
from ._method import documented
from ._progress import bar
from ._retries import Retries, Tries
from .errors import IsosimError

P = ParamSpec("P")
T = TypeVar("T")
PATIENT = Retries()


def sends(build: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method that sends what `build` describes and returns what it reads."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._send(build(*args, **kwargs))

    return documented(method, build, "Client")


class Client:
    """A connection pool to one isosim server; safe to share among threads. Close it, or use it in a `with`.

    Args:
        base_url: the server's address, with the path below which a gateway serves it, if any.
        api_key: sent as `Authorization: Bearer`.
        timeout: seconds that the server may be silent in one request; 5 at most to connect.
        retries: how patiently requests are sent again.
        transport: httpx2's, for certificates, proxies and tests.
        sleep: waits between tries; for tests.

    Every method raises IsosimError (the tree: `help(isosim_client.errors)`), and sends again what can heal.
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
        self._http.close()

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

    similarity = sends(_scoring.similarity)
    embed = sends(_scoring.embed)
    rerank = sends(_scoring.rerank)
    ready = sends(_scoring.ready)

    calibrate = sends(_calibrating.calibrate)
    add_labels = sends(_calibrating.add_labels)
    job = sends(_calibrating.job)
    jobs = sends(_calibrating.jobs)
    cancel = sends(_calibrating.cancel)
    retry = sends(_calibrating.retry)

    domains = sends(_domains.domains)
    domain = sends(_domains.domain)
    version = sends(_domains.version)
    threshold = sends(_domains.threshold)
    promote = sends(_domains.promote)
    rollback = sends(_domains.rollback)
    delete_domain = sends(_domains.delete_domain)
    delete_version = sends(_domains.delete_version)

    def events(self, job: Job | str, *, timeout: float | None = None) -> Iterator[Job]:
        """A job's state, now and whenever it changes, until it ends; a lost connection is made anew.

        Args:
            job: or its id.
            timeout: seconds in all.

        Raises:
            NotFound: no such job. WaitTimeout: the time is up; the job goes on.
        """
        return self._follow(Following(job, self._retries, timeout))

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

    def wait(self, job: Job | str, *, progress: bool = True, timeout: float | None = None) -> Job:
        """Follows a job to its end, with a bar on a terminal (extra `progress`). Interrupting it leaves the job alone.

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
            for state in self._follow(following):
                show(state)
        return following.outcome()
