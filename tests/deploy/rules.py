"""Alert rules and dashboards, and every PromQL expression in them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.chart import CHART, IMAGE, KEYS, OWN_REDIS, ROOT, render

RUNBOOKS = ROOT / "docs" / "runbooks.md"


VARIABLES = {"$__rate_interval": "5m", "$namespace": ".*", "$service": ".*", "$route": "/.*", "$domain": ".*"}


RULES = sorted((CHART / "files").glob("alerts*.yaml"))


def groups() -> list[dict[str, Any]]:
    return [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]


def alerts() -> dict[str, Any]:
    return {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}


def recordings() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"] if "record" in rule]


def expressions() -> list[tuple[str, str]]:
    of_the_alerts = ((name, rule["expr"]) for name, rule in alerts().items())
    of_the_recordings = ((rule["record"], rule["expr"]) for rule in recordings())
    return [*of_the_alerts, *of_the_recordings, *of_the_dashboard(), *of_the_adapter(), *of_keda(), *of_the_runbooks()]


def of_the_dashboard() -> Iterator[tuple[str, str]]:
    """Panels' titles and their expressions; annotations, and the variables' own queries."""
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], plain(target["expr"])
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], plain(annotation["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found, variable
            yield f"${variable['name']}", f"count by ({found[2]}) ({plain(found[1])})"


def of_the_adapter() -> Iterator[tuple[str, str]]:
    for rule in yaml.safe_load((CHART / "files" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]:
        yield "the adapter's series", rule["seriesQuery"]
        name, labels = rule["seriesQuery"].rstrip("}").split("{")
        yield (
            "the adapter's query",
            rule["metricsQuery"].replace("<<.Series>>", name).replace("<<.LabelMatchers>>", labels),
        )


def of_keda() -> Iterator[tuple[str, str]]:
    scaled = {"autoscaling": {"kind": "keda"}, "worker": {"autoscaling": {"enabled": True}}}
    for found in render(IMAGE, KEYS, OWN_REDIS, scaled):
        for trigger in found["spec"]["triggers"] if found["kind"] == "ScaledObject" else ():
            yield "KEDA's query", trigger["metadata"]["query"]


def of_the_runbooks() -> Iterator[tuple[str, str]]:
    for query in re.findall(r"^```promql\n(.+?)\n```$", RUNBOOKS.read_text(encoding="utf-8"), re.M | re.S):
        yield RUNBOOKS.name, query


def plain(expression: str) -> str:
    """A panel's expression as Grafana sends it."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression
