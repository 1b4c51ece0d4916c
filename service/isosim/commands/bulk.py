"""`isosim bulk`: embed, score, or find similar pairs in files of any size, on Ray."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isosim.commands.shared import AsJson, EncoderId, Store, stored, with_options
from isosim.commands.terminal import EPILOG, Report, answer, bar, group, remark
from isosim.encoders.device import usable_cores
from isosim.encoders.onnx_engine import CUDA
from isosim.errors import Unavailable
from isosim.jobs.offline import default_batch_tokens
from isosim.scoring.advice import Target
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.settings import Settings
from isosim.store.blobs import remote

if TYPE_CHECKING:
    from isosim.bulk.inputs import Input as Rows
    from isosim.bulk.job import Job, Where
    from isosim.bulk.run import Summary

app = group("Files of any size: Parquet, CSV, JSON lines, local or s3://, on one machine or a Ray cluster.")

Input = Annotated[
    str,
    typer.Argument(help="path or URL of a file or folder, like s3://bucket/texts/, or a pattern, like texts/*.csv"),
]
Output = Annotated[
    str,
    typer.Argument(
        help="folder to write, for this job alone, on storage that all nodes can reach; running the same command again "
        "resumes the job"
    ),
]
Column = Annotated[str, typer.Option(help="the column with the text")]
Domain = Annotated[str, typer.Option(help="name, name@3 or name@previous")]
Keep = Annotated[list[str] | None, typer.Option(help="a column to copy to the output; may be repeated")]
Write = Annotated[Literal["parquet", "csv"], typer.Option(help="format of the output")]
Address = Annotated[
    str | None, typer.Option(help="address of a Ray cluster, like ray-head:6379; default: start one on this machine")
]
Device = Annotated[Literal["auto", "cpu", "gpu"], typer.Option(help="a worker for each CPU core, or for each GPU")]


@dataclass(frozen=True)
class Bulk:
    """The options that all bulk commands have in common."""

    settings: Settings
    where: "Where"
    gpu: bool
    domain: DomainRef
    keep: tuple[str, ...]

    def prepare(self, source: str, output: str, **options: Any) -> tuple["Job", "Rows", Calibration]:
        """Opens a job. `options`: fields of `Options`."""
        from isosim.bulk.job import Options, prepare  # noqa: PLC0415 - an extra

        chosen = Options(
            max_characters=self.settings.max_characters,
            device="gpu" if self.gpu else "cpu",
            batch_tokens=self.settings.max_batch_tokens or default_batch_tokens(gpu=self.gpu),
            keep=self.keep,
            **options,
        )
        return prepare(chosen, source, output, self.settings.encoder, self.domain, self.where)

    def run(self, job: "Job", rows: "Rows", output: str, report: Report) -> "Summary":
        from isosim.bulk.run import run  # noqa: PLC0415 - an extra

        summary = run(job, rows, output, self.where, report)
        for reason, count in sorted(summary.failed.items()):
            remark(f"isosim: {count:,} rows have no result: {reason}")
        return summary

    def carry_out(self, source: str, output: str, *, as_json: bool, **options: Any) -> None:
        with bar("opening") as report:
            job, rows, calibration = self.prepare(source, output, **options)
            name = f"{job.domain}@{job.version}"
            for notice in calibration.notices:
                remark(f"isosim: {name}: {notice}")
            made = self.run(job, rows, output, report)
        text = f"{made.rows:,} rows in {made.files:,} files, {name}; {made.computed:,} of them computed in "
        facts = asdict(made) | {"domain": job.domain, "version": job.version, "encoder": job.digest}
        answer(facts, f"{output}: {text}{made.seconds:,.1f} s", as_json=as_json)


@contextmanager
def planned(
    domain: Domain = "default",
    keep: Keep = None,
    address: Address = None,
    device: Device = "auto",
    model_store: Store = None,
    encoder: EncoderId = None,
) -> Iterator[Bulk]:
    """What a bulk command works with. Raises Unavailable if packages for files or clusters are missing."""
    settings = stored(model_store=model_store, encoder=encoder)
    missing = [name for name in ("pyarrow", "fsspec", "ray") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"this command needs {', '.join(missing)}: pip install 'isosim[ray]'")
    import onnxruntime  # noqa: PLC0415 - slow to import, and not needed by every command

    from isosim.bulk.job import Where  # noqa: PLC0415 - an extra

    gpu = device == "gpu" or (device == "auto" and CUDA in onnxruntime.get_available_providers())
    store = settings.model_store if remote(settings.model_store) else settings.model_store.resolve()
    where = Where(store, settings.seed_store, address, usable_cores())
    yield Bulk(settings, where, gpu, DomainRef.parse(domain), tuple(keep or ()))


def bulk(command: Callable[..., None]) -> Callable[..., None]:
    return with_options(planned, "bulk", command)


@app.command(epilog=EPILOG)
@bulk
def embed(
    bulk: Bulk,
    source: Input,
    output: Output,
    column: Column = "text",
    space: Annotated[
        Literal["calibrated", "raw"],
        typer.Option(help="calibrated: by the domain's calibration; raw: the frozen encoder's vectors"),
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="scale vectors to unit length")] = True,
    as_json: AsJson = False,
) -> None:
    """Compute vectors of a column's texts, as POST /embed does, and write them as Parquet."""
    bulk.carry_out(source, output, as_json=as_json, task="embed", columns=(column,), space=space, normalize=normalize)


