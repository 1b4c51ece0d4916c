"""When a request is sent again, and when it is not; no test here waits."""

import json
from collections.abc import Callable
from itertools import cycle
from typing import Any

import httpx2
import pytest
from stubs import OVERLOADED, SCORES, Step, Stub, job, says

from isosim_client import (
    ApiError,
    ConnectionFailed,
    ConnectionLost,
    Domain,
    IsosimError,
    NoAnswer,
    Overloaded,
    TimedOut,
    Unavailable,
)
from isosim_client._retries import retry_after

LOST = httpx2.ReadError("reset")
REFUSED = httpx2.ConnectError("refused")
SLOW = httpx2.ReadTimeout("slow")


def similarity(client: Any) -> Any:
    return client.similarity([("a", "b")])


def test_a_pause_is_the_servers_plus_a_random_part_that_doubles_up_to_the_most() -> None:
    shares = cycle([1.0, 1.0, 0.5, 1.0, 1.0])
    stub = Stub(*[says(429, OVERLOADED, retry_after="3")] * 5, says(200, SCORES))
    assert stub.ask(similarity, random=lambda: next(shares), first=1.0, most=4.0).similarity == (0.5,)
    assert stub.time.pauses == [4, 5, 5, 7, 7]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-4"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_an_error_that_may_be_temporary_is_retried(status: int) -> None:
    stub = Stub(says(status), says(200, SCORES))
    stub.ask(similarity)
    assert len(stub.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422, 424, 500])
def test_other_errors_are_not_retried(status: int) -> None:
    stub = Stub(says(status))
    with pytest.raises(ApiError):
        stub.ask(similarity)
    assert len(stub.requests) == 1


def test_a_server_that_asks_for_no_retry_gets_none() -> None:
    stub = Stub(says(503, x_should_retry="false"))
    with pytest.raises(ApiError):
        stub.ask(similarity)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("error", [REFUSED, LOST, SLOW, httpx2.RemoteProtocolError("gone")])
def test_a_broken_connection_is_made_anew(error: Exception) -> None:
    stub = Stub(error, error, says(200, SCORES))
    stub.ask(similarity)
    assert len(stub.requests) == 3


@pytest.mark.parametrize("times", [0, 2])
def test_the_number_of_retries_is_a_setting(times: int) -> None:
    stub = Stub(says(429, OVERLOADED))
    with pytest.raises(Overloaded, match="full"):
        stub.ask(similarity, times=times)
    assert len(stub.requests) == 1 + times


def test_no_retry_begins_after_the_budget() -> None:
    stub = Stub(REFUSED, takes=4.0)
    with pytest.raises(ConnectionFailed):
        stub.ask(similarity, budget=10.0, times=99, first=1.0)
    assert stub.time.pauses == [1]  # 4 s, a pause of 1, 4 s; a pause of 2 would end at 11
    assert stub.time.now - 1000 == 9


def test_a_pause_beyond_the_budget_is_not_begun() -> None:
    stub = Stub(says(503, {"error": "no worker", "error_type": "Unavailable"}, retry_after="3600"))
    with pytest.raises(Unavailable) as caught:
        stub.ask(similarity)
    assert (caught.value.retry_after, stub.time.pauses) == (3600, [])


def test_a_retry_has_no_more_time_than_the_budget_has_left() -> None:
    stub = Stub(REFUSED, says(200, SCORES), takes=50.0)
    stub.ask(similarity, budget=60.0, first=1.0)
    assert [request.extensions["timeout"]["read"] for request in stub.requests] == [30, 9]


Act = Callable[[Any], Any]
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
        {"revision": "7"},
    ),
}


@pytest.mark.parametrize("act", HARMFUL)
@pytest.mark.parametrize(
    ("first", "error"), [(LOST, ConnectionLost), (SLOW, TimedOut), (says(502), ApiError), (says(504), ApiError)]
)
def test_a_change_that_may_have_been_made_and_harms_twice_is_not_sent_again(
    act: Act, first: Step, error: type[IsosimError]
) -> None:
    stub = Stub(first, says(200, job("cancelled")))
    with pytest.raises(error):
        stub.ask(act)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("act", HARMFUL)
@pytest.mark.parametrize("first", [REFUSED, says(429), says(503)])
def test_a_change_that_was_certainly_refused_is_sent_again(act: Act, first: Step) -> None:
    stub = Stub(first, says(200, job("cancelled")))
    stub.ask(act)
    assert len(stub.requests) == 2


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("first", [REFUSED, LOST, SLOW, says(502), says(503), says(504)])
def test_a_change_says_what_it_starts_from_and_is_sent_again_alike(name: str, first: Step) -> None:
    act, body, query = CHANGES[name]
    stub = Stub(says(200, LETTERS), first, says(200, {**job("queued"), **LETTERS}))
    stub.ask(act)
    look, *sent = stub.requests
    assert (look.method, look.url.path, len(sent)) == ("GET", "/domains/letters", 2)
    assert sent[0].content == sent[1].content
    assert json.loads(sent[0].content or b"null") == body
    assert dict(sent[0].url.params) == query
    assert sent[0].url == sent[1].url


def test_a_state_that_the_caller_saw_is_not_looked_at_again() -> None:
    stub = Stub(says(200, LETTERS))
    client = stub.client()
    seen = client.domain("letters")
    client.rollback("letters", seen=seen)
    client.delete_version("letters", 3, seen=seen)
    assert [request.method for request in stub.requests] == ["GET", "POST", "DELETE"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_key_that_may_change_a_domain_and_not_read_it_changes_it_without_a_start(name: str) -> None:
    stub = Stub(says(403, {"error": "the API key lacks the scope 'read'", "error_type": "Forbidden"}), LOST)
    with pytest.raises(ConnectionLost):
        stub.ask(CHANGES[name][0], times=0)
    look, sent = stub.requests
    assert (look.method, look.url.path) == ("GET", "/domains/letters")
    assert not START.keys() & {*dict(sent.url.params), *json.loads(sent.content or b"{}")}


def test_a_calibration_is_sent_again_under_the_same_key() -> None:
    stub = Stub(LOST, says(503), says(202, job("queued")))
    assert stub.ask(lambda client: client.calibrate(["a", "b"], domain="letters")).id == "j1"
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
        stub.ask(lambda client: client.calibrate(["a"], domain="letters", idempotency_key=False))
    assert "idempotency-key" not in stub.requests[0].headers
    assert len(stub.requests) == 1


def test_an_iterator_that_was_read_is_not_sent_again() -> None:
    stub = Stub(says(503), says(202, job("queued")))
    with pytest.raises(ApiError):
        stub.ask(lambda client: client.calibrate((text for text in ["a", "b"]), domain="letters"))
    assert stub.requests[0].content == b'"a"\n"b"\n'
    assert len(stub.requests) == 1


def test_a_probe_is_not_retried() -> None:
    for step, expected in ((says(200), True), (says(503), False), (REFUSED, False)):
        stub = Stub(step)
        assert stub.ask(lambda client: client.ready()) is expected
        assert (len(stub.requests), stub.time.pauses) == (1, [])
    with pytest.raises(NoAnswer):
        Stub(LOST).ask(lambda client: client.ready())
