"""The store's objects: bytes under keys, in a folder or in a bucket. Everything that is stored stands on these.

A key is a relative path with `/` between its parts, like `domains/tickets.json`. An object is read and written as a
whole. A write may depend on a condition: that the object is new, or that it still has the tag that was read.

A file system has no conditional write, so `Folder` compares and replaces under a lock of the key, taken with a
deadline. A bucket must give these guarantees, as Amazon S3, Google Cloud Storage, Azure, MinIO and R2 do: a read
returns the last write, `If-None-Match: *` writes an object only if there is none, and `If-Match` replaces only an
unchanged one. `check` tries both conditions.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from isosim.errors import CorruptArtifact, Unavailable
from isosim.store.artifacts import Garbage, fsync, locked
from isosim.threads import time_left

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PATIENCE = 8.0  # s that a lock of a folder is waited for
LOCKS = ".locks"  # folder of the locks of a folder
MARKER = "store.json"  # the object that makes a place a model store
OPENINGS = 100  # attempts to open a file in a folder that other processes remove while it is empty; unmeasured
# obstore's own defaults (30 s for a request, ten retries, three minutes) would hold a request's thread for minutes.
CONNECT, READ = timedelta(seconds=5), timedelta(seconds=5)  # without a connection, or without a byte
REQUEST = timedelta(seconds=60)  # a whole request; a part of an upload has 8 MB
RETRIES = 1
PART = 8 << 20  # bytes of a part of an upload
SIDE_BY_SIDE = 8  # downloads of one call in parallel; unmeasured
HIDDEN = re.compile(r"\.[0-9a-f]{32}")  # names of writes under way
PAGE = 1000  # objects in a page of a listing
ADDRESS = re.compile(r"^([a-z][a-z0-9+.-]+):(/+|$)")  # of a bucket; two letters at least, because C:/ is a drive


class Changed(Exception):
    """A conditional write was refused: the object exists already, is missing, or was changed by another writer."""


class Entry(NamedTuple):
    """An object in a listing."""

    key: str
    size: int  # bytes
    stamp: str  # see `Blobs.stamp`
    modified: float  # seconds since the epoch, by the storage's clock


class Blobs(Protocol):
    """Thread-safe. FileNotFoundError means that the object is missing, any other OSError that the store failed."""

    address: str

    def read(self, key: str) -> tuple[bytes, str]:
        """Content and tag. Equal contents may have equal tags. Raises FileNotFoundError."""

    def stamp(self, key: str) -> str:
        """Returns a string that differs after each change of the object. It costs one stat or HEAD request, and cannot
        be used as a tag. Raises FileNotFoundError."""

    def write(self, key: str, content: bytes, *, new: bool = False, over: str | None = None) -> str:
        """Writes an object and returns its tag.

        With `new` there must be no such object; with `over` it must have this tag. A refused write succeeds if the
        stored content is the same: an earlier attempt wrote it, and its answer was lost.

        Raises:
            Changed: the condition does not hold.
        """

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """The objects below `prefix`, which is "" or ends with `/`, whose keys are greater than `after`, in the order
        of their keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are missing are passed over."""

    def upload(self, key: str, path: Path) -> None:
        """Writes a file's content."""

    def download(self, key: str, path: Path) -> None:
        """Writes an object's content into a file. Raises FileNotFoundError."""

    def files(self, prefix: str, names: Iterable[str]) -> AbstractContextManager[Path]:
        """A folder with the objects `prefix + name` as files, for reading only, until the context ends. Raises
        FileNotFoundError."""

    def unfinished(self, age: float) -> Iterator[Garbage]:
        """What killed processes have left of their writes, if it is older than `age` (s)."""


