"""The methods of both clients: their types and documentation, and that each argument reaches the server."""

import asyncio
import doctest
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, get_origin

import pytest
from example_server import example_server
from stubs import SCORES, Stub, event, job, says, streams
from typing_extensions import assert_type

import isosim_client
from isosim_client import AsyncClient, Client, Domain, Job, Similarity
from isosim_client._call import Call
from isosim_client._following import Watch
from isosim_client._matching import Download, Matching

PAIRS = [("a", "b")]
STREAMS: dict[str, Any] = {"events": Iterator[Job], "match": Iterator[dict[str, Any]], "result": Iterator[bytes]}
MODULES = [isosim_client] + [
    importlib.import_module(f"isosim_client.{found.name}") for found in pkgutil.iter_modules(isosim_client.__path__)
]
NAMES = [name for name in vars(Client) if not name.startswith("_") and name != "close"]


def test_a_type_checker_knows_arguments_and_answers() -> None:
    """mypy checks this function: it refuses a wrong type, and a superfluous `ignore`."""
    stub = Stub(says(200, SCORES))
    client = stub.client()
    assert_type(client.similarity(PAIRS), Similarity)
    with pytest.raises(TypeError):
        client.similarity(PAIRS, domian="d")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        client.similarity(3)  # type: ignore[arg-type]

    async def ask(client: AsyncClient) -> None:
        scores = asyncio.create_task(client.similarity(PAIRS, domain="d"))
        assert_type(await scores, Similarity)
        with pytest.raises(TypeError):
            await client.similarity(PAIRS, domian="d")  # type: ignore[call-arg]

    asyncio.run(ask(stub.async_client()))
    following = Stub(streams(event(job("succeeded"))))
    assert_type(following.client().events("j"), Iterator[Job])
    assert_type(following.client().wait("j"), Job)
    assert_type(following.async_client().events("j"), AsyncIterator[Job])


@pytest.mark.parametrize("name", NAMES)
def test_help_and_inspect_show_a_method_as_if_it_was_written_out(name: str) -> None:
    plain, awaited = getattr(Client, name), getattr(AsyncClient, name)
    signature, other = inspect.signature(plain), inspect.signature(awaited)
    assert next(iter(signature.parameters)) == "self"
    assert "self" not in inspect.signature(getattr(Client(), name)).parameters
    assert signature.parameters == other.parameters
    assert inspect.iscoroutinefunction(awaited) == (name not in STREAMS)
    answer = STREAMS.get(name, other.return_annotation)
    assert signature.return_annotation == answer
    assert get_origin(answer) is not Call
    assert (inspect.getdoc(plain) or "").partition("\n\nExample:\n")[0] == inspect.getdoc(awaited)
    for owner, method in ((Client, plain), (AsyncClient, awaited)):
        assert method.__qualname__ == f"{owner.__name__}.{name}"
        assert pickle.loads(pickle.dumps(method)) is method  # noqa: S301 - our own


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
    "charset": "windows-1252", "sheet": "Tickets", "header": False, "unit": "l2", "timeout": 9.0, "progress": False,
    "b": ["b"],
    "column_b": 3, "form": "best", "format": "csv", "at_most": 7, "similarity": 0.8, "confidence": 0.95, "count": 9,
}  # fmt: skip
OF_TABLES = {"column", "charset", "sheet", "header"}
TABLE = Path(__file__).with_name("conftest.py")  # a file; its content does not matter here


def described(made: Any) -> Any:
    """What a call sends, and what it sends after it has read the domain."""
    if isinstance(made, Matching):
        return described(made.start), made.view
    if isinstance(made, Download | Watch):
        return described(made.call), {name: value for name, value in vars(made).items() if name != "call"}
    if not isinstance(made, Call):
        return made
    headers = dict(made.headers)
    if len(headers.get("idempotency-key", "")) == 32:  # generated for this call
        headers["idempotency-key"] = "generated"
    upload = made.upload and [made.upload.content_type, b"".join(made.upload.chunks())]
    if upload and "boundary=" in str(upload[0]):  # of random digits
        boundary = str(upload[0]).partition("boundary=")[2]
        upload = ["form", b"".join(made.upload.chunks()).replace(boundary.encode(), b"") if made.upload else b""]
    after = made.then and described(made.then(Domain(domain="d", champion=3, revision=7)))
    return made.method, made.path, dict(made.query), made.body, upload, headers, made.repeat, after


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_changes_what_is_sent(name: str) -> None:
    build = inspect.unwrap(getattr(Client, name))
    assert build is inspect.unwrap(getattr(AsyncClient, name))
    parameters = inspect.signature(build).parameters
    needed = {p.name: NEEDED[p.name] for p in parameters.values() if p.default is p.empty}
    for parameter in parameters.keys() - needed.keys():
        of_table = parameter in OF_TABLES and "source" in parameters
        least = needed | ({"source": TABLE} if of_table else {})
        assert described(build(**least | {parameter: OTHER[parameter]})) != described(build(**least)), parameter


def documented_objects() -> Iterator[tuple[str, Any]]:
    """Each module, class and function of the package once, and the methods of the classes."""
    seen: set[int] = set()
    for module in MODULES:
        yield module.__name__, module
        for value in vars(module).values():
            ours = isinstance(value, type | FunctionType) and value.__module__.partition(".")[0] == "isosim_client"
            if ours and id(value) not in seen:
                seen.add(id(value))
                yield f"isosim_client.{value.__qualname__}", value
                members = vars(value).items() if isinstance(value, type) else ()
                yield from ((f"isosim_client.{m.__qualname__}", m) for _, m in members if isinstance(m, FunctionType))


def examples(address: str = "") -> Iterator[doctest.DocTest]:
    """The examples of each docstring, for the server at an address. Methods have those of their builders."""
    parser = doctest.DocTestParser()
    for name, documented in documented_objects():
        text = (inspect.getdoc(documented) or "").replace("http://127.0.0.1:8000", address)
        test = parser.get_doctest(text, {}, name, inspect.getsourcefile(documented), None)
        if test.examples:
            yield test


def test_every_method_of_the_client_has_an_example() -> None:
    names = {test.name for test in examples()}
    wanted = {f"isosim_client.Client.{name}" for name in NAMES}
    assert wanted | {"isosim_client", "isosim_client.Client", "isosim_client.AsyncClient"} <= names


def test_the_examples_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.txt").write_text("Printer is jammed.\nCannot log in.\n")
    Path("new.csv").write_text("question\nPrinter is jammed.\n")
    Path("known.csv").write_text("question\nPaper stuck in the printer.\n")
    Path("labels.csv").write_text("Printer is jammed.,Paper is stuck in the printer.,1\n")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    with example_server() as address, Client(address) as client:
        for test in examples(address):
            test.globs["client"] = client
            runner.run(test, out=report.append)
    result = runner.summarize(verbose=False)
    assert result.failed == 0, "".join(report)
    assert result.attempted > 50
