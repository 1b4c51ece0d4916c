"""Calibrations behind Redis: RQ carries the job's id, a worker anywhere runs it in a killable child."""

import asyncio
import contextlib
import time

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Retry, Worker
from rq.command import send_stop_job_command
from rq.exceptions import DuplicateJobError, InvalidJobOperation, NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus

from service.core.errors import Unavailable

QUEUE = "isosim"
TASK = "service.worker.run_queued"
REMEDY = "start one with: isosim worker"
STOP_SECONDS = 10.0  # how long a cancel waits for the worker to end its child


class RqJobs:
    """Hands jobs to RQ. Redis holds nothing but the id."""

    def __init__(self, url: str, timeout: int) -> None:
        self.redis = Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0)
        self.queue = Queue(QUEUE, connection=self.redis)
        self.timeout = timeout

    async def available(self) -> None:
        try:
            workers = await asyncio.to_thread(Worker.count, queue=self.queue)
        except (RedisError, OSError) as error:
            raise Unavailable(f"the job queue cannot be reached ({type(error).__name__}); is Redis running?") from error
        if not workers:
            raise Unavailable(f"no calibration worker is running; {REMEDY}")

    async def submit(self, job_id: str, attempt: int) -> None:
        try:
            await asyncio.to_thread(self._enqueue, job_id, attempt)
        except (RedisError, OSError) as error:
            raise Unavailable(f"the job queue cannot be reached ({type(error).__name__}); retry the job") from error

    def _enqueue(self, job_id: str, attempt: int) -> None:
        # One retry: a killed worker's job runs again on another; a job that fails by itself does not raise.
        # One id an attempt: a request that is sent twice does not queue the job twice.
        with contextlib.suppress(DuplicateJobError):
            self.queue.enqueue(
                TASK, job_id, job_id=f"{job_id}-{attempt}", job_timeout=self.timeout, retry=Retry(max=1),
                result_ttl=60, failure_ttl=24 * 3600, unique=True,
            )  # fmt: skip

    async def stop(self, job_id: str) -> None:
        try:
            await asyncio.to_thread(self._stop, job_id)
        except (RedisError, OSError):
            return  # the worker finds the decision in the store at its next heartbeat

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
