"""A domain as one record, and the rules by which it changes. Nothing here reads or writes."""

from dataclasses import dataclass, field, replace
from typing import Any

from isosim.errors import Conflict, NotFound, UnknownDomain
from isosim.scoring.moves import Migration
from isosim.scoring.registry import DEFAULT

MOST_LISTED = 20  # a message lists at most this many versions, the newest


@dataclass(frozen=True)
class Version:
    """A calibration of a domain for one encoder. Its files lie in `versions/<domain>/<upload>/` and never change."""

    number: int
    encoder: str  # digest
    encoder_id: str
    method: str
    files: dict[str, str]  # name -> SHA-256, hex
    upload: str
    created: str  # ISO 8601, UTC
    job: str | None = None  # the calibration job that made it
    sentences: int | None = None
    levels: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class EncoderAliases:
    """The versions that one encoder serves."""

    champion: int | None = None
    previous: int | None = None
    rolled_back: bool = False  # whether the last change was a rollback


@dataclass(frozen=True)
class Domain:
    """All that changes about a domain. One write replaces it as a whole."""

    versions: dict[int, Version] = field(default_factory=dict)  # by number
    aliases: dict[str, EncoderAliases] = field(default_factory=dict)  # by encoder digest
    thresholds: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> facts of a `Target`
    move: Migration | None = None  # to another encoder
    next: int = 1  # number of the next version; numbers are never used again
    epoch: int = 0  # how often the domain was deleted
    revision: int = 0  # counts changes

    def version(self, name: str, number: int) -> Version:
        """Raises NotFound; it is UnknownDomain if the domain `name` has no version at all."""
        if number in self.versions:
            return self.versions[number]
        if not self.versions and name != DEFAULT:
            raise UnknownDomain(name)
        there = sorted(self.versions)
        newest = ["…"] * (len(there) > MOST_LISTED) + [str(one) for one in there[-MOST_LISTED:]]
        listed = ", ".join(newest) if there else "no stored version"
        raise NotFound(f"domain {name!r} has no version {number}; it has {listed}")

    def named(self) -> set[int]:
        """Versions that are champion or previous for any encoder."""
        named = (number for one in self.aliases.values() for number in (one.champion, one.previous))
        return {number for number in named if number is not None}

    def published_as(self, upload: str, job: str | None) -> Version | None:
        """The version with these files, or the version of the same job: an earlier attempt has published it."""
        for version in self.versions.values():
            if version.upload == upload or (job is not None and version.job == job):
                return version
        return None

    def with_version(self, version: Version) -> "Domain":
        """Adds a version, which gets the next number."""
        own = replace(version, number=self.next)
        return replace(self, versions=self.versions | {own.number: own}, next=self.next + 1)

    def without_version(self, name: str, number: int) -> "Domain":
        """Raises NotFound, or Conflict if the version is champion or previous."""
        self.version(name, number)
        if number in self.named():
            raise Conflict(
                f"version {number} of {name!r} is champion or previous and cannot be deleted; "
                "promote others first, or delete the whole domain"
            )
        return replace(self, versions={n: version for n, version in self.versions.items() if n != number})

    def promoted(self, name: str, encoder: str, number: int) -> "Domain":
        """Makes a version the champion. Raises NotFound, or Conflict if it belongs to another encoder."""
        if self.version(name, number).encoder != encoder:
            raise Conflict(f"version {number} of {name!r} belongs to another encoder")
        now = self.aliases.get(encoder, EncoderAliases())
        if now.champion == number:
            return self
        return replace(self, aliases=self.aliases | {encoder: EncoderAliases(number, now.champion)})

    def rolled_back(self, name: str, encoder: str) -> "Domain":
        """Swaps champion and previous version. Raises Conflict if there is no previous version."""
        now = self.aliases.get(encoder, EncoderAliases())
        if now.previous is None:
            raise Conflict(f"domain {name!r} has no previous version to roll back to")
        swapped = EncoderAliases(now.previous, now.champion, rolled_back=True)
        return replace(self, aliases=self.aliases | {encoder: swapped})
