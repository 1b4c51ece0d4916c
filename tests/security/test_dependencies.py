"""What is installed is what is pinned, and everything that ships has a free licence. Knows of no vulnerability."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OFFERED = ("cpu", "train", "finetune", "ray", "bucket")
SHIPPED = [*PROJECT["dependencies"], *(text for name in OFFERED for text in EXTRAS[name])]

# Licences that ask for no more than a notice, and MPL, which asks for changes of its own files.
FREE = re.compile(
    r"(MIT|MIT-CMU|Apache-2\.0( WITH LLVM-exception)?|BSD-[23]-Clause|0BSD|BSL-1\.0|ISC|Zlib|CC0-1\.0|PSF-2\.0|"
    r"CNRI-Python|MPL-2\.0)"
)
CLASSIFIED = {
    "MIT License": "MIT", "BSD License": "BSD-3-Clause", "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC", "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}  # fmt: skip
SAID = {"3-Clause BSD License": "BSD-3-Clause", "Apache 2.0 License": "Apache-2.0", "Apache 2.0": "Apache-2.0"}


def pinned() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def closure(wanted: list[str]) -> Iterator[metadata.Distribution]:
    """Every installed package that the requirements lead to."""
    seen: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"]:  # an extra that names others of our own
            waiting += [Requirement(text) for extra in requirement.extras for text in EXTRAS[extra]]
            continue
        if name == CLIENT["name"]:
            waiting += map(Requirement, CLIENT["dependencies"])
            continue
        marks = [{"extra": extra} for extra in (*requirement.extras, "")]
        if requirement.marker and not any(requirement.marker.evaluate(mark) for mark in marks):
            continue
        found = metadata.distribution(requirement.name)
        if name not in seen:
            seen.add(name)
            yield found
            inner = [Requirement(text) for text in found.requires or ()]
            waiting += [one for one in inner if not one.marker or any(one.marker.evaluate(mark) for mark in marks)]


def licences(package: metadata.Distribution) -> set[str]:
    """The names of a package's licence expression, or what stands for it in older packages."""
    said = cast("Any", package.metadata).get("License-Expression")
    if said:
        return {part.strip(" ()") for part in re.split(r" AND | OR ", said)}
    classifiers = [
        line.rsplit(" :: ", 1)[1] for line in package.metadata.get_all("Classifier") or () if "License ::" in line
    ]
    if classifiers and classifiers != ["OSI Approved"]:
        return {CLASSIFIED.get(name, name) for name in classifiers}
    text = (cast("Any", package.metadata).get("License") or "none").split("\n")[0]
    return {SAID.get(part, part) for part in text.split(" AND ")}


def test_what_is_declared_is_a_range_that_begins_where_it_is_tested() -> None:
    """A wheel says which versions it works with: from the pinned one, which is tested, up to the next major one. Tools
    leave their version to the pins. Nothing comes from an address or a repository."""
    pins = pinned()
    for text in [*SHIPPED, *EXTRAS["dev"]]:
        requirement = Requirement(text)
        assert requirement.url is None, text
        if requirement.name in (PROJECT["name"], CLIENT["name"]):
            continue
        pin = pins[canonicalize_name(requirement.name)]
        own = f"<{int(pin.partition('.')[0]) + 1},>={pin}" if text in SHIPPED else ""
        # torch is pinned here too: another version may come as a build for CUDA, of some gigabytes.
        assert str(requirement.specifier) in (own, f"=={pin}" if requirement.name == "torch" else own), text
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())


@pytest.mark.parametrize("wanted", [SHIPPED, EXTRAS["dev"]], ids=["shipped", "tools"])
def test_what_is_installed_is_what_is_pinned(wanted: list[str]) -> None:
    pins = pinned()
    wrong = {
        package.metadata["Name"]: (package.version, pins.get(canonicalize_name(package.metadata["Name"])))
        for package in closure(wanted)
        if pins.get(canonicalize_name(package.metadata["Name"])) != package.version.partition("+")[0]
    }
    wrong.pop("setuptools", None)  # the environment's own; torch asks for it
    assert wrong == {}


def test_everything_that_ships_is_free() -> None:
    found = {package.metadata["Name"]: licences(package) for package in closure(SHIPPED)}
    assert len(found) > 40
    assert {name: names for name, names in found.items() if not all(FREE.fullmatch(one) for one in names)} == {}


def test_no_code_reads_a_pickle() -> None:
    """Artifacts are arrays and JSON: loading one must not be able to run it."""
    forbidden = re.compile(
        r"\bpickle\b|allow_pickle=True|torch\.load\(|joblib\.load|yaml\.load\(|(?<!\.)\b(eval|exec)\(|shell=True"
    )
    for path in (ROOT / "service").rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("#")[0]
            assert not forbidden.search(code) or "weights_only=True" in code, f"{path}:{number}: {line}"
