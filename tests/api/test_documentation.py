"""The OpenAPI document tells the truth: against the committed one, about itself, and about a running server."""

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from isosim.server.app import create_app
from isosim.settings import Settings
from tests.processes import Serve
from tests.security.conftest import key_file
from tests.text import sentences

CASES = 2000


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = create_app(Settings()).openapi()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_the_committed_reference_is_that_of_the_code() -> None:
    """Settings, metrics, errors, the OpenAPI document. After a change: `make reference`, and look at the difference."""
    reference = Path(__file__).parents[2] / "docs" / "reference"
    pages = runpy.run_path(str(reference / "generate.py"))["pages"]()
    for name, text in pages.items():
        assert (reference / name).read_text(encoding="utf-8") == text, name


def test_every_setting_says_how_to_choose_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `ISOSIM_(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE))
    assert {name.lower() for name in rows} == set(Settings.model_fields)
    assert [name for name, why in rows.items() if not why.strip()] == []


def parts(part: Any) -> Iterator[dict[str, Any]]:
    """Every object in it."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from parts(inner)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in {part["$ref"] for part in parts(document) if isinstance(part.get("$ref"), str)}:
        found: Any = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_every_route_says_what_it_does_and_its_body_has_an_example(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def exemplified(schema: dict[str, Any]) -> bool:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
        return "examples" in schema or any(exemplified(one) for one in schema.get("oneOf", schema.get("anyOf", [])))

    for name, operation in operations(document):
        assert operation.get("description"), name
        body = operation.get("requestBody")
        if body is not None and "application/json" in body["content"]:  # else it is a file
            assert exemplified(body["content"]["application/json"]["schema"]), f"{name}: no example of a body"
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert "examples" in parameter or "examples" in parameter["schema"], f"{name}: {parameter['name']}"


def test_examples_of_schemas_are_valid(document: dict[str, Any]) -> None:
    """FastAPI leaves fields that are null out of examples."""
    components = {"components": document["components"]}
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", []):
            jsonschema.Draft202012Validator(schema | components).validate(example)
            assert example, name


def test_answers_and_errors_are_documented_in_the_shape_they_have(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        wanted = "OpenAIErrorBody" if name.split()[1].startswith("/v1/") else "ErrorBody"
        for status, response in operation["responses"].items():
            if status[0] in "45":
                assert response["content"]["application/json"]["schema"]["$ref"].endswith(f"/{wanted}"), (name, status)
            for kind, content in response.get("content", {}).items():
                assert content.get("schema") or kind == "text/event-stream", (name, status, kind)


def test_generators_get_short_names_declared_tags_and_no_tuples(document: dict[str, Any]) -> None:
    """openapi-python-client, openapi-typescript and openapi-generator name methods by operation id, modules by tag;
    some of them cannot read `prefixItems`, and enumerations whose values differ only in case."""
    every = [operation for _, operation in operations(document)]
    names = [operation["operationId"] for operation in every]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch("[a-z0-9_]{3,24}", name)] == []
    assert {tag for operation in every for tag in operation["tags"]} == {tag["name"] for tag in document["tags"]}

    for part in (*parts(document["paths"]), *parts(document["components"])):
        assert "prefixItems" not in part, part
        assert part.get("type") != "array" or part["items"], part
        values = [str(value).lower() for value in part.get("enum", ()) if part.get("type") == "string"]
        assert len(set(values)) == len(values), part


@pytest.mark.fuzzing
def test_two_thousand_generated_requests_meet_nothing_undocumented(serve: Serve, store: Path, tmp_path: Path) -> None:
    """With a key that may do everything: no 5xx, and nothing that the document does not foresee (schemathesis)."""
    key = "isk_fuzz"
    keys = key_file(tmp_path, {key: "read,calibrate,admin"})
    server = serve(model_store=store, encoder="tiny", log_level="error", api_keys_file=keys)
    server.client.headers["authorization"] = f"Bearer {key}"
    assert server.calibrate("tickets", sentences(400), method="whitening")["status"] == "succeeded"
    report = tmp_path / "report.ndjson"
    done = subprocess.run(
        [
            Path(sys.executable).parent / "schemathesis", "run", f"{server.url}/openapi.json", "--seed", "1",
            "--max-examples", "120", "--header", f"Authorization: Bearer {key}",
            "--phases", "examples,coverage,fuzzing", "--continue-on-failure",
            "--exclude-checks", "positive_data_acceptance,unsupported_method", "--request-timeout", "20",
            "--suppress-health-check", "all", "--report-ndjson-path", report,
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    cases = sum(line.count('"status_code"') for line in report.read_text().splitlines())
    assert cases >= CASES, done.stdout[-1500:]
    assert server.client.get("/readyz").status_code == 200
