"""`isosim bulk`: embed, score, or find similar pairs in files of any size, on Ray."""

import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isosim.commands.shared import AsJson, EncoderId, Store, stored
from isosim.commands.terminal import EPILOG, answer, bar, group, remark
from isosim.encoders.device import usable_cores
from isosim.encoders.onnx_engine import CUDA
from isosim.errors import Unavailable
from isosim.jobs.offline import default_batch_tokens
from isosim.scoring.advice import Target
from isosim.scoring.calibration import DomainRef
from isosim.settings import Settings
from isosim.store.blobs import remote

if TYPE_CHECKING:
    from isosim.bulk.job import Options, Where
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


@app.command("embed", epilog=EPILOG)
def embed(
    source: Input,
    output: Output,
    column: Column = "text",
    domain: Domain = "default",
    space: Annotated[
        Literal["calibrated", "raw"],
        typer.Option(help="calibrated: by the domain's calibration; raw: the frozen encoder's vectors"),
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="scale vectors to unit length")] = True,
    keep: Keep = None,
    address: Address = None,
    device: Device = "auto",
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Compute vectors of a column's texts, as POST /embed does, and write them as Parquet."""
    carry_out(
        model_store, encoder, source, output, domain, address, device, as_json=as_json,
        task="embed", columns=(column,), space=space, normalize=normalize, keep=tuple(keep or ()),
    )  # fmt: skip


@app.command("score", epilog=EPILOG)
def score(
    source: Input,
    output: Output,
    columns: Annotated[tuple[str, str], typer.Option(help="the two columns with the texts")] = ("a", "b"),
    vectors: Annotated[
        bool, typer.Option("--vectors", help="the columns hold vectors of the encoder instead of texts")
    ] = False,
    domain: Domain = "default",
    keep: Keep = None,
    write: Write = "parquet",
    address: Address = None,
    device: Device = "auto",
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Score pairs of texts, as POST /similarity does."""
    carry_out(
        model_store, encoder, source, output, domain, address, device, as_json=as_json,
        task="score", columns=columns, vectors=vectors, keep=tuple(keep or ()), write=write,
    )  # fmt: skip


@app.command("pairs", epilog=EPILOG)
def pairs(
    source: Input,
    output: Output,
    fmr: Annotated[float | None, typer.Option(help="share of the domain's random pairs that may match")] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="instead of --fmr: share of the found pairs that should be true matches; needs labels"),
    ] = None,
    column: Column = "text",
    domain: Domain = "default",
    vectors: Annotated[
        str | None,
        typer.Option(
            help="folder for the vectors, to search again with another --fmr or --precision; default: OUTPUT/_vectors"
        ),
    ] = None,
    keep: Keep = None,
    write: Write = "parquet",
    address: Address = None,
    device: Device = "auto",
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Find near-duplicates: pairs of rows at or above the threshold for a false-match rate or a precision. Each pair is
    written once, with similarity and percentile.

    Rows are numbered from 0 over the whole input. The Ray cluster computes the vectors; the search runs on this
    machine.
    """
    settings, options, where = planned(
        model_store, encoder, address, device,
        task="embed", columns=(column,), space="raw", normalize=False, keep=tuple(keep or ()),
    )  # fmt: skip
    from isosim.bulk.job import prepare  # noqa: PLC0415 - an extra
    from isosim.bulk.pairs import PairSearch, begin, find  # noqa: PLC0415
    from isosim.bulk.run import run  # noqa: PLC0415

    search = PairSearch(Target(fmr=fmr, precision=precision), write)
    between = vectors or f"{output.rstrip('/')}/_vectors"
    with bar("opening") as report:
        job, rows, calibration = prepare(options, source, between, settings.encoder, DomainRef.parse(domain), where)
        advice = begin(output, job, calibration, search)
        summary = run(job, rows, between, where, report)
        found = find(output, between, job, calibration, search, advice, report)
    say_failed(summary)
    facts = asdict(found) | search.target.facts | {"domain": job.domain, "version": job.version}
    text = f"similarity ≥ {found.threshold:.4f}: {found.pairs:,} pairs of {found.rows:,} rows"
    if found.extrapolated:
        text += f"\n  extrapolated, as {found.reference_pairs:,} random pairs are too few to measure this rate"
    answer(facts, f"{output}: {job.domain}@{job.version}, {text}", as_json=as_json)


def carry_out(
    model_store: Path | None,
    encoder: str | None,
    source: str,
    output: str,
    domain: str,
    address: str | None,
    device: str,
    *,
    as_json: bool,
    **given: Any,
) -> None:
    """Runs a job, and prints its summary. `given`: fields of `Options`."""
    settings, options, where = planned(model_store, encoder, address, device, **given)
    from isosim.bulk.job import prepare  # noqa: PLC0415 - an extra
    from isosim.bulk.run import run  # noqa: PLC0415

    with bar("opening") as report:
        job, rows, calibration = prepare(options, source, output, settings.encoder, DomainRef.parse(domain), where)
        name = f"{job.domain}@{job.version}"
        for notice in calibration.notices:
            remark(f"isosim: {name}: {notice}")
        summary = run(job, rows, output, where, report)
    say_failed(summary)
    facts = asdict(summary) | {"domain": job.domain, "version": job.version, "encoder": job.digest}
    made = f"{summary.computed:,} of them computed in {summary.seconds:,.1f} s"
    answer(facts, f"{output}: {summary.rows:,} rows in {summary.files:,} files, {name}; {made}", as_json=as_json)


def planned(
    model_store: Path | None, encoder: str | None, address: str | None, device: str, **given: Any
) -> tuple[Settings, "Options", "Where"]:
    """The settings, the options of a job (`given`: fields of `Options`), and where it runs.

    Raises:
        Unavailable: packages for files or clusters are missing.
    """
    settings = stored(model_store=model_store, encoder=encoder)
    missing = [name for name in ("pyarrow", "fsspec", "ray") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"this command needs {', '.join(missing)}: pip install 'isosim[ray]'")
    import onnxruntime  # noqa: PLC0415 - slow to import, and not needed by every command

    from isosim.bulk.job import Options, Where  # noqa: PLC0415 - an extra

    gpu = device == "gpu" or (device == "auto" and CUDA in onnxruntime.get_available_providers())
    options = Options(
        max_characters=settings.max_characters,
        device="gpu" if gpu else "cpu",
        batch_tokens=settings.max_batch_tokens or default_batch_tokens(gpu=gpu),
        **given,
    )
    store = settings.model_store if remote(settings.model_store) else settings.model_store.resolve()
    return settings, options, Where(store, settings.seed_store, address, usable_cores())


def say_failed(summary: "Summary") -> None:
    for reason, count in sorted(summary.failed.items()):
        remark(f"isosim: {count:,} rows have no result: {reason}")
