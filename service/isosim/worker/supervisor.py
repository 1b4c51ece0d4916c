"""`isosim worker`: takes jobs from the store and runs them one after the other in a child process.

This process writes the jobs' records: it claims a job, writes its heartbeats, and records how it ends. The child
(`isosim.worker.calibrating`) computes and reports over a socket, and asks before it publishes. So if this process is
stopped, its job falls silent, another worker takes it, and the child cannot begin to publish. If the child is stopped,
this process hears nothing from it, kills it and gives the job back. Neither outlives the other.

Loading torch takes longer than most fits, so a child that ended its job well waits a minute for the next one.
"""

import contextlib
import errno
import logging
import math
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson

from isosim.domains.store import DomainStore
from isosim.errors import IsosimError, JobCancelled
from isosim.jobs.hints import RedisHints
from isosim.jobs.job import Job, JobRequest, Status
from isosim.jobs.matches import MatchStore
from isosim.jobs.pulse import Pulse
from isosim.jobs.store import SILENCE, Attempt, JobStore
from isosim.observability.logs import about
from isosim.settings import Settings
from isosim.store.blobs import opened

log = logging.getLogger("isosim.jobs")

TICK = 0.5  # s; this process looks at its child, and whether it shall stop, at least this often
HEARTBEAT, DISTANT_HEARTBEAT = 2.0, 10.0  # s between heartbeats; object storage charges for each write
# Shortest and longest time (s) between looks for jobs. In a bucket each reads the records of all open jobs. Two of the
# shortest are longer than SILENCE, and three of the longest take less than 45 s: at most so long after the last
# heartbeat of a worker that has died, another one takes its job.
LOOK, DISTANT_LOOK = (0.8, 1.0), (14.6, 14.8)
STORAGE_REST = 10.0  # s for each attempt so far, in which a worker takes no job after storage has failed
PATIENCE = 600.0  # s that a worker tries to record how a job ended
EXIT = 5.0  # s in which a process ends that has closed its socket
WARM = 60.0  # s that a child waits for the next job; it holds about 300 MB
LAST_WORDS = 5.0  # s for giving back a job when the API process has ended
LEAST_FREE = 4 << 20  # bytes of a volume without which no job begins: it would fail three times, and be over
CHILD = (sys.executable, "-m", "isosim.worker.calibrating")


class Child:
    """A process that runs attempts of jobs, in a process group of its own, and the socket to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(self.socket.close)
            end = theirs.fileno()
            # The child stays in this process's session (see `isosim.server.local_worker`). Its standard output goes to
            # standard error, because libraries may print, and the API reads this process's standard output.
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [*command, str(end)],
                pass_fds=[end],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=environment,
                process_group=0,
            )
            unless_started.pop_all()
        self.gone = False  # it has ended, or has closed the socket
        self._killed = False
        self._rest = b""

    def begin(self, job: Job) -> None:
        self.send({"job": asdict(job)})

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has died; `messages` notices
            self.socket.sendall(orjson.dumps(message) + b"\n")

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """The messages that have come, after waiting for one for up to `seconds`."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return []
        try:
            received = self.socket.recv(1 << 20)
        except OSError:
            received = b""
        self.gone = not received
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [orjson.loads(line) for line in lines]

    def kill(self, patience: float = 0.0) -> int:
        """Kills the process and those that it has started, unless it ends by itself within `patience` seconds. Returns
        its exit code, or minus the number of the signal that ended it."""
        if not self._killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.socket.close()
        self._killed = True
        return self.process.wait()


