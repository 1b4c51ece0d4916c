"""Alerts, dashboard, autoscaling speak of what the service exposes; every alert fires, keeps quiet, has a section."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart import CHART
from tests.deploy.promql import OF_THE_SCRAPE, exposed, families, grouped, metrics, selectors, values
from tests.deploy.rules import RULES, RUNBOOKS, alerts, expressions, recordings

CASES = Path(__file__).with_name("alerts")


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = shutil.which("promtool")
    assert command, "promtool is missing; make test-all installs it"
    return subprocess.run([command, *words], capture_output=True, text=True, timeout=300, check=False)


def test_promtool_takes_every_rule() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = [int(count) for count in re.findall(r"(\d+) rules found", checked.stdout)]
    assert sum(found) == len(alerts()) + len(recordings())


def test_every_expression_is_promql(tmp_path: Path) -> None:
    """Of dashboard, autoscalers and runbooks as well: as recording rules, which promtool reads."""
    rules: list[dict[str, Any]] = [
        {"record": "test:expression", "expr": e, "labels": {"n": str(i)}} for i, (_, e) in enumerate(expressions())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules[0]["expr"] += ")"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert promtool("check", "rules", file).returncode != 0


def test_every_metric_and_label_is_the_services() -> None:
    recorded: dict[str, set[str] | None] = {rule["record"]: {"namespace", "service", "slo"} for rule in recordings()}
    known, from_the_start = dict(exposed()) | recorded, values()
    seen = set()
    for where, expression in expressions():
        unknown = metrics(expression) - known.keys()
        assert not unknown, (where, unknown)
        seen |= metrics(expression)
        for metric, matchers in selectors(expression):
            labels = known[metric]
            if labels is None:
                continue
            assert {label for label, _, _ in matchers} <= labels | OF_THE_SCRAPE, (where, metric, matchers)
            for label, operator, value in matchers:
                present = from_the_start.get((metric, label))
                assert operator != "=" or present is None or value in present, (where, metric, label, value)
        every = {name for metric in metrics(expression) for name in known[metric] or ()}
        if not any(known[metric] is None for metric in metrics(expression)):
            assert grouped(expression) <= every | OF_THE_SCRAPE, (where, expression)
    assert [name for name, samples in families() if not samples & seen] == [], "measured, and nowhere to be seen"


def test_every_alert_asks_for_the_job_that_the_monitors_set() -> None:
    """What is recorded has no job any more; its rule has asked for it."""
    recorded = {rule["record"] for rule in recordings()}
    rules = [*alerts().items(), *((rule["record"], rule) for rule in recordings())]
    for name, rule in rules:
        for metric, matchers in selectors(rule["expr"]):
            assert metric in recorded or ("job", "=", "isosim") in matchers, (name, metric)


def test_every_alert_fires_and_keeps_quiet() -> None:
    """promtool plays the series of tests/deploy/alerts; each alert has some that set it off and some that do not."""
    files = sorted(CASES.glob("*.yaml"))
    played = promtool("test", "rules", *files)
    assert played.returncode == 0, played.stdout + played.stderr
    for alert in alerts():
        words = re.sub(r"(?<!^)(?=[A-Z])", "-", alert).lower()  # IsosimRedisDown: isosim-redis-down
        cases = yaml.safe_load((CASES / f"{words}.yaml").read_text())["tests"]
        expected = [
            rule["exp_alerts"] for case in cases for rule in case["alert_rule_test"] if rule["alertname"] == alert
        ]
        assert any(expected), alert
        assert not all(expected), alert


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for name, rule in alerts().items():
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "runbook_url"}, name
        assert annotations["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        # A number that was exceeded is said; what is 0 or absent has none.
        has_number = re.search(r"[<>]=? *[0-9(]", rule["expr"]) is not None
        assert ("$value" in annotations["description"]) is has_number, name


def test_every_alert_has_a_section_and_every_section_an_alert() -> None:
    page = RUNBOOKS.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=\n## |\Z)", page, re.M | re.S))
    assert sections.keys() == alerts().keys()
    by_symptom = page.partition("\n## By symptom\n")[2].partition("\nThe commands ")[0]
    for name, text in sections.items():
        assert f"[{name}](#{name.lower()})" in by_symptom
        assert text.startswith(f"**{alerts()[name]['labels']['severity']}.** "), name
        assert "\n- " in text, f"{name}: what to do"
        assert re.search(r"^(Never h|H)armless", text, re.M), name


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    assert board["uid"] == "isosim"
    assert board.get("id") is None  # of some Grafana: an import would overwrite what has it there
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert [v["name"] for v in board["templating"]["list"]] == ["datasource", "namespace", "service", "route", "domain"]
