"""A bulk job: everything that determines its files. OUTPUT keeps it in a manifest; only the same job may resume."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from isosim.bulk.inputs import TEXT, VECTOR, Input, InputFile, open_input
from isosim.domains.registry import load_calibration
from isosim.encoders.store import EncoderStore
from isosim.errors import Conflict, InvalidInput
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.store.artifacts import json_bytes, parsed
from isosim.store.blobs import Blobs, Changed, opened

MANIFEST = "_job.json"
BLOCK = 4096  # rows per file; with 384 dimensions a file of vectors takes 6 MB, and one core needs some seconds for it
# Packages whose version can change the bytes of the output.
DECIDE_BYTES = ("isosim", "onnxruntime", "onnxruntime-gpu", "pyarrow", "tokenizers")
Form = Literal["parquet", "csv"]
RESULTS = {
    "embed": ("row", "vector", "truncated", "unreadable", "error"),
    "score": (
        "row", "cosine", "similarity", "percentile", "probability", "extrapolated", "flags_a", "flags_b", "error",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Where:
    """Where a job runs; this does not change the output."""

    store: Path
    seed: Path | None = None  # second store, with encoders that the first may lack
    address: str | None = None  # of a Ray cluster; None: start a local Ray
    cores: int = 1  # cores that a local Ray may use


@dataclass(frozen=True)
class Options:
    """Options of a command and settings that determine the output."""

    task: Literal["embed", "score"]
    columns: tuple[str, ...]  # columns with texts or vectors: one to embed, two to score
    max_characters: int  # a longer text gets no result
    device: Literal["cpu", "gpu"]
    batch_tokens: int  # padded tokens in a batch; another value may change the last bits of a vector
    keep: tuple[str, ...] = ()  # columns to copy to the output
    vectors: bool = False  # whether the columns contain vectors instead of texts
    write: Form = "parquet"
    space: Literal["calibrated", "raw"] = "calibrated"  # of the vectors that `embed` writes
    normalize: bool = True  # whether `embed` scales vectors to unit length
    rows: int = BLOCK  # rows per file


@dataclass(frozen=True)
class Job:
    """Everything that determines the output of `embed` and `score`."""

    options: Options
    input: tuple[InputFile, ...]
    encoder: str
    digest: str
    domain: str
    version: int
    method: str
    software: Mapping[str, str]

    @property
    def facts(self) -> dict[str, Any]:
        """The fields, with the options among them, for a manifest."""
        own = asdict(self)
        options: dict[str, Any] = own.pop("options")
        return options | own

    def name(self, block: int) -> str:
        """Name of a block's file."""
        return f"part-{block:06}.{self.options.write}"

    def provenance(self, **more: str) -> dict[str, str]:
        """Facts written into every Parquet file."""
        space = self.options.space if self.options.task == "embed" else ""
        facts = {"task": self.options.task, "domain": self.domain, "version": str(self.version)}
        facts |= {"method": self.method, "encoder": self.digest, "space": space, **more}
        return {f"isosim.{name}": value for name, value in facts.items()}


def prepare(
    options: Options, source: str, output: str, encoder: str, domain: DomainRef, where: Where
) -> tuple[Job, Input, Calibration]:
    """Opens the input and the calibration of a job, and claims OUTPUT for it.

    A job that began with a domain's champion resumes with that version, even if another one was promoted since.

    Raises:
        Conflict: OUTPUT belongs to another job, or contains other files.
        EmptyInput, InvalidInput: the input has no files, or lacks the columns.
        Unavailable, NotFound, EncoderMismatch, CorruptArtifact: the encoder or the version is missing or unreadable.
    """
    artifact = EncoderStore.at(where.store, where.seed).find(encoder)
    options = replace(options, vectors=options.vectors or artifact.kind == "vectors")
    if taken := sorted({*options.keep} & {*RESULTS[options.task]}):
        raise InvalidInput(f"a kept column cannot be called {taken[0]!r}, because the output has one of that name")
    columns = dict.fromkeys(options.columns, VECTOR if options.vectors else TEXT)
    rows = open_input(source, dict.fromkeys(options.keep) | columns)
    target = opened(output)
    earlier = manifest_of(target)
    if earlier is not None and domain.version == "champion" and earlier.get("domain") == domain.name:
        domain = DomainRef(domain.name, earlier["version"])
    calibration = load_calibration(where.store, artifact, domain, gpu=False)
    software = {one.name: one.version for name in DECIDE_BYTES for one in importlib.metadata.distributions(name=name)}
    job = Job(
        options, rows.files, artifact.id, artifact.digest, calibration.domain, calibration.version,
        calibration.method, software,
    )  # fmt: skip
    claim(target, job.facts)
    return job, rows, calibration


def manifest_of(output: Blobs) -> dict[str, Any] | None:
    """The manifest of the job that OUTPUT belongs to; None if there is none."""
    try:
        return parsed(output.read(MANIFEST)[0], f"{output.address}/{MANIFEST}")
    except FileNotFoundError:
        return None


def claim(output: Blobs, facts: Mapping[str, Any]) -> None:
    """Writes a job's manifest into OUTPUT, or checks that the manifest there has the same facts.

    Raises:
        Conflict: OUTPUT belongs to another job, or contains other files.
    """
    names = present(output)
    if names and MANIFEST not in names:
        raise Conflict(f"{output.address} holds {min(names)} but no {MANIFEST}; give an empty or a new folder")
    content = json_bytes(facts)
    try:
        output.write(MANIFEST, content, new=True)
    except Changed:
        differences = list(differing(manifest_of(output) or {}, orjson.loads(content)))
        if differences:
            raise Conflict(
                f"{output.address} belongs to a job with other settings ({'; '.join(differences)}); use that job's "
                "settings, or give a new folder"
            ) from None


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describes the fields of two manifests that differ."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [
        "the input has changed" if name == "input" else f"{name}: {before.get(name)}, now {now.get(name)}"
        for name in names
    ]


def present(output: Blobs) -> set[str]:
    """Names of the files in OUTPUT."""
    return {entry.key for entry in output.list("") if "/" not in entry.key}