class Worker:
    """Runs jobs until it is told to stop."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobStore,
        domains: DomainStore,
        hints: RedisHints | None,
        command: Sequence[str] = CHILD,
        on_busy: Callable[[bool], None] = lambda _: None,
        on_pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.jobs, self.domains, self.hints, self.command = settings, jobs, domains, hints, command
        self.on_busy = on_busy  # called with True when a job begins, with False when it ends
        self.on_pulse = on_pulse  # called at least every few seconds, unless this process hangs
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.heartbeat = DISTANT_HEARTBEAT if jobs.distant else HEARTBEAT
        self._waiting: tuple[Child, float] | None = None  # a child that may take the next job, and until when
        self._until: float | None = None  # when the running job is given back; None: this worker was not told to stop
        self._next_look = 0.0  # monotonic, s
        self._failing = False  # whether the last access of the store failed
        self.results = MatchStore(jobs.blobs, settings.keep_results)

    @property
    def stopping(self) -> bool:
        return self._until is not None

    def stop(self, *_: object) -> None:
        """Takes no more jobs; gives the running one back after `drain_seconds`, or at once if called again."""
        self._until = time.monotonic() + (0.0 if self.stopping else self.settings.drain_seconds)

    def serve(self, *, burst: bool = False, only: str | None = None) -> None:
        """Runs jobs until `stop` is called. With `burst`, also stops when there is no job to run. `only`: the id of the
        one job that it may run."""
        try:
            self._serve(only, burst=burst)
        finally:
            self._let_go()

    def _serve(self, only: str | None, *, burst: bool) -> None:
        while not self.stopping:
            attempt = self._claim(only)
            if attempt is not None:
                about.set({"job": attempt.job.id})
                self.on_busy(True)
                try:
                    self.attend(attempt)
                finally:
                    self.on_busy(False)
                    about.set({})
            elif burst:
                return
            else:
                self._rest(self._until_next_look())

    def _claim(self, only: str | None = None) -> Attempt | None:
        self.on_pulse()
        try:
            if not self.jobs.distant and shutil.disk_usage(self.jobs.blobs.address).free < LEAST_FREE:
                raise OSError(errno.ENOSPC, "the model store's volume is full; jobs wait until it has room")
            attempt = self.jobs.claim(self.name, self._champion, self._published, only, self._forget)
        except (OSError, IsosimError) as error:
            self._failed("no job can begin", error)
            return None
        if self._failing:
            log.info("jobs can begin again")
        self._failing = False
        return attempt

    def _until_next_look(self) -> float:
        """Seconds; looks after a hint or a job come in addition."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + random.uniform(*(DISTANT_LOOK if self.jobs.distant else LOOK))  # noqa: S311
        return self._next_look - now

    def _rest(self, seconds: float, *, hints: bool = True) -> None:
        """Waits, for a hint at most, unless this worker is told to stop."""
        until = time.monotonic() + seconds
        while not self.stopping and (left := until - time.monotonic()) > 0:
            self.on_pulse()
            self._let_go(time.monotonic())
            if self.hints is None or not hints:
                time.sleep(min(TICK, left))
            elif self.hints.wait(min(TICK, left)):
                return

    def _champion(self, request: JobRequest) -> int | None:
        """The domain's champion; None if it has none, or cannot be read: publishing reads it again."""
        with contextlib.suppress(IsosimError, OSError):
            return self.domains.read(request.domain).served(request.encoder).champion
        return None

    def _published(self, job: Job) -> dict[str, Any] | None:
        """The outcome of a job whose version or result an earlier attempt has published; None if none has."""
        if job.request.match is not None:  # its next attempt writes the same result again
            return None
        name, report = job.request.domain, None
        with contextlib.suppress(IsosimError):  # the next attempt fails at it, and says why
            domain = self.domains.read(name)
            version = domain.made_by(job.id)
            if version is not None:
                with contextlib.suppress(IsosimError):
                    report = self.domains.report(name, version.number)
                return outcome(job, version.number, report, promoted=version.number in domain.named())
        return None

    def attend(self, attempt: Attempt) -> None:
        """Runs an attempt to its end. Gives it back if this machine cannot start a process."""
        try:
            child = self._child()
        except OSError as error:
            why = f"its process could not be started ({error.strerror or type(error).__name__})"
            log.error("job %s is given back: %s", attempt.job.id, why)
            self._settle(partial(attempt.give_back, why, counts=False))
            self._rest(STORAGE_REST * attempt.job.attempt, hints=False)  # another worker may take it
            return
        child.begin(attempt.job)
        try:
            if self._follow(attempt, child):
                self._waiting = child, time.monotonic() + WARM
        except JobCancelled as error:
            log.warning("%s", error)
        finally:
            if self._waiting is None:
                child.kill()

    def _child(self) -> Child:
        """The child that has waited, if it lives, or a new one. Raises OSError if no process can be started."""
        if self._waiting is not None:
            child, self._waiting = self._waiting[0], None
            if child.process.poll() is None:
                return child
            child.kill()
        return Child(self.command, environment(self.settings))

    def _let_go(self, now: float = math.inf) -> None:
        """Ends a child whose time to wait is over by `now`."""
        if self._waiting is not None and now > self._waiting[1]:
            self._waiting[0].kill()
            self._waiting = None

    def _follow(self, attempt: Attempt, child: Child) -> bool:
        """Follows a child and records what becomes of its attempt. Returns whether the child has published a version,
        and can take another job. Raises JobCancelled if the job was cancelled, or was taken over because this process
        had been silent."""
        heard = began = time.monotonic()
        written, asked = began, False
        stage, progress = attempt.job.stage, attempt.job.progress
        while True:
            messages = child.messages(TICK)
            self.on_pulse()
            now = time.monotonic()
            heard = now if messages else heard
            for message in messages:
                if "stage" in message:
                    stage, progress = message["stage"], message["progress"]
                asked = asked or "publish" in message
                if "end" in message:
                    self._end(attempt, **message["end"])
                    return "version" in message["end"]
            if (why := self._over(attempt, child, stage, now - heard)) is not None:
                child.kill()
                self._settle(partial(attempt.give_back, why, counts=not self.stopping or child.gone))
                return False
            if now - began > self.settings.job_timeout:
                child.kill()
                limit = f"stopped after {self.settings.job_timeout:g} s, the time limit of a job (ISOSIM_JOB_TIMEOUT)"
                # A job that is publishing may have a version; the next attempt finds it.
                publishing = attempt.job.status is Status.PUBLISHING
                fail = partial(attempt.end, Status.FAILED, error=limit)
                self._settle(partial(attempt.give_back, limit) if publishing else fail)
                return False
            if not asked and now - written < self.heartbeat:
                continue
            asked = not self._written(attempt, child, stage, progress, asked=asked) and asked
            written = time.monotonic()

    def _written(self, attempt: Attempt, child: Child, stage: str, progress: float, *, asked: bool) -> bool:
        """Records progress or, if the child has `asked`, that the job is publishing. Returns False if the store fails:
        the job goes on."""
        try:
            if asked:
                attempt.publish()
                child.send({"publish": True})
            else:
                attempt.beat(stage, progress)
        except JobCancelled:
            raise
        except (OSError, IsosimError) as error:
            self._failed("the job's record cannot be written, and the job goes on", error)
            return False
        self._failing = False
        return True

    def _failed(self, what: str, error: Exception) -> None:
        """Logs the first of several failures of the store."""
        if not self._failing:
            log.error("%s: %s", what, error)
        self._failing = True

    def _over(self, attempt: Attempt, child: Child, stage: str, silent: float) -> str | None:
        """Why an attempt cannot go on, or None."""
        if child.gone:
            return ended_with(child.kill(EXIT), stage)
        if silent > SILENCE:
            return f"the job's process did not answer for {SILENCE:g} s while {stage}"
        if self._until is not None and time.monotonic() > self._until:
            return f"its worker was stopped while {stage}"
        return None

    def _end(
        self,
        attempt: Attempt,
        version: int | None = None,
        report: dict[str, Any] | None = None,
        promoted: bool = False,
        error: str | None = None,
        storage: str | None = None,
    ) -> None:
        """Records the end that a child has reported: a published version, an error, or that storage has failed."""
        job = attempt.job
        if storage is not None:
            log.error("job %s is given back, because storage failed: %s", job.id, storage)
            self._settle(partial(attempt.give_back, f"storage failed ({storage})"))
            self._rest(STORAGE_REST * job.attempt, hints=False)  # it may recover
        elif error is not None:
            self._settle(partial(attempt.end, Status.FAILED, error=error))
            self._forget(job)
        else:
            facts = outcome(job, version, report, promoted=promoted)
            if self._settle(partial(attempt.end, Status.SUCCEEDED, **facts)) and version is not None:
                self._tidy(job.request.domain)

    def _settle(self, write: Callable[[], object]) -> bool:
        """Writes how an attempt ended, again and again while the store fails. Returns whether it was written."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                write()
            except JobCancelled as error:  # or an earlier try was written, and its answer lost
                log.warning("%s", error)
                return False
            except (OSError, IsosimError) as error:
                self._failed("the end of a job cannot be recorded", error)
                if self.stopping or time.monotonic() > until:
                    return False  # the job falls silent
                self._rest(self.heartbeat, hints=False)
            else:
                return True

    def _tidy(self, domain: str) -> None:
        """Deletes old versions. A failure is only logged, because the job has already succeeded."""
        try:
            self.domains.prune(domain, self.settings.keep_versions, self.jobs.rested_on()[domain])
        except (IsosimError, OSError):
            log.exception("old versions of domain %s could not be deleted", domain)

    def _forget(self, job: Job) -> None:
        """Removes what a failed match has written. A later sweep does it if this fails."""
        if job.request.match is not None:
            with contextlib.suppress(IsosimError, OSError):
                self.results.remove(job)


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a child, which reads its settings only from there. The command line may have given others."""
    stores = {"ISOSIM_MODEL_STORE": settings.model_store, "ISOSIM_SEED_STORE": settings.seed_store}
    return os.environ | {name: str(store) for name, store in stores.items() if store is not None}


