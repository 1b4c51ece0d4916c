"""Stores the migrations of domains from one encoder to another. The model store has one small file for all migrations,
so that each replica watches only one file.

In a folder, the file is `domains/.migrations.json`, which is changed under a lock. No domain has this name, because
names of domains do not begin with a dot.

In a bucket, the file is `domains/migrations.json`. A writer replaces it only if it has not changed since it was read.
Then the writer replaces `domains/bell`, so that readers notice the change (see `objects.py`).
"""

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isosim.domains.objects import BELL
from isosim.errors import Conflict, CorruptArtifact, Unavailable
from isosim.scoring.moves import Migration
from isosim.store.artifacts import from_facts, json_bytes, locked, parsed, to_facts, write_atomically
from isosim.store.object_storage import PreconditionFailed, opened, remote

log = logging.getLogger("isosim")

NAME, KEY = ".migrations.json", "domains/migrations.json"
FORMAT = 1  # number of the file's format; increased if older releases would misread the new format
ATTEMPTS = 5  # maximum attempts to replace the file; in a bucket, other processes may change it meanwhile
# Seconds after which the file is read again even if `bell` is unchanged. A writer first writes the file, then changes
# `bell`, and may be killed in between.
FULL_LOOK = 60.0


class MigrationStore:
    """The migrations of a folder or of a bucket (s3://bucket/prefix)."""

    def __init__(self, root: Path) -> None:
        self.path = root / "domains" / NAME
        self.storage = opened(root) if remote(root) else None
        self.where = f"{self.storage.address}/{KEY}" if self.storage is not None else str(self.path)
        # State when `look` last read the file: value of `bell`, time (s), migrations.
        self._looked: tuple[str, float, Mapping[str, Migration]] | None = None
        self._was_there = False  # whether the folder was ever found; if it is missing now, the volume is not reachable

    def all(self) -> Mapping[str, Migration]:
        """The migrations by domain; empty if there is no file.

        Raises:
            CorruptArtifact: the file is invalid.
            Unavailable: a newer release wrote the file.
            OSError: the store is not reachable. Without this error, all migrations would seem to have ended.
        """
        return self._understood(self._stored(self._read()[0]))

    def look(self, bell: str | None) -> Mapping[str, Migration]:
        """Like `all`, but reads the file again only if `bell` has changed since the last call, or after FULL_LOOK.

        Args:
            bell: the present value of `DomainStore.bell`, which changes when a domain or a migration changes. If None,
                the file is read.

        Raises:
            CorruptArtifact, Unavailable, OSError: as for `all`; the next call reads the file again.
        """
        now = time.monotonic()
        if bell is not None and self._looked is not None:
            heard, read, migrations = self._looked
            if heard == bell and now - read < FULL_LOOK:
                return migrations
        migrations = self.all()
        self._looked = None if bell is None else (bell, now, migrations)
        return migrations

    def _read(self) -> tuple[bytes | None, str | None]:
        try:
            if self.storage is not None:
                return self.storage.read(KEY)
            return self.path.read_bytes(), None
        except FileNotFoundError:
            if self._was_there:
                self.path.parent.stat()
            return None, None
        finally:
            self._was_there = self.storage is None and (self._was_there or self.path.parent.is_dir())

    def _stored(self, content: bytes | None) -> dict[str, Any]:
        if content is None:
            return {"format": FORMAT, "domains": {}}
        stored = parsed(content, self.where)
        if isinstance(stored.get("format"), int) and stored["format"] > FORMAT:
            raise Unavailable(
                f"{self.where} was written by a newer release (format {stored['format']}); run that release"
            )
        return stored

    def _understood(self, stored: Mapping[str, Any]) -> dict[str, Migration]:
        try:
            return {domain: understood(facts) for domain, facts in stored["domains"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptArtifact(
                f"{self.where} is invalid ({error}); delete it to serve every domain as before its migration began"
            ) from error

    def set(self, domain: str, wanted: Migration | None, *, expected: Migration | None) -> None:
        """Replaces a domain's migration by `wanted`, or removes it if `wanted` is None.

        Raises:
            Conflict: the domain's migration is not `expected`, because another caller has changed it; or, in a bucket,
                other processes kept changing the file.
        """
        for _ in range(ATTEMPTS):
            with self._alone(), contextlib.suppress(PreconditionFailed):
                content, tag = self._read()
                stored = self._stored(content)
                if self._understood(stored).get(domain) != expected:
                    break
                stored["domains"].pop(domain, None)
                if wanted is not None:
                    stored["domains"][domain] = to_facts(wanted)
                stored["domains"] = dict(sorted(stored["domains"].items()))
                self._write(json_bytes(stored), tag)
                return
        raise Conflict(f"the migration of {domain!r} changed meanwhile; read it again, then retry")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with locked(self.path.with_name(NAME + ".lock")) if self.storage is None else contextlib.nullcontext():
            yield

    def _write(self, content: bytes, tag: str | None) -> None:
        """Replaces the file. In a bucket, raises PreconditionFailed if the file's tag is no longer `tag`."""
        if self.storage is None:
            write_atomically(self.path, content)
        else:
            self.storage.write(KEY, content, over=tag, new=tag is None)
            try:
                self.storage.write(BELL, uuid.uuid4().bytes)
            except OSError as error:  # the error is not raised, because the change itself succeeded
                log.warning(
                    "could not announce a change of migrations (%s); readers notice it at their next full scan", error
                )


def understood(facts: Any) -> Migration:
    """Converts stored facts to a migration. Raises TypeError if the facts are invalid."""
    migration = from_facts(Migration, facts)
    if not all(isinstance(value, str) for value in to_facts(migration).values()):
        raise TypeError("a name or time is not a string")
    return migration
