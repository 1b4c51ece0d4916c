"""All Prometheus series of the service, in base units and with a bounded number of label values. Each series exists
before its first event, so that rates and alerts start from zero."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client import generate_latest as _generate
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from isosim import __version__
from isosim.encoders.batching import BatchStats
from isosim.encoders.embedding import CacheLookup, Timings
from isosim.jobs.job import Job, Status
from isosim.scoring.calibration import Calibration
from isosim.scoring.drift import Drift

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
JOB_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 14400)  # the last bucket ends at the default job_timeout
STAGES = ("cache", "tokenization", "queue", "inference", "calibration")
ENDS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
DRIFT = {
    "out_of_domain_ratio": "Share of recent texts flagged as out of domain; 0.01 is normal for the domain's own text",
    "distance_mean": "Mean of log ||z||^2 over recent texts with whitened vectors z, standardized by the mean and "
    "standard deviation of the domain's own text; 0 is normal",
    "distance_spread": "Standard deviation of log ||z||^2 over recent texts with whitened vectors z, divided by that "
    "of the domain's own text; 1 is normal",
    "score_stability_index": "Population stability index of recent similarities, compared with the version's first "
    "ones; above 0.25, they have shifted",
}
LIMITS = ("rate", "concurrent")
REMOTE_RESULTS = ("ok", "unreachable", "refused", "changed")
CLOSED = ("headers", "body", "pipelining", "reading", "room", "full")  # reasons for which the guard closes one
MAX_KEYS = 100  # maximum number of API keys with series of their own
MAX_DOMAINS = 500  # maximum number of domains in the series of champions


class GaugeReading(Collector):
    """A number that another part of the service keeps and that is read at each scrape. There is no series while `read`
    returns None."""

    def __init__(self, family: Callable[..., Metric], name: str, text: str, registry: CollectorRegistry) -> None:
        self.family, self.name, self.text = family, name, text
        self.read: Callable[[], float | None] = lambda: None
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        value = self.read()
        yield self.family(self.name, self.text, **({} if value is None else {"value": value}))


class RemoteSeries:
    """Series of remote encoders: requests to their servers, and the state of each encoder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "isosim_remote_requests_total", "Requests to the servers of remote encoders, by result", ["result"],
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "isosim_remote_request_duration_seconds", "Seconds per request to a remote encoder, answered or not",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.up = Gauge(
            "isosim_remote_up",
            "1 while a remote encoder answers with its registered model",
            ["encoder"],
            registry=registry,
        )
        self.changed = Gauge(
            "isosim_remote_changed", "1 while a remote encoder answers with another model", ["encoder"],
            registry=registry,
        )  # fmt: skip
        for result in REMOTE_RESULTS:
            self.requests.labels(result)

    def observe(self, result: str, seconds: float) -> None:
        """Counts a request by result. Records its duration, except for `changed`, for which none is measured."""
        self.requests.labels(result).inc()
        if result != "changed":
            self.seconds.observe(seconds)

    def watch(self, encoder: str, state: Callable[[], str]) -> None:
        self.up.labels(encoder).set_function(lambda: state() == "ok")
        self.changed.labels(encoder).set_function(lambda: state() == "changed")


