"""Encoders in the model store: `encoders/<id>/<digest>/`."""

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

from isosim.encoders.spec import EncoderSpec
from isosim.errors import CorruptArtifact, InvalidInput, Unavailable
from isosim.store.artifacts import (
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
    sweep,
    verified,
    write_atomically,
)
from isosim.store.object_storage import ObjectStorage, PreconditionFailed, key_of, opened, remote

JOINED, ENCODER, CALIBRATOR, TOKENIZER = "model.onnx", "encoder.onnx", "calibrator.onnx", "tokenizer.json"


def cache() -> Path:
    """Folder of the encoders that this machine has fetched from a bucket. Their hashes are checked at every start."""
    return Path.home() / ".cache" / "isosim"


@dataclass(frozen=True)
class Probe:
    """A sentence and its vector at export or registration."""

    text: str
    pooled: list[float]


@dataclass(frozen=True)
class Endpoint:
    """The server of a remote encoder, with OpenAI's embeddings API. It is not part of the encoder's digest."""

    url: str  # for example http://127.0.0.1:8080/v1
    model: str
    key_file: str | None = None  # read at each request; the key itself is never stored
    encoding: Literal["base64", "float"] = "base64"  # form of the vectors in the server's answers


Kind = Literal["onnx", "remote", "vectors"]


@dataclass(frozen=True)
class EncoderArtifact:
    """An encoder's files and facts.

    - Kind `onnx`: the file `joined` is the whole graph; `encoder` and `calibrator` are its two parts.
    - Kind `remote`: the encoder runs on another server. The only graph is `calibrator`.
    - Kind `vectors`: users compute the vectors themselves. The only graph is `calibrator`.
    """

    id: str
    spec: EncoderSpec
    folder: Path
    probe: Probe | None = None  # None for exports of earlier releases
    licence: str | None = None  # licence of the weights; None for exports of earlier releases
    # Prompts by name. A prompt that a request names replaces the prompt of `spec`.
    prompts: Mapping[str, str] = field(default_factory=dict)
    remote: Endpoint | None = None
    probes: tuple[Probe, ...] = ()  # for the kind `remote`: texts and the server's vectors at registration
    kind: Kind = "onnx"
    unit_vectors: bool = False  # for the kind `vectors`: all vectors have norm 1

    @property
    def known_length(self) -> bool:
        """Whether the vectors in an index have norm 1: isosim normalizes those that it computes."""
        return self.kind != "vectors" or self.unit_vectors

    @property
    def digest(self) -> str:
        return self.spec.digest

    @property
    def every_prompt(self) -> set[str]:
        """All prompts that may precede a text."""
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
    """Deletes an export. Deletes its manifest first, because readers ignore an export without a manifest."""
    (folder / "manifest.json").unlink(missing_ok=True)
    drop(folder)


class EncoderStore:
    """The encoders of a folder or of a bucket. Encoders of a bucket are copied into a local folder and read from it."""

    def __init__(self, root: Path) -> None:
        self.bucket = EncoderBucket(opened(root), cache() / key_of(root)) if remote(root) else None
        self.root = (root if self.bucket is None else self.bucket.folder) / "encoders"

    def find(self, name: str) -> EncoderArtifact:
        """Verifies an export and returns it. `name` is an encoder's id, or `<id>@<start of a digest>`. If several
        exports match, the newest one is returned.

        Raises:
            Unavailable: there is no such encoder, or it was exported by a release that computes other vectors. The
                message says how to export it.
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
            raise CorruptArtifact(
                f"{folder / 'manifest.json'} describes another encoder (digest {spec.digest}) than its "
                "folder's name; export the encoder again"
            )
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
        """Ids of all encoders in the store, sorted."""
        if self.bucket is not None:
            return self.bucket.ids()
        names = {f.parent.parent.name for f in self.root.glob("*/*/manifest.json") if not f.parent.name.startswith(".")}
        return sorted(names)

    def garbage(self, age: float, needed: Collection[str] | None) -> Iterator[Garbage]:
        """Yields the exports that can be removed and are older than `age` (s): unfinished exports, and exports whose
        digest is not in `needed`. If `needed` is None, yields only unfinished exports."""
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
                yield Garbage(str(folder), "an unused encoder", size_of(folder), partial(bury, folder))

    def has(self, artifact_id: str, digest: str) -> bool:
        if self.bucket is not None:
            return self.bucket.has(artifact_id, digest)
        return (self.root / artifact_id / digest / "manifest.json").is_file()

    def add(self, artifact_id: str, spec: EncoderSpec, write: Callable[[Path], dict[str, object]]) -> EncoderArtifact:
        """Publishes the files that `write` puts into a folder. The facts that `write` returns go into the manifest."""
        if not artifact_id.replace("-", "").replace(".", "").replace("_", "").isalnum() or artifact_id[0] in ".-":
            raise InvalidInput(f"encoder id {artifact_id!r}: use letters, digits, '-', '_' and '.'")
        place = self.root / artifact_id / spec.digest
        if self.bucket is not None:
            shutil.rmtree(place, ignore_errors=True)  # removes an export whose upload failed, if there is one
        with building(place.parent) as folder:
            facts = write(folder)
            created = datetime.now(UTC).isoformat()
            seal(
                folder, place, {"encoder": dataclasses.asdict(spec), "digest": spec.digest, "created": created, **facts}
            )
        if self.bucket is not None:
            self.bucket.send(place)
        return self.find(f"{artifact_id}@{spec.digest}")

    def adopt(self, export: Path) -> EncoderArtifact:
        """Copies an export from another store into this store. A copy that another process has just made is kept.

        Raises:
            CorruptArtifact: a file of the export does not match its manifest.
        """
        manifest = verified(export)
        place = self.root / export.parent.name / export.name
        sweep(*place.parent.glob(".building-*"))
        with building(place.parent) as folder:
            for name in manifest.pop("files"):
                shutil.copyfile(export / name, folder / name)
            with contextlib.suppress(FileExistsError):
                seal(folder, place, manifest)
        if self.bucket is not None:
            self.bucket.send(place)
        return self.find(f"{place.parent.name}@{place.name}")

    def readdress(self, artifact: EncoderArtifact, endpoint: Endpoint) -> EncoderArtifact:
        """Stores a new address or key file for a remote encoder, and returns the changed encoder."""
        manifest = read_manifest(artifact.folder) | {"remote": dataclasses.asdict(endpoint)}
        write_atomically(artifact.folder / MANIFEST, manifest_bytes(manifest))
        if self.bucket is not None:
            self.bucket.replace_manifest(artifact.folder)
        return self.find(f"{artifact.id}@{artifact.digest}")

    def remove(self, artifact: EncoderArtifact) -> None:
        """Deletes an encoder. Domain versions calibrated for it stay but can no longer be served."""
        if self.bucket is not None:
            self.bucket.remove(artifact.id, artifact.digest)
        bury(artifact.folder)


def kind_of(manifest: Mapping[str, object]) -> Kind:
    """The kind of an encoder. A manifest without a kind comes from an earlier release, and describes an
    exported graph.

    Raises:
        Unavailable: the kind is unknown; a later release made the manifest.
    """
    kind = manifest.get("kind", "onnx")
    if kind not in get_args(Kind):
        raise Unavailable(f"an encoder of the kind {kind!r} needs a later release of isosim")
    return cast(Kind, kind)


def files_of(manifest: Mapping[str, object]) -> tuple[str, ...]:
    """Names of an encoder's files that serving needs."""
    return (ENCODER, CALIBRATOR, TOKENIZER) if kind_of(manifest) == "onnx" else (CALIBRATOR,)


