"""Numbers that the parts of the service keep, and that Prometheus reads at each scrape.

A scrape may run in any thread, so readings copy what the event loop may change.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from isosim.api.state import Service
from isosim.observability import logs
from isosim.observability.metrics import Metrics

MAX_KEYS = 100  # maximum number of API keys with series of their own
MAX_DOMAINS = 500  # maximum number of domains in the series of champions
Family = CounterMetricFamily | GaugeMetricFamily
Values = float | None | list[tuple[list[str], float]]  # one value, no series, or values with their labels


class Reading(NamedTuple):
    name: str
    text: str
    read: Callable[[Service], Values]
    labels: tuple[str, ...] = ()

    def families(self, service: Service | None) -> Family:
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        family = kind(self.name, self.text, labels=self.labels)
        values = None if service is None else self.read(service)
        for labels, value in values if isinstance(values, list) else [] if values is None else [([], values)]:
            family.add_metric(labels, value)
        return family


def texts_of_keys(service: Service) -> Values:
    """Texts by name of the API key and result. The first MAX_KEYS names have series of their own."""
    if service.settings.metrics_port is None:  # the API's port shows metrics without a key
        return None
    counts = dict(service.limits.texts)
    names = list(dict.fromkeys(name for name, _ in counts if name))[:MAX_KEYS]
    shown: Counter[tuple[str, str]] = Counter()
    for (name, result), texts in counts.items():
        shown[name if name in names else "(other)" if name else "(unnamed)", result] += texts
    return [([*labels], texts) for labels, texts in shown.items()]


def remote_encoders(state: str) -> Callable[[Service], Values]:
    def read(service: Service) -> Values:
        remote = service.encoder.remote
        return [] if remote is None else [([remote.id], float(remote.state == state))]

    return read


def lines_dropped(_: Service) -> float:
    lines = logs.line_queue()
    return 0 if lines is None else lines.dropped


def champions_age(service: Service) -> float | None:
    return None if service.champions_current is None else time.monotonic() - service.champions_current


def champions(service: Service) -> Values:
    found = itertools.islice(service.registry.champions().items(), MAX_DOMAINS)
    return [([name, str(one.version), one.method], 1.0) for name, one in found]


READINGS = (
    Reading("isosim_requests_in_flight", "Requests in progress", attrgetter("observer.under_way")),
    Reading("isosim_queued_texts", "Texts admitted and not yet answered",
            attrgetter("encoder.embedder.batcher.queued")),
    Reading("isosim_expected_wait_seconds", "Seconds that encoding the waiting texts is expected to take",
            attrgetter("encoder.embedder.batcher.expected_wait")),
    Reading("isosim_memory_cache_bytes", "Bytes held by the in-memory cache",
            lambda service: service.encoder.embedder.cache.size),
    Reading("isosim_resident_calibration_bytes", "Bytes of the calibrations in memory",
            attrgetter("registry.size")),
    Reading("isosim_resident_calibration_limit_bytes",
            "Maximum bytes of calibrations kept in memory: as configured, or derived from the container's limit",
            attrgetter("registry.resident_bytes")),
    Reading("isosim_servable_domains",
            "Domains with a version in the model store, as last listed; absent before the first listing",
            attrgetter("domains_listed")),
    Reading("isosim_store_free_ratio", "Free share of the model store's volume; absent with a bucket",
            attrgetter("store_free")),
    Reading("isosim_champions_age_seconds",
            "Seconds since the champions in memory were last known to match the model store", champions_age),
    Reading("isosim_domain_champion_info", "1 for the version that serves a domain, while it is in memory", champions,
            ("domain", "version", "method")),
    Reading("isosim_calibration_load_failures_total", "Failed attempts to load a champion",
            attrgetter("registry.failures")),
    Reading("isosim_api_keys", "API keys in force", attrgetter("keys.count")),
    Reading("isosim_api_keys_file_valid", "0 while the key file is invalid; the last valid keys stay in force",
            attrgetter("keys.valid")),
    Reading("isosim_key_limit_refusals_total", "Requests refused with 429 because a key's rate or share was used up",
            attrgetter("limits.refused")),
    Reading("isosim_key_limit_fallbacks_total",
            "Checks of a key's limit that used only this process's counts, because Redis did not answer",
            attrgetter("limits.fallbacks")),
    Reading("isosim_key_texts_total",
            "Texts in requests, by name of the API key and by result (admitted, or refused by the key's rate); only "
            "with ISOSIM_METRICS_PORT", texts_of_keys, ("key", "result")),
    Reading("isosim_ready", "1 while the server accepts requests", attrgetter("ready")),
    Reading("isosim_event_loop_tasks", "Tasks on the event loop, including waiting ones",
            lambda service: len(asyncio.all_tasks(service.loop))),
    Reading("isosim_redis_up",
            "1 while Redis answers lookups, 0 while the service works without it; absent if Redis is not configured",
            lambda service: None if service.redis is None else service.redis.up),
    Reading("isosim_remote_up", "1 while a remote encoder answers with its registered model", remote_encoders("ok"),
            ("encoder",)),
    Reading("isosim_remote_changed", "1 while a remote encoder answers with another model", remote_encoders("changed"),
            ("encoder",)),
    Reading("isosim_log_lines_dropped_total",
            "Log lines dropped because the reader of stderr is slow or has stopped", lines_dropped),
)  # fmt: skip
DRIFT = {
    "out_of_domain": (
        "isosim_domain_out_of_domain_ratio",
        "Share of recent texts flagged as out of domain; 0.01 is normal for the domain's own text",
    ),
    "stability_index": (
        "isosim_domain_score_stability_index",
        "Population stability index of recent similarities, compared with the version's first ones; above 0.25, they "
        "have shifted",
    ),
}


class Readings(Collector):
    """Reads all these series of a service. Without one, the series have no values."""

    def __init__(self, service: Service | None = None) -> None:
        self.service = service

    def collect(self) -> Iterator[Family]:
        for reading in READINGS:
            yield reading.families(self.service)
        measured = {} if self.service is None else self.service.drift.all(self.service.registry.champions())
        for field, (name, text) in DRIFT.items():
            family = GaugeMetricFamily(name, text, labels=("domain",))
            for domain, drift in measured.items():
                value = getattr(drift, field)
                if value is not None:  # None: too few recent texts
                    family.add_metric([domain], value)
            yield family


def registry_of(metrics: Metrics, service: Service | None = None) -> CollectorRegistry:
    """The registry of all series; without a service, those that are read have no values."""
    metrics.registry.register(Readings(service))
    return metrics.registry