def outcome(job: Job, version: int | None, report: dict[str, Any] | None, *, promoted: bool) -> dict[str, Any]:
    """The facts of a job that has succeeded. Notices in the report become the job's."""
    facts = dict(report or {})
    labels = facts.get("labels") or {}
    notices = [*job.notices, *facts.pop("notices", []), *([labels["notice"]] if labels.get("notice") else [])]
    return {"version": version, "promoted": promoted, "report": facts if report else report, "notices": notices}


def ended_with(code: int, stage: str) -> str:
    """Why a process ended that has not reported an end."""
    if code == -signal.SIGKILL:
        return f"the job's process was killed while {stage}, perhaps because memory ran out"
    what = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"the job's process ended {what} while {stage}"


def end_with_parent(worker: Worker) -> None:
    """Stops a worker when the process that has started it closes the worker's standard input, or dies."""

    def watch() -> None:
        sys.stdin.buffer.read()
        worker.stop()
        worker.stop()
        time.sleep(LAST_WORDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def run(settings: Settings, *, burst: bool = False, attached: bool = False) -> None:
    """Runs a worker until it gets SIGTERM. `attached`: it is a child process of the API, tells it on standard output
    when a job begins and ends, and ends with it."""
    blobs, pulse = opened(settings.model_store), Pulse()
    hints = None if settings.redis_address is None else RedisHints(settings.redis_address)

    def tell(busy: bool) -> None:
        print("busy" if busy else "idle", flush=True)

    worker = Worker(
        settings,
        JobStore(blobs),
        DomainStore(blobs),
        hints,
        on_busy=tell if attached else lambda _: None,
        on_pulse=pulse,
    )
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    if attached:
        end_with_parent(worker)
    try:
        worker.serve(burst=burst)
    finally:
        pulse.close()
