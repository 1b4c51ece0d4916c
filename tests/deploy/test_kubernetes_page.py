"""docs/how-to/kubernetes.md: the chart takes its files, and commands name what is there."""

import json
import math
import re
import shlex
from itertools import pairwise
from typing import Any

import yaml

from tests.deploy.chart import ROOT, Manifest, Values, ask_helm, manifests, merged
from tests.deploy.rules import alerts

PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```yaml\n(.+?)^```$", PAGE, re.M | re.S)
OF_DEVICE_PLUGIN = "# shared.yaml"
YOURS, ALONE, *ADDITIONS = [yaml.safe_load(text) for text in FILES if not text.startswith(OF_DEVICE_PLUGIN)]
BLOCKS = re.findall(r"^```console\n(.+?)^```$", PAGE, re.M | re.S)


def commands() -> list[list[str]]:
    """Lines that begin with `$`, joined with those that go on."""
    text = "\n".join(BLOCKS).replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^\$ (.+)$", text, re.M)]


def of_a_set(word: str) -> Values:
    name, _, value = word.partition("=")
    found: Any = yaml.safe_load(value) if not name.endswith("tag") else value
    for part in reversed(name.split(".")):
        found = {part: found}
    return dict(found)


def values_of(command: list[str]) -> Values:
    """What helm would take from -f and --set."""
    parts: list[Values] = []
    for option, word in pairwise(command):
        if option == "-f":
            parts.append(YOURS if word == "yours.yaml" else yaml.safe_load((ROOT / word).read_text()))
        elif option == "--set":
            parts.append(of_a_set(word))
    return merged(*parts)


def rendered(wanted: list[Values]) -> list[list[Manifest]]:
    answers = ask_helm([{"render": values} for values in wanted])
    assert [(values, a["refused"]) for values, a in zip(wanted, answers, strict=True) if "refused" in a] == []
    return [list(manifests(answer)) for answer in answers]


def test_every_command_of_helm_renders() -> None:
    ours = [c for c in commands() if c[0] == "helm" and "k8s/isosim" in c]
    assert len(ours) > 4
    rendered([values_of(command) for command in ours])


def test_every_file_is_taken_by_the_chart() -> None:
    rendered([YOURS, ALONE, *(merged(YOURS, addition) for addition in ADDITIONS)])
    rendered([merged(YOURS, *ADDITIONS)])  # and all of them together


def test_every_command_names_what_is_there() -> None:
    scaled = merged(YOURS, {"autoscaling": {"kind": "hpa"}})
    (found,) = rendered([scaled])
    kinds = {"deploy": "Deployment", "deployment": "Deployment", "service": "Service", "hpa": "HorizontalPodAutoscaler"}
    kinds["pvc"] = "PersistentVolumeClaim"
    there = {(m["kind"], m["metadata"]["name"]) for m in found}
    named = re.findall(r"\b(deploy|deployment|service|hpa|pvc)[/ ](similarity-[a-z-]+)", "\n".join(BLOCKS))
    assert len(named) > 5
    assert {(kinds[kind], name) for kind, name in named} <= there
    secrets = set(re.findall(r"create secret generic (\S+)", "\n".join(BLOCKS)))
    (bucket,) = [addition["modelStore"]["bucket"] for addition in ADDITIONS if "modelStore" in addition]
    (redis,) = [addition["redis"]["external"] for addition in ADDITIONS if "redis" in addition]
    of_yours = {YOURS["access"]["apiKeysSecret"]["name"], YOURS["redis"]["own"]["passwordSecret"]["name"]}
    assert secrets == {*of_yours, bucket["credentialsSecret"]["name"], *(redis[kind]["name"] for kind in redis)}


def test_the_page_names_the_published_routes_that_need_no_key() -> None:
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    without = {path for path, methods in paths.items() if any("security" not in one for one in methods.values())}
    listed = PAGE.split("They publish without a key:")[1].split(";")[0]
    static = {"/docs", "/openapi.json", "/console"}
    assert set(re.findall("`(/.*?)`", listed)) == without - {"/livez", "/readyz", "/metrics"} | static


def test_the_page_sizes_by_what_several_servers_took() -> None:
    results = json.loads((ROOT / "loadtest" / "results" / "gpu.json").read_text())["result"]["columns"]["minilm-fp16"]
    words = " ".join(PAGE.split())
    for size, servers, pods in ((32, 2, "four pods"), (1, 4, "eight pods")):
        cost = results[f"HTTP, servers: {servers}, pairs in a request: {size}; processor time of a pair (ms)"]
        assert f"{cost} ms" in words
        cores = 20_000 * cost / 1000
        assert f"{cores:.2g} cores, {pods}" in words
        assert math.ceil(cores / 1.9) + 1 == {"four pods": 4, "eight pods": 8}[pods]


def test_the_page_counts_the_alerts() -> None:
    assert f"have {len(alerts())} alerts" in PAGE
