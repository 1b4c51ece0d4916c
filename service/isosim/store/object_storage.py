"""The objects of a store: all objects in a bucket whose keys start with the store's prefix.

Objects are read and written as a whole, and listed in the order of their keys. A write may depend on a condition.

The storage must keep three guarantees, as Amazon S3, MinIO, R2 and Ceph do: a read returns the last write,
`If-None-Match: *` writes an object only if it does not exist, and `If-Match` replaces only an unchanged object.
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

from isosim.errors import Unavailable

SCHEME = "s3:"
# Seconds. An attempt fails if it cannot connect within CONNECT, or receives no byte for READ. Chosen without a
# measurement.
CONNECT, READ = 5.0, 5.0
ATTEMPTS = 2  # maximum attempts of a request; only temporary errors lead to another attempt
BATCH = 1000  # maximum keys in a deletion and in a page of a listing (S3's limit)
REFUSED = ("PreconditionFailed", "ConditionalRequestConflict")


class PreconditionFailed(Exception):
    """A conditional write was refused: the object already exists, is missing, or has changed.

    Callers catch this exception. They try again, or raise an IsosimError, which tells the user what to do.
    """


@dataclass(frozen=True)
class Entry:
    """An object in a listing."""

    key: str
    size: int  # bytes
    etag: str
    modified: datetime  # time of the last change, by the storage's clock


def remote(root: Path) -> bool:
    """Whether a store is in object storage. Its path then begins with `s3:/`, because pathlib shortens `s3://`."""
    return root.parts[:1] == (SCHEME,)


def address(root: Path) -> str:
    """The store's address in the form s3://bucket/prefix."""
    return f"{SCHEME}//{PurePosixPath(*root.parts[1:])}"


def opened(root: Path) -> "ObjectStorage":
    """The object storage of a store. A process has one instance per store and keeps its connections. A forked process
    gets a new instance.

    Raises:
        Unavailable: the Python package s3fs (extra `s3` of isosim) is not installed, or the address names no bucket.
    """
    return of_process(root, os.getpid())


@cache
def of_process(root: Path, process: int) -> "ObjectStorage":
    return ObjectStorage(root)


class ObjectStorage:
    """The objects of a store. Credentials, region and endpoint come from AWS's variables and files. Thread-safe."""

    def __init__(self, root: Path) -> None:
        try:
            import s3fs  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise Unavailable(f"{address(root)} needs more packages; install them: pip install 'isosim[s3]'") from None
        if len(root.parts) < 2:
            raise Unavailable(f"{address(root)} names no bucket; expected s3://bucket/prefix")
        self.bucket, self.prefix = root.parts[1], "".join(f"{part}/" for part in root.parts[2:])
        self.address = address(root)
        config = {"connect_timeout": CONNECT, "read_timeout": READ, "retries": {"max_attempts": 0}}
        self._fs = s3fs.S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
        self._fs.retries = ATTEMPTS

    def _call(self, method: str, **arguments: Any) -> Any:
        """Calls the S3 client.

        Raises:
            FileNotFoundError: the object does not exist.
            PreconditionFailed: the condition of a write is not met.
            OSError: any other failure, for example if the bucket does not exist.
        """
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
        """Content and tag of an object. Raises FileNotFoundError."""
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
        """The tag of an object. Raises FileNotFoundError."""
        return str(self._call("head_object", Key=self.prefix + key)["ETag"])

    def write(self, key: str, content: bytes, *, over: str | None = None, new: bool = False) -> str:
        """Writes an object and returns its tag.

        With `new`, the object must not exist yet. With `over`, it must have the tag `over`. Otherwise the write fails,
        unless the stored content is the same: then an earlier attempt wrote the object, but its answer was lost.

        Raises:
            PreconditionFailed: with `new`, the object already exists; with `over`, it is missing or has another tag.
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
        """Uploads a file, in parts if it is large."""
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
        """Deletes objects; ignores keys that do not exist."""
        wanted = [{"Key": self.prefix + key} for key in keys]
        for start in range(0, len(wanted), BATCH):
            answer = self._call("delete_objects", Delete={"Objects": wanted[start : start + BATCH], "Quiet": True})
            if answer.get("Errors"):
                failed = answer["Errors"][0]
                raise OSError(
                    f"object storage {self.address}: cannot delete {failed.get('Key')}: {failed.get('Message')}"
                )

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Yields the objects whose keys start with `prefix` and are greater than `after`, in order. Requests the next
        page of the listing only when it is needed."""
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
    """Name of the local folder with copies of the store's encoders: a hash of the store's address."""
    return hashlib.sha256(address(root).encode()).hexdigest()[:16]
