"""Runs calibrations through Redis: RQ passes the job's id to a worker, which runs it in a child process."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Retry, Worker, get_current_job
from rq.command import send_stop_job_command
from rq.exceptions import DuplicateJobError, InvalidJobOperation, NoSuchJobError, StopRequested
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.timeouts import JobTimeoutException, UnixSignalDeathPenalty
from rq.utils import as_text, utcparse
from rq.worker_registration import register

from isosim.errors import Unavailable
from isosim.jobs.job import Job
from isosim.redis_connection import CLUSTER, CLUSTER_REMEDY, is_cluster, why

QUEUE = "isosim"
TASK = "isosim.worker.run_queued"
REMEDY = "start one with: isosim worker"
STOP_SECONDS = 10.0  # seconds that a cancellation waits for the worker to end its child process
TIMEOUT = 2.0  # seconds within which Redis must accept a connection, and answer a command
THREADS = 4  # threads only for calls of Redis, so that a hanging Redis does not block the threads that score
MOST_CALLS = 64  # maximum calls that run or wait for a thread; reached only if Redis hangs
LONGEST = 5.0  # seconds that a call may take, including its wait for a thread
RETRIES = 1  # how often RQ repeats a job whose worker or child process has died
KILLED = "killed"  # key in a job's metadata in RQ; set when a worker notices that the job's process has died
ENDED = {JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED, JobStatus.CANCELED}

T = TypeVar("T")


@dataclass(frozen=True)
class Delivery:
    """How RQ delivered the job that this process runs."""

    handed: int  # number of attempts that had begun when RQ received the job; the RQ id is `<job>-<handed>`
    repeated: bool  # True: RQ delivers the job again, because it considers the earlier worker or process dead
    killed: bool  # True: a worker has noticed that the job's process died

    @classmethod
    def current(cls) -> Self:
        job = get_current_job()
        assert job is not None  # noqa: S101 - only called inside an RQ job
        return cls.of(job)

    @classmethod
    def of(cls, job: RqJob) -> Self:
        return cls(int(job.id.rpartition("-")[2]), job.retries_left != RETRIES, bool(job.meta.get(KILLED)))

    @property
    def attempt(self) -> int:
        """Number of the attempt that this delivery begins. An earlier delivery under the same RQ id began one, too."""
        return self.handed + 1 + self.repeated


class RqJobs:
    """Hands jobs to RQ. Redis stores only the job's id."""

    def __init__(self, url: str, timeout: int) -> None:
        # redis-py's retries are switched off, so that callers get an error within seconds and can retry themselves.
        self.redis = Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=None)
        self.queue = Queue(QUEUE, connection=self.redis)
        self.timeout = timeout
        self._threads = ThreadPoolExecutor(THREADS, "rq")
        self._places = asyncio.Semaphore(MOST_CALLS)

    async def _call(self, function: Callable[..., T], *args: object, seconds: float = LONGEST) -> T:
        """Calls `function` in a thread. Raises OSError at once if MOST_CALLS calls are in progress. Raises TimeoutError
        (an OSError) after `seconds`."""
        if self._places.locked():
            raise BlockingIOError(f"{MOST_CALLS} calls wait for Redis already")
        async with self._places, asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def available(self) -> None:
        try:
            workers = await self._call(self._workers)
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis, the job queue, cannot be used: {why(error)}") from error
        if not workers:
            raise Unavailable(f"no calibration worker is running; {REMEDY}")

    async def workers(self) -> int | None:
        try:
            return await self._call(self._workers)
        except (RedisError, OSError):
            return None

    def _workers(self) -> int:
        """Number of workers with a live heartbeat. RQ also lists killed workers, until another worker removes them."""
        keys = Worker.all_keys(queue=self.queue)
        return int(self.redis.exists(*keys)) if keys else 0

    async def submit(self, job_id: str, attempt: int) -> None:
        try:
            await self._call(self._enqueue, job_id, attempt)
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis, the job queue, cannot be used: {why(error)}; retry the job") from error

    async def recover(self, waiting: Sequence[Job]) -> None:
        with contextlib.suppress(RedisError, OSError):  # the next call of `recover` tries again
            for job in waiting:
                await self._call(self._enqueue, job.id, job.attempt)

    def _enqueue(self, job_id: str, attempt: int) -> None:
        # The attempt is part of the RQ id, so that RQ refuses an attempt that is queued already.
        name = f"{job_id}-{attempt}"
        with contextlib.suppress(DuplicateJobError):
            self._put(name, job_id)
            return
        with contextlib.suppress(DuplicateJobError, NoSuchJobError):
            before = RqJob.fetch(name, connection=self.redis)
            # The job's record says queued, so no worker has begun this attempt. If RQ says that the attempt has ended,
            # the attempt is queued again.
            if before.get_status() in ENDED:
                before.delete()
                self._put(name, job_id)

    def _put(self, name: str, job_id: str) -> None:
        # If the process or the worker of a job is killed, RQ retries the job once. RQ does not retry a failed
        # calibration, because `run_queued` returns without an error.
        self.queue.enqueue(
            TASK, job_id, job_id=name, job_timeout=self.timeout, retry=Retry(max=RETRIES),
            result_ttl=60, failure_ttl=24 * 3600, unique=True,
        )  # fmt: skip

    async def stop(self, job_id: str) -> None:
        try:
            await self._call(self._stop, job_id, seconds=STOP_SECONDS + LONGEST)
        except (RedisError, OSError):
            return  # the worker finds the cancellation in the job's record at its next heartbeat

    def _stop(self, job_id: str) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        waiting = self.queue.get_job_ids()
        started = self.queue.started_job_registry.get_job_ids()
        for rq_id in [i for i in (*waiting, *started) if i.startswith(job_id)]:
            try:
                job = RqJob.fetch(rq_id, connection=self.redis)
                if job.get_status() is not JobStatus.STARTED:
                    job.cancel()
                    continue
                send_stop_job_command(self.redis, rq_id)
                while job.get_status(refresh=True) is JobStatus.STARTED and time.monotonic() < deadline:
                    time.sleep(0.05)
            except (NoSuchJobError, InvalidJobOperation):
                continue


