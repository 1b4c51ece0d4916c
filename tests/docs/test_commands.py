"""Every command of the documents runs: shell and Python blocks in order, as a reader would copy them. Of the lines that
begin with `$`, those run that call isosim; the others need a cluster or an engine.

A block under the line `<!-- not run: reason -->` is left out; what it says must be seen to elsewhere. A block under
`<!-- run by tests/deploy -->` is run there, where there is an engine, and one under `<!-- run with a bucket -->` by
test_object_storage_page.py.
"""

import os
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderStore
from isosim.export.brought import register
from isosim.export.graph import joined_graph
from isosim.fitting.job import calibrate_job
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Posted
from tests.docs.pages import ADDRESS, ELSEWHERE, NOT_RUN, ROOT, blocks, run
from tests.encoders import export
from tests.processes import Serve, environment
from tests.stores import domains_of
from tests.text import DOES, sentences
from tests.workbooks import workbook

PAGES = [
    "README.md",
    "docs/commands.md",
    "docs/tutorial.md",
    "SECURITY.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs/how-to").glob("*.md")),
]
ENCODERS = "docs/how-to/encoders.md"  # its store has two encoders; the page exports both itself
INTEGRATIONS = "docs/how-to/integrations.md"  # a second server is for vectors that are brought
NAMING_MINILM = (ENCODERS, INTEGRATIONS)  # these export the default encoder, or say how many numbers its vectors have


def what_a_reader_has(folder: Path) -> None:
    """Text of a domain, and labelled pairs of it: in a match, only the verb differs."""
    texts = sentences(2000)
    (folder / "tickets.txt").write_text("\n".join(texts) + "\n")
    rows = [[f"T-{number}", text, "open"] for number, text in enumerate(texts)]
    (folder / "tickets.xlsx").write_bytes(workbook([["id", "question", "state"], *rows], names=["Tickets"]))
    (folder / "new.txt").write_text("\n".join(texts[:300]) + "\n")
    verbless: dict[str, list[str]] = {}
    for text in texts:
        verbless.setdefault(re.sub(f" ({DOES}) ", " ", text), []).append(text)
    matches = [f"1\t{a}\t{b}" for a, b, *_ in verbless.values()]
    others = [f"0\t{a}\t{b}" for a, b in pairwise(texts)]
    (folder / "pairs.tsv").write_text("\n".join(matches[:60] + others[:200]) + "\n")


def test_the_documents_have_commands_and_few_are_left_out() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    run = [block for page in PAGES for marked in ("", *ELSEWHERE) for block in blocks(page, marked)]
    assert len(run) > 4 * len(NOT_RUN.findall(text))
    assert not re.search(r"^```$\n(curl|isosim|make|\.venv)", text, re.M), "a command in a block that is not ```sh"


@pytest.fixture(scope="module")
def readers_store(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has after the first `make run`, but with an encoder that is a thousand times faster."""
    store = export(tmp_path_factory.mktemp("readers"), "minilm", str(tiny_checkpoint), max_length=32)
    encoder, domains = EncoderStore.at(store).find("minilm"), domains_of(store)
    request, given = JobRequest("default", encoder.digest, encoder.id), Posted(sentences(3000))
    calibrate_job(request, given, encoder, domains, lambda _, __: None, threads=1).publish(domains)
    return store


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(
    page: str, serve: Serve, readers_store: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On a fresh store, in an empty folder, with the server the page speaks to."""
    store = tmp_path / "model_store"
    shutil.copytree(request.getfixturevalue("minilm_store") if page in NAMING_MINILM else readers_store, store)
    if page == ENCODERS:
        second: Path = request.getfixturevalue("layer3_store")
        shutil.copytree(second / "encoders", store / "encoders", dirs_exist_ok=True)
    server = serve(model_store=store, encoder="minilm")
    places = {ADDRESS: server.url, "127.0.0.1:8000": server.url.removeprefix("http://")}
    if page == INTEGRATIONS:  # the page registers the encoder; its server would not start without it
        register(store, "ours", 384, unit=True)
        places["http://127.0.0.1:8001"] = serve(model_store=store, encoder="ours").url
    folder = tmp_path / "reader"
    folder.mkdir()
    what_a_reader_has(folder)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = environment(model_store=store, port=server.url.rsplit(":", 1)[1]) | {"PATH": path}
    run(page, folder, settings, places)


def test_tritons_configuration_names_the_bundle_as_it_is(minilm_store: Path) -> None:
    import onnx

    graph = joined_graph(EncoderStore.at(minilm_store).find("minilm")).graph
    types = {onnx.TensorProto.INT64: "TYPE_INT64", onnx.TensorProto.FLOAT: "TYPE_FP32"}
    weights = {tensor.name for tensor in graph.initializer}
    found = {
        (value.name, types[value.type.tensor_type.elem_type])
        for value in [*graph.input, *graph.output]
        if value.name not in weights
    }
    page = (ROOT / INTEGRATIONS).read_text(encoding="utf-8")
    assert set(re.findall(r'name: "(\w+)" data_type: (\w+)', page)) == found
