"""The distribution: what it offers, what it loads, what it depends on, and that its README is true."""

import doctest
import inspect
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import isosim_client
from tests.processes import Process, Server, serve_with
from tests.text import sentences

PACKAGE = Path(__file__).parents[1]


def test_what_is_announced_is_what_can_be_imported() -> None:
    public = {
        name
        for name, value in vars(isosim_client).items()
        if not name.startswith("_") and (not inspect.ismodule(value) or name == "errors")
    }
    assert sorted(isosim_client.__all__) == sorted(public | {"__version__"})


def test_every_error_is_announced() -> None:
    classes = {name: value for name, value in vars(isosim_client.errors).items() if inspect.isclass(value)}
    assert {name for name, kind in classes.items() if issubclass(kind, Exception)} <= set(isosim_client.__all__)


def loaded(code: str, **environment: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return set(subprocess.check_output(command, text=True, env=os.environ | environment).split())


def test_importing_it_loads_nothing_of_the_servers() -> None:
    heavy = {"numpy", "pydantic", "isosim", "fastapi", "torch", "onnxruntime", "orjson", "redis"}
    modules = loaded("import isosim_client", PYTHONPATH=str(PACKAGE))
    assert "isosim_client" in modules
    assert not modules & heavy


def test_it_builds_without_a_network_and_needs_httpx2_alone(tmp_path: Path) -> None:
    source = shutil.copytree(
        PACKAGE, tmp_path / "source", ignore=shutil.ignore_patterns("tests", "*.egg-info", "build", "__pycache__")
    )
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (facts,) = (tmp_path / "installed").glob("*.dist-info")
    lines = (facts / "METADATA").read_text().splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert needed == ["Requires-Dist: httpx2<3,>=2.3"]
    assert "Requires-Python: >=3.10" in lines
    assert "License-Expression: Apache-2.0" in lines
    assert f"Version: {isosim_client.__version__}" in lines
    assert (facts / "licenses" / "LICENSE").read_bytes() == (PACKAGE.parents[1] / "LICENSE").read_bytes()
    assert (tmp_path / "installed" / "isosim_client" / "py.typed").exists()
    place = tmp_path / "installed"
    assert "isosim_client" in loaded(
        f"import isosim_client; assert isosim_client.__file__.startswith({str(place)!r})", PYTHONPATH=str(place)
    )


@pytest.fixture
def default_server(minilm_store: Path, tmp_path: Path) -> Iterator[Server]:
    """The default encoder with its shipped calibration, in a store of its own."""
    shutil.copytree(minilm_store, tmp_path / "store")
    running: list[Process] = []
    yield serve_with(tmp_path, running, model_store=tmp_path / "store", encoder="minilm")
    for process in running:
        process.kill()


def test_the_readme_is_true(default_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.txt").write_text("\n".join(sentences(600)))
    text = f"{isosim_client.__doc__}\n{(PACKAGE / 'README.md').read_text()}"
    text = text.replace("http://127.0.0.1:8000", default_server.url)
    test = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
    assert len(test.examples) > 10
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.failed == 0, "".join(report)
