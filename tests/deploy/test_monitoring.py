"""Alerts and dashboard on a real server's metrics, in a real Prometheus; an alert on its way to somebody's webhook."""

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.rules import expressions, groups, of_the_dashboard
from tests.deploy.watching import Prometheus, Told, watched
from tests.processes import Process, RedisServer, Server, serve_with, start, wait_until
from tests.text import sentences

# What a server without calibrations, drift, errors or restarts shows nothing of.
EMPTY = {
    "Out of domain", "Shift of similarities", "Distance from the domain's text", "Spread of the distance", "Champions",
    "$domain", "Errors by type", "Refused with 429", "Starts",
    "Remote encoders that answer",
}  # fmt: skip


def without_waiting(rules: Any) -> Any:
    """A copy of the rules that fire at once: the test would have to sit through `for`."""
    impatient = copy.deepcopy(rules)
    for group in impatient["groups"]:
        for rule in group["rules"]:
            assert rule.pop("for", "0s")
    return impatient


@dataclass
class Site:
    server: Server
    again: Callable[[], None]  # the same server, after it was killed
    prometheus: Prometheus
    told: Told


@pytest.fixture(scope="module")
def site(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a Redis and a worker, scored upon, and scraped often enough for rates."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    redis = RedisServer(folder)
    redis.start()
    processes: list[Process] = []
    try:
        settings = {"model_store": folder / "store", "encoder": "tiny", "redis_url": f"{redis.url}?socket_timeout=2"}
        server = serve_with(folder, processes, **settings)
        worker = folder / "worker.log"
        processes.append(Process(start(["worker"], worker, **settings), worker))
        address = server.url.removeprefix("http://")

        def again() -> None:
            popen = start(["serve"], server.log, port=address.split(":")[1], **settings)
            processes.append(Server(popen, server.log, server.url, server.client))

        rules = without_waiting({"groups": groups()})
        with watched(folder, [address], rules) as (prometheus, told):
            wait_until(lambda: prometheus.query('up{job="isosim"} == 1'))
            for number in range(3):  # new and known texts, between scrapes
                texts = sentences(20 + number)
                server.client.post("/embed", json={"inputs": texts}).raise_for_status()
                count = f'isosim_batch_texts_sum{{job="isosim"}} >= {20 + number}'
                wait_until(lambda count=count: prometheus.query(count))
            yield Site(server, again, prometheus, told)
    finally:
        for process in processes:
            process.kill()
        redis.kill()


def test_every_expression_is_answered(site: Site) -> None:
    """The server's own parser, and its types: no vector where a number is needed."""
    for _, expression in expressions():
        site.prometheus.query(expression)


def test_every_panel_shows_something(site: Site) -> None:
    """A panel that asks for what is not there would stay empty for good."""
    shown = {title: False for title, _ in of_the_dashboard()}
    for title, expression in of_the_dashboard():
        shown[title] |= bool(site.prometheus.query(expression))
    assert {title for title, found in shown.items() if not found} == EMPTY


def test_nothing_fires_on_a_healthy_server(site: Site) -> None:
    wait_until(lambda: all(rule["lastEvaluation"] > "0002" for rule in site.prometheus.rules()))
    for rule in site.prometheus.rules():
        assert rule["health"] == "ok", rule
        assert rule["type"] == "recording" or rule["state"] == "inactive", rule
    assert site.told.alerts == []


def test_a_killed_server_is_told_of_and_its_return_as_well(site: Site) -> None:
    """From the process to the webhook, and back."""
    site.server.kill()
    (alert,) = wait_until(lambda: site.told.of("IsosimNotReady", "firing")[:1])
    instance = site.server.url.removeprefix("http://")
    assert alert["labels"] == {
        "alertname": "IsosimNotReady", "instance": instance, "job": "isosim", "severity": "warning",
    }  # fmt: skip
    assert alert["annotations"]["summary"] == f"{instance} takes no requests."
    assert alert["annotations"]["runbook_url"] == "docs/runbooks.md#isosimnotready"
    (critical,) = wait_until(lambda: site.told.of("IsosimDown", "firing")[:1])
    assert critical["labels"]["severity"] == "critical"
    site.again()
    wait_until(lambda: site.told.of("IsosimNotReady", "resolved") and site.told.of("IsosimDown", "resolved"))
