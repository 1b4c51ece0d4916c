"""Every operation of the OpenAPI document as a request that can be sent, and where it names a domain."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

VALUES = {"domain": "default", "version": "1", "model": "isosim", "job_id": "0" * 32, "name": "duplicates"}
NAMES = ("domain", "model", "job_id")


@dataclass
class Asked:
    """A request. `where` says what in it names a domain, if anything does."""

    method: str
    path: str
    template: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    where: str = ""

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"

    def arguments(self) -> dict[str, Any]:
        return {"params": self.query} | ({} if self.body is None else {"json": self.body})


def requests(document: dict[str, Any]) -> Iterator[Asked]:
    """A request for each operation, and for each form its body may have."""
    for template, methods in document["paths"].items():
        for method, operation in methods.items():
            for body in bodies(document, operation):
                yield Asked(method.upper(), template.format(**VALUES), template, {}, body)


def bodies(document: dict[str, Any], operation: dict[str, Any]) -> list[Any]:
    """An example of each form."""
    if "requestBody" not in operation:
        return [None]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return [copy.deepcopy(form["examples"][0]) for form in forms(document, schema)]


def forms(document: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The object schemas a schema stands for, references resolved."""
    if "$ref" in schema:
        return forms(document, document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    alternatives = schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf")
    if alternatives:
        return [form for one in alternatives for form in forms(document, one)]
    return [schema] if schema.get("type") == "object" or "properties" in schema else []


def naming(document: dict[str, Any], domain: str, job: str) -> Iterator[Asked]:
    """For every place of every operation that names a domain, a model or a job: the request with that one there."""
    models = [f"isosim/{domain}", f"isosim/{domain}:raw", f"isosim/{domain}@1"]
    for template, methods in document["paths"].items():
        for method, operation in methods.items():
            for body in bodies(document, operation):
                for name in NAMES:
                    if f"{{{name}}}" in template:
                        bare = models[:2] if "{version}" in template else models  # one version is enough
                        for value in {"domain": [domain], "model": bare, "job_id": [job]}[name]:
                            path = template.format(**VALUES | {name: value})
                            yield Asked(method.upper(), path, template, {}, body, f"path {name}")
                query = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
                if "domain" in query:
                    path = template.format(**VALUES)
                    yield Asked(method.upper(), path, template, {"domain": domain}, body, "query domain")
            content = operation.get("requestBody", {}).get("content", {})
            for form in forms(document, content.get("application/json", {}).get("schema", {})):
                for place in places(document, form):
                    for value in [domain, f"{domain}@1"] if place[-1] == "domain" else models:
                        body = put(form["examples"][0], place, value)
                        path = template.format(**VALUES)
                        yield Asked(method.upper(), path, template, {}, body, f"body {'.'.join(place)}")


def places(document: dict[str, Any], form: dict[str, Any], depth: int = 3) -> Iterator[tuple[str, ...]]:
    """Ways to fields named `domain` or `model`."""
    for name, schema in form.get("properties", {}).items():
        if name in ("domain", "model"):
            yield (name,)
        elif depth:
            for inner in forms(document, schema):
                for rest in places(document, inner, depth - 1):
                    yield (name, *rest)


def put(example: Any, place: tuple[str, ...], value: str) -> Any:
    """The example with the value at the place, and no other name of a domain beside it."""
    body = copy.deepcopy(example)
    for name in ("domain", "model"):
        body.pop(name, None)
    at = body
    for name in place[:-1]:
        at = at.setdefault(name, {}) or at.update({name: {}}) or at[name]
    at[place[-1]] = value
    return body
