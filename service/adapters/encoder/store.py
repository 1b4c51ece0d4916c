"""Exported encoders in the model store: `encoders/<id>/<digest>/`."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal, cast, get_args

from service.adapters.storage.artifacts import (
    MANIFEST,
    Garbage,
    building,
    drop,
    from_facts,
    leftovers,
    manifest_bytes,
    parsed_manifest,
    read_manifest,
    seal,
    since,
    size_of,
    verified,
    write_atomically,
)
from service.adapters.storage.object_storage import ObjectStorage, PreconditionFailed, key_of, opened, remote
from service.core.encoding.spec import EncoderSpec
from service.core.errors import CorruptArtifact, InvalidInput, Unavailable

JOINED, ENCODER, CALIBRATOR, TOKENIZER = "model.onnx", "encoder.onnx", "calibrator.onnx", "tokenizer.json"


def cache() -> Path:
    """Where this machine keeps encoders that it has fetched; their hashes are compared at every start."""
    return Path.home() / ".cache" / "isosim"


@dataclass(frozen=True)
class Probe:
    """A sentence and its vector at export."""

    text: str
    pooled: list[float]


@dataclass(frozen=True)
class Endpoint:
    """Where a remote encoder runs: a server that speaks OpenAI's embeddings. Not part of the encoder's identity."""

    url: str  # up to and with /v1
    model: str
    key_file: str | None = None  # read at each request; the key itself is never stored
    encoding: Literal["base64", "float"] = "base64"  # of vectors in its answers


Kind = Literal["onnx", "remote", "vectors"]


@dataclass(frozen=True)
class EncoderArtifact:
    """An encoder's files. `joined` is the whole graph; `encoder` and `calibrator` are cut out of it.

    Of the other kinds there is the calibrator alone: a `remote` encoder runs on another server, and of one whose
    `vectors` its users bring only the number of dimensions is known.
    """

    id: str
    spec: EncoderSpec
    folder: Path
    probe: Probe | None = None  # exports of earlier versions have none
    licence: str | None = None  # of the weights; exports of earlier versions do not say
    prompts: Mapping[str, str] = field(default_factory=dict)  # a caller may name one; it takes the place of the spec's
    remote: Endpoint | None = None
    probes: tuple[Probe, ...] = ()  # of a remote encoder: what it answered at its registration
    kind: Kind = "onnx"
    unit_vectors: bool = False  # all brought vectors have length 1

    @property
    def digest(self) -> str:
        return self.spec.digest

    @property
    def every_prompt(self) -> set[str]:
        """All prompts that may stand before a text."""
        return {self.spec.prompt, *self.prompts.values()}

    @property
    def joined(self) -> Path:
        return self.folder / JOINED

    @property
    def encoder(self) -> Path:
        return self.folder / ENCODER

    @property
    def calibrator(self) -> Path:
        return self.folder / CALIBRATOR

    @property
    def tokenizer(self) -> Path:
        return self.folder / TOKENIZER


def bury(folder: Path) -> None:
    """Deletes an export, its manifest first: readers do not begin on an export without one."""
    (folder / "manifest.json").unlink(missing_ok=True)
    drop(folder)


class EncoderStore:
    """A folder's encoders, or a bucket's: those are fetched into a folder of this machine, and read there."""

    def __init__(self, root: Path) -> None:
        self.bucket = EncoderBucket(opened(root), cache() / key_of(root)) if remote(root) else None
        self.root = (root if self.bucket is None else self.bucket.folder) / "encoders"

    def find(self, name: str) -> EncoderArtifact:
        """The encoder `id` (its newest export) or `id@<digest's beginning>`; files verified.

        Raises:
            Unavailable: there is none, or it is another release's; the message says how to make one.
            CorruptArtifact: a file does not match its manifest.
        """
        artifact_id, _, digest = name.partition("@")
        if self.bucket is not None:
            digest = self.bucket.fetch(artifact_id, digest)
        manifests = (self.root / artifact_id).glob(f"{digest}*/manifest.json")
        folders = [f.parent for f in manifests if not f.parent.name.startswith(".")]
        if not folders:
            there = ", ".join(self.ids()) or "none"
            raise Unavailable(
                f"no encoder {name!r} in {self.root}; there are: {there}; choose one (--encoder, ISOSIM_ENCODER) or "
                "make it with: isosim export --encoder minilm"
            )
        folder = max(folders, key=lambda f: str(read_manifest(f).get("created")))
        manifest = verified(folder, *files_of(read_manifest(folder)))
        try:
            spec = EncoderSpec(**manifest["encoder"])
            probe = from_facts(Probe, manifest["probe"]) if manifest.get("probe") else None
            kind = kind_of(manifest)
            endpoint = from_facts(Endpoint, manifest["remote"]) if kind == "remote" else None
            probes = tuple(from_facts(Probe, one) for one in manifest.get("probes", ()))
        except (KeyError, TypeError) as error:
            raise CorruptArtifact(f"{folder / 'manifest.json'} does not describe an encoder: {error}") from error
        if spec.digest != folder.name == manifest.get("digest"):
            raise Unavailable(
                f"encoder {name!r} was exported by a release that computes other vectors; export it again "
                f"(isosim export --encoder {spec.source}) and calibrate its domains anew"
            )
        if spec.digest != folder.name:
            raise CorruptArtifact(f"{folder / 'manifest.json'} describes another encoder ({spec.digest})")
        prompts = manifest.get("prompts", {})
        return EncoderArtifact(
            artifact_id,
            spec,
            folder,
            probe,
            manifest.get("licence"),
            prompts,
            endpoint,
            probes,
            kind,
            manifest.get("unit_vectors") is True,
        )

    def ids(self) -> list[str]:
        """Names of all encoders that have an export."""
        if self.bucket is not None:
            return self.bucket.ids()
        names = {f.parent.parent.name for f in self.root.glob("*/*/manifest.json") if not f.parent.name.startswith(".")}
        return sorted(names)

    def garbage(self, age: float, needed: Collection[str] | None) -> Iterator[Garbage]:
        """Unfinished exports; and, unless `needed` is None, exports whose digest is not in it."""
        if self.bucket is not None:
            yield from self.bucket.garbage(age, needed)
            return
        yield from leftovers(self.root.glob("*/.building-*"), age)
        if needed is None:
            return
        for folder in sorted(manifest.parent for manifest in self.root.glob("*/*/manifest.json")):
            if folder.name.startswith(".") or folder.name in needed:
                continue
            if since(read_manifest(folder).get("created")) > age:
                yield Garbage(str(folder), "an encoder nobody names", size_of(folder), partial(bury, folder))

    def has(self, artifact_id: str, digest: str) -> bool:
        if self.bucket is not None:
            return self.bucket.has(artifact_id, digest)
        return (self.root / artifact_id / digest / "manifest.json").is_file()

    def add(self, artifact_id: str, spec: EncoderSpec, write: Callable[[Path], dict[str, object]]) -> EncoderArtifact:
        """Publishes what `write` puts into a folder; what it returns goes into the manifest."""
        if not artifact_id.replace("-", "").replace(".", "").replace("_", "").isalnum() or artifact_id[0] in ".-":
            raise InvalidInput(f"encoder id {artifact_id!r}: use letters, digits, '-', '_' and '.'")
        place = self.root / artifact_id / spec.digest
        if self.bucket is not None:
            shutil.rmtree(place, ignore_errors=True)  # of an export that was not sent to its end
        with building(place.parent) as folder:
            facts = write(folder)
            created = datetime.now(UTC).isoformat()
            seal(
                folder, place, {"encoder": dataclasses.asdict(spec), "digest": spec.digest, "created": created, **facts}
            )
        if self.bucket is not None:
            self.bucket.send(place)
        return self.find(f"{artifact_id}@{spec.digest}")

    def readdress(self, artifact: EncoderArtifact, endpoint: Endpoint) -> EncoderArtifact:
        """The same remote encoder at another address, or with another key file."""
        manifest = read_manifest(artifact.folder) | {"remote": dataclasses.asdict(endpoint)}
        write_atomically(artifact.folder / MANIFEST, manifest_bytes(manifest))
        if self.bucket is not None:
            self.bucket.replace_manifest(artifact.folder)
        return self.find(f"{artifact.id}@{artifact.digest}")

    def remove(self, artifact: EncoderArtifact) -> None:
        """Deletes an encoder; versions that were made for it stay, and cannot be served any more."""
        if self.bucket is not None:
            self.bucket.remove(artifact.id, artifact.digest)
        bury(artifact.folder)


def kind_of(manifest: Mapping[str, object]) -> Kind:
    """Manifests of earlier releases name no kind: they are of exported graphs.

    Raises:
        Unavailable: a later release has made it.
    """
    kind = manifest.get("kind", "onnx")
    if kind not in get_args(Kind):
        raise Unavailable(f"an encoder of the kind {kind!r} needs a later release of isosim")
    return cast(Kind, kind)


def files_of(manifest: Mapping[str, object]) -> tuple[str, ...]:
    """The files that serving needs."""
    return (ENCODER, CALIBRATOR, TOKENIZER) if kind_of(manifest) == "onnx" else (CALIBRATOR,)


ENCODERS = "encoders/"


class EncoderBucket:
    """Graphs are hundreds of megabytes and are read as files: each machine keeps those it has used."""

    def __init__(self, storage: ObjectStorage, folder: Path) -> None:
        self.storage, self.folder = storage, folder

    def _manifests(self, prefix: str = "") -> list[str]:
        """Keys of manifests."""
        keys = (entry.key for entry in self.storage.list(ENCODERS + prefix))
        return [key for key in keys if key.count("/") == 3 and key.endswith(f"/{MANIFEST}")]

    def ids(self) -> list[str]:
        return sorted({key.split("/")[1] for key in self._manifests()})

    def has(self, artifact_id: str, digest: str) -> bool:
        return f"{ENCODERS}{artifact_id}/{digest}/{MANIFEST}" in self._manifests(f"{artifact_id}/{digest}/")

    def fetch(self, artifact_id: str, digest: str) -> str:
        """Puts the newest export whose digest begins so into the folder, unless it is there. -> its digest

        Raises:
            Unavailable: there is none.
            CorruptArtifact: what was fetched does not match its manifest.
            OSError: object storage does not answer, or the folder cannot be written.
        """
        read = {key: self.storage.read(key)[0] for key in self._manifests(f"{artifact_id}/{digest}")}
        if not read:
            name = f"{artifact_id}@{digest}" if digest else artifact_id
            raise Unavailable(
                f"no encoder {name!r} in {self.storage.address}; make it with: "
                f"isosim export --encoder minilm --model-store {self.storage.address}"
            )
        key = max(read, key=lambda key: str(parsed_manifest(read[key], f"{self.storage.address}/{key}").get("created")))
        full_digest = key.split("/")[2]
        place = self.folder / ENCODERS / artifact_id / full_digest
        if not self._is_there(place, read[key]):
            self._download(key.removesuffix(MANIFEST), place, read[key])
        return full_digest

    def _is_there(self, place: Path, manifest: bytes) -> bool:
        try:
            verified(place)
            same = read_manifest(place) == parsed_manifest(manifest, str(place))
        except (FileNotFoundError, CorruptArtifact):
            same = False
        return same

    def _download(self, prefix: str, place: Path, manifest: bytes) -> None:
        with building(place.parent) as folder:
            for name in parsed_manifest(manifest, prefix + MANIFEST)["files"]:
                self.storage.download(prefix + name, folder / name)
            write_atomically(folder / MANIFEST, manifest)
            verified(folder)
            shutil.rmtree(place, ignore_errors=True)  # an export in this place is not the wanted one: see `_is_there`
            try:
                folder.rename(place)
            except OSError:  # another process of this machine was faster
                verified(place)

    def send(self, place: Path) -> None:
        """An export that lies in the folder; files first, the manifest last, which makes it visible."""
        prefix = f"{ENCODERS}{place.parent.name}/{place.name}/"
        manifest = read_manifest(place)
        for name in manifest["files"]:
            self.storage.upload(prefix + name, place / name)
        with contextlib.suppress(PreconditionFailed):  # another process has exported the same
            self.storage.write(prefix + MANIFEST, (place / MANIFEST).read_bytes(), new=True)

    def replace_manifest(self, place: Path) -> None:
        """Another manifest in place of the one that is there."""
        self.storage.write(f"{ENCODERS}{place.parent.name}/{place.name}/{MANIFEST}", (place / MANIFEST).read_bytes())

    def remove(self, artifact_id: str, digest: str) -> None:
        prefix = f"{ENCODERS}{artifact_id}/{digest}/"
        keys = [entry.key for entry in self.storage.list(prefix)]
        self._bury(sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST}")))

    def garbage(self, age: float, needed: Collection[str] | None) -> Iterator[Garbage]:
        """Exports that were not sent completely; and, unless `needed` is None, those whose digest is not in it."""
        for prefix, entries in groupby(self.storage.list(ENCODERS), lambda entry: entry.key.rpartition("/")[0]):
            files = sorted(entries, key=lambda entry: not entry.key.endswith(f"/{MANIFEST}"))  # the manifest goes first
            whole = files[0].key.endswith(f"/{MANIFEST}")
            unwanted = not whole or (needed is not None and prefix.rpartition("/")[2] not in needed)
            if unwanted and all((datetime.now(UTC) - entry.modified).total_seconds() > age for entry in files):
                why = "an encoder nobody names" if whole else "left unfinished"
                size = sum(entry.size for entry in files)
                name = f"{self.storage.address}/{prefix}"
                yield Garbage(name, why, size, partial(self._bury, [entry.key for entry in files]))

    def _bury(self, keys: list[str]) -> None:
        self.storage.delete(keys[:1])
        self.storage.delete(keys[1:])
