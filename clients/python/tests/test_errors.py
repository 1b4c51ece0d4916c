"""The tree of errors, the table of the server's error types, and the translation of errors of httpx2."""

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from stubs import SCORES, Step, Stub, says

from isosim.api.errors import ERROR_TYPES
from isosim_client import (
    CONTRACT,
    ApiError,
    Client,
    ConnectionFailed,
    ConnectionLost,
    IncompatibleServer,
    IsosimError,
    Job,
    JobFailed,
    Overloaded,
    TimedOut,
    UnexpectedAnswer,
    errors,
)
from isosim_client._http import TABLE

PAIRS = [("a", "b")]


def below(error: type[BaseException]) -> set[type[BaseException]]:
    return {error}.union(*(below(child) for child in error.__subclasses__()))


def failure(step: Step) -> IsosimError:
    with pytest.raises(IsosimError) as caught:
        Stub(step).ask(lambda client: client.similarity(PAIRS), times=0)
    return caught.value


def test_the_table_has_exactly_the_error_types_of_the_server() -> None:
    assert errors.ERROR_TYPES.keys() == set(ERROR_TYPES)


@pytest.mark.parametrize("error_type", sorted(errors.ERROR_TYPES))
def test_an_error_has_the_servers_message_status_type_and_request_id(error_type: str) -> None:
    error = failure(says(422, {"error": "pairs.0 is odd", "error_type": error_type, "request_id": "r7"}))
    assert type(error) is errors.ERROR_TYPES[error_type]
    assert (str(error), error.status, error.error_type, error.request_id) == ("pairs.0 is odd", 422, error_type, "r7")


@pytest.mark.parametrize("remedy", [{}, None, {"action": "new"}])
def test_a_remedy_without_words_is_left_out(remedy: Any) -> None:
    error = failure(says(404, {"error": "no domain", "error_type": "NotFound", "remedy": remedy}))
    assert (type(error), str(error), error.remedy) == (errors.NotFound, "no domain", None)


def test_an_error_type_of_a_newer_server_is_an_api_error() -> None:
    error = failure(says(418, {"error": "short and stout", "error_type": "Teapot", "request_id": "r"}))
    assert (type(error), error.status, error.error_type) == (ApiError, 418, "Teapot")


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", "", '{"error": {"message": "no"}}', "[1]", "\xff"])
def test_a_proxys_error_is_an_api_error_that_quotes_it(body: str) -> None:
    error = failure(lambda _: httpx2.Response(502, content=body.encode("latin-1"), headers={"x-request-id": "p"}))
    assert (type(error), error.status, error.error_type, error.request_id) == (ApiError, 502, None, "p")
    assert str(error).startswith("status 502")


def test_an_error_of_httpx2_is_that_of_its_most_specific_class() -> None:
    for error, kind in ((httpx2.ConnectTimeout("x"), ConnectionFailed), (httpx2.WriteTimeout("x"), TimedOut)):
        found = failure(error)
        assert type(found) is kind
        assert found.__cause__ is error


def test_no_error_of_httpx2_escapes_the_table() -> None:
    assert all(any(base in TABLE for base in error.__mro__) for error in below(httpx2.RequestError))


@pytest.mark.parametrize(
    "step",
    [
        lambda _: httpx2.Response(200, text="<html>hello</html>"),
        says(200, []),
        says(200, {k: v for k, v in SCORES.items() if k != "similarity"}),
        says(200, SCORES | {"similarity": [None]}),
        says(200, SCORES | {"version": "one"}),
        says(302, location="https://elsewhere/similarity"),
    ],
)
def test_an_answer_that_is_not_isosims_is_an_unexpected_answer(step: Step) -> None:
    assert type(failure(step)) is UnexpectedAnswer


def test_an_answer_that_does_not_fit_names_the_field() -> None:
    assert str(failure(says(200, SCORES | {"similarity": [0.1, "x"]}))).startswith(
        "similarity: expected float, got 'x'"
    )
    flags = SCORES | {"flags": [{"a": ["truncated"], "b": 3}]}
    assert str(failure(says(200, flags))).startswith("flags.b: expected a list, got 3")
    assert str(failure(says(200, {"domain": "d"}))).startswith("version: is missing")


MAJOR, MINOR = map(int, CONTRACT.split("."))


@pytest.mark.parametrize("major", [MAJOR + 1, MAJOR - 1])
@pytest.mark.parametrize("status", [200, 404, 503])
def test_a_server_of_another_contract_is_refused_whatever_it_answers(major: int, status: int) -> None:
    stub = Stub(says(status, SCORES, x_isosim_contract=f"{major}.7"))
    with pytest.raises(IncompatibleServer, match=rf"contract {major}\.7, .* speaks {re.escape(CONTRACT)}; "):
        stub.client().similarity(PAIRS)
    assert len(stub.requests) == 1  # trying again does not mend it


@pytest.mark.parametrize("stated", [None, CONTRACT, f"{MAJOR}.0", f"{MAJOR}.{MINOR + 9}", "", "1", "one", "1.1.1"])
def test_answers_with_the_same_major_version_or_none_are_read(stated: str | None) -> None:
    headers = {} if stated is None else {"x_isosim_contract": stated}
    assert Stub(says(200, SCORES, **headers)).client().similarity(PAIRS).similarity == (0.5,)


def test_errors_can_be_pickled() -> None:
    job = Job(job="j", domain="d", status="failed")
    overloaded = Overloaded("full", status=429, request_id="r", retry_after=2.0)
    for error in (overloaded, JobFailed("broken", job), ConnectionLost("gone")):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("url", ["localhost:8000", "127.0.0.1", "", "ftp://x", "http:///"])
def test_a_base_url_without_scheme_or_host_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Client(url)


@pytest.mark.parametrize("key", ["sécret", "secret\n", "sec ret", ""])
def test_a_key_that_a_header_cannot_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        Client(api_key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda client: client.calibrate("tickets.txt", domain="d"),
        lambda client: client.add_labels("d", "ab"),
        lambda client: client.add_labels("d", Path("labels.csv")),
        lambda client: client.calibrate(io.BytesIO(b"one\ntwo\n"), domain="d"),
    ],
)
def test_a_string_a_path_or_bytes_in_place_of_a_list_of_texts_is_a_type_error(misuse: Callable[[Client], Any]) -> None:
    stub = Stub(says(200, []))
    with pytest.raises(TypeError, match=r"give a (list|pathlib\.Path)|give pathlib\.Path"):
        misuse(stub.client())
    assert stub.requests == []


def test_a_number_that_json_cannot_express_is_refused() -> None:
    stub = Stub(says(200, SCORES))
    with pytest.raises(ValueError, match="not JSON compliant"):
        stub.client().similarity([("a", float("nan"))])  # an empty cell of a table, in pandas
    assert stub.requests == []