def heartbeats(redis: Redis) -> list[float]:
    """For each living worker, the seconds since its last heartbeat, in ascending order."""
    with redis.pipeline(transaction=False) as pipeline:
        for key in Worker.all_keys(queue=Queue(QUEUE, connection=redis)):
            pipeline.hget(key, "last_heartbeat")
        beats = [utcparse(as_text(beat)) for beat in pipeline.execute() if beat is not None]
    now = datetime.now(UTC)
    return sorted(max(0.0, (now - beat).total_seconds()) for beat in beats)


log = logging.getLogger(__name__)

# In seconds. RQ computes three times from TTL:
# - TTL - 15 = 45 s: time between the heartbeats of a waiting worker.
# - TTL - 5 = 55 s: time until a worker notices a broken connection.
# - TTL + 60 = 120 s: time after its last heartbeat until a worker counts as dead.
TTL = 60
MONITORING = 10  # seconds between a job's heartbeats in RQ; after 70 s without one, another worker may run the job
MAINTENANCE = 60  # seconds between checks for jobs whose worker has died
PAUSE = 2.0  # seconds between attempts to reach Redis


class TimeLimit(UnixSignalDeathPenalty):
    """Ends a job's process by a signal (SIGALRM) when the job's time is over. RQ's own class raises an exception inside
    the job, which libraries may catch: a job whose time was over during an import in torch ran on and succeeded."""

    def setup_death_penalty(self) -> None:
        super().setup_death_penalty()  # type: ignore[no-untyped-call]
        if self._exception is JobTimeoutException:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


