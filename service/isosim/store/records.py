"""Records: a JSON object under a key, parsed by pydantic, changed by compare-and-swap. Domains and jobs are records."""

import contextlib
import functools
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from isosim.errors import Action, Conflict, CorruptArtifact
from isosim.store.blobs import Blobs, Changed
from isosim.threads import time_left

T = TypeVar("T")


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Making one takes 20 ms."""
    return TypeAdapter(kind)


PATIENCE = 8.0  # s of attempts to change a record that others keep changing
PAUSES = (0.002, 0.5)  # s: the first longest pause before another attempt, and the limit to which it doubles
MARK = b'"change"'  # in each record: its random value
TOMBSTONE = 1024  # bytes of a deleted record


class Records(Generic[T]):
    """Records of one kind, by name.

    A deleted record stays as an object of TOMBSTONE bytes, because a store without conditional deletion could lose what
    another process has written since the record was read. Listings tell it by its size, without reading it.
    """

    def __init__(
        self,
        blobs: Blobs,
        kind: type[T],
        prefix: str,
        *,
        missing: T | None = None,
        deleted: Callable[[T], bool] = lambda _: False,
        repairable: bool = False,
    ) -> None:
        """`missing` stands for a record that is not there. `deleted` tells a deleted record. `repairable`: a damaged
        record can be rebuilt."""
        self.blobs, self.kind, self.prefix, self.repairable = blobs, kind, prefix, repairable
        self.missing, self.deleted = missing, deleted
        self.form: TypeAdapter[T] = adapter(kind)  # type: ignore[arg-type]

    def key(self, name: str) -> str:
        return f"{self.prefix}{name}.json"

    def read(self, name: str) -> T:
        """Raises FileNotFoundError if there is no such record, CorruptArtifact if it cannot be understood."""
        return self.tagged(name)[0]

    def tagged(self, name: str) -> tuple[T, str]:
        """A record and its tag, for `replace`. Raises as `read` does."""
        content, tag = self.blobs.read(self.key(name))
        try:
            record = self.form.validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise self._damaged(name, f"{where or 'JSON'}: {first['msg']}") from error
        if MARK not in content:  # else `{}` would be a record whose fields all have their defaults
            raise self._damaged(name, "JSON: it was not written as a record")
        return record, tag

    def replace(self, name: str, record: T, tag: str) -> str:
        """Writes over the record that has this tag, without reading it, and returns the new tag. Raises Changed."""
        return self.blobs.write(self.key(name), self._content(record), over=tag)

    def _damaged(self, name: str, why: str) -> CorruptArtifact:
        told = CorruptArtifact(f"{self.key(name)} cannot be read: {why}")
        told.place = f"{self.blobs.address}/{self.key(name)}"
        return told.with_remedy(Action.REPAIR, domain=name) if self.repairable else told

    def _content(self, record: T) -> bytes:
        """JSON with a random value, so that no two writes are alike: tags of S3 are hashes of the content."""
        deleted = self.deleted(record)
        facts = {**self.form.dump_python(record, mode="json", exclude_defaults=deleted), "change": uuid.uuid4().hex}
        content = orjson.dumps(facts, option=0 if deleted else orjson.OPT_INDENT_2)
        return content.ljust(TOMBSTONE) if deleted else content + b"\n" * (len(content) == TOMBSTONE)

    def create(self, name: str, record: T) -> T:
        """Creates a record, or returns the one that is there."""
        return self.change(name, lambda there: record if there is None else there)

    def change(self, name: str, step: Callable[[T | None], T]) -> T:
        """Replaces a record by `step(record)`; `step` gets `missing` if there is none.

        `step` is called again if another process has changed the record meanwhile. If it returns an equal record,
        nothing is written; if it raises, nothing is changed.

        Raises:
            Conflict: others kept changing the record for PATIENCE.
            CorruptArtifact: the record cannot be understood.
        """
        until, pause, refused = time.monotonic() + min(PATIENCE, time_left()), PAUSES[0], False
        while True:
            there, tag = self.missing, None
            with contextlib.suppress(FileNotFoundError):
                there, tag = self.tagged(name)
            after = step(there)
            if after == there:
                return after
            # Only now: if the answer to an earlier write was lost, `step` has just found that it was made.
            if refused and time.monotonic() > until:
                raise Conflict(f"others keep changing {self.key(name)}; try again")
            try:
                self.blobs.write(self.key(name), self._content(after), new=tag is None, over=tag)
            except Changed:
                refused = True
                time.sleep(random.uniform(0, pause))  # noqa: S311 - so that writers do not meet again
                pause = min(2 * pause, PAUSES[1])
            else:
                return after

    def rebuild(self, name: str, step: Callable[[bytes], T]) -> T:
        """Replaces a record that cannot be understood by `step(content)`; returns a sound one as it is.

        Raises:
            FileNotFoundError: there is no such record.
            Conflict: another process has changed it meanwhile.
        """
        try:
            return self.read(name)
        except CorruptArtifact:
            content, tag = self.blobs.read(self.key(name))
        after = step(content)
        try:
            self.blobs.write(self.key(name), self._content(after), over=tag)
        except Changed as error:
            raise Conflict(f"{self.key(name)} changed meanwhile; try again") from error
        return after

    def write(self, name: str, record: T) -> None:
        """Writes a record whatever is there."""
        self.blobs.write(self.key(name), self._content(record))

    def stamps(self, after: str = "") -> Iterator[tuple[str, str]]:
        """Names of the records that are greater than `after` and their stamps, in order of their keys, without reading
        them or those that are deleted."""
        for entry in self.blobs.list(self.prefix, self.key(after) if after else ""):
            if entry.key.endswith(".json") and entry.size != TOMBSTONE:
                yield entry.key.removeprefix(self.prefix).removesuffix(".json"), entry.stamp

    def names(self, after: str = "") -> Iterator[str]:
        """The names of `stamps`."""
        return (name for name, _ in self.stamps(after))
