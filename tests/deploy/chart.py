"""The chart rendered with given values, by Helm itself."""

import copy
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "k8s" / "isosim"
TOOLS = Path(os.environ.get("ISOSIM_DEPLOY_TOOLS", ROOT / ".venv-deploy" / "bin"))  # of tests/deploy/requirements.txt

Values = dict[str, Any]
Manifest = dict[str, Any]

# What every operator has to choose.
OWN_REDIS: Values = {"redis": {"own": {"passwordSecret": {"name": "similarity-redis"}}}}
IMAGE: Values = {"image": {"repository": "registry.example.com/isosim"}}
KEYS: Values = {"access": {"apiKeysSecret": {"name": "similarity-keys"}}}
ANYBODY: Values = {"access": {"allowAnonymous": True}}
ALONE: Values = {
    "api": {"replicas": 1}, "worker": {"enabled": False}, "redis": {"mode": "none"}, "modelStore": {"ephemeral": True},
}  # fmt: skip


def merged(*parts: Mapping[str, Any]) -> Values:
    """Later ones win, maps are merged: what helm does with several -f."""
    found: Values = {}
    for part in parts:
        for name, value in part.items():
            known = found.get(name)
            both = isinstance(known, dict) and isinstance(value, dict)
            found[name] = merged(known or {}, value) if both else copy.deepcopy(value)
    return found


def values_file(name: str) -> Values:
    found: Values = yaml.safe_load((CHART / name).read_text())
    return found


def ask_helm(requests: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Starting Helm takes longer than rendering: many at once."""
    python = TOOLS / "python"
    assert python.is_file(), f"{python} is missing; make test-all installs the tools"
    done = subprocess.run(
        [python, Path(__file__).with_name("helm.py")],
        input=json.dumps(requests), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found: list[Any] = json.loads(done.stdout)
    return found


class EachKeyOnce(yaml.SafeLoader):
    """Refuses a key that is given twice, as `kubectl` does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        assert len(found) == len(node.value), sorted(key.value for key, _ in node.value)
        return found


def manifests(rendered: Mapping[str, str]) -> Iterator[Manifest]:
    for template, text in rendered.items():
        if not template.endswith("NOTES.txt"):
            yield from (document for document in yaml.load_all(text, EachKeyOnce) if document)


def render(*parts: Values) -> list[Manifest]:
    (rendered,) = ask_helm([{"render": merged(*parts)}])
    assert "refused" not in rendered, rendered
    return list(manifests(rendered))


def named(found: Sequence[Manifest], kind: str, ending: str = "") -> Manifest:
    """The one manifest of a kind whose name ends so."""
    (only,) = [m for m in found if m["kind"] == kind and m["metadata"]["name"].endswith(ending)]
    return only
