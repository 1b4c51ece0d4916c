"""Prometheus series of events: what happens in requests, batches and jobs. In base units, with few values per label.

Sizes, states, and counts that the parts of the service keep themselves are read at each scrape: api/readings.py. Series
exist before their first event, so that rates and alerts start from zero.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from isosim import __version__
from isosim.encoders.embedding import Embeddings
from isosim.jobs.job import Job, Status

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
JOB_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 14400)  # the last bucket ends at the default job_timeout
STAGES = ("cache", "tokenization", "queue", "inference", "calibration")
LOOKUPS = (("memory", "hit"), ("memory", "miss"), ("redis", "hit"), ("redis", "miss"), ("redis", "error"))
CLOSED = ("headers", "body", "pipelining", "room", "full")  # reasons for which the guard closes one

disable_created_metrics()  # type: ignore[no-untyped-call]  # no second series, with a time, for each counter


class Metrics:
    """The series of one app. Each app has its own registry, so that two apps in a process do not collide."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        seconds = partial(histogram, buckets=SECONDS)

        labels = ["route", "status"]
        self.requests = seconds("isosim_request_duration_seconds", "Seconds per request, by route and status", labels)
        self.errors = counter("isosim_errors_total", "Error answers, by error type", ["error_type"])
        self.connections = gauge("isosim_connections", "Open connections")
        why = "Connections closed to protect the server"
        self.connections_closed = counter("isosim_connections_closed_total", why, ["reason"])

        what = "Seconds that a scoring request spends in each stage; cache: in requests that asked Redis"
        self.stages = seconds("isosim_stage_duration_seconds", what, ["stage"])
        self.truncated = counter("isosim_truncated_texts_total", "Texts cut at the maximum length")
        what = "Texts looked up, by cache and result"
        self.cache = counter("isosim_cache_lookups_total", what, ["cache", "result"])
        what = "Vectors not stored in Redis because of a failure or a backlog"
        self.cache_dropped = counter("isosim_cache_dropped_total", what)
        what = "Texts that joined a computation already under way"
        self.shared_work = counter("isosim_shared_computations_total", what)

        self.batch_texts = histogram("isosim_batch_texts", "Texts per batch", buckets=TEXTS)
        self.batch_tokens = histogram("isosim_batch_tokens", "Tokens per batch, without padding", buckets=TOKENS)
        self.padding_tokens = counter("isosim_padding_tokens_total", "Padding tokens computed")
        what = "Requests to the servers of remote encoders, by result"
        self.remote_requests = counter("isosim_remote_requests_total", what, ["result"])
        what = "Seconds per request to a remote encoder, answered or not"
        self.remote_seconds = seconds("isosim_remote_request_duration_seconds", what)

        what = "Jobs on record, by status; queued: also those whose worker is silent"
        self.jobs = gauge("isosim_jobs", what, ["status"])
        what = "Jobs, run by any process, that ended since this server started"
        each = "; each replica counts all jobs: use max, not sum"
        self.job_ends = counter("isosim_job_ends_total", what + each, ["status"])
        what = "Seconds that successful jobs took"
        self.job_seconds = histogram("isosim_job_duration_seconds", what + each, buckets=JOB_SECONDS)
        self.encoder = Info("isosim_encoder", "The encoder this process runs", registry=registry)
        Info("isosim_build", "The release this process runs", registry=registry).info({"version": __version__})

        # `labels()` takes a lock, so the series that every request updates are looked up once.
        self._stages = {stage: self.stages.labels(stage) for stage in STAGES}
        self._lookups = {lookup: self.cache.labels(*lookup) for lookup in LOOKUPS}
        self._answers: dict[tuple[str, int], Any] = {}
        for status in Status:
            self.jobs.labels(status.value)
            if status.ended:
                self.job_ends.labels(status.value)
        for reason in CLOSED:
            self.connections_closed.labels(reason)
        for result in ("ok", "unreachable", "refused", "changed"):
            self.remote_requests.labels(result)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        series = self._answers.get((route, status))
        if series is None:
            series = self._answers[route, status] = self.requests.labels(route, str(status))
        series.observe(seconds)

    def observe_scored(self, work: Embeddings, calibrating: float) -> None:
        """Counts an answered scoring request; `calibrating`: seconds that applying the calibration took."""
        truncated = sum([text.truncated for text in work.texts])
        if truncated:
            self.truncated.inc(truncated)
        missed = work.shared_hits + work.joined + work.computed
        if work.memory_hits:
            self._lookups["memory", "hit"].inc(work.memory_hits)
        if missed:
            self._lookups["memory", "miss"].inc(missed)
            self._lookups["redis", "hit"].inc(work.shared_hits)
            self._lookups["redis", "miss"].inc(work.shared_misses)
            self.shared_work.inc(work.joined)
        if work.shared_hits or work.shared_misses:
            self._stages["cache"].observe(work.cache)
        if work.tokens:
            self._stages["tokenization"].observe(work.tokenization)
            self._stages["queue"].observe(work.queue)
            self._stages["inference"].observe(work.inference)
        self._stages["calibration"].observe(calibrating)

    def observe_batch(self, lengths: Sequence[int]) -> None:
        """`lengths`: number of tokens of each text."""
        tokens = sum(lengths)
        self.batch_texts.observe(len(lengths))
        self.batch_tokens.observe(tokens)
        self.padding_tokens.inc(max(lengths) * len(lengths) - tokens)

    def observe_redis(self, event: str, count: int) -> None:
        if event == "dropped":
            self.cache_dropped.inc(count)
        else:
            self._lookups["redis", "error"].inc(count)

    def observe_remote(self, result: str, seconds: float) -> None:
        """Counts a request by result. Records its duration, except for `changed`, for which none is measured."""
        self.remote_requests.labels(result).inc()
        if result != "changed":
            self.remote_seconds.observe(seconds)

    def observe_closed(self, reason: str) -> None:
        self.connections_closed.labels(reason).inc()

    def observe_jobs(self, counts: Mapping[Status, int]) -> None:
        for status in Status:
            self.jobs.labels(status.value).set(counts.get(status, 0))

    def observe_job_end(self, job: Job) -> None:
        self.job_ends.labels(job.status.value).inc()
        if job.status is Status.SUCCEEDED and job.started and job.finished:
            spent = datetime.fromisoformat(job.finished) - datetime.fromisoformat(job.started)
            self.job_seconds.observe(spent.total_seconds())
