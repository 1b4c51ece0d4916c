"""When a request is sent again, and when it is not; no test here waits."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from stubs import OVERLOADED, SCORES, Step, Stub, job, response, says

from isosim_client import (
    ApiError,
    Client,
    ConnectionFailed,
    ConnectionLost,
    Domain,
    IsosimError,
    NoAnswer,
    Overloaded,
    TimedOut,
    Unavailable,
)

PAIRS = [("a", "b")]
LOST = httpx2.ReadError("reset")
REFUSED = httpx2.ConnectError("refused")


def test_a_storm_of_429_is_waited_for_as_long_as_the_server_asks() -> None:
    stub = Stub(*[says(429, OVERLOADED, retry_after="3")] * 3, says(200, SCORES))
    assert stub.client(random=lambda: 0.0).similarity(PAIRS).similarity == (0.5,)
    assert stub.time.pauses == [3, 3, 3]


def test_the_async_client_waits_the_same() -> None:
    stub = Stub(*[says(429, OVERLOADED, retry_after="3")] * 3, says(200, SCORES))
    assert asyncio.run(stub.async_client(random=lambda: 0.0).similarity(PAIRS)).similarity == (0.5,)
    assert stub.time.pauses == [3, 3, 3]


def test_pauses_double_up_to_the_most_and_are_spread_by_chance() -> None:
    shares = iter([1.0, 1.0, 0.5, 1.0, 1.0])
    stub = Stub(*[says(503)] * 5, says(200, SCORES))
    stub.client(random=lambda: next(shares), first=1.0, most=4.0).similarity(PAIRS)
    assert stub.time.pauses == [1, 2, 2, 4, 4]


def test_callers_refused_together_do_not_come_back_together() -> None:
    pauses = []
    for share in (0.1, 0.9):
        stub = Stub(says(429, OVERLOADED, retry_after="2"), says(200, SCORES))
        stub.client(random=lambda share=share: share).similarity(PAIRS)
        pauses += stub.time.pauses
    assert pauses == [2.05, 2.45]


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:07 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 7.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),  # past: no pause is asked for
        ({"retry_after": "soon"}, 0.0),
        ({"retry_after": "-4"}, 0.0),
        ({"retry_after": "nan"}, 0.0),
        ({}, 0.0),
    ],
)
def test_retry_after_is_read_in_seconds_and_as_a_date(headers: dict[str, str], pause: float) -> None:
    stub = Stub(says(429, OVERLOADED, **headers), says(200, SCORES))
    stub.client(random=lambda: 0.0).similarity(PAIRS)
    assert stub.time.pauses == [pause]


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_what_heals_is_sent_again(status: int) -> None:
    stub = Stub(says(status), says(200, SCORES))
    stub.client().similarity(PAIRS)
    assert len(stub.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422, 424, 500])
def test_what_does_not_heal_is_not_sent_again(status: int) -> None:
    stub = Stub(says(status))
    with pytest.raises(ApiError):
        stub.client().similarity(PAIRS)
    assert len(stub.requests) == 1


def test_the_servers_word_against_trying_again_is_heeded() -> None:
    stub = Stub(says(503, x_should_retry="false"))
    with pytest.raises(ApiError):
        stub.client().similarity(PAIRS)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("error", [REFUSED, LOST, httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("gone")])
def test_a_broken_connection_is_made_anew(error: Exception) -> None:
    stub = Stub(error, error, says(200, SCORES))
    stub.client().similarity(PAIRS)
    assert len(stub.requests) == 3


def test_patience_ends_with_the_number_of_tries() -> None:
    stub = Stub(says(429, OVERLOADED))
    with pytest.raises(Overloaded, match="full"):
        stub.client(times=2).similarity(PAIRS)
    assert len(stub.requests) == 3


def test_patience_ends_with_the_budget() -> None:
    stub = Stub(REFUSED, takes=4.0)
    with pytest.raises(ConnectionFailed):
        stub.client(budget=10.0, times=99, first=1.0).similarity(PAIRS)
    assert stub.time.pauses == [1]  # 4 s, a pause of 1, 4 s; a pause of 2 would end at 11
    assert stub.time.now - 1000 == 9


def test_what_cannot_be_waited_for_is_not_waited_for() -> None:
    stub = Stub(says(503, {"error": "no worker", "error_type": "Unavailable"}, retry_after="3600"))
    with pytest.raises(Unavailable) as caught:
        stub.client().similarity(PAIRS)
    assert (caught.value.retry_after, stub.time.pauses) == (3600, [])


def test_a_try_has_no_more_time_than_the_budget_has_left() -> None:
    stub = Stub(REFUSED, says(200, SCORES), takes=50.0)
    stub.client(budget=60.0, first=1.0).similarity(PAIRS)
    assert [request.extensions["timeout"]["read"] for request in stub.requests] == [30, 9]


Act = Callable[[Client], Any]
HARMFUL: list[Act] = [lambda client: client.cancel("j1")]
LETTERS = {"domain": "letters", "champion": 2, "previous": 1, "revision": 7}
START = {"revision": 7}
CHANGES: dict[str, tuple[Act, Any, dict[str, str]]] = {  # what is done, the body and the query that are sent
    "promote": (lambda client: client.promote("letters", 1), {"version": 1} | START, {}),
    "promote_without": (
        lambda client: client.promote("letters", 1, without=["duplicates"]),
        {"version": 1, "without": ["duplicates"]} | START,
        {},
    ),
    "rollback": (lambda client: client.rollback("letters"), START, {}),
    "delete_version": (lambda client: client.delete_version("letters", 3), None, {"revision": "7"}),
    "add_labels": (
        lambda client: client.add_labels("letters", [("a", "b", 1)]),
        {"a": "a", "b": "b", "label": 1},  # one line of NDJSON
        {"kind": "matches", "promote": "if_better", "seed": "0", "revision": "7"},
    ),
}


@pytest.mark.parametrize("act", HARMFUL)
@pytest.mark.parametrize(
    ("first", "error"),
    [(LOST, ConnectionLost), (httpx2.ReadTimeout("slow"), TimedOut), (says(502), ApiError), (says(504), ApiError)],
)
def test_what_may_have_been_done_and_is_harmful_twice_is_not_sent_again(
    act: Act, first: Step, error: type[IsosimError]
) -> None:
    stub = Stub(first, says(200, job("cancelled")))
    with pytest.raises(error):
        act(stub.client())
    assert len(stub.requests) == 1


@pytest.mark.parametrize("act", HARMFUL)
@pytest.mark.parametrize("first", [REFUSED, says(429), says(503)])
def test_what_was_certainly_refused_is_sent_again(act: Act, first: Step) -> None:
    stub = Stub(first, says(200, job("cancelled")))
    act(stub.client())
    assert len(stub.requests) == 2


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("first", [REFUSED, LOST, httpx2.ReadTimeout("slow"), says(502), says(503), says(504)])
def test_a_change_says_what_it_starts_from_and_is_sent_again_alike(name: str, first: Step) -> None:
    act, body, query = CHANGES[name]
    stub = Stub(response(200, LETTERS), first, says(200, {**job("queued"), **LETTERS}))
    act(stub.client())
    look, *sent = stub.requests
    assert (look.method, look.url.path, len(sent)) == ("GET", "/domains/letters", 2)
    assert sent[0].content == sent[1].content
    assert json.loads(sent[0].content or b"null") == body
    assert dict(sent[0].url.params) == query
    assert sent[0].url == sent[1].url


def test_the_async_client_says_it_too_and_sends_it_again() -> None:
    stub = Stub(response(200, LETTERS), LOST, says(200, LETTERS))
    assert asyncio.run(stub.async_client().rollback("letters")).champion == 2
    assert [json.loads(request.content or b"null") for request in stub.requests] == [None, START, START]


def test_a_state_that_the_caller_saw_is_not_looked_at_again() -> None:
    stub = Stub(says(200, LETTERS))
    client = stub.client()
    seen = client.domain("letters")
    client.rollback("letters", seen=seen)
    client.delete_version("letters", 3, seen=seen)
    assert [request.method for request in stub.requests] == ["GET", "POST", "DELETE"]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("client", ["client", "async_client"])
def test_a_key_that_may_change_a_domain_and_not_read_it_changes_it_without_a_start(name: str, client: str) -> None:
    stub = Stub(says(403, {"error": "the API key lacks the scope 'read'", "error_type": "Forbidden"}), LOST)
    with pytest.raises(IsosimError) as caught:
        found = CHANGES[name][0](getattr(stub, client)(times=0))
        if client == "async_client":
            asyncio.run(found)
    assert isinstance(caught.value, ConnectionLost)
    look, sent = stub.requests
    assert (look.method, look.url.path) == ("GET", "/domains/letters")
    assert not START.keys() & {*dict(sent.url.params), *json.loads(sent.content or b"{}")}


def test_a_calibration_is_sent_again_under_the_same_key() -> None:
    stub = Stub(LOST, says(503), says(202, job("queued")))
    assert stub.client().calibrate(["a", "b"], domain="letters").id == "j1"
    keys = {request.headers["idempotency-key"] for request in stub.requests}
    assert (len(stub.requests), len(keys)) == (3, 1)
    assert {request.content for request in stub.requests} == {b'"a"\n"b"\n'}


def test_each_calibration_has_a_key_of_its_own_or_the_callers() -> None:
    stub = Stub(says(202, job("queued")))
    client = stub.client()
    for _ in range(2):
        client.calibrate(["a"], domain="letters")
    client.calibrate(["a"], domain="letters", idempotency_key="mine")
    seen = Domain(domain="letters")
    client.add_labels("letters", [("a", "b", 1)], seen=seen, idempotency_key="mine")
    keys = [request.headers["idempotency-key"] for request in stub.requests]
    assert (len(set(keys)), keys[2:]) == (3, ["mine", "mine"])


@pytest.mark.parametrize("first", [REFUSED, LOST, says(429), says(503)])
def test_a_calibration_without_a_key_is_never_sent_again(first: Step) -> None:
    stub = Stub(first, says(202, job("queued")))
    with pytest.raises(IsosimError):
        stub.client().calibrate(["a"], domain="letters", idempotency_key=False)
    assert "idempotency-key" not in stub.requests[0].headers
    assert len(stub.requests) == 1


def test_sentences_that_ran_dry_are_not_sent_again() -> None:
    stub = Stub(says(503), says(202, job("queued")))
    with pytest.raises(ApiError):
        stub.client().calibrate((text for text in ["a", "b"]), domain="letters")
    assert stub.requests[0].content == b'"a"\n"b"\n'
    assert len(stub.requests) == 1


def test_the_async_client_does_not_send_them_again_either() -> None:
    stub = Stub(says(503), says(202, job("queued")))
    with pytest.raises(ApiError):
        asyncio.run(stub.async_client().calibrate(iter(["a"]), domain="letters"))
    assert len(stub.requests) == 1


def test_a_probe_says_what_is_now() -> None:
    for step, expected in ((says(200), True), (says(503), False), (REFUSED, False)):
        stub = Stub(step)
        assert stub.client().ready() is expected
        assert (len(stub.requests), stub.time.pauses) == (1, [])
    with pytest.raises(NoAnswer):
        Stub(LOST).client().ready()


def test_impatience_is_a_setting() -> None:
    stub = Stub(REFUSED)
    with pytest.raises(ConnectionFailed):
        stub.client(times=0).similarity(PAIRS)
    assert len(stub.requests) == 1
