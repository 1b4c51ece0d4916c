"""What the clients send, and how they read answers of servers of other releases."""

import json
from typing import Any

import httpx
import httpx2
import pytest
from stubs import SCORES, Stub, job, says

from isosim_client import AsyncClient, Client, Domain, Ranked


def sent(stub: Stub) -> tuple[str, str, Any]:
    request = stub.requests[-1]
    return request.method, request.url.raw_path.decode(), json.loads(request.content or b"null")


def test_rerank_has_the_shape_of_text_embeddings_inference() -> None:
    stub = Stub(says(200, [{"index": 1, "score": 0.9, "text": "b"}, {"index": 0, "score": 0.1}]))
    ranked = stub.client().rerank("q", iter(["a", "b"]), domain="letters", return_text=True)
    assert ranked == (Ranked(index=1, score=0.9, text="b"), Ranked(index=0, score=0.1))
    body = {"query": "q", "texts": ["a", "b"], "domain": "letters", "return_text": True}
    assert sent(stub) == ("POST", "/rerank", body)


def test_a_name_is_one_segment_of_the_path() -> None:
    stub = Stub(says(200, {"domain": "d"}))
    stub.client().domain("a/../b?c#d é")
    assert sent(stub)[1] == "/domains/a%2F..%2Fb%3Fc%23d%20%C3%A9"
    stub.client().domain("letters@3")
    assert sent(stub)[1] == "/domains/letters@3"


@pytest.mark.parametrize("base", ["http://stub/below/it", "http://stub/below/it/"])
def test_the_path_of_a_gateway_comes_first(base: str) -> None:
    stub = Stub(says(200, SCORES))
    stub.client(base).similarity([("a", "b")])
    assert sent(stub)[1] == "/below/it/similarity"


def test_the_key_is_sent_and_not_shown() -> None:
    stub = Stub(says(200, SCORES))
    client = stub.client(api_key="hush")
    client.similarity([("a", "b")])
    assert stub.requests[0].headers["authorization"] == "Bearer hush"
    assert "hush" not in repr(client) + repr(vars(client)["_http"].headers)


def test_arguments_that_are_not_given_are_not_sent_to_an_older_server() -> None:
    stub = Stub(says(200, SCORES))
    stub.client().similarity([("a", "b")])
    assert sent(stub)[2] == {"pairs": [["a", "b"]]}
    stub.client().similarity([("a", "b")], threshold="duplicates", detail=True)
    assert sent(stub)[2].keys() == {"pairs", "threshold", "detail"}
    stub = Stub(says(202, job("queued")))
    stub.client().calibrate(["a"], domain="d", method="flow", promote="never", seed=7)
    assert dict(stub.requests[0].url.params) == {
        "domain": "d", "method": "flow", "promote": "never", "seed": "7",
    }  # fmt: skip


def test_a_saved_threshold_is_changed_only_at_the_revision_that_the_caller_saw() -> None:
    stub = Stub(says(200, {"domain": "d", "name": "a b", "target": {"fmr": 0.1}, "revision": 8}))
    seen = Domain(domain="d", champion=2, revision=7)
    stub.client().save_threshold("d", "a b", fmr=0.1, seen=seen)
    assert sent(stub) == ("PUT", "/domains/d/thresholds/a%20b", {"fmr": 0.1, "revision": 7})
    stub.client().save_threshold("d", "a", false_hit_rate=0.1, gallery=9)
    assert sent(stub)[2] == {"false_hit_rate": 0.1, "gallery": 9}
    stub = Stub(says(204))
    stub.client().delete_threshold("d", "a", seen=seen)
    assert sent(stub)[:2] == ("DELETE", "/domains/d/thresholds/a?revision=7")
    stub.client().delete_threshold("d", "a")
    assert sent(stub)[1] == "/domains/d/thresholds/a"


def test_unknown_fields_of_a_newer_server_are_ignored() -> None:
    answer = SCORES | {
        "colour": "red",
        "flags": [{"a": ["new_flag"], "b": [], "c": 1}],
        "detail": {"tokens": [], "x": 1},
    }
    scores = Stub(says(200, answer)).client().similarity([("a", "b")])
    assert scores.flags[0].a == ("new_flag",)
    assert not hasattr(scores, "colour")
    assert Stub(says(200, job("resting", mood="fine"))).client().job("j1").ended


def test_fields_that_are_not_sent_have_defaults() -> None:
    scores = Stub(says(200, SCORES)).client().similarity([("a", "b")])
    assert (scores.percentile, scores.flags, scores.detail) == (None, (), None)
    domain = Stub(says(200, {"domain": "letters", "versions": [{"version": 1, "method": "sn", "encoder": "e"}]}))
    assert domain.client().domain("letters").versions[0].servable


def test_a_whole_number_is_read_as_a_float() -> None:
    scores = Stub(says(200, SCORES | {"similarity": [1]})).client().similarity([("a", "b")])
    assert scores.similarity == (1.0,)
    assert isinstance(scores.similarity[0], float)


def test_answers_cannot_be_changed() -> None:
    scores = Stub(says(200, SCORES)).client().similarity([("a", "b")])
    with pytest.raises(AttributeError):
        scores.version = 2  # type: ignore[misc]
    assert len(scores) == 1


def test_a_closed_client_cannot_be_used() -> None:
    client = Stub(says(200, SCORES)).client()
    with client:
        client.similarity([("a", "b")])
    with pytest.raises(RuntimeError, match="closed"):
        client.similarity([("a", "b")])


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("transport", [httpx.MockTransport(lambda _: httpx.Response(200)), "ca.pem"])
def test_a_transport_of_another_library_is_refused_at_once(client: type[Any], transport: Any) -> None:
    with pytest.raises(TypeError, match=f"httpx2.*got {type(transport).__module__}"):
        client(transport=transport)


def test_a_transport_of_the_other_client_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"httpx2\.BaseTransport"):
        Client(transport=httpx2.AsyncHTTPTransport())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"httpx2\.AsyncBaseTransport"):
        AsyncClient(transport=httpx2.HTTPTransport())  # type: ignore[arg-type]
