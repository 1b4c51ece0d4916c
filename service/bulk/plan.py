"""What a bulk job does, down to the bytes it writes: a job that was interrupted goes on only with the same plan."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import orjson

from service.bulk.inputs import Part, Source
from service.bulk.places import Place
from service.core.errors import Conflict, CorruptArtifact

PLAN, DONE, SUCCESS = "_plan.json", "_done", "_SUCCESS"
FORMAT = 1  # of what is written; raise it when the same plan gives other bytes
PART_ROWS = 4096  # rows a part: 6 MB of vectors of 384, some seconds of a core
BATCH_TOKENS = 256  # padded, on a CPU; 128, what serving takes, costs 5 % more processor time, 2048 15 %
DECIDE_BYTES = ("isosim", "onnxruntime", "onnxruntime-gpu", "pyarrow", "tokenizers")

Task = Literal["embed", "score"]


@dataclass(frozen=True)
class Options:
    """What the command line says of the result."""

    columns: tuple[str, ...]  # with text: one to embed, two to score
    keep: tuple[str, ...]  # carried over
    form: str  # of the input
    delimiter: str  # of CSV
    write: str  # form of the output
    space: str  # embed: calibrated or raw
    normalize: bool  # embed: to unit length
    max_characters: int
    precision: Literal["float32", "float16"]  # what vectors are rounded to, as the server's caches do


@dataclass(frozen=True)
class Plan:
    """Everything that decides the output; `parts` follow from the rest."""

    task: Task
    input: tuple[Source, ...]
    options: Options
    encoder: str  # id
    digest: str
    domain: str
    version: int
    method: str
    device: Literal["cpu", "gpu"]
    batch_tokens: int  # padded; which texts share a batch moves the last bits
    part_rows: int
    software: dict[str, str]
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def name(self, part: Part) -> str:
        return f"part-{part.number:06}.{self.options.write}"

    def dumped(self) -> bytes:
        facts = asdict(self) | {"format": FORMAT, "rows": self.rows}
        facts["parts"] = [[p.source, p.first, p.rows, p.start, p.stop] for p in self.parts]
        return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS) + b"\n"

    @classmethod
    def parsed(cls, content: bytes) -> Self:
        """Raises CorruptArtifact."""
        try:
            facts = orjson.loads(content)
            if facts.pop("format") != FORMAT:
                raise ValueError("another release wrote it")
            del facts["rows"]
            facts["input"] = tuple(Source(**one) for one in facts["input"])
            options = facts["options"]
            facts["options"] = Options(**options | {n: tuple(options[n]) for n in ("columns", "keep")})
            facts["parts"] = tuple(Part(number, *one) for number, one in enumerate(facts["parts"]))
            return cls(**facts)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptArtifact(f"{PLAN} is not readable: {error}") from error

    def provenance(self) -> dict[str, str]:
        """What stands in every Parquet file."""
        return {
            "isosim.task": self.task,
            "isosim.domain": self.domain,
            "isosim.version": str(self.version),
            "isosim.method": self.method,
            "isosim.encoder": self.digest,
            "isosim.space": self.options.space if self.task == "embed" else "",
        }


def software() -> dict[str, str]:
    """Releases of what computes and writes."""
    found = {}
    for name in DECIDE_BYTES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def stored_plan(output: Place) -> Plan | None:
    """The plan that OUTPUT was begun with.

    Raises:
        Conflict: there is none, but other files are. CorruptArtifact.
    """
    names = output.names()
    if PLAN in names:
        return Plan.parsed(output.read(PLAN))
    if names:
        raise Conflict(f"{output.address} holds {sorted(names)[0]}, and no {PLAN}; name an empty or a new folder")
    return None


def check_same(stored: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """Raises Conflict, naming what differs: files of two plans in one folder would be nobody's result."""
    facts, now = (orjson.loads(orjson.dumps(dict(plan))) for plan in ({n: stored.get(n) for n in wanted}, wanted))
    told = []
    for name in sorted(wanted):
        before, after = facts[name], now[name]
        if before == after:
            continue
        if name == "input":
            told.append("the input has changed, or is another")
        elif isinstance(before, dict):
            both = sorted(before | after)
            told += [f"{k}: {before.get(k)}, now {after.get(k)}" for k in both if before.get(k) != after.get(k)]
        else:
            told.append(f"{name}: {before}, now {after}")
    if told:
        differs = "; ".join(told)
        raise Conflict(f"{where} was begun with another plan ({differs}); go on with that one, or name a new folder")
