"""Writes the reference pages from the code they describe: `make reference`. A test compares them with the committed."""

import ast
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from isosim import errors
from isosim.api.errors import TABLE, V1_TYPES
from isosim.api.readings import registry_of
from isosim.observability.metrics import SECONDS, Metrics
from isosim.server.app import create_app
from isosim.settings import Settings

HERE = Path(__file__).parent
GROUP = re.compile(r"    # (?P<title>.+)")
NOT_OURS = ("process_", "python_")


def settings() -> Iterator[str]:
    """The class's own source: fields in order, under its headings, each with its comment on how to choose it."""
    yield (
        "# Settings\n\n"
        "Read once at the start, from the environment. `isosim doctor` lists unknown `ISOSIM_*` variables.\n"
    )
    source = inspect.getsource(Settings)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (definition,) = ast.parse(source).body
    fields = {
        statement.lineno: (statement.target.id, range(statement.lineno, (statement.end_lineno or 0) + 1))
        for statement in ast.walk(definition)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.target.id in Settings.model_fields
    }
    for number, line in enumerate(source.splitlines(), start=1):
        if group := GROUP.fullmatch(line):
            yield f"\n## {group['title']}\n\n| variable | default | how to choose it |\n|---|---|---|\n"
        elif number in fields:
            name, lines = fields[number]
            value = Settings.model_fields[name].default
            shown = str(value).lower() if isinstance(value, bool) else "" if value in (None, ()) else str(value)
            why = " ".join(comments[line] for line in lines if line in comments)
            yield f"| `ISOSIM_{name.upper()}` | {shown and f'`{shown}`'} | {why} |\n"


def metrics() -> Iterator[str]:
    yield "# Metrics\n\n`GET /metrics`, Prometheus exposition. Beside these there are the client library's\n"
    yield "`process_*` and `python_*`.\n\n"
    yield "| metric | type | labels | what it counts |\n|---|---|---|---|\n"
    for collector in registry_of(Metrics())._collector_to_names:
        for family in collector.collect():
            if not family.name.startswith(NOT_OURS):
                suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
                labels = ", ".join(f"`{name}`" for name in labels_of(collector, family))
                meaning = family.documentation.replace("|", "\\|")
                yield f"| `{family.name}{suffix}` | {family.type} | {labels} | {meaning} |\n"


def labels_of(collector: Collector, family: Metric) -> tuple[str, ...]:
    """Names of a family's labels, also if it has no samples yet."""
    names: tuple[str, ...] = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
    return names


def errors_page() -> Iterator[str]:
    yield "# Errors\n\n"
    yield "Every error answer of our own and of TEI's routes is\n\n"
    yield '```json\n{"error": "what is wrong and what to do", "error_type": "Validation", "request_id": "…"}\n```\n\n'
    yield "and of a route under `/v1` OpenAI's, where 422 becomes 400:\n\n"
    yield '```json\n{"error": {"message": "…", "type": "invalid_request_error", "param": "input.1", '
    yield '"code": "validation"}}\n```\n\n'
    yield "`remedy` (`action`, `arguments`, `text`) says where possible what to do; under `/v1` the message ends so.\n"
    yield "The message of a 409 may begin with `encoder_mismatch`, that of a 503 with `encoder_changed`.\n"
    yield "`x-should-retry: false` marks errors that a retry cannot fix; 429 and 503 carry `Retry-After` in seconds.\n"
    yield "A request that fails changes nothing.\n\n"
    yield "| status | `error_type` | `type` under `/v1` | when |\n|---|---|---|---|\n"
    meaning = dict(re.findall(r"([A-Z]\w+) {2,}(.+)", errors.__doc__ or ""))
    for kind, (status, name) in sorted(TABLE.items(), key=lambda row: (row[1], row[0].__name__)):
        v1 = V1_TYPES.get(400 if status == 422 else status, "server_error")
        yield f"| {status} | {name} | {v1} | {meaning.get(kind.__name__, WHEN.get(kind.__name__, ''))} |\n"
    yield "| 500 | Internal | server_error | a fault of ours; the log has it under the request id |\n"


WHEN = {
    "MethodNotAllowed": "the route has other methods, named in `Allow`",
}


def openapi() -> Iterator[str]:
    yield json.dumps(create_app(Settings()).openapi(), indent=1, ensure_ascii=False) + "\n"


CHART = "../../k8s/isosim/values.schema.json"
CHART_DECIDES = {  # by other values of its own
    "host", "port", "encoder", "allow_anonymous", "engine", "local_worker", "drain_delay",
    "drain_seconds",
}  # fmt: skip
CHECKS = ("type", "enum", "items", "minimum", "exclusiveMinimum", "maximum")


def chart_schema() -> Iterator[str]:
    """The chart's schema with `settings` as the fields are, so that helm refuses a misspelt one, and the bounds of
    latency as the buckets are. The rest is kept as it is."""
    schema = json.loads((HERE / CHART).read_text(encoding="utf-8"))
    checks = {}
    for name, field in Settings.model_json_schema()["properties"].items():
        kind = next((option for option in field.get("anyOf", ()) if option.get("type") != "null"), field)
        if name not in CHART_DECIDES and kind.get("format") not in {"path", "password"}:  # those are mounts and Secrets
            checks[name] = {check: kind[check] for check in CHECKS if check in kind}
    schema["properties"]["settings"]["properties"] = checks
    objectives = schema["properties"]["prometheusRule"]["properties"]["slo"]["properties"]
    objectives["latency"]["properties"]["within"]["enum"] = list(SECONDS)
    yield json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


PAGES = {
    "settings.md": settings,
    "metrics.md": metrics,
    "errors.md": errors_page,
    "../openapi.json": openapi,
    CHART: chart_schema,
}


def pages() -> dict[str, str]:
    return {name: "".join(page()) for name, page in PAGES.items()}


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(HERE / name, file=sys.stderr)
