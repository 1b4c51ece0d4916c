"""A key with `domains=` reaches no other domain: on no route, by no name, in no list, and in no error."""

import re
from typing import Any

from tests.security.conftest import RESTRICTED, Keyed
from tests.security.operations import Asked, naming, requests
from tests.text import sentences

MINE, THEIRS = "mine", "theirs"
# Routes that name no domain: nothing of one is in their answers.
WITHOUT = {"/tokenize", "/info", "/v2"}


def test_every_place_of_every_route_that_names_a_domain_refuses_another_keys(
    keyed: Keyed, document: dict[str, Any]
) -> None:
    """Made of the OpenAPI document: a route that is added and forgets the check fails here."""
    seen: dict[str, set[str]] = {}
    for asked in naming(document, THEIRS, keyed.jobs[THEIRS]):
        response = keyed.ask(RESTRICTED, asked.method, asked.path, **asked.arguments())
        told = (asked, response.status_code, response.text[:300])
        if asked.where == "path job_id":  # a number names no domain; the job is simply not there
            assert response.status_code == 404, told
        elif asked.template == "/domains/{domain}/threshold":
            response = keyed.ask(RESTRICTED, "GET", asked.path, params={"fmr": "0.1"})
            assert response.status_code == 403, told
        elif asked.where == "query domain":
            kind = {"content-type": "text/plain"}
            response = keyed.ask(RESTRICTED, asked.method, asked.path, params=asked.query, content=b"a", headers=kind)
            assert response.status_code == 403, told
        elif asked.template == "/calibrate":  # `@1` is no name to calibrate
            assert response.status_code in (403, 422), told
            assert "theirs@1" in response.text or response.status_code == 403, told
        else:
            assert response.status_code == 403, told
        assert "mine" not in response.text.replace("mine-", ""), told
        seen.setdefault(asked.template, set()).add(asked.where)
    named = {path for path in document["paths"] if re.search(r"\{(domain|model|job_id)\}", path)}
    assert set(seen) == named | {
        "/", "/invocations", "/similarity", "/percentile", "/embed", "/rerank", "/v1/rerank", "/v2/rerank", "/score",
        "/v1/score", "/v1/embeddings", "/v1/embed", "/v2/embed", "/calibrate", "/matches", "/matches/check",
    }  # fmt: skip
    assert {"body domain", "body parameters.domain"} <= seen["/similarity"]
    assert {"body domain", "body model"} <= seen["/rerank"]
    assert {"body domain", "query domain"} <= seen["/calibrate"]
    assert keyed.ask("read", "GET", "/domains/theirs").json()["champion"] == 2  # and nothing has changed


def test_the_same_requests_for_its_own_domain_are_let_through(keyed: Keyed, document: dict[str, Any]) -> None:
    for asked in naming(document, MINE, keyed.jobs[MINE]):
        if asked.method in ("DELETE", "PUT") or asked.path.endswith("/rollback"):
            continue  # these would change what other tests look at
        if asked.where == "query domain":
            asked.body = {**asked.body, "domain": MINE}
        response = keyed.ask(RESTRICTED, asked.method, asked.path, **asked.arguments())
        assert response.status_code != 403, (asked, response.text[:300])


def test_the_default_domain_is_no_exception(keyed: Keyed, document: dict[str, Any]) -> None:
    """Where no domain is named, default answers: a key that may not use it must name one it may."""
    for asked in requests(document):
        names_one = (
            asked.template.startswith(("/calibrate", "/domains", "/v1/models", "/matches/{job_id}"))
            or asked.template in WITHOUT
        )
        if asked.method == "POST" and not names_one and asked.body is not None:
            response = keyed.ask(RESTRICTED, asked.method, asked.path, json=without_names(asked))
            assert response.status_code == 403, (asked, response.text[:300])


NAMED_BY_MODEL = ("/score", "/v1/score", "/v1/embeddings", "/v1/embed", "/v2/embed")


def without_names(asked: Asked) -> Any:
    body = {name: value for name, value in asked.body.items() if name not in ("domain", "model")}
    return {**body, "model": "isosim"} if asked.template in NAMED_BY_MODEL else body


def test_lists_hold_only_the_keys_own(keyed: Keyed) -> None:
    def listed(key: str, path: str, entries: str, name: str) -> set[str]:
        return {one[name] for one in keyed.ask(key, "GET", path).json()[entries]}

    assert listed(RESTRICTED, "/domains", "domains", "domain") == {MINE}
    assert listed(RESTRICTED, "/v1/models", "data", "id") == {"isosim/mine", "isosim/mine:raw"}
    assert listed(RESTRICTED, "/calibrate", "jobs", "domain") == {MINE}
    assert listed("read", "/domains", "domains", "domain") == {"default", MINE, THEIRS}
    assert listed("read", "/calibrate", "jobs", "domain") == {MINE, THEIRS}


def test_no_error_tells_of_other_domains(keyed: Keyed) -> None:
    response = keyed.ask(RESTRICTED, "POST", "/v1/embeddings", json={"model": "isosim/mine-none", "input": "a"})
    assert response.status_code == 404
    assert THEIRS not in response.text
    assert "default" not in response.text
    there, nowhere = (keyed.ask(RESTRICTED, "GET", f"/domains/{name}") for name in (THEIRS, "nowhere"))
    assert (there.status_code, nowhere.status_code) == (403, 403)
    assert there.json()["error"].replace(THEIRS, "nowhere") == nowhere.json()["error"]


def test_an_idempotency_key_belongs_to_its_api_key(keyed: Keyed) -> None:
    body = {"domain": "mine", "texts": sentences(250), "promote": "never", "method": "identity"}
    header = {"idempotency-key": "shared"}
    jobs = [
        keyed.ask(key, "POST", "/calibrate", json=body, headers=header).json()["job"]
        for key in (RESTRICTED, "read,calibrate,admin", RESTRICTED)
    ]
    assert jobs[0] == jobs[2] != jobs[1]
    other = keyed.ask("calibrate", "POST", "/calibrate", json={**body, "domain": "theirs"}, headers=header)
    assert other.status_code == 202  # and not a conflict that tells of the others
