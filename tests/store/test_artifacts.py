"""Files and folders that appear whole or not at all, and say so when they were changed."""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from isosim.errors import CorruptArtifact, Unavailable
from isosim.store import artifacts
from isosim.store.artifacts import building, locked, manifest_bytes, read_json, verified, write_atomically


def test_a_write_or_a_build_that_fails_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path, unwritable = tmp_path / "aliases.json", {"ü": [1, 2.5, None]}
    artifacts.write_json(path, unwritable)
    with pytest.raises(TypeError):
        write_atomically(path, unwritable)  # type: ignore[arg-type]
    with suppress(KeyboardInterrupt), building(tmp_path) as folder:
        (folder / "weights").write_bytes(b"1")
        raise KeyboardInterrupt
    assert read_json(path) == unwritable
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[1]", b"null", b"\xff\xfe"])
def test_json_that_is_no_object_is_corrupt_and_the_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "aliases.json").write_bytes(content)
    with pytest.raises(CorruptArtifact, match=r"aliases\.json"):
        read_json(tmp_path / "aliases.json")


HASH = hashlib.sha256(b"1234").hexdigest()
MANIFEST = manifest_bytes({"method": "flow", "files": {"weights": HASH, "report": HASH}})


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("weights", b"1235", "weights"),
        ("weights", None, "weights"),
        ("manifest.json", MANIFEST.replace(b"flow", b"flaw"), r"manifest\.json"),
        ("manifest.json", MANIFEST.replace(b"method", b"metHod"), r"manifest\.json"),
        ("manifest.json", manifest_bytes({"files": []}), r"manifest\.json .* lists no files"),
    ],
)
def test_a_changed_or_missing_file_of_an_artifact_is_named(
    tmp_path: Path, file: str, content: bytes | None, named: str
) -> None:
    with pytest.raises(FileNotFoundError):  # no artifact is not a corrupt one
        verified(tmp_path)
    for name, kept in {"weights": b"1234", "report": b"1234", "extra": b"", "manifest.json": MANIFEST}.items():
        (tmp_path / name).write_bytes(kept)
    assert verified(tmp_path)["method"] == verified(tmp_path, "report")["method"] == "flow"
    with pytest.raises(CorruptArtifact, match="extra"):  # a file that the manifest does not know is not trusted
        verified(tmp_path, "extra")
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    for names in ([], ["weights"]):
        with pytest.raises(CorruptArtifact, match=named):
            verified(tmp_path, *names)


def test_what_a_killed_build_has_left_is_removed_a_day_later(tmp_path: Path) -> None:
    for age in (0, artifacts.LEFTOVER + 60):
        left = tmp_path / f".building-{age}"
        left.mkdir()
        os.utime(left, (time.time() - age, time.time() - age))
    with building(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".building-0"]


def test_a_lock_keeps_others_out_for_as_long_as_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "PATIENCE", 0.1)
    path = tmp_path / "deep" / ".lock"
    for _ in range(2):
        with locked(path), pytest.raises(Unavailable, match="another process holds the lock"), locked(path):
            raise AssertionError