ENCODERS = "encoders/"


class EncoderBucket:
    """Encoders in a bucket. An encoder is copied to this machine before use, because ONNX Runtime needs files."""

    def __init__(self, storage: ObjectStorage, folder: Path) -> None:
        self.storage, self.folder = storage, folder

    def _manifests(self, prefix: str = "") -> list[str]:
        """Keys of encoders' manifests that start with `encoders/` + `prefix`."""
        keys = (entry.key for entry in self.storage.list(ENCODERS + prefix))
        return [key for key in keys if key.count("/") == 3 and key.endswith(f"/{MANIFEST}")]

    def ids(self) -> list[str]:
        return sorted({key.split("/")[1] for key in self._manifests()})

    def has(self, artifact_id: str, digest: str) -> bool:
        return f"{ENCODERS}{artifact_id}/{digest}/{MANIFEST}" in self._manifests(f"{artifact_id}/{digest}/")

    def fetch(self, artifact_id: str, digest: str) -> str:
        """Downloads the newest export whose digest starts with `digest`, unless this machine already has the export.
        Returns the full digest.

        Raises:
            Unavailable: there is no such export.
            CorruptArtifact: the downloaded files do not match their manifest.
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
            shutil.rmtree(place, ignore_errors=True)  # removes a damaged or outdated copy, if there is one
            try:
                folder.rename(place)
            except OSError:  # another process on this machine has just downloaded the same export
                verified(place)

    def send(self, place: Path) -> None:
        """Uploads an export from the folder: first its files, then its manifest, which makes the export visible."""
        prefix = f"{ENCODERS}{place.parent.name}/{place.name}/"
        manifest = read_manifest(place)
        for name in manifest["files"]:
            self.storage.upload(prefix + name, place / name)
        with contextlib.suppress(PreconditionFailed):  # another process has exported the same encoder
            self.storage.write(prefix + MANIFEST, (place / MANIFEST).read_bytes(), new=True)

    def replace_manifest(self, place: Path) -> None:
        """Overwrites the manifest in the bucket with the manifest in the folder."""
        self.storage.write(f"{ENCODERS}{place.parent.name}/{place.name}/{MANIFEST}", (place / MANIFEST).read_bytes())

    def remove(self, artifact_id: str, digest: str) -> None:
        prefix = f"{ENCODERS}{artifact_id}/{digest}/"
        keys = [entry.key for entry in self.storage.list(prefix)]
        self._bury(sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST}")))

    def garbage(self, age: float, needed: Collection[str] | None) -> Iterator[Garbage]:
        """Yields the exports that can be removed and are older than `age` (s): incomplete exports, and exports whose
        digest is not in `needed`. If `needed` is None, yields only incomplete exports."""
        for prefix, entries in groupby(self.storage.list(ENCODERS), lambda entry: entry.key.rpartition("/")[0]):
            # The manifest comes first, so that it is deleted first: without it, readers ignore the other files.
            files = sorted(entries, key=lambda entry: not entry.key.endswith(f"/{MANIFEST}"))
            whole = files[0].key.endswith(f"/{MANIFEST}")
            unwanted = not whole or (needed is not None and prefix.rpartition("/")[2] not in needed)
            if unwanted and all((datetime.now(UTC) - entry.modified).total_seconds() > age for entry in files):
                why = "an unused encoder" if whole else "left unfinished"
                size = sum(entry.size for entry in files)
                name = f"{self.storage.address}/{prefix}"
                yield Garbage(name, why, size, partial(self._bury, [entry.key for entry in files]))

    def _bury(self, keys: list[str]) -> None:
        self.storage.delete(keys[:1])
        self.storage.delete(keys[1:])
