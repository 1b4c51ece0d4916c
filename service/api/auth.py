"""Who may do what: the key of a request, and the grant that comes with it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from service.adapters.key_file import KeyFile
from service.core.errors import Unauthorized
from service.core.grants import ANYBODY, Grant, Scope


class Keys:
    """Without a file everybody may do everything; the server then binds loopback only.

    Raises:
        OSError, ValueError: the file cannot be read or understood; the message names the line.
    """

    def __init__(self, path: Path | None) -> None:
        self.file = None if path is None else KeyFile(path)

    @contextlib.contextmanager
    def watched(self) -> Iterator["Keys"]:
        """The keys, re-read whenever their file changes."""
        with self.file or contextlib.nullcontext():
            yield self

    @property
    def count(self) -> int:
        return 0 if self.file is None else self.file.count

    @property
    def valid(self) -> bool:
        return self.file is None or self.file.valid

    def check(self, authorization: str | None, scope: Scope) -> Grant:
        """What the key in the header grants. Raises Unauthorized or Forbidden."""
        grant = self.identify(authorization)
        grant.check_scope(scope)
        return grant

    def identify(self, authorization: str | None) -> Grant:
        """The same, whatever the key grants. Raises Unauthorized."""
        if self.file is None:
            return ANYBODY
        kind, _, key = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not key:
            raise Unauthorized("an API key is needed: Authorization: Bearer <key>")
        grant = self.file.find(key.strip())
        if grant is None:
            raise Unauthorized("the API key is not known")
        return grant
