"""The RQ worker of `isosim worker`: it outlives a Redis that goes away, also one that comes back empty."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import StopRequested
from rq.worker_registration import register

from service.adapters.redis_pulse import CLUSTER, CLUSTER_REMEDY, is_cluster
from service.adapters.rq_jobs import KILLED, QUEUE
from service.core.errors import Unavailable

log = logging.getLogger(__name__)

TTL = 60  # s; a killed worker counts as there for twice as long, and a cut connection is noticed after as long
MONITORING = 10  # s between signs of life of a running job; a minute after the last, another worker takes it over
MAINTENANCE = 60  # s between looks for jobs whose worker has died
PAUSE = 2.0  # s between attempts to reach Redis


class QueueWorker(Worker):
    """Takes jobs one after the other, each in a child of its own. `on_lost` is told of a job that is not run again."""

    def __init__(self, connection: Redis, on_lost: Callable[[str], None]) -> None:
        super().__init__(
            [Queue(QUEUE, connection=connection)],
            connection=connection,
            worker_ttl=TTL,
            job_monitoring_interval=MONITORING,
            maintenance_interval=MAINTENANCE,
        )
        self.on_lost = on_lost
        self.stopping = False

    def request_stop(self, signum: Any, frame: Any) -> None:
        self.stopping = True
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        super().heartbeat(timeout, pipeline)
        register(self, pipeline)  # a Redis that was restarted empty does not know this worker any more

    # While Redis is away a running job goes on: its own heartbeat is in its record in the store.

    def maintain_heartbeats(self, job: Any) -> None:
        try:
            super().maintain_heartbeats(job)
        except RedisError as error:
            log.warning("Redis does not hear of job %s: %s", job.id, error)

    def set_current_job_working_time(self, current_job_working_time: float, pipeline: Any = None) -> None:
        try:
            super().set_current_job_working_time(current_job_working_time, pipeline)
        except RedisError as error:
            log.warning("Redis does not hear of a running job: %s", error)

    def handle_work_horse_killed(self, job: Any, retpid: Any, ret_val: Any, rusage: Any) -> None:
        if not job.retries_left:
            self.on_lost(job.args[0])
            return
        job.meta[KILLED] = True
        with contextlib.suppress(RedisError):  # then the next process waits for a heartbeat before it takes over
            job.save_meta()

    def teardown(self) -> None:
        try:
            super().teardown()  # type: ignore[no-untyped-call]
        except RedisError:
            if self.pubsub_thread is not None:
                self.pubsub_thread.stop()


def work(connection: Redis, on_lost: Callable[[str], None], log_level: str, *, burst: bool) -> None:
    """Runs until it is told to stop, or with `burst` until the queue is empty.

    Raises:
        Unavailable: Redis is a cluster; with `burst`, Redis cannot be reached.
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
                raise Unavailable(f"the job queue cannot be reached: {error}") from error
            log.warning("Redis cannot be reached, trying again: %s", error)
        if burst or (worker is not None and worker.stopping):
            return
        try:
            time.sleep(PAUSE)
        except StopRequested:  # from a signal's handler
            return
