"""Users of a frozen release find what they use: routes, fields, commands, settings, metrics, values, methods."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service import CONTRACT
from tests.faults.releases import Release
from tests.processes import Serve, environment

ROOT = Path(__file__).parents[2]
FIRST = "1.0"  # the contract of releases that state none

# For the release's own code and for this tree's: what a shell, an environment and an importer may name.
NAMES = """
import inspect, json
import isosim_client
from service import cli
from service.settings import Settings


def named(command, place):
    for name, below in getattr(command, "commands", {}).items():
        yield from named(below, f"{place} {name}")
    yield place
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            yield f"{place} {option}"


found = {name for command in cli.COMMANDS for name in named(cli.load(command), f"isosim {command}")}
found |= {f"ISOSIM_{name.upper()}" for name in Settings.model_fields}
found |= {f"isosim_client.{name}" for name in isosim_client.__all__}
for kind in (isosim_client.Client, isosim_client.AsyncClient):
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name == "__init__" or not name.startswith("_"):
            found |= {f"{kind.__name__}.{name} {parameter}" for parameter in inspect.signature(method).parameters}
print(json.dumps(sorted(found)))
"""
# Experiments, not part of what is stable: docs/reference/compatibility.md says so of `isosim measure`.
UNSTABLE = ("isosim measure ",)


def names(*places: Path) -> set[str]:
    variables = environment() | {"PYTHONPATH": ":".join(map(str, places))}
    done = subprocess.run(
        [sys.executable, "-c", NAMES], env=variables, cwd=places[0], capture_output=True, text=True, check=True
    )
    return {name for name in json.loads(done.stdout) if not name.startswith(UNSTABLE)}


def test_commands_options_settings_and_the_clients_methods_of_a_frozen_release_are_still_there(
    release: Release,
) -> None:
    before = names(release.code)
    assert {"isosim serve --port", "ISOSIM_PORT", "isosim_client.Client", "Client.similarity pairs"} <= before
    assert before - names(ROOT, ROOT / "clients" / "python") == set()


def keys(schema: dict[str, Any], place: str = "") -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        yield place + name
        yield from keys(below, f"{place}{name}.")


def test_values_of_a_frozen_releases_chart_are_still_taken(release: Release) -> None:
    before = set(keys(json.loads((release.folder / "values.schema.json").read_bytes())))
    assert {"image.repository", "redis.mode"} <= before
    schema = json.loads((ROOT / "k8s" / "isosim" / "values.schema.json").read_bytes())
    assert before - set(keys(schema)) == set()
    assert not schema.get("required")


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def fields(schema: dict[str, Any], document: dict[str, Any], place: str, seen: tuple[str, ...] = ()) -> Iterator[str]:
    if (ref := schema.get("$ref", "")) in seen:
        return
    seen, schema = (*seen, *([ref] if ref else [])), resolved(schema, document)
    for name, below in schema.get("properties", {}).items():
        yield f"{place}.{name}"
        yield from fields(below, document, f"{place}.{name}", seen)
    for one in [one for word in ("anyOf", "oneOf", "allOf") for one in schema.get(word, [])]:
        yield from fields(one, document, place, seen)
    if isinstance(schema.get("items"), dict):
        yield from fields(schema["items"], document, f"{place}[]", seen)


def contract(document: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Everything that callers may send or read, and the part of it that they have to send."""
    offered, needed = set(), set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            route = f"{method.upper()} {path}"
            offered.add(route)
            for one in operation.get("parameters", []):
                offered.add(name := f"{route} {one['in']} {one['name']}")
                needed |= {name} if one.get("required") else set()
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                schema = content.get("schema", {})
                offered |= {f"{route} takes {kind}", *fields(schema, document, f"{route} takes")}
                needed |= {f"{route} takes.{name}" for name in resolved(schema, document).get("required", [])}
            for status, answer in operation["responses"].items():
                offered.add(f"{route} {status}")
                for content in answer.get("content", {}).values():
                    offered |= set(fields(content.get("schema", {}), document, f"{route} {status}"))
    return offered, needed


def series(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (isosim_\w+ \w+)$", text, re.MULTILINE))


@pytest.fixture
def stated(serve: Serve, release: Release) -> tuple[dict[str, Any], str, str]:
    """The frozen server's OpenAPI document, metrics and contract."""
    server = serve(**release.settings, release=release.code)
    document = server.client.get("/openapi.json").json()
    version = server.client.get("/info").json().get("contract", FIRST)
    metrics = server.client.get("/metrics").text
    server.stop()
    return document, metrics, version


def test_the_contract_and_the_metrics_of_a_frozen_release_hold_and_additions_raise_the_contracts_version(
    serve: Serve, release: Release, stated: tuple[dict[str, Any], str, str]
) -> None:
    document, metrics, version = stated
    before, needed_before = contract(document)
    assert {"POST /similarity takes.pairs", "POST /similarity 200.percentile", "GET /domains"} <= before
    server = serve(**release.settings)
    now, needed = contract(server.client.get("/openapi.json").json())
    same_major = version.split(".")[0] == CONTRACT.split(".")[0]
    lost = before - now
    newly_needed = {name for name in needed - needed_before if " ".join(name.split()[:2]) in before}
    assert not same_major or (lost, newly_needed) == (set(), set()), "this takes another major version of CONTRACT"
    raised = tuple(map(int, CONTRACT.split("."))) > tuple(map(int, version.split(".")))
    assert raised or now == before, "CONTRACT (service/__init__.py) has to be raised: the contract has more than before"
    assert len(series(metrics)) > 20
    assert series(metrics) - series(server.client.get("/metrics").text) == set()
