"""The methods as they are written out: both clients' and the builders' agree, pass on what they take, and are true."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args, get_origin

import pytest
from example_server import example_server

import isosim_client
from isosim_client import AsyncClient, Client, Domain
from isosim_client._call import Call

MODULES = [isosim_client] + [
    importlib.import_module(f"isosim_client.{found.name}") for found in pkgutil.iter_modules(isosim_client.__path__)
]
OWN = {"close", "events", "wait"}  # methods that are no single call, and so have no builder
HELPERS = {"starting_from"}  # functions that return a call and are no method
PARTS = ("_scoring", "_calibrating", "_domains")


def methods(client: type) -> dict[str, FunctionType]:
    return {name: method for name, method in vars(client).items() if not name.startswith("_")}


def functions(module: ModuleType) -> dict[str, FunctionType]:
    kept = (value for value in vars(module).values() if isinstance(value, FunctionType))
    return {function.__name__: function for function in kept if function.__module__ == module.__name__}


BUILDERS = {
    name: function
    for module in MODULES
    if module.__name__.removeprefix("isosim_client.") in PARTS
    for name, function in functions(module).items()
    if get_origin(inspect.signature(function, eval_str=True).return_annotation) is Call and name not in HELPERS
}


def signature(function: FunctionType, returns: Callable[[Any], Any] = lambda kind: kind) -> inspect.Signature:
    """Without `self`, every annotation as the type it names."""
    written = inspect.signature(function, eval_str=True)
    given = [parameter for name, parameter in written.parameters.items() if name != "self"]
    return written.replace(parameters=given, return_annotation=returns(written.return_annotation))


def of_call(kind: Any) -> Any:
    """The type of a call's answer."""
    (answer,) = get_args(kind)
    return None if answer is type(None) else answer


def not_awaited(kind: Any) -> Any:
    """The plain counterpart of what an asynchronous method returns."""
    return Iterator[get_args(kind)[0]] if get_origin(kind) is AsyncIterator else kind  # type: ignore[misc]


def without_example(documentation: str) -> str:
    return re.sub(r"\n\nExample:\n.*", "", documentation, flags=re.DOTALL)


def test_there_is_a_builder_for_every_method_and_a_method_for_every_builder() -> None:
    assert methods(Client).keys() == methods(AsyncClient).keys() == BUILDERS.keys() | OWN
    assert len(BUILDERS) == 20


@pytest.mark.parametrize("name", [*methods(Client), "__init__"])
def test_both_clients_have_the_same_signatures_and_words(name: str) -> None:
    plain, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.iscoroutinefunction(awaited) == (name not in ("events", "__init__"))
    if name == "__init__":  # transport and sleep are of two kinds
        shown = [[(p.name, p.kind) for p in signature(init).parameters.values()] for init in (plain, awaited)]
        assert shown[0] == shown[1]
        return
    assert signature(plain) == signature(awaited, not_awaited)
    assert inspect.getdoc(plain)
    assert without_example(inspect.getdoc(plain) or "") == inspect.getdoc(awaited)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_method_has_the_signature_and_the_first_words_of_its_builder(name: str) -> None:
    method, builder = getattr(Client, name), BUILDERS[name]
    assert signature(method) == signature(builder, of_call)
    assert (inspect.getdoc(method) or "").splitlines()[0] == inspect.getdoc(builder)


# What the methods are called with: the arguments each needs, and for the others a value that is not the default.
NEEDED: dict[str, Any] = {
    "pairs": [("a", "b")], "texts": ["a"], "query": "q", "source": ["a"], "domain": "d", "name": "d", "version": 1,
    "labels": [("a", "b", 1.0)], "job": "j",
}  # fmt: skip
OTHER: dict[str, Any] = {
    "domain": "other", "detail": True, "space": "raw", "normalize": False, "dimensions": 4, "truncate": False,
    "truncation_direction": "Left", "raw_scores": True, "return_text": True, "method": "sn", "promote": "never",
    "seed": 1, "labels": [("a", "b", 0.0)], "force": True, "kind": "grades",
    "without": ["sure"], "idempotency_key": "mine",
    "version": 2, "seen": Domain(domain="d", champion=8, revision=9), "after": "d", "contains": "d", "fmr": 0.1,
    "precision": 0.9, "false_hit_rate": 0.01, "gallery": 100, "threshold": "duplicates", "column": 2,
    "charset": "windows-1252", "sheet": "Tickets", "header": False, "unit": "l2",
}  # fmt: skip


OF_TABLES = {"column", "charset", "sheet", "header"}
TABLE = Path(__file__).with_name("conftest.py")  # a file; what is in it does not matter here


class Unsent(Client):
    """Keeps the call that it would send."""

    def _send(self, call: Call[Any]) -> Any:
        self.unsent = call


class UnsentAsync(AsyncClient):
    async def _send(self, call: Call[Any]) -> Any:
        self.unsent = call


def described(call: Call[Any]) -> Any:
    """What a call sends; where it looks at the domain first, what it sends after that, too."""
    headers = dict(call.headers)
    if len(headers.get("idempotency-key", "")) == 32:  # one made for this call
        headers["idempotency-key"] = "made"
    upload = call.upload and (call.upload.content_type, b"".join(call.upload.chunks()))
    after = call.then and described(call.then(Domain(domain="d", champion=3, revision=7)))
    return call.method, call.path, dict(call.query), call.body, upload, headers, call.repeat, after


@pytest.mark.parametrize("client", ["plain", "async"])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_method_passes_on_every_argument(name: str, client: str) -> None:
    sender: Any = Unsent() if client == "plain" else UnsentAsync()

    def call(**given: Any) -> Call[Any]:
        done = getattr(sender, name)(**given)
        if client == "async":
            asyncio.run(done)
        return sender.unsent

    builder = BUILDERS[name]
    parameters = inspect.signature(builder).parameters
    needed = {p.name: NEEDED[p.name] for p in parameters.values() if p.default is p.empty}
    assert described(call(**needed)) == described(builder(**needed))
    for parameter in parameters.keys() - needed.keys():
        least = needed | ({"source": TABLE} if parameter in OF_TABLES else {})
        given = least | {parameter: OTHER[parameter]}
        assert described(builder(**given)) != described(builder(**least)), f"no difference by {parameter}"
        assert described(call(**given)) == described(builder(**given)), parameter


def documented_objects() -> Iterator[tuple[str, Any]]:
    """Every module, class and function of the package, once, and the classes' members."""
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
    """What each object's documentation has, asking the server at an address."""
    parser = doctest.DocTestParser()
    for name, documented in documented_objects():
        text = (inspect.getdoc(documented) or "").replace("http://127.0.0.1:8000", address)
        test = parser.get_doctest(text, {}, name, inspect.getsourcefile(documented), None)
        if test.examples:
            yield test


def test_every_method_of_the_client_has_an_example() -> None:
    names = {test.name for test in examples()}
    wanted = {f"isosim_client.Client.{name}" for name in methods(Client).keys() - {"close"}}
    assert wanted | {"isosim_client", "isosim_client.Client", "isosim_client.AsyncClient"} <= names


def test_the_examples_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.txt").write_text("Printer is jammed.\nCannot log in.\n")
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