@app.command(epilog=EPILOG)
@bulk
def score(
    bulk: Bulk,
    source: Input,
    output: Output,
    columns: Annotated[tuple[str, str], typer.Option(help="the two columns with the texts")] = ("a", "b"),
    vectors: Annotated[
        bool, typer.Option("--vectors", help="the columns hold vectors of the encoder instead of texts")
    ] = False,
    write: Write = "parquet",
    as_json: AsJson = False,
) -> None:
    """Score pairs of texts, as POST /similarity does."""
    bulk.carry_out(source, output, as_json=as_json, task="score", columns=columns, vectors=vectors, write=write)


@app.command(epilog=EPILOG)
@bulk
def pairs(
    bulk: Bulk,
    source: Input,
    output: Output,
    fmr: Annotated[float | None, typer.Option(help="share of the domain's random pairs that may match")] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="instead of --fmr: share of the found pairs that should be true matches; needs labels"),
    ] = None,
    column: Column = "text",
    vectors: Annotated[
        str | None,
        typer.Option(
            help="folder for the vectors, to search again with another --fmr or --precision; default: OUTPUT/_vectors"
        ),
    ] = None,
    write: Write = "parquet",
    as_json: AsJson = False,
) -> None:
    """Find near-duplicates: pairs of rows at or above the threshold for a false-match rate or a precision. Each pair is
    written once, with similarity and percentile.

    Rows are numbered from 0 over the whole input. The Ray cluster computes the vectors; the search runs on this
    machine.
    """
    from isosim.bulk.pairs import PairSearch, begin, find  # noqa: PLC0415 - an extra

    search = PairSearch(Target(fmr=fmr, precision=precision), write)
    between = vectors or f"{output.rstrip('/')}/_vectors"
    with bar("opening") as report:
        raw: dict[str, Any] = {"task": "embed", "columns": (column,), "space": "raw", "normalize": False}
        job, rows, calibration = bulk.prepare(source, between, **raw)
        advice = begin(output, job, calibration, search)
        bulk.run(job, rows, between, report)
        found = find(output, between, job, calibration, search, advice, report)
    facts = asdict(found) | search.target.facts | {"domain": job.domain, "version": job.version}
    text = f"similarity ≥ {found.threshold:.4f}: {found.pairs:,} pairs of {found.rows:,} rows"
    if found.extrapolated:
        text += f"\n  extrapolated, as {found.reference_pairs:,} random pairs are too few to measure this rate"
    answer(facts, f"{output}: {job.domain}@{job.version}, {text}", as_json=as_json)
