"""Migrations in the model store: one small file for all domains, so that replicas look at one thing.

`domains/.migrations.json`: no domain's name begins with a dot.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.adapters.artifacts import locked, read_json, write_json
from service.core.errors import Conflict, CorruptArtifact, Unavailable
from service.core.migration import Migration

NAME = ".migrations.json"
FORMAT = 1  # raise it when an older release would read the file wrongly


class MigrationStore:
    def __init__(self, root: Path) -> None:
        self.path = root / "domains" / NAME

    def all(self) -> Mapping[str, Migration]:
        """Domain by domain; a missing file is none.

        Raises:
            CorruptArtifact: the file is not understood. Unavailable: a newer release wrote it.
        """
        try:
            stored = read_json(self.path)
        except FileNotFoundError:
            return {}
        if isinstance(stored.get("format"), int) and stored["format"] > FORMAT:
            raise Unavailable(f"{self.path} was written by a newer release (format {stored['format']}); run that one")
        try:
            return {domain: understood(facts) for domain, facts in stored["domains"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptArtifact(
                f"{self.path} is not understood ({error}); delete it, and every domain is answered as before its "
                "migration began"
            ) from error

    def set(self, domain: str, wanted: Migration | None, *, expected: Migration | None) -> None:
        """Writes or, with None, removes a domain's migration, if it still is the expected one.

        Raises:
            Conflict: somebody else has changed it meanwhile.
        """
        with locked(self.path.with_name(NAME + ".lock")):
            found = dict(self.all())
            if found.get(domain) != expected:
                raise Conflict(f"the migration of {domain!r} changed meanwhile; look and try again")
            if wanted is None:
                found.pop(domain, None)
            else:
                found[domain] = wanted
            domains = {name: dataclasses.asdict(one) for name, one in sorted(found.items())}
            write_json(self.path, {"format": FORMAT, "domains": domains})


def understood(facts: Any) -> Migration:
    """Raises TypeError where they are no migration."""
    found = Migration(**facts)
    texts = (found.old, found.old_id, found.new, found.new_id, found.started, found.changed)
    numbers = (found.share, found.shadow, found.revision)
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.finished, bool):
        raise TypeError("a name that is none")
    if not all(isinstance(number, int | float) for number in numbers):
        raise TypeError("a number that is none")
    return found