class KeySeries:
    """Use of API keys: refusals because of their limits, and texts by the key's name.

    Only the first MAX_KEYS names have series of their own.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.limited = Counter(
            "isosim_key_limit_refusals_total",
            "Requests refused with 429 because their key reached a limit",
            ["limit"],
            registry=registry,
        )
        self.texts = Counter(
            "isosim_key_texts_total",
            "Texts in requests, by name of the API key and by result (admitted, or refused by the key's limits); only "
            "with key_metrics",
            ["key", "result"],
            registry=registry,
        )
        self._names: set[str] = set()
        for limit in LIMITS:
            self.limited.labels(limit)

    def observe_limit(self, limit: str) -> None:
        self.limited.labels(limit).inc()

    def observe_texts(self, name: str, result: str, texts: int) -> None:
        if name and len(self._names) < MAX_KEYS:
            self._names.add(name)
        shown = name if name in self._names else "(other)"
        self.texts.labels(shown if name else "(unnamed)", result).inc(texts)


class Metrics:
    """All series of one app. Each app has its own registry, so that two apps in a process do not collide."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        ProcessCollector(registry=r)
        PlatformCollector(registry=r)
        GCCollector(registry=r)
        self.requests = Histogram(
            "isosim_request_duration_seconds", "Seconds per request, by route and status", ["route", "status"],
            buckets=SECONDS, registry=r,
        )  # fmt: skip
        self.in_flight = Gauge("isosim_requests_in_flight", "Requests in progress", registry=r)
        self.stages = Histogram(
            "isosim_stage_duration_seconds", "Seconds that a scoring request spends in each stage", ["stage"],
            buckets=SECONDS, registry=r,
        )  # fmt: skip
        self.queued = Gauge("isosim_queued_texts", "Texts admitted and not yet answered", registry=r)
        self.batch_texts = Histogram("isosim_batch_texts", "Texts per batch", buckets=TEXTS, registry=r)
        self.batch_tokens = Histogram(
            "isosim_batch_tokens", "Tokens per batch, without padding", buckets=TOKENS, registry=r
        )
        self.padding_tokens = Counter("isosim_padding_tokens_total", "Padding tokens computed", registry=r)
        self.cache = Counter(
            "isosim_cache_lookups_total", "Texts looked up, by cache and result", ["cache", "result"], registry=r
        )
        self.cache_dropped = Counter(
            "isosim_cache_dropped_total", "Vectors not stored in Redis because of a failure or a backlog", registry=r
        )
        self.cache_bytes = Gauge("isosim_memory_cache_bytes", "Bytes held by the in-memory cache", registry=r)
        self.shared_work = Counter(
            "isosim_shared_computations_total", "Texts that joined a computation already under way", registry=r
        )
        self.truncated = Counter("isosim_truncated_texts_total", "Texts cut at the maximum length", registry=r)
        self.errors = Counter("isosim_errors_total", "Error answers, by error type", ["error_type"], registry=r)
        self.jobs = Gauge("isosim_jobs", "Calibration jobs on record, by status", ["status"], registry=r)
        self.job_ends = Counter(
            "isosim_job_ends_total",
            "Jobs, run by any process, that ended since this server started; each replica counts all jobs: use "
            "max, not sum",
            ["status"], registry=r,
        )  # fmt: skip
        self.job_seconds = Histogram(
            "isosim_job_duration_seconds",
            "Seconds that successful jobs took; each replica counts all jobs: use max, not sum",
            buckets=JOB_SECONDS, registry=r,
        )  # fmt: skip
        self.champion = Gauge(
            "isosim_domain_champion_info", "1 for the version that serves a domain, while it is in memory",
            ["domain", "version", "method"], registry=r,
        )  # fmt: skip
        self.drift = {
            name: Gauge(f"isosim_domain_{name}", text, ["domain"], registry=r) for name, text in DRIFT.items()
        }
        self.resident = GaugeReading(
            GaugeMetricFamily, "isosim_resident_calibration_bytes", "Bytes of the calibrations in memory", r
        )
        self.resident_limit = GaugeReading(
            GaugeMetricFamily,
            "isosim_resident_calibration_limit_bytes",
            "Maximum bytes of calibrations kept in memory: as configured, or derived from the container's limit",
            r,
        )
        self.servable_domains = GaugeReading(
            GaugeMetricFamily,
            "isosim_servable_domains",
            "Domains with a version in the model store, as last listed; absent before the first listing",
            r,
        )
        self.load_failures = Counter(
            "isosim_calibration_load_failures_total", "Failed attempts to load a champion", registry=r
        )
        self.champions_age = GaugeReading(
            GaugeMetricFamily,
            "isosim_champions_age_seconds",
            "Seconds since the champions in memory were last known to match the model store",
            r,
        )
        self.keys = Gauge("isosim_api_keys", "API keys in force", registry=r)
        self.keys_valid = Gauge(
            "isosim_api_keys_file_valid",
            "0 while the key file is invalid; the last valid keys stay in force",
            registry=r,
        )
        self.limits_fallback = Counter(
            "isosim_key_limit_fallbacks_total",
            "Checks of a key's limit that used only this process's counts, because Redis did not answer",
            registry=r,
        )
        self.connections = Gauge("isosim_connections", "Open connections", registry=r)
        self.connections_closed = Counter(
            "isosim_connections_closed_total", "Connections closed to protect the server", ["reason"], registry=r
        )
        self.keys_use, self.remote = KeySeries(r), RemoteSeries(r)
        self.ready = Gauge("isosim_ready", "1 while the server accepts requests", registry=r)
        self.tasks = Gauge("isosim_event_loop_tasks", "Tasks on the event loop, including waiting ones", registry=r)
        self.encoder = Info("isosim_encoder", "The encoder this process runs", registry=r)
        self.build = Info("isosim_build", "The release this process runs", registry=r)
        self.redis_up = GaugeReading(
            GaugeMetricFamily,
            "isosim_redis_up",
            "1 while Redis answers lookups, 0 while the service works without it; absent if Redis is not configured",
            r,
        )
        self.log_dropped = GaugeReading(
            CounterMetricFamily, "isosim_log_lines_dropped_total",
            "Log lines dropped because the reader of stderr is slow or has stopped", r,
        )  # fmt: skip
        # `labels()` takes a lock, so the series that every request updates are looked up here, once.
        self._stages = {stage: self.stages.labels(stage) for stage in STAGES}
        self._memory_hits, self._memory_misses, self._redis_hits, self._redis_misses = (
            self.cache.labels(cache, result) for cache in ("memory", "redis") for result in ("hit", "miss")
        )
        self._answers: dict[tuple[str, int], Any] = {}
        self._champions: dict[str, tuple[str, str, str]] = {}
        self._touch()

    def _touch(self) -> None:
        """Creates labelled series before their first event, so that rates and alerts start from zero."""
        self.build.info({"version": __version__})
        self.log_dropped.read = lambda: 0
        for cache in ("memory", "redis"):
            for result in ("hit", "miss") + (("error",) if cache == "redis" else ()):
                self.cache.labels(cache, result)
        for status in Status:
            self.jobs.labels(status.value)
        for status in ENDS:
            self.job_ends.labels(status.value)
        for reason in CLOSED:
            self.connections_closed.labels(reason)

    def observe_batch(self, batch: BatchStats) -> None:
        self.batch_texts.observe(batch.texts)
        self.batch_tokens.observe(batch.tokens)
        self.padding_tokens.inc(batch.padded_tokens - batch.tokens)

    def observe_lookup(self, lookup: CacheLookup) -> None:
        misses = lookup.shared_hits + lookup.joined + lookup.computed
        if lookup.memory_hits:
            self._memory_hits.inc(lookup.memory_hits)
        if misses:
            self._memory_misses.inc(misses)
        if lookup.shared_hits:
            self._redis_hits.inc(lookup.shared_hits)
        if lookup.shared_misses:
            self._redis_misses.inc(lookup.shared_misses)
        if lookup.joined:
            self.shared_work.inc(lookup.joined)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        series = self._answers.get((route, status))
        if series is None:
            series = self._answers[route, status] = self.requests.labels(route, str(status))
        series.observe(seconds)

    def observe_redis(self, event: str, count: int) -> None:
        if event == "dropped":
            self.cache_dropped.inc(count)
        else:
            self.cache.labels("redis", "error").inc(count)

    def observe_timings(self, timings: Timings, calibration: float) -> None:
        if self.redis_up.read() is not None:
            self._stages["cache"].observe(timings.cache)
        if timings.tokens:
            self._stages["tokenization"].observe(timings.tokenization)
            self._stages["queue"].observe(timings.queue)
            self._stages["inference"].observe(timings.inference)
        self._stages["calibration"].observe(calibration)

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

    def observe_champion(self, calibration: Calibration) -> None:
        labels = (calibration.domain, str(calibration.version), calibration.method)
        self.forget_champion(calibration.domain)
        if len(self._champions) < MAX_DOMAINS:
            self._champions[calibration.domain] = labels
            self.champion.labels(*labels).set(1)

    def forget_champion(self, domain: str) -> None:
        """Removes the series of a champion that is no longer in memory."""
        before = self._champions.pop(domain, None)
        if before is not None:
            self.champion.remove(*before)

    def observe_drift(self, domains: Mapping[str, Drift]) -> None:
        """Sets the drift series of each domain; a value that is None, for lack of recent texts, gets no series.

        `DriftMonitor` keeps at most 500 domains, so the number of series is bounded.
        """
        for gauge in self.drift.values():
            gauge.clear()
        for domain, drift in domains.items():
            values = (drift.out_of_domain, drift.distance_mean, drift.distance_spread, drift.stability_index)
            for gauge, value in zip(self.drift.values(), values, strict=True):
                if value is not None:
                    gauge.labels(domain).set(value)

    def exposition(self) -> bytes:
        return _generate(self.registry)
