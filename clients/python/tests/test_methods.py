"""The methods of both clients: their types and documentation, and that each argument reaches the server."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import httpx2
import pytest
from stubs import SCORES, Stub, job, response, says
from typing_extensions import assert_type

from isosim_client import AsyncClient, Client, Domain, IsosimError, Job, Retries, Similarity
from isosim_client._clients import Methods

PAIRS = [("a", "b")]
NAMES = [name for name in vars(Methods) if not name.startswith("_")]
NOT_SENT = {"progress", "timeout"}  # of waits
READING = {"match": {"form", "at_most", "fmr", "false_hit_rate", "similarity"}}  # sent after the wait


def test_a_type_checker_knows_arguments_and_answers() -> None:
    """mypy checks this function: it refuses a wrong type, and a superfluous `ignore`."""
    stub = Stub(says(200, SCORES))
    client = stub.client()
    assert_type(client.similarity(PAIRS), Similarity)
    with pytest.raises(TypeError):
        client.similarity(PAIRS, domian="d")  # type: ignore[call-arg]
    client.similarity(3)  # type: ignore[arg-type]

    async def ask(client: AsyncClient) -> None:
        scores = asyncio.create_task(client.similarity(PAIRS, domain="d"))
        assert_type(await scores, Similarity)
        with pytest.raises(TypeError):
            await client.similarity(PAIRS, domian="d")  # type: ignore[call-arg]

    asyncio.run(ask(stub.async_client()))
    following = Stub(says(200, job("succeeded")))
    assert_type(following.client().wait("j"), Job)
    assert_type(following.client().result("m"), Iterator[bytes])
    assert_type(following.async_client().result("m"), AsyncIterator[bytes])


@pytest.mark.parametrize("name", NAMES)
def test_help_and_inspect_show_a_method_as_it_is_written(name: str) -> None:
    build = getattr(Client, name)
    assert isinstance(build, FunctionType)  # `help(Client)` lists it
    for client in (Client(), AsyncClient()):
        method = getattr(client, name)
        assert inspect.signature(method) == inspect.signature(build)
        assert inspect.getdoc(method) == inspect.getdoc(build)


# Arguments that a method needs, and for the others a value that is not the default.
NEEDED: dict[str, Any] = {
    "pairs": PAIRS, "texts": ["a"], "query": "q", "source": ["a"], "domain": "d", "name": "d", "version": 1,
    "labels": [("a", "b", 1)], "job": "j", "a": ["a"], "match": "m",
    "queries": [("q", None)], "gallery": ["a"],
}  # fmt: skip
OTHER: dict[str, Any] = {
    "domain": "other", "detail": True, "space": "raw", "normalize": False, "dimensions": 4, "truncate": False,
    "truncation_direction": "Left", "raw_scores": True, "return_text": True, "method": "sn", "promote": "never",
    "seed": 1, "labels": [("a", "b", 0.0)], "force": True, "kind": "grades",
    "without": ["sure"], "idempotency_key": "mine",
    "version": 2, "seen": Domain(domain="d", champion=8, revision=9), "after": "d", "contains": "d", "fmr": 0.1,
    "precision": 0.9, "false_hit_rate": 0.02, "gallery": 100, "threshold": "duplicates", "column": 2,
    "charset": "windows-1252", "sheet": "Tickets", "header": False, "unit": "l2",
    "b": ["b"],
    "column_b": 3, "form": "best", "format": "csv", "at_most": 7, "similarity": 0.8, "confidence": 0.95, "count": 9,
    "chosen": True, "recall": False,
}  # fmt: skip
OF_TABLES = {"column", "charset", "sheet", "header"}
TABLE = Path(__file__).with_name("conftest.py")  # a file; its content does not matter here
ANSWERED = SCORES | job("succeeded", version=1, revision=7, champion=3, queries=1, with_match=1, judged=1,
                                 matches=1, name="n", kind="k")  # fmt: skip


def asked(name: str, /, **given: Any) -> list[Any]:
    """What a method sends."""
    sent: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        boundary = request.headers.get("content-type", "").partition("boundary=")[2].encode()
        key = request.headers.get("idempotency-key", "")
        content = request.read().replace(boundary, b"") if boundary else request.read()
        sent.append((request.method, request.url, content, key if len(key) < 32 else "generated"))
        return response(200, ANSWERED)

    client = Client(transport=httpx2.MockTransport(answer), retries=Retries(times=0))
    with suppress(IsosimError):  # not all answers fit
        made = getattr(client, name)(**given)
        if isinstance(made, Iterator):
            list(made)
    return sent


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_changes_what_is_sent(name: str) -> None:
    parameters = inspect.signature(getattr(Client, name)).parameters
    needed = {p.name: NEEDED[p.name] for p in parameters.values() if p.default is p.empty}
    for parameter in parameters.keys() - needed.keys() - NOT_SENT - READING.get(name, set()):
        of_table = parameter in OF_TABLES and "source" in parameters
        least = needed | ({"source": TABLE} if of_table else {})
        assert asked(name, **least | {parameter: OTHER[parameter]}) != asked(name, **least) != [], parameter
