"""Files and folders that appear whole or not at all, and say so when they were changed."""

import errno
import fcntl
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isosim.errors import CorruptArtifact, Unavailable
from isosim.store import artifacts
from isosim.store.artifacts import building, claim, locked, manifest_bytes, read_json, sweep, verified, write_atomically

REAL_FLOCK = fcntl.flock


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


def flock_of_nfs(descriptor: Any, operation: int) -> None:
    """NFS makes a lock of the whole file from it, which needs the file open for writing (flock(2), NFS details)."""
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    if operation & fcntl.LOCK_EX and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    REAL_FLOCK(number, operation)


@pytest.mark.parametrize("nfs", [False, True])
def test_what_a_dead_process_has_left_is_swept_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nfs: bool
) -> None:
    left, claimed, young, folder = (tmp_path / name for name in ("left", "claimed", "young", "folder"))
    descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208 - no files
    if nfs:
        monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    left.touch()
    folder.mkdir()
    with claimed.open("wb") as file, building(tmp_path) as built:
        claim(file.fileno())
        for path in (left, claimed, folder, built):
            os.utime(path, (time.time() - 3600, time.time() - 3600))
        young.touch()
        sweep(left, claimed, young, folder, built, tmp_path / "gone")
        # A folder cannot be locked on NFS: there it is abandoned after a day.
        assert [path.exists() for path in (left, claimed, young, folder, built)] == [False, True, True, nfs, True]
        if nfs:
            os.utime(folder, (0, 0))
            sweep(folder)
            assert not folder.exists()
    assert {*os.listdir("/proc/self/fd")} <= {*descriptors}  # noqa: PTH208


def test_a_lock_keeps_others_out_for_as_long_as_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "PATIENCE", 0.1)
    path = tmp_path / "deep" / ".lock"
    for _ in range(2):
        with locked(path), pytest.raises(Unavailable, match="another process has held the lock"), locked(path):
            raise AssertionError
