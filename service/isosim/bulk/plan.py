"""The plan of a bulk job: everything that determines its output. An interrupted job resumes only with the same plan."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import orjson

from isosim.bulk.inputs import Part, Source, check_columns, cut
from isosim.bulk.places import Place
from isosim.bulk.readers import open_input
from isosim.bulk.writing import UNREADABLE, VECTOR
from isosim.domains.calibrations import load_calibration
from isosim.encoders.onnx_engine import CUDA
from isosim.encoders.store import EncoderStore
from isosim.errors import Conflict, CorruptArtifact, InvalidInput
from isosim.jobs.offline import default_batch_tokens
from isosim.scoring.calibration import Calibration, DomainRef

PLAN, DONE, SUCCESS = "_plan.json", "_done", "_SUCCESS"
FORMAT = 1  # increase it if a code change changes the output of bulk jobs
PART_ROWS = 4096  # rows per part; with 384 dimensions, a part takes 6 MB, and one core needs some seconds
# Packages whose version can change the bytes of the output.
DECIDE_BYTES = ("isosim", "onnxruntime", "onnxruntime-gpu", "pyarrow", "tokenizers")

ROW, ERROR = "row", "error"  # columns of the output

Task = Literal["embed", "score"]


@dataclass(frozen=True)
class Options:
    """Options of the command line that determine the output."""

    columns: tuple[str, ...]  # columns with text or vectors: one column for `bulk embed`, two for `bulk score`
    keep: tuple[str, ...]  # columns to copy to the output
    form: str  # format of the input
    delimiter: str  # character between the cells of CSV
    write: str  # format of the output
    space: str  # for `bulk embed`: whether to write calibrated or raw vectors
    normalize: bool  # for `bulk embed`: whether to scale vectors to unit length
    max_characters: int  # a row with a longer text is unusable
    vectors: bool = False  # whether the columns contain vectors instead of texts


@dataclass(frozen=True)
class Plan:
    """Everything that determines the output. `parts` is computed from the other fields."""

    task: Task
    input: tuple[Source, ...]
    options: Options
    encoder: str  # id of the encoder
    digest: str  # digest of the encoder
    domain: str
    version: int
    method: str
    device: Literal["cpu", "gpu"]
    # Maximum number of tokens in a batch, with padding. Another value may change the last bits of a vector.
    batch_tokens: int
    part_rows: int
    software: dict[str, str]
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def name(self, part: Part) -> str:
        return f"part-{part.number:06}.{self.options.write}"

    def to_json(self) -> bytes:
        facts = asdict(self) | {"format": FORMAT, "rows": self.rows}
        facts["parts"] = [[p.source, p.first, p.rows, p.start, p.stop] for p in self.parts]
        return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS) + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Reads a stored plan. Raises CorruptArtifact if it is unreadable, or was written with another FORMAT."""
        try:
            facts = orjson.loads(content)
            if facts.pop("format") != FORMAT:
                raise ValueError("a different release wrote it")
            del facts["rows"]
            facts["input"] = tuple(Source(**one) for one in facts["input"])
            options = facts["options"]
            facts["options"] = Options(**options | {n: tuple(options[n]) for n in ("columns", "keep")})
            facts["parts"] = tuple(Part(number, *one) for number, one in enumerate(facts["parts"]))
            return cls(**facts)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptArtifact(f"{PLAN} is not readable: {error}") from error

    def provenance(self) -> dict[str, str]:
        """Facts written into every Parquet file."""
        return {
            "isosim.task": self.task,
            "isosim.domain": self.domain,
            "isosim.version": str(self.version),
            "isosim.method": self.method,
            "isosim.encoder": self.digest,
            "isosim.space": self.options.space if self.task == "embed" else "",
        }


def result_columns(plan: Plan) -> tuple[str, ...]:
    """Columns of the output, without those copied from the input."""
    if plan.task == "embed":
        return (ROW, VECTOR, "truncated", UNREADABLE, ERROR)
    return (ROW, "cosine", "similarity", "percentile", "probability", "extrapolated", "flags_a", "flags_b", ERROR)


def software() -> dict[str, str]:
    """Versions of the packages that determine the output's bytes."""
    versions = {}
    for name in DECIDE_BYTES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def stored_plan(output: Place) -> Plan | None:
    """The plan of the job that writes to OUTPUT; None if OUTPUT is empty.

    Raises:
        Conflict: OUTPUT contains files but no plan.
        CorruptArtifact: the plan cannot be read.
    """
    names = output.names()
    if PLAN in names:
        return Plan.from_json(output.read(PLAN))
    if names:
        raise Conflict(f"{output.address} holds {sorted(names)[0]} but no {PLAN}; give an empty or a new folder")
    return None


