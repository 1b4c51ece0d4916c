"""Objects of a bucket below a prefix: whole objects, conditional writes, listings in the order of their keys.

It needs what Amazon S3 promises, and MinIO, R2 and Ceph with it: reads see the last write, `If-None-Match: *` makes an
object only where there is none, `If-Match` replaces only the one that was read.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from service.core.errors import Unavailable

SCHEME = "s3:"
CONNECT, READ = 5.0, 5.0  # s without a byte: an outage must not hold up a thread for long; unmeasured
ATTEMPTS = 2  # of each request, for what passes
BATCH = 1000  # keys of one deletion and of one page of a listing, S3's limit
REFUSED = ("PreconditionFailed", "ConditionalRequestConflict")


class PreconditionFailed(Exception):
    """A conditional write met another object than it expected. No IsosimError: the caller says what it means."""


@dataclass(frozen=True)
class Entry:
    """An object in a listing."""

    key: str
    size: int  # bytes
    etag: str
    modified: datetime  # by the storage's clock


def remote(root: Path) -> bool:
    """Whether a store lies in object storage; pathlib writes s3://bucket as s3:/bucket."""
    return root.parts[:1] == (SCHEME,)


def address(root: Path) -> str:
    """s3://bucket/prefix"""
    return f"{SCHEME}//{PurePosixPath(*root.parts[1:])}"


def opened(root: Path) -> "ObjectStorage":
    """One for each store and process: connections are kept, and are not inherited.

    Raises:
        Unavailable: the packages are missing, or the address names no bucket.
    """
    return of_process(root, os.getpid())


@cache
def of_process(root: Path, process: int) -> "ObjectStorage":
    return ObjectStorage(root)


class ObjectStorage:
    """Credentials, region and endpoint come from AWS's own variables and files. Safe from any thread."""

    def __init__(self, root: Path) -> None:
        try:
            import s3fs  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise Unavailable(f"{address(root)} needs the packages of pip install 'isosim[s3]'") from None
        if len(root.parts) < 2:
            raise Unavailable(f"{address(root)} names no bucket: s3://bucket/prefix")
        self.bucket, self.prefix = root.parts[1], "".join(f"{part}/" for part in root.parts[2:])
        self.address = address(root)
        config = {"connect_timeout": CONNECT, "read_timeout": READ, "retries": {"max_attempts": 0}}
        self._fs = s3fs.S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
        self._fs.retries = ATTEMPTS

    def _call(self, method: str, **arguments: Any) -> Any:
        """Raises FileNotFoundError, PreconditionFailed, or OSError for everything else that fails."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra, as above

        try:
            return self._fs.call_s3(method, Bucket=self.bucket, **arguments)
        except OSError as error:
            cause = error.__cause__
            code = cause.response.get("Error", {}).get("Code") if isinstance(cause, ClientError) else None
            if code in REFUSED:
                raise PreconditionFailed(arguments.get("Key")) from error
            if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
                raise
            raise OSError(f"object storage {self.address}: {error}") from error
        except (BotoCoreError, ClientError, TimeoutError) as error:
            raise OSError(f"object storage {self.address}: {error}") from error

    def read(self, key: str) -> tuple[bytes, str]:
        """Content and tag. Raises FileNotFoundError."""
        try:
            answer = self._call("get_object", Key=self.prefix + key)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.address}/{key} is not there") from None
        return self._body(answer), str(answer["ETag"])

    def _body(self, answer: Any) -> bytes:
        from aiohttp import ClientError as TransferError  # noqa: PLC0415 - an extra
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - an extra
        from fsspec.asyn import sync  # noqa: PLC0415 - an extra

        try:
            content: bytes = sync(self._fs.loop, answer["Body"].read)
        except (OSError, BotoCoreError, TransferError) as error:
            raise OSError(f"object storage {self.address}: {error}") from error
        return content

    def tag(self, key: str) -> str:
        """Raises FileNotFoundError."""
        return str(self._call("head_object", Key=self.prefix + key)["ETag"])

    def write(self, key: str, content: bytes, *, over: str | None = None, new: bool = False) -> str:
        """The tag of what is there now. `new`: only where nothing is; `over`: only over the object with this tag.

        An answer that was lost is asked for again, and then met its own object: content that is equal has won.

        Raises:
            PreconditionFailed: another object is there, or none is any more.
        """
        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": over} if over is not None else {}
        try:
            return str(self._call("put_object", Key=self.prefix + key, Body=content, **condition)["ETag"])
        except (PreconditionFailed, FileNotFoundError) as error:
            if condition:
                with contextlib.suppress(FileNotFoundError):
                    stored, tag = self.read(key)
                    if stored == content:
                        return tag
                raise PreconditionFailed(key) from error
            raise

    def upload(self, key: str, path: Path) -> None:
        """A file, in parts where it is large."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

        try:
            self._fs.put_file(str(path), f"{self.bucket}/{self.prefix}{key}")
        except (OSError, BotoCoreError, ClientError) as error:
            raise OSError(f"object storage {self.address}: {error}") from error

    def download(self, key: str, path: Path) -> None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

        try:
            self._fs.get_file(f"{self.bucket}/{self.prefix}{key}", str(path))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.address}/{key} is not there") from None
        except (OSError, BotoCoreError, ClientError) as error:
            raise OSError(f"object storage {self.address}: {error}") from error

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; passes over keys that do not exist."""
        wanted = [{"Key": self.prefix + key} for key in keys]
        for start in range(0, len(wanted), BATCH):
            answer = self._call("delete_objects", Delete={"Objects": wanted[start : start + BATCH], "Quiet": True})
            if answer.get("Errors"):
                failed = answer["Errors"][0]
                raise OSError(f"object storage {self.address}: {failed.get('Key')} stays: {failed.get('Message')}")

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Objects below a prefix, by key, beyond a key; a thousand a request, asked for as they are read."""
        arguments: dict[str, Any] = {"Prefix": self.prefix + prefix}
        if after:
            arguments["StartAfter"] = self.prefix + after
        while True:
            answer = self._call("list_objects_v2", **arguments)
            for item in answer.get("Contents", ()):
                key = item["Key"].removeprefix(self.prefix)
                yield Entry(key, item["Size"], str(item["ETag"]), item["LastModified"])
            if not answer.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = answer["NextContinuationToken"]


def key_of(root: Path) -> str:
    """A short name of a store for the folder of what is kept of it on this machine."""
    return hashlib.sha256(address(root).encode()).hexdigest()[:16]
