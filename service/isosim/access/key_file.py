"""The file of API keys. A separate thread re-reads it when it changes, so that no request waits for a disk."""

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from isosim.access.grants import ANYBODY, Grant, parse_grant
from isosim.errors import Unauthorized

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # seconds between checks of the file; a removed key is accepted until the next check has ended
# Two changes shortly after each other may have the same timestamp. So a file that changed less than UNSETTLED seconds
# ago is read again at the next check.
UNSETTLED = 2.0
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
SHAPE = "expected `<sha256 of the key> <scope,scope> domains=… [rate=…] [concurrent=…] [name]`"

Stamp = tuple[int, int, int, int, int]


class KeyFile:
    """The keys of a file, each with its grant (what it may do). While the file is invalid, the last valid grants stay
    in force.

    The file counts as changed if its device, inode, size or a timestamp differs. The new timestamp may be older than
    the last: Kubernetes changes a secret by pointing a symbolic link to another folder, whose file may be older.

    Raises:
        OSError: the file cannot be read at the start.
        ValueError: the file is invalid at the start; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._index_key = secrets.token_bytes(32)
        self._stamp: Stamp | None = None
        self._grants: dict[bytes, Grant] = {}
        self._trouble = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._read()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="api-keys", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LOOK_SECONDS)  # not longer: the thread may wait for a disk that hangs

    @property
    def count(self) -> int:
        return len(self._grants)

    @property
    def grants(self) -> list[Grant]:
        """The grants, in the order of the file."""
        return list(self._grants.values())

    @property
    def valid(self) -> bool:
        """False while the file is invalid or missing. The keys of the last valid version of the file stay in force."""
        return not self._trouble

    def find(self, key: str) -> Grant | None:
        """The key's grant. Lookups use a keyed hash, so that their timing reveals nothing about known keys."""
        return self._grants.get(self._place(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()))

    def _place(self, digest: bytes) -> bytes:
        return hmac.digest(self._index_key, digest, "sha256")

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Reads the file again if it has changed."""
        try:
            self._read()
        except (OSError, ValueError) as error:  # ValueError includes UnicodeDecodeError
            trouble = describe(error, self.path)
            if trouble != self._trouble:
                log.error("cannot read the file of API keys (%s); the API keys read before stay in force", trouble)
            self._trouble = trouble
        else:
            if self._trouble:
                log.warning("the file of API keys is valid again: %d keys", self.count)
            self._trouble = ""

    def _read(self) -> None:
        stamp = stamp_of(self.path)
        if stamp == self._stamp:
            return
        text = self.path.read_bytes().decode()
        grants = parse(text, self.path, self._place)
        if self._stamp is not None and grants.keys() != self._grants.keys():
            log.info("the API keys were read again: %d keys", len(grants))
        settled = time.time() - max(stamp[3], stamp[4]) / 1e9 > UNSETTLED
        self._grants = grants
        self._stamp = stamp if settled and stamp_of(self.path) == stamp else None


def stamp_of(path: Path) -> Stamp:
    status = os.stat(path)  # noqa: PTH116 - follows symbolic links
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def describe(error: Exception, path: Path) -> str:
    """An error message that does not quote the file."""
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is not UTF-8"
    return f"{path}: {error.strerror or type(error).__name__}" if isinstance(error, OSError) else str(error)


def parse(text: str, path: Path, place: Callable[[bytes], bytes]) -> dict[bytes, Grant]:
    """Parses the text of a key file. Returns `place(digest)` -> grant for each line. `digest` is the line's first word:
    the SHA-256 of an API key. Raises ValueError if the text does not end with a line break, or for an invalid line; the
    message names the line but does not quote it."""
    if text and not text.endswith("\n"):
        raise ValueError(f"{path} does not end with a line break, so its last line may have been cut off")
    grants: dict[bytes, Grant] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if not SHA256.fullmatch(words[0]):
            raise ValueError(f"{path}, line {number}: {SHAPE}; the first word is not a hash of 64 hexadecimal digits")
        digest = bytes.fromhex(words[0])
        try:
            # The first argument is the grant's id, which becomes part of Redis keys. 16 hexadecimal digits are enough
            # to distinguish API keys.
            grant = parse_grant(hashlib.sha256(digest).hexdigest()[:16], words[1:])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if place(digest) in grants:
            raise ValueError(f"{path}, line {number}: this key is in the file twice")
        grants[place(digest)] = grant
    return grants


class Keys:
    """The keys of a file. Without a file, every caller may do everything.

    Raises:
        OSError, ValueError: the file cannot be read or is invalid; the message names the line.
    """

    def __init__(self, path: Path | None) -> None:
        self.file = None if path is None else KeyFile(path)

    @contextlib.contextmanager
    def watched(self) -> Iterator["Keys"]:
        """Yields the keys, which are read again whenever their file changes."""
        with self.file or contextlib.nullcontext():
            yield self

    @property
    def count(self) -> int:
        return 0 if self.file is None else self.file.count

    @property
    def valid(self) -> bool:
        return self.file is None or self.file.valid

    def identify(self, authorization: str | None) -> Grant:
        """The grant of the key in the header `Authorization`. Raises Unauthorized if there is no key or an unknown
        one."""
        if self.file is None:
            return ANYBODY
        kind, _, key = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not key:
            raise Unauthorized("an API key is needed: Authorization: Bearer <key>")
        grant = self.file.find(key.strip())
        if grant is None:
            raise Unauthorized(
                "the API key is not known; ask the server's operator for one: isosim keys new --add FILE"
            )
        return grant
