"""What a model store no longer needs, found and removed by `isosim store gc`; nothing that anybody may still hold."""

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from service.adapters.artifacts import abandoned
from service.core.errors import CorruptArtifact


@dataclass(frozen=True)
class Garbage:
    """Something to remove: its name, why nobody needs it, how much it holds (bytes)."""

    name: str
    why: str
    size: int
    remove: Callable[[], object]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def drop(path: Path) -> None:
    """What is gone already is no error."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def leftovers(paths: Iterable[Path], age: float) -> Iterator[Garbage]:
    """Unfinished files and folders that are old enough and whose makers hold no lock on them any more."""
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime
            if old > age and abandoned(path, old):
                yield Garbage(str(path), "left unfinished", size_of(path), partial(drop, path))


def since(created: object) -> float:
    """Seconds since a manifest's date, ISO 8601; CorruptArtifact where it is none."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(created))).total_seconds()
    except (ValueError, TypeError) as error:
        raise CorruptArtifact(f"{created!r} is no date: {error}") from error


def superfluous(versions: Collection[int], keep: int, needed: Collection[int]) -> list[int]:
    """All but the newest `keep` versions, rising, without those somebody needs."""
    return [version for version in sorted(versions)[:-keep] if version not in needed]
