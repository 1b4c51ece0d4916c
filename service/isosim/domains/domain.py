"""A domain as one record, and the rules by which it changes. Nothing here reads or writes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from isosim.domains.history import Entry
from isosim.errors import Action, Conflict, InvalidInput, NotFound, UnknownDomain
from isosim.scoring.advice import Target, targets_in, unknown_threshold
from isosim.scoring.calibration import DEFAULT, DOMAIN_NAME, NAME_RULE

NAME = re.compile(DOMAIN_NAME)
MOST_LISTED = 20  # a message lists at most this many versions, the newest
MOST_TARGETS = 50  # saved thresholds of a domain


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
    levels: tuple[int, ...] = ()  # latent dimensions of each level of a flow
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
    # name -> facts of a `Target`
    thresholds: dict[str, dict[str, Any]] = field(default_factory=dict)
    next: int = 1  # number of the next version; numbers are never used again
    epoch: int = 0  # how often the domain was deleted
    revision: int = 0  # counts changes
    changes: int = 0  # number of the last entry of the history
    history: tuple[Entry, ...] = ()  # the last entries

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """Saved thresholds by name, sorted; those that cannot be understood are left out."""
        return targets_in(self.thresholds)

    @property
    def deleted(self) -> bool:
        """Whether the last change was the domain's deletion."""
        return bool(self.history) and self.history[-1].what == "domain_deleted"

    def emptied(self) -> "Domain":
        """The domain after its deletion, which keeps its numbers."""
        return Domain(next=self.next, epoch=self.epoch + 1, changes=self.changes, history=self.history)

    def served(self, encoder: str) -> EncoderAliases:
        """Champion and previous version for an encoder."""
        return self.aliases.get(encoder, EncoderAliases())

    def check(self, name: str) -> None:
        """Raises UnknownDomain if the domain has no version, unless it is `default`, which always exists."""
        if not self.versions and name != DEFAULT:
            raise UnknownDomain(name)

    def check_revision(self, name: str, seen: int | None) -> None:
        """Raises Conflict if the domain has changed since the revision that a caller saw; None skips the check."""
        if seen is not None and seen != self.revision:
            raise Conflict(
                f"revision: {name!r} is at revision {self.revision}, not {seen}; read the domain again, then retry"
            )

    def version(self, name: str, number: int) -> Version:
        """Raises NotFound; it is UnknownDomain if the domain `name` has no version at all."""
        if number in self.versions:
            return self.versions[number]
        self.check(name)
        there = sorted(self.versions)
        newest = ["…"] * (len(there) > MOST_LISTED) + [str(one) for one in there[-MOST_LISTED:]]
        listed = ", ".join(newest) if there else "no stored version"
        raise NotFound(f"domain {name!r} has no version {number}; it has {listed}")

    def named(self) -> set[int]:
        """Versions that are champion or previous for any encoder."""
        named = (number for one in self.aliases.values() for number in (one.champion, one.previous))
        return {number for number in named if number is not None}

    def made_by(self, job: str) -> Version | None:
        """The version that a calibration job has published."""
        return next((version for version in self.versions.values() if version.job == job), None)

    def published_as(self, upload: str, job: str | None) -> Version | None:
        """The version with these files, or the version of the same job: an earlier attempt has published it."""
        uploaded = (version for version in self.versions.values() if version.upload == upload)
        return next(uploaded, None if job is None else self.made_by(job))

    def with_version(self, version: Version, least: int = 0) -> "Domain":
        """Adds a version, which gets the number `least`, or the next one if that is higher."""
        own = replace(version, number=max(self.next, least))
        return replace(self, versions=self.versions | {own.number: own}, next=own.number + 1)

    def without_version(self, name: str, number: int, seen: int | None = None) -> "Domain":
        """Deletes a version. Raises Conflict if it is champion or previous, and NotFound if there is none, unless the
        revision `seen` is older: then an earlier request may have deleted it, whose answer was lost."""
        if number not in self.versions and number < self.next and seen is not None and seen < self.revision:
            return self
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
        now = self.served(encoder)
        if now.champion == number:
            return self
        return replace(self, aliases=self.aliases | {encoder: EncoderAliases(number, now.champion)})

    def rolled_back(self, name: str, encoder: str, seen: int | None = None) -> "Domain":
        """Swaps champion and previous version, unless this is the last change, made to the revision `seen`: then the
        same request was made again.

        Raises:
            Conflict: there is no previous version.
        """
        now, last = self.served(encoder), self.history[-1] if self.history else None
        made = last is not None and (last.what, last.after, last.revision) == (
            "rolled_back",
            now.champion,
            self.revision,
        )
        if made and seen is not None and seen + 1 == self.revision:
            return self
        if now.previous is None:
            raise Conflict(f"domain {name!r} has no previous version to roll back to")
        swapped = EncoderAliases(now.previous, now.champion, rolled_back=True)
        return replace(self, aliases=self.aliases | {encoder: swapped})

    def with_target(self, name: str, saved: str, target: Target) -> "Domain":
        """Saves a target under a name, for all versions of the domain.

        Raises:
            InvalidInput: `saved` breaks the rule for names, or the domain already has MOST_TARGETS.
            NotFound: the domain has no version.
        """
        if not NAME.fullmatch(saved):
            raise InvalidInput(f"threshold {saved[:80]!r}: {NAME_RULE}")
        if not self.versions:
            raise NotFound(f"domain {name!r} has no version").with_remedy(Action.CALIBRATE, domain=name)
        if saved not in self.thresholds and len(self.thresholds) >= MOST_TARGETS:
            raise InvalidInput(
                f"domain {name!r} has {len(self.thresholds)} saved thresholds, at most {MOST_TARGETS} are kept"
            ).with_remedy(Action.DELETE_THRESHOLD, domain=name)
        return replace(self, thresholds=self.thresholds | {saved: target.facts})

    def without_target(self, name: str, saved: str, revision: int | None) -> "Domain":
        """Deletes a saved target. Raises NotFound if there is none, unless `revision` is older: then an earlier request
        may have deleted it, whose answer was lost."""
        if saved in self.thresholds:
            return replace(self, thresholds={key: facts for key, facts in self.thresholds.items() if key != saved})
        if revision is not None and revision < self.revision:
            return self
        raise unknown_threshold(name, saved)


def differences(before: Domain, after: Domain) -> Iterator[tuple[str, str | None, Any, Any]]:
    """What has changed between two states of a domain: for each change, the first facts of an `Entry`."""
    if before.epoch < after.epoch:
        yield "domain_deleted", None, len(before.versions), None
        return
    for number in sorted(after.versions.keys() - before.versions.keys()):
        yield "version_published", after.versions[number].encoder_id, None, number
    for digest in sorted(after.aliases):
        was, now = before.served(digest).champion, after.served(digest)
        if was != now.champion and now.champion is not None:
            what = "rolled_back" if now.rolled_back else "promoted"
            yield what, after.versions[now.champion].encoder_id, was, now.champion
    for number in sorted(before.versions.keys() - after.versions.keys()):
        yield "version_deleted", before.versions[number].encoder_id, number, None
    for name in sorted(before.thresholds.keys() | after.thresholds.keys()):
        target, wanted = before.thresholds.get(name), after.thresholds.get(name)
        if target != wanted:
            yield "threshold_deleted" if wanted is None else "threshold_saved", name, target, wanted
