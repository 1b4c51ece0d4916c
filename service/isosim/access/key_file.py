"""The file of API keys, which is read again when it changes. A thread reads it, so that no request waits for a disk."""

import asyncio
import hashlib
import logging
from pathlib import Path

from isosim.access.grants import ANYBODY, SHA256, Grant, parse_grant
from isosim.errors import Action, Unauthorized

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # seconds between checks of the file; a removed key is accepted until the next check has ended
SHAPE = "expected `<sha256 of the key> <scope,scope> domains=… [rate=…] [until=…] [name]`"


class Keys:
    """The keys of a file, each with its grant (what it may do). Without a file, every caller may do everything.

    While the file is invalid or missing, the last valid grants stay in force.

    Raises:
        OSError: the file cannot be read at the start.
        ValueError: the file is invalid at the start; the message names the line.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._content: bytes | None = None
        self._grants: dict[bytes, Grant] = {}
        self._trouble = ""
        if path is not None:
            self._read(path)

    @property
    def count(self) -> int:
        return len(self._grants)

    @property
    def grants(self) -> list[Grant]:
        """The grants, in the order of the file."""
        return list(self._grants.values())

    @property
    def valid(self) -> bool:
        """False while the file is invalid or missing."""
        return not self._trouble

    def identify(self, authorization: str | None) -> Grant:
        """The grant of the key in the header `Authorization`.

        Raises:
            Unauthorized: the key is missing or unknown, or its last day is over.
        """
        if self.path is None:
            return ANYBODY
        kind, _, key = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not key:
            raise Unauthorized("an API key is needed: Authorization: Bearer <key>")
        grant = self.find(key.strip())
        if grant is None:
            raise Unauthorized("the API key is not known").with_remedy(Action.NEW_KEY, scope="read")
        grant.check_date()
        return grant

    def find(self, key: str) -> Grant | None:
        """The key's grant. Timing reveals nothing about known keys: Python compares hashes of digests, with a seed."""
        return self._grants.get(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest())

    async def watch(self) -> None:
        """Reads the file again and again; never returns."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Reads the file, and takes its grants if it has changed and is valid."""
        if self.path is None:
            return
        try:
            self._read(self.path)
        except (OSError, ValueError) as error:  # ValueError includes UnicodeDecodeError
            trouble = describe(error, self.path)
            if trouble != self._trouble:
                log.error("cannot read the file of API keys (%s); the API keys read before stay in force", trouble)
            self._trouble = trouble
        else:
            if self._trouble:
                log.warning("the file of API keys is valid again: %d keys", self.count)
            self._trouble = ""

    def _read(self, path: Path) -> None:
        # Compares contents, not times: Kubernetes changes a file by pointing a link to another one, which may be older,
        # and two changes within one tick of the clock have the same time.
        content = path.read_bytes()
        if content == self._content:
            return
        grants = parse(content.decode(), path)
        if self._content is not None and grants != self._grants:
            log.info("the API keys were read again: %d keys", len(grants))
        self._grants, self._content = grants, content


def describe(error: Exception, path: Path) -> str:
    """An error message that does not quote the file."""
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is not UTF-8"
    return f"{path}: {error.strerror or type(error).__name__}" if isinstance(error, OSError) else str(error)


def parse(text: str, path: Path) -> dict[bytes, Grant]:
    """Parses the text of a key file. Returns digest -> grant for each line. The digest is the line's first word: the
    SHA-256 of an API key. Raises ValueError if the text does not end with a line break, or for an invalid line; the
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
        if digest in grants:
            raise ValueError(f"{path}, line {number}: this key is in the file twice")
        grants[digest] = grant
    return grants
