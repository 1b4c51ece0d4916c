"""Messages of refusals, through HTTP: what was sent, what is wanted, and how to mend it."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from isosim.api.parameters import bodies, parameters
from tests.api.conftest import NARROW, OPEN
from tests.api.test_parameters import OWN
from tests.processes import Server
from tests.security.conftest import bearer

# Pydantic's own words, which name neither the place as a person counts it nor the remedy.
PYDANTIC = re.compile(
    r"[Ss]hould (be|have|match)|[Ff]ield required|\ba valid\b|after validation|greater than|less than or equal"
    r"|Extra inputs|Value error|[Uu]nable to (parse|interpret)|_type\b"
)
NOWHERE = {"{domain}": "nowhere", "{version}": "1", "{name}": "strict", "{job_id}": "0" * 32}
WRONG: list[Any] = [
    None, True, "", "x", "7", "a" * 20_000, "\u0000", -1, 0, 1.5, 10**30, -(10**30), 1e308, [], {}, ["x"], [None], [1],
    [True], [[]], [["a"]], [["a", 1]], [["a", None]], [["a", "b", "c"]], [["a", "b", 1, 2, 3]], [["a", "b", "x"]],
    [["a", "b", 1, -1]], ["ab"], [{}], [[[0.6], ["x"]]], [[[0.6]]], [[0.6, 0.8]], {"x": 1}, {"fmr": "x"}, {"fmr": -1},
    [["a", "b"]] * 600, ["a"] * 600,
]  # fmt: skip
OF_QUERIES = ["", "x", "-1", "0", "1.5", "1e400", "nan", "9" * 30, "true", "yes", "a" * 300, "\x00", "ä", "../etc"]


def path_of(route: APIRoute) -> str:
    path = route.path
    for place, value in NOWHERE.items():
        path = path.replace(place, value)
    return path


def nested(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields that are objects of their own."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def names_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def slips(model: type[BaseModel]) -> Iterator[Any]:
    """The example of a body with one thing wrong: a field's value, a field that is missing, one that is unknown."""
    extra: Any = model.model_config["json_schema_extra"]
    good = extra["examples"][0]
    yield from (None, 3, "x", [], [good], {}, {**good, "qwxz": 1})
    for name in names_of(model):
        yield {key: value for key, value in good.items() if key != name}
        yield from ({**good, name: value} for value in WRONG)
        yield {**{key: value for key, value in good.items() if key != name}, f"{name}s": good.get(name)}
    for name, inner in nested(model).items():
        for field in names_of(inner):
            for value in WRONG:
                body = copy.deepcopy(good)
                body.setdefault(name, {})[field] = value
                yield body
            body = copy.deepcopy(good)
            body.setdefault(name, {}).pop(field, None)
            yield body


def said(response: httpx.Response) -> str:
    body = response.json()
    message: str = body["error"] if isinstance(body["error"], str) else body["error"]["message"]
    return message