class QueueWorker(Worker):
    """Runs jobs one after the other, each in its own child process.

    Calls `on_lost` if a child process is killed and the job will not be retried: with the job's id, the number of the
    attempt and, if the job's time was over, with its time limit in seconds, otherwise with None.
    """

    death_penalty_class = TimeLimit

    def __init__(self, connection: Redis, on_lost: Callable[[str, int, int | None], None]) -> None:
        super().__init__(
            [Queue(QUEUE, connection=connection)],
            connection=connection,
            worker_ttl=TTL,
            job_monitoring_interval=MONITORING,
            maintenance_interval=MAINTENANCE,
        )
        self.on_lost = on_lost
        self.stopping = False
        self._exit_status: int | None = None  # of the last child process, as `os.wait4` returns it

    def request_stop(self, signum: Any, frame: Any) -> None:
        self.stopping = True
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        super().heartbeat(timeout, pipeline)
        register(self, pipeline)  # Redis may have restarted without its data, and forgotten this worker

    # The next two methods only log errors of Redis, so that a running job continues while Redis does not answer. The
    # job does not need Redis, because it writes its own heartbeat into the model store.

    def maintain_heartbeats(self, job: Any) -> None:
        try:
            super().maintain_heartbeats(job)
        except RedisError as error:
            log.warning("cannot tell Redis that job %s is running (%s); the job continues", job.id, error)

    def set_current_job_working_time(self, current_job_working_time: float, pipeline: Any = None) -> None:
        try:
            super().set_current_job_working_time(current_job_working_time, pipeline)
        except RedisError as error:
            log.warning("cannot tell Redis how long the current job has run (%s); the job continues", error)

    def wait_for_horse(self) -> Any:
        ended = super().wait_for_horse()
        self._exit_status = ended[1]
        return ended

    def monitor_work_horse(self, job: Any, queue: Any) -> None:
        self._exit_status = None
        try:
            super().monitor_work_horse(job, queue)
        finally:
            # If Redis did not answer or has lost the job, RQ has not called `handle_work_horse_killed`.
            if timed_out(self._exit_status):
                self._report_lost(job, job.timeout)

    def kill_horse(self, *args: Any) -> None:
        if self.horse_pid:  # with 0, no child process is running, and RQ would kill this worker
            super().kill_horse(*args)

    def handle_work_horse_killed(self, job: Any, retpid: Any, ret_val: Any, rusage: Any) -> None:
        over = timed_out(ret_val)
        if over or not job.retries_left:
            self._report_lost(job, job.timeout if over else None)
            job.retries_left = 0
            return
        job.meta[KILLED] = True
        # KILLED tells the retry that the earlier process is dead, so the retry begins at once. Without KILLED, the
        # retry first waits for a heartbeat of the earlier process, and begins if no heartbeat comes.
        with contextlib.suppress(RedisError):
            job.save_meta()

    def _report_lost(self, job: RqJob, limit: int | None) -> None:
        self._exit_status = None  # so that the job is reported only once
        self.on_lost(job.args[0], Delivery.of(job).attempt, limit)

    def teardown(self) -> None:
        try:
            super().teardown()  # type: ignore[no-untyped-call]
        except RedisError:
            if self.pubsub_thread is not None:
                self.pubsub_thread.stop()


def timed_out(status: int | None) -> bool:
    """Whether `TimeLimit` ended the process with this exit status."""
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM


def work(connection: Redis, on_lost: Callable[[str, int, int | None], None], log_level: str, *, burst: bool) -> None:
    """Runs a worker until it is told to stop. With `burst`, the worker also stops when the queue is empty.

    Raises:
        Unavailable: Redis is a cluster, or `burst` is true and Redis cannot be reached.
    """
    worker = None
    while True:
        try:
            if is_cluster(connection):
                raise Unavailable(f"{CLUSTER}; {CLUSTER_REMEDY}")
            worker = QueueWorker(connection, on_lost)
            worker.work(burst=burst, with_scheduler=False, logging_level=log_level)
        except StopRequested:
            return
        except RedisError as error:
            if burst:
                raise Unavailable(f"Redis, the job queue, cannot be used: {why(error)}") from error
            log.warning("Redis cannot be used, trying again: %s", why(error))
        if burst or (worker is not None and worker.stopping):
            return
        try:
            time.sleep(PAUSE)
        except StopRequested:  # raised by a signal handler
            return
