"""Encoders in the model store: `encoders/<id>/<digest>/`."""

import contextlib
import dataclasses
import hashlib
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal, cast, get_args

from isosim.encoders.spec import EncoderSpec
from isosim.errors import Action, Conflict, CorruptArtifact, InvalidInput, Unavailable
from isosim.store.artifacts import (
    MANIFEST,
    Garbage,
    building,
    from_facts,
    json_bytes,
    locked,
    manifest_bytes,
    parsed,
    parsed_manifest,
    read_manifest,
    sha256,
    verified,
    write_atomically,
)
from isosim.store.blobs import Blobs, Changed, Entry, Folder, opened, plain

ENCODERS, REGISTRATION = "encoders/", "/registration.json"
ID = re.compile(r"\w[\w.-]*")
ENCODER, CALIBRATOR, TOKENIZER = "encoder.onnx", "calibrator.onnx", "tokenizer.json"


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

    - Kind `onnx`: `encoder` and `calibrator` are the two parts of one graph, which `isosim bundle` writes.
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
    def encoder(self) -> Path:
        return self.folder / ENCODER

    @property
    def calibrator(self) -> Path:
        return self.folder / CALIBRATOR

    @property
    def tokenizer(self) -> Path:
        return self.folder / TOKENIZER


class EncoderStore:
    """Encoders of a store. Those of a folder are used in place; those of a bucket are copied to this machine.

    An encoder exists once its manifest is written, after all its other files.
    """

    def __init__(self, blobs: Blobs, seed: Blobs | None = None) -> None:
        """`seed`: a second store, which is only read. It has encoders that the first store may lack."""
        self.blobs = blobs
        self.roots = [blobs] if seed is None else [blobs, seed]

    @classmethod
    def at(cls, place: str | Path, seed: str | Path | None = None) -> "EncoderStore":
        """Opens the stores at two paths or addresses."""
        return cls(opened(place), None if seed is None else opened(seed))

    def find(self, name: str) -> EncoderArtifact:
        """Verifies an encoder and returns it. `name` is an encoder's id, or `<id>@<start of a digest>`. If several
        match, the newest one is returned. Those of the second store are found only if none of the first matches.

        Raises:
            Unavailable: there is no such encoder, or it was exported by a release that computes other vectors. The
                message says how to export it.
            CorruptArtifact: a file does not match its manifest.
        """
        artifact_id, _, digest = name.partition("@")
        for blobs in self.roots:
            newest = self._newest(blobs, artifact_id, digest)
            if newest is not None:
                try:
                    return artifact_of(name, self._local(blobs, *newest))
                except CorruptArtifact as error:
                    if ENCODER.encode() in newest[1]:  # it was exported, and not registered
                        error.with_remedy(Action.EXPORT, source=artifact_id)
                    raise
        there = ", ".join(self.ids()) or "none"
        raise Unavailable(
            f"no encoder {name!r} in {self.blobs.address}; there are: {there}; choose one (ISOSIM_ENCODER)"
        ).with_remedy(Action.EXPORT, source="minilm")

    def _newest(self, blobs: Blobs, artifact_id: str, digest: str) -> tuple[str, bytes] | None:
        """Prefix of the keys, and manifest, of the newest encoder that matches; None if there is none."""
        if not ID.fullmatch(artifact_id):
            return None
        found = {}
        for prefix in prefixes(blobs.list(place_of(artifact_id, ""))):
            if prefix.startswith(place_of(artifact_id, digest).removesuffix("/")):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found[prefix] = blobs.read(prefix + MANIFEST)[0]

        def created(prefix: str) -> str:
            return str(parsed_manifest(found[prefix], f"{blobs.address}/{prefix}{MANIFEST}").get("created"))

        return max(((prefix, found[prefix]) for prefix in found), key=lambda one: created(one[0]), default=None)

    def _local(self, blobs: Blobs, prefix: str, manifest: bytes) -> Path:
        """A folder of this machine with an encoder's verified files: the store's own, or a copy that processes share.

        Raises:
            CorruptArtifact: a file of the store does not match its manifest.
            OSError: object storage does not answer, or the copy cannot be written.
        """
        facts = parsed_manifest(manifest, f"{blobs.address}/{prefix}{MANIFEST}")
        if isinstance(blobs, Folder):
            verified(blobs.root / prefix, *files_of(facts))
            return blobs.root / prefix
        place = cache() / hashlib.sha256(blobs.address.encode()).hexdigest()[:16] / prefix
        if is_copy(place, manifest):
            return place
        with building(place.parent) as copy:
            for name in plain(facts["files"]):
                blobs.download(prefix + name, copy / name)
            write_atomically(copy / MANIFEST, manifest)
            verified(copy, called=f"{blobs.address}/{prefix.removesuffix('/')}")
            # Another process may have made a copy meanwhile, which its threads are reading.
            with locked(place.parent / f".{place.name}.lock"):
                if not is_copy(place, manifest):
                    shutil.rmtree(place, ignore_errors=True)  # removes a damaged copy, if there is one
                    copy.rename(place)
        return place

    def ids(self) -> list[str]:
        """Ids of all encoders, sorted."""
        return sorted({prefix.split("/")[1] for blobs in self.roots for prefix in prefixes(blobs.list(ENCODERS))})

    def has(self, artifact_id: str, digest: str) -> bool:
        for blobs in self.roots:
            with contextlib.suppress(FileNotFoundError):
                blobs.stamp(place_of(artifact_id, digest) + MANIFEST)
                return True
        return False

    def sound(self, artifact_id: str, digest: str) -> EncoderArtifact | None:
        """An encoder whose files match their manifest; None if there is none. One that is damaged is withdrawn, so that
        `add` writes it anew."""
        if self.has(artifact_id, digest):
            try:
                return self.find(f"{artifact_id}@{digest}")
            except CorruptArtifact:
                self.blobs.delete([place_of(artifact_id, digest) + MANIFEST])
        return None

    def garbage(self, age: float, needed: Collection[str] | None) -> Iterator[Garbage]:
        """Yields what can be removed and is older than `age` (s): incomplete encoders, and encoders whose digest is not
        in `needed`. If `needed` is None, yields only incomplete ones."""
        before = time.time() - age
        for prefix, entries in groupby(self.blobs.list(ENCODERS), lambda entry: entry.key.rpartition("/")[0] + "/"):
            files = list(entries)
            whole = any(entry.key == prefix + MANIFEST for entry in files)
            unwanted = not whole or (needed is not None and prefix.split("/")[2] not in needed)
            if prefix.count("/") == 3 and unwanted and all(entry.modified < before for entry in files):
                why = "an unused encoder" if whole else "left unfinished"
                size = sum(entry.size for entry in files)
                yield Garbage(f"{self.blobs.address}/{prefix[:-1]}", why, size, partial(self._bury, prefix))

    def add(self, artifact_id: str, spec: EncoderSpec, write: Callable[[Path], dict[str, object]]) -> EncoderArtifact:
        """Publishes the files that `write` puts into a folder. The facts that `write` returns go into the manifest."""
        if not ID.fullmatch(artifact_id):
            raise InvalidInput(f"encoder id {artifact_id!r}: use letters, digits, '-', '_' and '.'")
        with tempfile.TemporaryDirectory(prefix="isosim-") as folder:
            facts = write(Path(folder))
            files = {file.name: sha256(file) for file in sorted(Path(folder).iterdir())}
            described = {"encoder": dataclasses.asdict(spec), "digest": spec.digest}
            created = {"created": datetime.now(UTC).isoformat()}
            manifest = manifest_bytes({**described, **created, **facts, "files": files})
            self._publish(place_of(artifact_id, spec.digest), Path(folder), files, manifest)
        return self.find(f"{artifact_id}@{spec.digest}")

    def _publish(self, prefix: str, folder: Path, files: Mapping[str, str], manifest: bytes) -> None:
        """Uploads files, then the manifest. If another process has published other files for the same encoder
        meanwhile, the two may be mixed: uploads again and replaces its manifest. What is published already is not
        uploaded: it could come between the files and the manifest of another process."""
        while True:
            tag = None
            with contextlib.suppress(FileNotFoundError):
                stored, tag = self.blobs.read(prefix + MANIFEST)
                if parsed_manifest(stored, prefix + MANIFEST)["files"] == files:
                    return
            for name in files:
                self.blobs.upload(prefix + name, folder / name)
            with contextlib.suppress(Changed):
                self.blobs.write(prefix + MANIFEST, manifest, new=tag is None, over=tag)
                return

    def registration(self, artifact_id: str) -> str:
        """Identifies the registration of an encoder that isosim does not compute: the same for all processes that
        register it at once, another one after its removal."""
        key = ENCODERS + artifact_id + REGISTRATION
        with contextlib.suppress(Changed):
            self.blobs.write(key, json_bytes({"registration": uuid.uuid4().hex}), new=True)
        return str(parsed(self.blobs.read(key)[0], key).get("registration"))

    def readdress(self, artifact: EncoderArtifact, endpoint: Endpoint) -> EncoderArtifact:
        """Stores a new address or key file for a remote encoder, and returns the changed encoder.

        Raises:
            Conflict: another process changes the encoder at the same time.
        """
        key = place_of(artifact.id, artifact.digest) + MANIFEST
        content, tag = self.blobs.read(key)
        facts = parsed_manifest(content, key) | {"remote": dataclasses.asdict(endpoint)}
        try:
            self.blobs.write(key, manifest_bytes(facts), over=tag)
        except Changed as error:
            raise Conflict(f"another process changes encoder {artifact.id}; try again") from error
        return self.find(f"{artifact.id}@{artifact.digest}")

    def remove(self, artifact: EncoderArtifact) -> None:
        """Deletes an encoder. Domain versions calibrated for it stay but can no longer be served."""
        # First, so that an encoder of this name that is registered from now on has another digest.
        self.blobs.delete([ENCODERS + artifact.id + REGISTRATION])
        self._bury(place_of(artifact.id, artifact.digest))

    def _bury(self, prefix: str) -> None:
        """Deletes an encoder; its manifest first, because readers ignore the files of an encoder without one."""
        self.blobs.delete([prefix + MANIFEST])
        self.blobs.delete([entry.key for entry in self.blobs.list(prefix)])


