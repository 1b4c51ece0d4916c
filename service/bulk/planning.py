"""From what a command was asked to the plan it carries out: its own from before, or a new one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from service.adapters.calibration_source import StoredCalibrations
from service.adapters.device import GPU_TOKENS
from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderArtifact, EncoderStore
from service.adapters.onnx_engine import CUDA, OnnxCalibrator
from service.bulk.engine import result_columns
from service.bulk.inputs import Source, check_columns, cut, form_of, reader_of, sources_of
from service.bulk.places import Place
from service.bulk.plan import BATCH_TOKENS, PART_ROWS, PLAN, Options, Plan, Task, check_same, software, stored_plan
from service.core.calibration import Calibration, DomainRef
from service.core.errors import InvalidInput
from service.core.registry import Registry


@dataclass(frozen=True)
class Asked:
    """A bulk command as it was given."""

    task: Task
    input: str
    columns: Sequence[str]
    keep: Sequence[str]
    form: str | None  # None: as the names say
    delimiter: str | None  # None: a tab for .tsv, else a comma
    write: str
    space: str
    normalize: bool
    domain: DomainRef
    device: Literal["auto", "cpu", "gpu"]
    part_rows: int = PART_ROWS
    batch_tokens: int = 0  # 0: as serving does on this device
    max_characters: int = 10_000
    precision: Literal["float32", "float16"] = "float32"


def device_of(asked: str) -> Literal["cpu", "gpu"]:
    """`auto` is a GPU where this process has ONNX Runtime's package for it."""
    import onnxruntime  # noqa: PLC0415 - commands that only look need it not

    if asked == "cpu" or (asked == "auto" and CUDA not in onnxruntime.get_available_providers()):
        return "cpu"
    return "gpu"


def resolved(store: Path, artifact: EncoderArtifact, domain: DomainRef) -> Calibration:
    """The version a reference means now. Raises NotFound, EncoderMismatch or CorruptArtifact."""
    calibrator = OnnxCalibrator(artifact.calibrator, ["CPUExecutionProvider"])
    source = StoredCalibrations(DomainStore(store), calibrator, artifact.digest)
    return asyncio.run(Registry(source, artifact.digest).resolve(domain))


def plan_for(asked: Asked, store: Path, encoder: str, output: Place) -> tuple[Plan, Calibration]:
    """The plan in OUTPUT, where it is the same; else a new one, written there.

    A job that was begun with a domain's champion goes on with the version that was champion then.

    Raises:
        Conflict: OUTPUT belongs to another plan, or holds other files.
        EmptyInput, InvalidInput: the input has no rows, or not the columns.
    """
    place, sources = sources_of(asked.input)
    form = form_of(sources, asked.form)
    delimiter = asked.delimiter or ("\t" if form == "csv" and sources[0].path.lower().endswith(".tsv") else ",")
    earlier = stored_plan(output)
    artifact = EncoderStore(store).find(encoder)
    domain = asked.domain
    if earlier is not None and earlier.domain == domain.name and domain.version == "champion":
        domain = DomainRef(domain.name, earlier.version)
    calibration = resolved(store, artifact, domain)
    device = device_of(asked.device)
    wanted: dict[str, Any] = {
        "task": asked.task,
        "input": tuple(addressed(place, source) for source in sources),
        "options": Options(
            tuple(asked.columns), tuple(asked.keep), form, delimiter, asked.write, asked.space, asked.normalize,
            asked.max_characters, asked.precision,
        ),
        "encoder": artifact.id,
        "digest": artifact.digest,
        "domain": calibration.domain,
        "version": calibration.version,
        "method": calibration.method,
        "device": device,
        "batch_tokens": asked.batch_tokens or (GPU_TOKENS if device == "gpu" else BATCH_TOKENS),
        "part_rows": asked.part_rows,
        "software": software(),
    }  # fmt: skip
    if earlier is not None:
        check_same(vars(earlier), wanted, output.address)
        return earlier, calibration
    reader = reader_of(form, delimiter)
    check_columns(reader, place, sources, asked.columns, asked.keep)
    plan = Plan(**wanted, parts=tuple(cut(reader, place, sources, asked.part_rows)))
    taken = [name for name in asked.keep if name in result_columns(plan)]
    if taken:
        raise InvalidInput(f"a kept column cannot be called {taken[0]!r}: the result has one")
    output.create(PLAN, plan.dumped())
    return plan, calibration


def addressed(place: Place, source: Source) -> Source:
    """The same file under an address that another process understands."""
    return Source(str(place.fs.unstrip_protocol(source.path)), source.size, source.stamp)
