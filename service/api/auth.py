"""API keys: kept as SHA-256, compared in constant time, re-read when their file changes."""

import contextlib
import hashlib
import hmac
import re
from pathlib import Path
from typing import Literal

from service.core.errors import Forbidden, Unauthorized

Scope = Literal["read", "calibrate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "calibrate", "admin")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class Keys:
    """Without a file everybody may do everything; the server then binds loopback only."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._stamp = 0
        self._scopes: dict[bytes, frozenset[str]] = {}
        self._read()

    def _read(self) -> None:
        """Raises ValueError, naming the line, where the file is not understood."""
        if self.path is None:
            return
        stamp = self.path.stat().st_mtime_ns
        if stamp == self._stamp:
            return
        scopes: dict[bytes, frozenset[str]] = {}
        for number, line in enumerate(self.path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            granted = frozenset(words[1].split(",")) if len(words) > 1 else frozenset()
            if not SHA256.fullmatch(words[0]) or not granted or not granted <= set(SCOPES):
                raise ValueError(f"{self.path}, line {number}: expected `<sha256 of the key> <scope,scope> [name]`")
            scopes[bytes.fromhex(words[0])] = granted
        self._stamp, self._scopes = stamp, scopes

    @property
    def count(self) -> int:
        return len(self._scopes)

    def check(self, authorization: str | None, scope: Scope) -> None:
        """Raises Unauthorized or Forbidden."""
        if self.path is None:
            return
        with contextlib.suppress(OSError, ValueError):  # a broken or vanished file changes nothing until it is mended
            self._read()
        kind, _, key = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not key:
            raise Unauthorized("an API key is needed: Authorization: Bearer <key>")
        digest = hashlib.sha256(key.strip().encode()).digest()
        granted: frozenset[str] | None = None
        for known, scopes in self._scopes.items():
            if hmac.compare_digest(known, digest):
                granted = scopes
        if granted is None:
            raise Unauthorized("the API key is not known")
        if scope not in granted:
            raise Forbidden(f"the API key lacks the scope {scope!r}")