def refused_with(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, said(response)


ROUTES = [(method, route) for method, route in OWN if isinstance(route, APIRoute)]
JSON_BODIES = [(method, route) for method, route in ROUTES if bodies(route)]
QUERIES = [(method, route) for method, route in ROUTES if parameters(route)]


@pytest.mark.parametrize(("method", "route"), JSON_BODIES, ids=lambda part: getattr(part, "path", part))
def test_no_message_about_a_body_is_in_pydantics_words(tiny_server: Server, method: str, route: APIRoute) -> None:
    """Wrong types, missing fields, numbers too large and too small: every field of every body of ours."""
    refused = 0
    for model in bodies(route):
        for body in slips(model):
            content = json.dumps(body)
            headers = {"content-type": "application/json"}
            response = tiny_server.client.request(method, path_of(route), content=content, headers=headers)
            assert response.status_code < 500, (content[:200], response.text)
            if response.status_code >= 400:
                refused += 1
                message = said(response)
                assert not PYDANTIC.search(message), (content[:200], message)
                assert len(message) < 500, (content[:200], message)
    assert refused > 20


@pytest.mark.parametrize(("method", "route"), QUERIES, ids=lambda part: getattr(part, "path", part))
def test_no_message_about_a_query_is_in_pydantics_words(tiny_server: Server, method: str, route: APIRoute) -> None:
    refused = 0
    for name in parameters(route):
        for value in OF_QUERIES:
            response = tiny_server.client.request(method, path_of(route), params={name: value})
            assert response.status_code < 500, (name, value, response.text)
            if response.status_code >= 400:
                refused += 1
                message = said(response)
                assert not PYDANTIC.search(message), (name, value, message)
                assert len(message) < 500, (name, value, message)
    assert refused > 0


PAIR = [["a boat", "a gate"]]


CASES: list[tuple[str, Any, str]] = [
    ("/similarity", {"pair": PAIR}, "pair: unknown field; did you mean pairs?"),
    (
        "/similarity",
        {"pair": PAIR, "detail": 1},
        "pair: unknown field; did you mean pairs?; also missing or wrong: detail",
    ),
    ("/similarity", {}, 'pairs is missing; send a list of pairs of texts, [["a", "b"], …]'),
    (
        "/similarity",
        {"pairs": [*PAIR * 3, ["a", "b", "c"]]},
        'pairs[3] (the 4th pair) has 3 texts; a pair is two texts, ["a", "b"]',
    ),
    ("/similarity", {"pairs": ["ab"]}, 'pairs[0] (the 1st pair) is a string; a pair is two texts, ["a", "b"]'),
    (
        "/similarity",
        {"pairs": [["a", 7]]},
        "pairs[0][1] (the 2nd text of the 1st pair) is 7; it must be a string",
    ),
    ("/similarity", {"pairs": [*PAIR, ["a", ""]]}, "pairs[1][1] (the 2nd text of the 2nd pair) is empty"),
    (
        "/similarity",
        {"pairs": [*PAIR * 4, ["a", "b" * 11_999]]},
        "pairs[4][1] (the 2nd text of the 5th pair) has 11999 characters, at most 10000 are taken",
    ),
    (
        "/similarity",
        {"pairs": PAIR, "detail": "yes"},
        'detail is "yes"; it must be true or false, without quotation marks',
    ),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b", "c", 3]}},
        "inputs.sentences[2] (the 3rd sentence) is 3; it must be a string",
    ),
    ("/percentile", {"cosines": [0.1, "x"]}, "cosines[1] (the 2nd cosine) is a string; it must be a number"),
    (
        "/domains/default/champion",
        {"version": "2"},
        'version is "2"; it must be a whole number, without quotation marks',
    ),
    (
        "/domains/default/labels",
        {"labels": [["a", "b", 1], ["a", "b"]]},
        "labels[1] (the 2nd labelled pair) has 2 entries; a labelled pair is",
    ),
    (
        "/domains/default/labels",
        {"labels": [{"a": "x", "b": "y"}]},
        "labels[0][2] (the label of the 1st labelled pair) is missing; a labelled pair is",
    ),
]


@pytest.mark.parametrize(("path", "body", "message"), CASES)
def test_a_refusal_says_what_was_sent_and_what_is_wanted(
    tiny_server: Server, path: str, body: Any, message: str
) -> None:
    method = "PUT" if path.endswith("champion") else "POST"
    status, text = refused_with(tiny_server.client.request(method, path, json=body))
    assert status == (400 if "is empty" in message else 422)
    assert text.startswith(message)
    assert "pair:" not in text or text == message  # not also the field that was meant


def test_known_fields_are_listed_once_and_as_they_are_sent(tiny_server: Server) -> None:
    known = {
        "/similarity": "pairs, domain, detail, threshold, vectors, encoder",
        "/domains/d/rollback": "from, revision",
    }
    for path, names in known.items():
        answer = tiny_server.client.post(path, json={"qwxz": 1})
        assert said(answer).startswith(f"qwxz: unknown field; known are {names}")


def test_errors_under_v1_name_the_field_as_a_path(tiny_server: Server) -> None:
    response = tiny_server.client.post("/v1/score", json={"model": "isosim", "text_1": "a", "text_2": ["b", 7]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "text_2.1"
    assert error["message"] == "text_2[1] (the 2nd text) is 7; it must be a text"


FORM, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        (FORM, "content-type 'multipart/form-data' (curl -F sends it) is a form"),
        (URLENCODED, "content-type 'application/x-www-form-urlencoded' (curl -d alone sends it) is a form"),
        (None, "the request has no content-type"),
        ("text/csv", "content-type 'text/csv' is not read here"),
    ],
)
def test_a_body_of_another_type_is_told_the_option_of_curl(tiny_server: Server, kind: str | None, begins: str) -> None:
    headers = {} if kind is None else {"content-type": kind}
    examples = {
        "/percentile": '{"cosines":[0.31,0.87],"domain":"default"}',
        "/domains/default/champion": '{"version":2,"from":1}',
        "/domains/default/labels": '{"labels":[["Printer is jammed.","Paper stuck in the printer.",1]]}',
    }
    for path, example in examples.items():
        method = "PUT" if path.endswith("champion") else "POST"
        status, text = refused_with(tiny_server.client.request(method, path, content=b"pairs=a", headers=headers))
        assert status == 415
        table = "; for a table of labels, run isosim label FILE --domain NAME" * path.endswith("labels")
        assert text == (
            f"{begins}; this route reads JSON: curl -H 'content-type: application/json' -d '{example}'{table}"
        )
    assert "isosim label FILE" in text