class Folder:
    """A folder on a local disk or on a volume that several machines share (flock has to work there)."""

    def __init__(self, root: Path) -> None:
        self.root, self.address = root, str(root)
        self._was_store = (root / MARKER).exists()

    def _check(self) -> None:
        """Raises Unavailable if this was a model store and is none any more: a volume that is not mounted, or a folder
        that was moved away, would look like a store without objects, and a write would make another one."""
        if self._was_store and not (self.root / MARKER).exists():
            raise Unavailable(f"the model store is not there any more: its {MARKER} is missing")

    @contextmanager
    def _missing(self) -> Iterator[None]:
        """For reads of an object, which may be missing because the store is."""
        try:
            yield
        except FileNotFoundError:
            self._check()
            raise

    def read(self, key: str) -> tuple[bytes, str]:
        with self._missing(), (self.root / key).open("rb") as file:
            content = file.read()
        return content, tag_of(content)

    def stamp(self, key: str) -> str:
        with self._missing():
            return stamp_of((self.root / key).stat())

    def write(self, key: str, content: bytes, *, new: bool = False, over: str | None = None) -> str:
        with self._prepared(key, lambda file: file.write(content)) as whole:
            if not new and over is None:
                self._place(whole, key)
                return tag_of(content)
            with locked(self._lock(key), min(PATIENCE, time_left()), key):
                tag = None
                with contextlib.suppress(FileNotFoundError):
                    stored, tag = self.read(key)
                    if stored == content:
                        return tag
                if tag != over:
                    raise Changed(key)
                self._place(whole, key)
                return tag_of(content)

    @contextmanager
    def _prepared(self, key: str, write: Callable[[BinaryIO], object]) -> Iterator[Path]:
        """A hidden file beside the final place of an object, with the content that `write` has written."""
        self._check()
        whole = (self.root / key).with_name(f".{uuid.uuid4().hex}")
        try:
            with created(whole) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            yield whole
        finally:
            whole.unlink(missing_ok=True)

    def _place(self, whole: Path, key: str) -> None:
        path = self.root / key
        whole.replace(path)
        # The object may be gone already, and its folder with it, if another process has deleted it.
        with contextlib.suppress(FileNotFoundError):
            fsync(path.parent)

    def _lock(self, key: str) -> Path:
        """The file that is locked for changes of a key. It is never removed, so few keys of many share it.

        All users who may write into the folder may lock it.
        """
        path = self.root / LOCKS / hashlib.blake2b(key.encode(), digest_size=2).hexdigest()[1:]
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir()
                shutil.copymode(self.root, path.parent)
            path.touch()
            with contextlib.suppress(PermissionError):  # another user has just made it
                path.chmod(0o666)
        return path

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        self._check()
        for key in sorted(self._keys(self.root / prefix, prefix)):
            if key > after:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found = (self.root / key).stat()
                    yield Entry(key, found.st_size, stamp_of(found), found.st_mtime)

    def _keys(self, folder: Path, prefix: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from self._keys(folder / entry.name, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name

    def delete(self, keys: Iterable[str]) -> None:
        self._check()
        for key in keys:
            path = self.root / key
            path.unlink(missing_ok=True)
            if path.parent != self.root:
                with contextlib.suppress(OSError):  # it is not empty, or another process has removed it
                    path.parent.rmdir()

    def upload(self, key: str, path: Path) -> None:
        with path.open("rb") as source, self._prepared(key, lambda file: shutil.copyfileobj(source, file)) as whole:
            self._place(whole, key)

    def download(self, key: str, path: Path) -> None:
        with self._missing():
            shutil.copyfile(self.root / key, path)

    @contextmanager
    def files(self, prefix: str, names: Iterable[str]) -> Iterator[Path]:
        folder = self.root / prefix
        with self._missing():
            for name in plain(names):
                (folder / name).stat()
        yield folder

    def unfinished(self, age: float) -> Iterator[Garbage]:
        for path in self.root.rglob(".*"):
            with contextlib.suppress(FileNotFoundError):  # its process has ended the write
                found = path.stat()
                if HIDDEN.fullmatch(path.name) and time.time() - found.st_mtime > age:
                    yield Garbage(str(path), "left unfinished", found.st_size, partial(path.unlink, missing_ok=True))


class Bucket:
    """Object storage: S3, Google Cloud Storage, Azure, or anything else of obstore with conditional writes."""

    def __init__(self, store: "ObjectStore", address: str) -> None:
        import obstore  # noqa: PLC0415 - an extra

        self.store, self.address, self.api = store, address, obstore

    def read(self, key: str) -> tuple[bytes, str]:
        with self._errors(key):
            found = self.api.get(self.store, key)
            return bytes(found.bytes()), tag_in(found.meta)

    def stamp(self, key: str) -> str:
        with self._errors(key):
            return str(self.api.head(self.store, key)["e_tag"])

    def write(self, key: str, content: bytes, *, new: bool = False, over: str | None = None) -> str:
        mode: Any = "create" if new else "overwrite" if over is None else condition_of(over)
        try:
            with self._errors(key):
                return tag_in(self.api.put(self.store, key, content, mode=mode, use_multipart=False))
        except (Changed, FileNotFoundError) as error:
            if not new and over is None:
                raise
            with contextlib.suppress(FileNotFoundError):
                stored, tag = self.read(key)
                if stored == content:
                    return tag
            raise Changed(key) from error

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        with self._errors(prefix):
            for page in self.api.list(self.store, prefix or None, offset=after or None, chunk_size=PAGE):
                for one in page:
                    yield Entry(one["path"], one["size"], str(one["e_tag"]), one["last_modified"].timestamp())

    def delete(self, keys: Iterable[str]) -> None:
        if wanted := list(keys):
            try:
                with self._errors(wanted[0]):
                    self.api.delete(self.store, wanted)
            except FileNotFoundError:  # where objects are deleted one by one, it stops at a missing one
                for key in wanted:
                    with contextlib.suppress(FileNotFoundError), self._errors(key):
                        self.api.delete(self.store, key)

    def upload(self, key: str, path: Path) -> None:
        with self._errors(key):
            self.api.put(self.store, key, path, chunk_size=PART, max_concurrency=4)

    def download(self, key: str, path: Path) -> None:
        with self._errors(key), path.open("wb") as file:
            for part in self.api.get(self.store, key).stream(min_chunk_size=1 << 20):
                file.write(part)

    @contextmanager
    def files(self, prefix: str, names: Iterable[str]) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="isosim-") as folder:

            def fetch(name: str) -> None:
                self.download(prefix + name, Path(folder, name))

            with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                list(pool.map(fetch, plain(names)))
            yield Path(folder)

    def unfinished(self, age: float) -> Iterator[Garbage]:
        """Nothing: a rule of the bucket ends incomplete uploads."""
        return iter(())

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Turns obstore's errors into FileNotFoundError, Changed and OSError: the only place that knows them."""
        from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError  # noqa: PLC0415

        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            raise Changed(key) from error
        except (NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise OSError(f"object storage {self.address}: there is no such bucket") from error
            raise FileNotFoundError(f"{self.address}/{key} is not there") from None
        except (BaseError, TimeoutError) as error:
            why = " ".join(str(error).split("Debug source")[0].split())
            raise OSError(f"object storage {self.address}: {why}") from error


def remote(place: str | Path) -> bool:
    """Whether a place is an address like s3://bucket/prefix. In a Path it is s3:/bucket/prefix."""
    return ADDRESS.match(str(place)) is not None


def address_of(place: str | Path) -> str:
    """A place as users write it: a path, or an address with both slashes, which pathlib shortens to one."""
    return ADDRESS.sub(r"\1://", str(place)).rstrip("/") if remote(place) else str(place)


def client_options() -> dict[str, Any]:
    """Arguments for a store of obstore: timeouts, retries, and an authority of the operator's own."""
    client: dict[str, Any] = {
        "connect_timeout": CONNECT, "read_timeout": READ, "timeout": REQUEST, "allow_http": True,
    }  # fmt: skip
    if bundle := os.environ.get("AWS_CA_BUNDLE"):  # known to AWS's own libraries, but not to obstore
        client["root_certificate"] = Path(bundle).read_bytes()
    return {"client_options": client, "retry_config": {"max_retries": RETRIES, "retry_timeout": REQUEST}}


def opened(place: str | Path) -> Blobs:
    """The store at a path or at an address like s3://bucket/prefix, gs://… or az://….

    Credentials, region and authority (AWS_CA_BUNDLE) of a bucket come from the environment (`AWS_…`, `GOOGLE_…`,
    `AZURE_…`), from the metadata of the machine, or from the token of a Kubernetes service account; obstore does not
    read `~/.aws/credentials`.

    Raises:
        Unavailable: obstore (extra `bucket`) is not installed, or the address names no bucket.
    """
    if not remote(place):
        return Folder(Path(place))
    address = address_of(place)
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra
        from obstore.store import from_url  # noqa: PLC0415
    except ModuleNotFoundError:
        raise Unavailable(f"{address} needs more packages; install them: pip install 'isosim[bucket]'") from None
    bucket = address.partition("://")[2].partition("/")[0]
    if not bucket:
        raise Unavailable(f"{address} names no bucket; expected s3://bucket/prefix")
    try:
        store = from_url(address, **client_options())
    except (BaseError, ValueError) as error:
        raise Unavailable(f"{address}: {error}") from error
    return Bucket(store, address)


def check(blobs: Blobs) -> None:
    """Tries both conditions of a write, each once with a condition that does not hold.

    Raises:
        Unavailable: the store writes all the same, so that two writers would lose each other's changes.
        OSError: the store cannot be written.
    """
    key = f"check-{uuid.uuid4().hex}"
    other = blobs.write(key, b"0", new=True)
    try:
        blobs.write(key, b"1", over=other)
        for condition in ({"new": True}, {"over": other}):
            try:
                blobs.write(key, uuid.uuid4().bytes, **condition)
            except Changed:
                continue
            name = "If-None-Match" if "new" in condition else "If-Match"
            raise Unavailable(f"{blobs.address} does not keep conditions of writes ({name}); use another storage")
    finally:
        blobs.delete([key])


def tag_of(content: bytes) -> str:
    """Not the file's inode and time: a file system counts time in steps of milliseconds and uses inodes again."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def tag_in(meta: Any) -> str:
    """The tag of an object in a bucket: its ETag, and its generation, which Google Cloud Storage compares."""
    return f"{meta['e_tag']} {meta['version'] or ''}"


def condition_of(tag: str) -> dict[str, str]:
    """obstore's condition that an object has this tag."""
    e_tag, _, version = tag.partition(" ")
    return {"e_tag": e_tag, "version": version} if version else {"e_tag": e_tag}


def plain(names: Iterable[str]) -> list[str]:
    """Names of files, unchanged. Raises CorruptArtifact if one leads elsewhere: they come from records."""
    found = list(names)
    for name in found:
        if name in ("", ".", "..") or Path(name).name != name:
            raise CorruptArtifact(f"{name[:80]!r} is not the name of a file")
    return found


def stamp_of(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def created(path: Path) -> BinaryIO:
    """Opens a new file for writing, and makes its folders. Tries again if another process removes an empty folder
    between the two (`Folder.delete`)."""
    for left in reversed(range(OPENINGS)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb")
        except (FileNotFoundError, FileExistsError):
            if not left:
                raise
    raise AssertionError  # the last attempt returns or raises
