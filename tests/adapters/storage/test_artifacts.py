"""Files and folders that appear whole or not at all, and say so when they were changed."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isosim.errors import CorruptArtifact, Unavailable
from isosim.store import artifacts
from isosim.store.artifacts import (
    building,
    claim,
    locked,
    manifest_bytes,
    read_json,
    sha256,
    sweep,
    verified,
    write_atomically,
    write_json,
)

REAL_FLOCK = fcntl.flock


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow beyond four kilobytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """An artifact of two files."""
    place = tmp_path / "store" / "1"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(b"12345678")
    (place / "report").write_bytes(b"abc")
    files = {name: sha256(place / name) for name in ("weights", "report")}
    (place / "manifest.json").write_bytes(manifest_bytes({"method": "flow", "files": files}))
    return place


def test_a_write_that_fails_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "aliases.json"
    write_atomically(path, b"old")
    with full_disk(), pytest.raises(OSError, match="too large"):
        write_atomically(path, b"new" * 10_000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_json_is_written_and_read_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None], "ü": {"b": True}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[1]", b"null", b"\xff\xfe"])
def test_json_that_is_no_object_is_corrupt_and_the_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "aliases.json").write_bytes(content)
    with pytest.raises(CorruptArtifact, match=r"aliases\.json"):
        read_json(tmp_path / "aliases.json")


def test_a_sealed_artifact_is_verified(sealed: Path) -> None:
    manifest = verified(sealed)
    assert manifest["method"] == "flow"
    assert manifest["files"].keys() == {"weights", "report"}


@pytest.mark.parametrize("name", ["weights", "report"])
def test_one_flipped_bit_is_noticed_and_its_file_named(sealed: Path, name: str) -> None:
    content = bytearray((sealed / name).read_bytes())
    content[1] ^= 1
    (sealed / name).write_bytes(content)
    with pytest.raises(CorruptArtifact, match=name):
        verified(sealed)
    with pytest.raises(CorruptArtifact, match=name):
        verified(sealed, name)
    verified(sealed, {"weights": "report", "report": "weights"}[name])


@pytest.mark.parametrize("old,new", [(b"flow", b"flaw"), (b"method", b"metHod")])
def test_a_manifest_that_was_changed_is_noticed_and_named(sealed: Path, old: bytes, new: bytes) -> None:
    manifest = sealed / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(old, new))
    with pytest.raises(CorruptArtifact, match=r"manifest\.json"):
        verified(sealed, "weights")


def test_a_missing_file_is_noticed_and_named(sealed: Path) -> None:
    (sealed / "weights").unlink()
    with pytest.raises(CorruptArtifact, match="weights"):
        verified(sealed)


def test_a_file_the_manifest_does_not_know_is_not_trusted(sealed: Path) -> None:
    (sealed / "extra").write_bytes(b"")
    with pytest.raises(CorruptArtifact, match="extra"):
        verified(sealed, "extra")


def test_no_artifact_is_not_the_same_as_a_corrupt_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verified(tmp_path)


def test_what_is_being_built_stays_however_old_it_looks_and_goes_when_its_maker_has_died(tmp_path: Path) -> None:
    with building(tmp_path) as folder:
        os.utime(folder, (0, 0))
        sweep(folder)
        assert folder.is_dir()
    left = tmp_path / ".building-left"
    left.mkdir()
    sweep(left)
    assert left.is_dir()  # perhaps somebody is about to claim it
    os.utime(left, (0, 0))
    sweep(left, tmp_path / "gone")
    assert not left.exists()


def flock_of_nfs(descriptor: Any, operation: int) -> None:
    """NFS makes a lock of the whole file from it, which needs the file open for writing (flock(2), NFS details)."""
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    if operation & fcntl.LOCK_EX and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    REAL_FLOCK(number, operation)


def test_on_nfs_what_a_dead_process_has_left_is_swept_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    left, arriving = tmp_path / ".left", tmp_path / ".arriving"
    left.write_bytes(b"text")
    an_hour_ago = time.time() - 3600
    with arriving.open("wb") as file:
        claim(file.fileno())
        for path in (left, arriving):
            os.utime(path, (an_hour_ago, an_hour_ago))
        sweep(left, arriving)
        assert (left.exists(), arriving.exists()) == (False, True)
    with building(tmp_path) as folder:
        os.utime(folder, (an_hour_ago, an_hour_ago))
        sweep(folder)
        assert folder.is_dir()


@pytest.mark.parametrize("fails", [KeyboardInterrupt, ValueError, OSError])
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, fails: type[BaseException]) -> None:
    with pytest.raises(fails), building(tmp_path / "store") as folder:
        (folder / "weights").write_bytes(b"1")
        raise fails
    assert list((tmp_path / "store").iterdir()) == []


def test_a_full_disk_while_building_leaves_nothing(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large"), building(tmp_path) as folder:
        (folder / "weights").write_bytes(b"1" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    monkeypatch.setattr(artifacts, "PATIENCE", 0.1)
    with pytest.raises(Unavailable, match="another process has held the lock"), locked(path):
        raise AssertionError
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with locked(path), pytest.raises(Unavailable), locked(path):
        raise AssertionError
    with locked(path):
        pass


HOLD = """
import sys, time
from pathlib import Path
from isosim.store.artifacts import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