def place_of(artifact_id: str, digest: str) -> str:
    """Prefix of an encoder's keys."""
    return f"{ENCODERS}{artifact_id}/{digest}/" if digest else f"{ENCODERS}{artifact_id}/"


def prefixes(entries: Iterable[Entry]) -> Iterator[str]:
    """Prefixes of the keys of the complete encoders in a listing."""
    for entry in entries:
        prefix, _, name = entry.key.rpartition("/")
        if name == MANIFEST and prefix.count("/") == 2:
            yield prefix + "/"


def is_copy(place: Path, manifest: bytes) -> bool:
    """Whether a folder has the files of a manifest. If only the manifest differs, as when a remote encoder gets another
    address, it is replaced."""
    try:
        if (place / MANIFEST).read_bytes() != manifest:
            write_atomically(place / MANIFEST, manifest)
        verified(place)
    except (FileNotFoundError, CorruptArtifact):
        return False
    return True


def artifact_of(name: str, folder: Path) -> EncoderArtifact:
    """The encoder in a folder. Raises Unavailable or CorruptArtifact, as `EncoderStore.find` does."""
    manifest = read_manifest(folder)
    try:
        spec = EncoderSpec(**manifest["encoder"])
        probe = from_facts(Probe, manifest["probe"]) if manifest.get("probe") else None
        kind = kind_of(manifest)
        endpoint = from_facts(Endpoint, manifest["remote"]) if kind == "remote" else None
        probes = tuple(from_facts(Probe, one) for one in manifest.get("probes", ()))
    except (KeyError, TypeError) as error:
        raise CorruptArtifact(f"{folder / MANIFEST} does not describe an encoder: {error}") from error
    if spec.digest != folder.name == manifest.get("digest"):
        raise Unavailable(
            f"encoder {name!r} was exported by a release that computes other vectors; calibrate its domains anew after "
            "a new export"
        ).with_remedy(Action.EXPORT, source=spec.source)
    if spec.digest != folder.name:
        raise CorruptArtifact(
            f"{folder / MANIFEST} describes another encoder (digest {spec.digest}) than its folder's name; export the "
            "encoder again"
        )
    return EncoderArtifact(
        folder.parent.name,
        spec,
        folder,
        probe,
        manifest.get("licence"),
        manifest.get("prompts", {}),
        endpoint,
        probes,
        kind,
        manifest.get("unit_vectors") is True,
    )


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
