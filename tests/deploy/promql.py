"""What a PromQL expression speaks of: its metrics, and the labels it asks for."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from isosim.api.readings import registry_of
from isosim.observability.metrics import Metrics

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
MATCHERS = re.compile(r"\{[^}]*\}")
RANGE = re.compile(r"\[[^\]]*\]")
GROUPING = re.compile(r"\b(by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
WORDS = {
    "sum", "max", "min", "avg", "count", "topk", "rate", "increase", "changes", "avg_over_time", "absent",
    "sum_over_time", "count_over_time", "max_over_time", "present_over_time", "clamp_min", "histogram_quantile",
    "time", "vector",
    "and", "or", "unless", "bool", "offset", "d", "h", "m", "s",
}  # fmt: skip
OF_THE_SCRAPE = {"job", "instance", "namespace", "service", "pod", "le"}  # le: of buckets
ENDINGS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "info": ("_info",), "gauge": ("",)}


class Selector(NamedTuple):
    metric: str
    matchers: list[tuple[str, str, str]]  # label, operator, value


def selectors(expression: str) -> Iterator[Selector]:
    for match in re.finditer(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{[^}]*\})", expression):
        yield Selector(match[1], MATCHER.findall(match[2]))


def metrics(expression: str) -> set[str]:
    """Whatever is neither a string, a label, a function nor a keyword."""
    bare = RANGE.sub("", MATCHERS.sub("", STRING.sub("", expression)))
    bare = GROUPING.sub("", bare)
    return {name for name in NAME.findall(bare) if name not in WORDS}


def grouped(expression: str) -> set[str]:
    """Labels that results are grouped or joined by."""
    return {label.strip() for match in GROUPING.finditer(expression) for label in match[2].split(",")} - {""}


def exposed() -> Mapping[str, set[str] | None]:
    """Every sample the service can show, with its labels (None: nobody declares an info's); and Prometheus' own."""
    found: dict[str, set[str] | None] = {"up": set()}
    registry = registry_of(Metrics())
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            declared = {*getattr(collector, "_labelnames", ()), *getattr(family, "_labelnames", ())}
            declared |= {*(name for s in family.samples for name in s.labels)}
            for ending in ENDINGS[family.type]:
                found[family.name + ending] = None if family.type == "info" else declared
    return found


def families() -> Iterator[tuple[str, set[str]]]:
    """Metrics of ours, each with the names of its samples."""
    registry = registry_of(Metrics())
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            if family.name.startswith("isosim_"):
                yield family.name, {family.name + ending for ending in ENDINGS[family.type]}


def values() -> Mapping[tuple[str, str], set[str]]:
    """By sample and label: the values that are there from the start, before anything has happened."""
    found: dict[tuple[str, str], set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(Metrics().registry).decode()):
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault((sample.name, label), set()).add(value)
    return found
