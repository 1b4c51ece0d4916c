"""Artifacts: folders that appear as a whole or not at all, and whose files never change. A manifest contains the
SHA-256 of every file."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import orjson

from isosim.errors import CorruptArtifact, Unavailable

T = TypeVar("T")
MANIFEST = "manifest.json"
SEAL = "seal"  # manifest field: SHA-256 of the manifest's other fields; missing in manifests of the first release
PATIENCE = 60.0  # s that a lock is waited for
LEFTOVER = 24 * 3600.0  # s without a change until an unfinished folder counts as left by a killed process


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file. Readers see the old or the new content, never a part of it, even after a crash."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def write_json(path: Path, value: object) -> None:
    write_atomically(path, json_bytes(value))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError if there is no file, CorruptArtifact if it is not a JSON
    object."""
    return parsed(path.read_bytes(), f"{path.name} of {path.parent}")


def parsed(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `content`. Raises CorruptArtifact, with `name` in its message, if it is not a JSON object."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CorruptArtifact(f"{name} is not readable: {error}") from error
    if not isinstance(value, dict):
        raise CorruptArtifact(f"{name} is not a JSON object")
    return value


def json_bytes(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def from_facts(kind: type[T], facts: Mapping[str, Any]) -> T:
    """Makes a dataclass from its stored fields. Ignores fields that a newer release has added.

    Raises:
        TypeError: a field is missing, or `facts` is not a mapping.
    """
    known: Any = kind
    if not isinstance(facts, Mapping):
        raise TypeError(f"{kind.__name__}: {facts!r:.80} is not an object")
    names = {field.name for field in dataclasses.fields(known)}
    return kind(**{name: value for name, value in facts.items() if name in names})


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def building(parent: Path) -> Iterator[Path]:
    """Yields a private folder in `parent`. At the end, removes the folder, unless the caller has moved it to its final
    place, and those that killed processes have left."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f".building-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for left in parent.glob(".building-*"):
            with contextlib.suppress(OSError):  # another process has removed it
                if left.stat().st_mtime < time.time() - LEFTOVER:
                    shutil.rmtree(left)


def sealed_by(facts: Mapping[str, object]) -> str:
    """SHA-256 (hex) of a manifest's fields."""
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)).hexdigest()


def manifest_bytes(facts: Mapping[str, object]) -> bytes:
    """A manifest as it is stored, with its seal."""
    return json_bytes({**facts, SEAL: sealed_by(facts)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """An artifact's manifest. Raises FileNotFoundError if there is no artifact, CorruptArtifact if the manifest is
    unreadable or was changed."""
    return parsed_manifest((folder / MANIFEST).read_bytes(), str(folder / MANIFEST))


def parsed_manifest(content: bytes, name: str) -> dict[str, Any]:
    """The manifest in `content`, without its seal. Raises CorruptArtifact, with `name` in its message, if it
    is unreadable or was changed."""
    manifest = parsed(content, name)
    seal = manifest.pop(SEAL, None)
    if seal is not None and seal != sealed_by(manifest):
        raise CorruptArtifact(f"{name} was changed after it was written")
    return manifest


def verified(folder: Path, *names: str, called: str | None = None) -> dict[str, Any]:
    """Compares the named files, or all files if none are named, with the manifest, and returns the manifest.

    Args:
        called: the artifact's name in messages; its folder by default.

    Raises:
        FileNotFoundError: there is no such artifact.
        CorruptArtifact: a file is missing or has another hash; the message names the file.
    """
    where = called or folder
    manifest = parsed_manifest((folder / MANIFEST).read_bytes(), f"{MANIFEST} of {where}")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise CorruptArtifact(f"{MANIFEST} of {where} lists no files")
    for name in names or files:
        path = folder / name
        if name not in files or not path.is_file():
            raise CorruptArtifact(f"{where}: {name} is missing")
        if sha256(path) != files[name]:
            raise CorruptArtifact(f"{where}: {name} does not match the SHA-256 in its manifest")
    return manifest


@contextmanager
def locked(path: Path, patience: float | None = None, called: str | None = None) -> Iterator[None]:
    """Waits for an exclusive lock and holds it. If the process dies, the lock ends. Uses flock, which works on local
    volumes and NFS version 4. `called`: the name of what is locked, for messages; its path by default.

    Raises:
        Unavailable: another process has held the lock for `patience` seconds, PATIENCE by default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + (PATIENCE if patience is None else patience)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Unavailable(f"another process holds the lock of {called or path}; try again later") from None
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - so that waiting processes do not ask in step
        yield


@dataclass(frozen=True)
class Garbage:
    """Something that can be removed: its name, why it is not needed, and its size (bytes)."""

    name: str
    why: str
    size: int
    remove: Callable[[], object]


def since(created: object) -> float:
    """Seconds since `created`, the date in a manifest. Raises CorruptArtifact unless `created` is in ISO 8601 with a
    time zone."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(created))).total_seconds()
    except (ValueError, TypeError) as error:
        raise CorruptArtifact(f"created is {created!r}, not a date in ISO 8601 with a time zone") from error


def superfluous(versions: Collection[int], keep: int, needed: Collection[int]) -> list[int]:
    """All versions except the newest `keep` and the `needed` versions, in ascending order."""
    return [version for version in sorted(versions)[:-keep] if version not in needed]
