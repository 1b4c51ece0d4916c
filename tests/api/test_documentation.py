"""The OpenAPI document tells the truth: against the committed one, about itself, and about a running server."""

import hashlib
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel

from isosim.api.bodies import ErrorBody, OpenAIErrorBody
from isosim.server.answers import ANSWERS
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.api.conftest import OPEN
from tests.processes import Serve, Server
from tests.security.conftest import bearer
from tests.text import sentences

CASES = 5000


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


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            for value in part.values():
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    for reference in set(references(document)):
        found: Any = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_every_route_says_what_it_does_and_shows_an_example(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def exemplified(schema: dict[str, Any]) -> bool:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
        return "examples" in schema or any(exemplified(one) for one in schema.get("oneOf", schema.get("anyOf", [])))

    for name, operation in operations(document):
        assert operation.get("description") or operation.get("summary"), name
        body = operation.get("requestBody")
        if body is not None and "application/json" in body["content"]:  # else it is a file
            assert exemplified(body["content"]["application/json"]["schema"]), f"{name}: no example of a body"
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert "examples" in parameter or "examples" in parameter["schema"], f"{name}: {parameter['name']}"


def test_errors_are_documented_in_the_shape_they_have(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        wanted = "OpenAIErrorBody" if name.split()[1].startswith("/v1/") else "ErrorBody"
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert response["content"]["application/json"]["schema"]["$ref"].endswith(f"/{wanted}"), (name, status)


def test_our_own_routes_come_first_and_operations_last(document: dict[str, Any]) -> None:
    first = [path.split("/")[1] for path in document["paths"]]
    own = ["similarity", "percentile", "inspect", "calibrate", "domains"]
    assert list(dict.fromkeys(first))[:5] == own
    assert not set(own) & set(first[first.index("domains") + first.count("domains") :])
    assert list(dict.fromkeys(first))[-4:] == ["livez", "readyz", "metrics", "console"]


def test_every_summary_is_short_and_the_first_sentence_of_the_description(document: dict[str, Any]) -> None:
    given = {"GET /ping", "POST /", "POST /invocations"}  # share their function, and so its docstring, with other paths
    for name, operation in operations(document):
        summary, description = operation["summary"], " ".join(operation["description"].split())
        assert f"{description} ".startswith(f"{summary}. ") == (name not in given), name
        assert len(summary.split()) > 1, name
        assert len(summary) < 95, name


def test_every_error_has_an_example_that_fits_its_schema(document: dict[str, Any]) -> None:
    models: dict[str, type[BaseModel]] = {"ErrorBody": ErrorBody, "OpenAIErrorBody": OpenAIErrorBody}
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                content = response["content"]["application/json"]
                body = models[content["schema"]["$ref"].rpartition("/")[2]].model_validate(content["example"])
                if isinstance(body, ErrorBody):
                    assert body.error_type in response["description"], (name, status)


def test_every_route_shows_an_answer_that_fits_its_schema(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            content = response.get("content", {}).get("application/json")
            if int(status) < 300 and content is not None:
                assert "example" in content, name
                schema = content.get("schema", {}) | {"components": document["components"]}
                jsonschema.Draft202012Validator(schema).validate(content["example"])


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("POST /similarity", "/similarity", {"pairs": [["a", "b"]], "domain": "tickets"}),
        ("POST /percentile", "/percentile", {"cosines": [0.31, 0.87], "domain": "tickets"}),
        ("GET /domains", "/domains", None),
        ("GET /domains/{domain}", "/domains/tickets", None),
        ("GET /domains/{domain}/versions/{version}", "/domains/tickets/versions/1", None),
        ("GET /domains/{domain}/thresholds", "/domains/tickets/thresholds", None),
        ("GET /domains/{domain}/threshold", "/domains/tickets/threshold?fmr=0.01", None),
        ("POST /embed", "/embed", {"inputs": "a"}),
        ("POST /rerank", "/rerank", {"query": "a", "texts": ["b", "c"]}),
        ("POST /v1/rerank", "/v1/rerank", {"model": "isosim/tickets", "query": "a", "documents": ["b"]}),
        ("POST /v1/score", "/v1/score", {"model": "isosim/tickets", "text_1": "a", "text_2": "b"}),
        ("POST /v1/embeddings", "/v1/embeddings", {"model": "isosim/tickets", "input": "a"}),
        ("POST /tokenize", "/tokenize", {"inputs": "a"}),
        ("GET /v1/models", "/v1/models", None),
        ("GET /v1/models/{model}", "/v1/models/isosim/tickets", None),
        ("GET /v2", "/v2", None),
        ("GET /v2/models/{model}/versions/{version}", "/v2/models/isosim%2Ftickets/versions/1", None),
        ("GET /v2/models/{model}/ready", "/v2/models/isosim%2Ftickets/ready", None),
        (
            "POST /v2/models/{model}/infer",
            "/v2/models/isosim%2Ftickets/infer",
            {
                "inputs": [
                    {"name": name, "shape": [1], "datatype": "BYTES", "data": ["a"]} for name in ("text_1", "text_2")
                ],
                "outputs": [{"name": "similarity"}],
            },
        ),
        ("GET /info", "/info", None),
        ("GET /livez", "/livez", None),
        ("GET /readyz", "/readyz", None),
        ("GET /console/server.json", "/console/server.json", None),
    ],
)
def test_an_example_has_the_fields_that_a_running_server_answers(
    stocked: Server, name: str, path: str, body: Any
) -> None:
    answer = stocked.client.request(name.split(maxsplit=1)[0], path, json=body, headers=bearer(OPEN))
    assert answer.status_code == 200, answer.text
    assert shape(answer.json()) == shape(ANSWERS[name])


def shape(answer: Any) -> Any:
    """The fields of an object, of the first one in a list, or a value's type."""
    if isinstance(answer, list):
        return [shape(answer[0])]
    return answer.keys() if isinstance(answer, dict) else type(answer)


@pytest.mark.fuzzing
def test_five_thousand_generated_requests_meet_nothing_undocumented(serve: Serve, store: Path, tmp_path: Path) -> None:
    """With a key that may do everything: no 5xx, and nothing that the document does not foresee (schemathesis)."""
    key = "isk_fuzz"
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(key.encode()).hexdigest()} read,calibrate,admin domains=*\n")
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