@pytest.mark.parametrize("path", ["/calibrate?domain=d", "/inspect"])
@pytest.mark.parametrize("kind", [FORM, URLENCODED])
def test_a_posted_form_is_told_how_to_post_the_file_itself(tiny_server: Server, path: str, kind: str) -> None:
    answer = tiny_server.client.post(path, content=b"--x", headers={"content-type": kind})
    status, text = refused_with(answer)
    assert status == 415
    assert kind in text
    assert "--data-binary @" in text
    assert f"'…{path}'" in text


@pytest.mark.parametrize("path", ["/", "/console", "/docs", "/metrics", "/livez", "/readyz"])
def test_head_is_answered_like_get_without_a_body(tiny_server: Server, path: str) -> None:
    """Uptime monitors ask so."""
    head, get = tiny_server.client.head(path), tiny_server.client.get(path)
    assert head.status_code == get.status_code < 400
    assert head.content == b""
    assert head.headers.get("content-type") == get.headers.get("content-type")


def test_a_version_of_a_domain_that_is_not_there_is_an_unknown_domain(stocked: Server) -> None:
    for method, path in (
        ("GET", "/domains/ticket"), ("GET", "/domains/ticket/versions/1"), ("DELETE", "/domains/ticket/versions/1"),
        ("GET", "/domains/ticket@1/threshold?fmr=0.01"),
    ):  # fmt: skip
        status, text = refused_with(stocked.client.request(method, path, headers=bearer(OPEN)))
        expected = "no domain 'ticket'; GET /domains lists the domains"
        assert (status, text) == (404, expected), path
    answer = stocked.client.get("/domains/tickets/versions/9", headers=bearer(OPEN))
    assert refused_with(answer)[0] == 404
    assert "it has" in said(answer)


def test_a_precision_beyond_the_labels_names_the_field_once(stocked: Server) -> None:
    answer = stocked.client.get("/domains/tickets/threshold?precision=0.99", headers=bearer(OPEN))
    assert answer.status_code == 422
    assert said(answer).startswith("precision is 0.99; it must be between 0.50 and 0.90, the highest that the ")


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/similarities", "/similarity"), ("/api/v1/similarity", "/similarity")],
)
def test_a_path_that_no_route_has_is_told_the_nearest(tiny_server: Server, path: str, meant: str) -> None:
    status, text = refused_with(tiny_server.client.post(path, json={"pairs": PAIR}))
    assert (status, text) == (404, f"no route POST {path}; did you mean {meant}? /docs lists the routes")
    slashed = tiny_server.client.post(f"{meant}/", json={"pairs": PAIR})
    assert slashed.json() == tiny_server.client.post(meant, json={"pairs": PAIR}).json()
    assert said(tiny_server.client.get("/qwxz")) == "no route GET /qwxz; /docs lists the routes"


@pytest.mark.parametrize(
    ("share", "why"),
    [
        ("1%", 'fmr is "1%"; it must be a number; 1 % is 0.01'),
        ("0,01", 'fmr is "0,01"; it must be a number; 1 % is 0.01'),
        ("nan", "fmr is nan; it must be a number; it is a share: 1 % is 0.01"),
    ],
)
def test_a_share_that_is_no_number_is_told_how_to_write_it(stocked: Server, share: str, why: str) -> None:
    answer = stocked.client.get("/domains/tickets/threshold", params={"fmr": share}, headers=bearer(OPEN))
    assert refused_with(answer) == (422, why)


def test_json_that_is_not_utf_8_is_told_so(tiny_server: Server) -> None:
    content = '{"pairs": [["café", "b"]]}'.encode("latin-1")
    status, text = refused_with(
        tiny_server.client.post("/similarity", content=content, headers={"content-type": "application/json"})
    )
    assert status == 422
    assert re.fullmatch(r"the body is not UTF-8 at line 1 column \d+; JSON is sent in UTF-8", text)


def test_a_version_that_has_no_such_name_is_told_what_the_name_alone_is(stocked: Server) -> None:
    answer = stocked.client.post("/similarity", json={"pairs": PAIR, "domain": "tickets@latest"}, headers=bearer(OPEN))
    assert "name (its champion), name@version or name@previous" in refused_with(answer)[1]


def test_an_unknown_key_is_told_who_makes_one(stocked: Server) -> None:
    status, text = refused_with(stocked.client.get("/domains", headers=bearer("isk_guess")))
    assert status == 401
    assert text == "the API key is not known; ask the server's operator for one: isosim keys new --add FILE"


def test_a_missing_scope_is_told_how_a_key_comes_to_have_it(stocked: Server) -> None:
    body = {"labels": [["a", "b", 1]]}
    status, text = refused_with(stocked.client.post("/domains/invoices/labels", json=body, headers=bearer(NARROW)))
    assert status == 403
    assert "isosim keys new --scopes calibrate" in text