def check_same(stored: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """Raises Conflict, with the differences in its message, if the stored plan differs from the wanted one."""
    facts, now = (orjson.loads(orjson.dumps(dict(plan))) for plan in ({n: stored.get(n) for n in wanted}, wanted))
    told = []
    for name in sorted(wanted):
        before, after = facts[name], now[name]
        if before == after:
            continue
        if name == "input":
            told.append("the input has changed")
        elif isinstance(before, dict):
            both = sorted(before | after)
            told += [f"{k}: {before.get(k)}, now {after.get(k)}" for k in both if before.get(k) != after.get(k)]
        else:
            told.append(f"{name}: {before}, now {after}")
    if told:
        differs = "; ".join(told)
        raise Conflict(
            f"{where} belongs to a job with other settings ({differs}); use that job's settings, or give a new folder"
        )


@dataclass(frozen=True)
class BulkRequest:
    """Arguments of a bulk command."""

    task: Task
    input: str
    columns: Sequence[str]
    keep: Sequence[str]
    form: str | None  # format of the input; None: inferred from the files' names
    delimiter: str | None  # character between the cells of CSV; None: a tab for .tsv, a comma otherwise
    write: str
    space: str
    normalize: bool
    domain: DomainRef
    device: Literal["auto", "cpu", "gpu"]
    part_rows: int = PART_ROWS
    batch_tokens: int = 0  # 0: the server's default for a CPU or a GPU
    max_characters: int = 10_000
    vectors: bool = False  # whether the columns contain vectors; always true with an encoder of kind "vectors"


def device_of(asked: str) -> Literal["cpu", "gpu"]:
    """The device to use; `auto` is the GPU if ONNX Runtime has CUDA support."""
    import onnxruntime  # noqa: PLC0415 - slow to import, and not needed by every command

    if asked == "cpu" or (asked == "auto" and CUDA not in onnxruntime.get_available_providers()):
        return "cpu"
    return "gpu"


def plan_for(
    request: BulkRequest, store: Path, encoder: str, output: Place, seed: Path | None = None
) -> tuple[Plan, Calibration]:
    """Returns the plan stored in OUTPUT, which must fit the request. If OUTPUT is empty, makes a plan and stores it.

    A job that started with a domain's champion continues with that version, even if another version has become champion
    since.

    Raises:
        Conflict: OUTPUT belongs to another plan, or contains other files.
        EmptyInput, InvalidInput: the input has no rows, or lacks the columns.
    """
    place, sources, form, delimiter, reader = open_input(request.input, request.form, request.delimiter)
    earlier = stored_plan(output)
    artifact = EncoderStore.at(store, seed).find(encoder)
    domain = request.domain
    if earlier is not None and earlier.domain == domain.name and domain.version == "champion":
        domain = DomainRef(domain.name, earlier.version)
    calibration = load_calibration(store, artifact, domain, ["CPUExecutionProvider"])
    device = device_of(request.device)
    vectors = request.vectors or artifact.kind == "vectors"
    wanted: dict[str, Any] = {
        "task": request.task,
        "input": tuple(with_address(place, source) for source in sources),
        "options": Options(
            tuple(request.columns), tuple(request.keep), form, delimiter, request.write, request.space,
            request.normalize, request.max_characters, vectors,
        ),
        "encoder": artifact.id,
        "digest": artifact.digest,
        "domain": calibration.domain,
        "version": calibration.version,
        "method": calibration.method,
        "device": device,
        "batch_tokens": request.batch_tokens or default_batch_tokens(gpu=device == "gpu"),
        "part_rows": request.part_rows,
        "software": software(),
    }  # fmt: skip
    if earlier is not None:
        check_same(vars(earlier), wanted, output.address)
        return earlier, calibration
    check_columns(reader, place, sources, request.columns, request.keep, "vectors" if vectors else "text")
    plan = Plan(**wanted, parts=tuple(cut(reader, place, sources, request.part_rows)))
    taken = [name for name in request.keep if name in result_columns(plan)]
    if taken:
        raise InvalidInput(f"a kept column cannot be called {taken[0]!r}, because the output has a column of that name")
    output.create(PLAN, plan.to_json())
    return plan, calibration


def with_address(place: Place, source: Source) -> Source:
    """A copy of `source` with the file's full URL, so that other processes can open the file."""
    return Source(str(place.fs.unstrip_protocol(source.path)), source.size, source.stamp)
