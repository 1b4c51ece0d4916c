"""The history of a domain: who changed what, when. Each change of a record adds its entries in the same write."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

RECENT = 20  # entries that a domain's record keeps at least, if there are as many
BLOCK = 100  # entries in a block of older ones


@dataclass(frozen=True)
class Author:
    """Who makes a change: an API key in a request or through its job, or a command."""

    by: str = "command"  # id of the API key
    request: str | None = None  # id of the request
    job: str | None = None  # id of the calibration job


author: ContextVar[Author] = ContextVar("author", default=Author())  # noqa: B039 - frozen


@dataclass(frozen=True)
class Entry:
    """One change. `number` counts the changes of a domain from 1, also beyond its deletion."""

    number: int
    time: str  # ISO 8601, UTC
    revision: int  # of the domain after the change
    what: str
    subject: str | None  # id of the encoder, or name of the saved threshold
    before: Any  # version number, target or encoder id; None if there was none
    after: Any
    by: str
    request: str | None
    job: str | None

    @property
    def facts(self) -> dict[str, Any]:
        """For answers and logs, in which `before` and `after` are called `from` and `to`."""
        return {{"before": "from", "after": "to"}.get(name, name): value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Block:
    """Entries that have left the record: those with `(number - 1) // BLOCK` equal to the block's own number. And the
    domain's next version number and epoch when they left, which tell `DomainStore.repair` what is used up."""

    entries: tuple[Entry, ...] = ()
    next: int = 1
    epoch: int = 0

    def joined(self, more: "Block") -> "Block":
        known = {entry.number: entry for entry in (*self.entries, *more.entries)}
        entries = tuple(known[number] for number in sorted(known))
        return Block(entries, max(self.next, more.next), max(self.epoch, more.epoch))
