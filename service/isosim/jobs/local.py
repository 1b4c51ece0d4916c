"""Runs calibrations without Redis, one at a time, each in a child process with low priority."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from isosim.errors import NotFound, Unavailable
from isosim.jobs.job import Job, Status
from isosim.jobs.store import JobStore, killed

log = logging.getLogger(__name__)


class LocalJobs:
    """Runs jobs in order of submission. An async context manager that owns its queue and its child process."""

    def __init__(
        self,
        jobs: JobStore,
        model_store: Path,
        threads: int,
        timeout: float,
        on_busy: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.jobs, self.model_store, self.threads, self.timeout = jobs, model_store, threads, timeout
        self.on_busy = on_busy  # called with True when a calibration starts on this machine, with False when it ends
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()  # ids of the jobs in the queue
        self._task: asyncio.Task[None] | None = None
        self._current: tuple[str, asyncio.subprocess.Process] | None = None
        self._stopped: str | None = None  # id of the last job whose process `stop` has killed

    async def __aenter__(self) -> Self:
        """Continues the work of an earlier process: queues its queued jobs again, and marks its running jobs as
        interrupted."""
        for job in reversed(await asyncio.to_thread(self.jobs.unended)):
            if job.status is Status.QUEUED and self.jobs.decided(job.id):
                # The earlier process decided to cancel the job, but did not record the cancellation.
                await asyncio.to_thread(self.jobs.cancel, job.id)
            elif job.status is Status.QUEUED:
                await self.submit(job.id, job.attempt)
            elif job.status is Status.RUNNING:
                await asyncio.to_thread(self.jobs.interrupt, job.id)
        self._task = asyncio.create_task(self._run(), name="local-jobs")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def workers(self) -> None:
        """Returns None instead of a number of workers, because this process runs the jobs itself."""

    async def available(self) -> None:
        if self._task is None or self._task.done():
            raise Unavailable("the local job runner has stopped; restart the server")
        if importlib.util.find_spec("torch") is None:
            raise Unavailable(
                "this server cannot run calibrations: either install PyTorch in its Python environment "
                "(pip install 'isosim[train]'), or start Redis and a worker (ISOSIM_REDIS_URL, isosim worker)"
            )

    async def submit(self, job_id: str, attempt: int) -> None:
        if job_id not in self._waiting:
            self._waiting.add(job_id)
            self._queue.put_nowait(job_id)

    async def recover(self, waiting: Sequence[Job]) -> None:
        for job in waiting:
            await self.submit(job.id, job.attempt)

    async def stop(self, job_id: str) -> None:
        if self._current is not None and self._current[0] == job_id:
            self._stopped = job_id
            await kill(self._current[1])

    async def _run(self) -> None:
        while True:
            job_id = await self._queue.get()
            self._waiting.discard(job_id)
            try:
                await self._run_one(job_id)
            except NotFound:
                continue  # the job was cancelled while it waited, and its record was removed
            except Exception:  # boundary of the loop: one broken job must not stop all others
                log.exception("job %s could not be run", job_id)

    async def _run_one(self, job_id: str) -> None:
        before = await asyncio.to_thread(self.jobs.read, job_id)
        if before.status is not Status.QUEUED or await asyncio.to_thread(self.jobs.decided, job_id):
            return  # the job was submitted twice, or cancelled while it waited
        environment = {
            **os.environ,
            "ISOSIM_MODEL_STORE": str(self.model_store),
            "ISOSIM_JOBS_FOLDER": str(self.jobs.root.parent),
            "ISOSIM_WORKER_THREADS": str(self.threads),
        }
        # The child stays in this process's session. Linux compares priorities only within a session, and gives each
        # session an equal share of processor time (sched(7), autogroup). With its own session, a child took half of the
        # machine despite its low priority, and the p99 of single requests rose from 12 to 115 ms.
        child = await asyncio.create_subprocess_exec(sys.executable, "-m", "isosim.worker", job_id, env=environment)
        self._current = (job_id, child)
        self.on_busy(True)
        ended: int | None = None
        try:
            async with asyncio.timeout(self.timeout):
                ended = await child.wait()
        except TimeoutError:
            await kill(child)
            await asyncio.to_thread(self.jobs.time_out, job_id, self.timeout)
        finally:
            await kill(child)
            self._current = None
            self.on_busy(False)
            # The child has ended. If it did not record the job's end, the job's record says one of the following:
            # - running: the child died during the job. The job is marked as interrupted.
            # - queued, with the same number of attempts as `before`: the child died before it began the job. The job is
            #   marked as interrupted.
            # - queued, with more attempts: a client has already retried the job. The job stays queued.
            job = await asyncio.to_thread(self.jobs.read, job_id)
            retried = job.status is Status.QUEUED and job.attempt > before.attempt
            if job.status in (Status.RUNNING, Status.QUEUED) and not retried and self._stopped != job_id:
                why = killed(job.stage) if ended == -signal.SIGKILL else None
                await asyncio.to_thread(self.jobs.interrupt, job_id, why)


async def kill(child: asyncio.subprocess.Process) -> None:
    """Kills a child process and all processes that it started, and waits until the child has ended.

    The child creates a process group for itself and the processes that it starts. This group is killed. The child is
    also killed by its own id, because it may not have created the group yet.
    """
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    await child.wait()
