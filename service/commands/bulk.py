"""`isosim bulk`: files of any size through the encoder, on Ray Data."""

from typing import Annotated, Any, Literal

import typer

from service.adapters.device import usable_cores
from service.commands.completion import versions
from service.commands.console import print_json, remark
from service.commands.exits import EPILOG
from service.commands.progress import bar
from service.commands.shared import EncoderId, Store, stored
from service.core.calibration import DomainRef
from service.core.similarity import notices_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Files of any size: Parquet, CSV, JSON lines, local or s3://, on one machine or a Ray cluster.",
    epilog=EPILOG,
)

Form = Literal["parquet", "csv", "jsonl"]
Input = Annotated[str, typer.Argument(help="a file, a folder or a pattern; a path, or a URL like s3://bucket/texts/")]
Output = Annotated[str, typer.Argument(help="a folder of its own, which all nodes reach; the same again resumes")]
Domain = Annotated[str, typer.Option(help="name, name@3 or name@previous", autocompletion=versions)]
Keep = Annotated[list[str] | None, typer.Option(help="a column to carry over; can be given again")]
FormatOption = Annotated[Form | None, typer.Option("--format", help="of the input, where names do not say it")]
Delimiter = Annotated[str | None, typer.Option(help="of CSV; else a comma, and a tab for .tsv")]
Write = Annotated[Form, typer.Option(help="form of the output")]
OnError = Annotated[
    Literal["null", "fail"],
    typer.Option(help="a row without a usable text: no result and a reason in `error`, or the job ends"),
]
Address = Annotated[str | None, typer.Option(help="of a Ray cluster, like ray-head:6379; else one on this machine")]
Device = Annotated[Literal["auto", "cpu", "gpu"], typer.Option(help="what engines run on")]
Cores = Annotated[int, typer.Option("--cores-per-engine", min=1, help="on processors; 1 is the fastest")]
Most = Annotated[int, typer.Option("--engines", min=0, help="at most so many at a time; 0: one a GPU or core")]
PartRows = Annotated[int, typer.Option(min=1, help="rows that give one file of the output")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


@app.command("embed", epilog=EPILOG)
def embed(
    source: Input,
    output: Output,
    column: Annotated[str, typer.Option(help="the column with the text")] = "text",
    domain: Domain = "default",
    space: Annotated[
        Literal["calibrated", "raw"], typer.Option(help="raw: the frozen encoder's vectors")
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="to unit length")] = True,
    keep: Keep = None,
    form: FormatOption = None,
    delimiter: Delimiter = None,
    write: Write = "parquet",
    on_error: OnError = "null",
    part_rows: PartRows = 4096,
    address: Address = None,
    device: Device = "auto",
    cores: Cores = 1,
    most: Most = 0,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Vectors of a column's texts, as POST /embed gives them."""
    given = {"task": "embed", "columns": [column], "space": space, "normalize": normalize}
    carry_out(given, **taken(locals()))


@app.command("score", epilog=EPILOG)
def score(
    source: Input,
    output: Output,
    columns: Annotated[tuple[str, str], typer.Option(help="the two columns with the texts")] = ("a", "b"),
    domain: Domain = "default",
    keep: Keep = None,
    form: FormatOption = None,
    delimiter: Delimiter = None,
    write: Write = "parquet",
    on_error: OnError = "null",
    part_rows: PartRows = 4096,
    address: Address = None,
    device: Device = "auto",
    cores: Cores = 1,
    most: Most = 0,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Scores of pairs of texts, as POST /similarity gives them."""
    given = {"task": "score", "columns": list(columns), "space": "calibrated", "normalize": False}
    carry_out(given, **taken(locals()))


SHARED = (
    "source", "output", "domain", "keep", "form", "delimiter", "write", "on_error", "part_rows", "address", "device",
    "cores", "most", "model_store", "encoder", "as_json",
)  # fmt: skip


def taken(every: dict[str, Any]) -> dict[str, Any]:
    """The options that both commands have."""
    return {name: every[name] for name in SHARED}


def carry_out(
    given: dict[str, Any],
    *,
    source: str,
    output: str,
    domain: str,
    keep: list[str] | None,
    form: str | None,
    delimiter: str | None,
    write: str,
    on_error: str,
    part_rows: int,
    address: str | None,
    device: Any,
    cores: int,
    most: int,
    model_store: Any,
    encoder: str | None,
    as_json: bool,
) -> None:
    """Plans, runs and says what came out."""
    settings = stored(model_store=model_store, encoder=encoder)
    need_bulk()
    from service.bulk.places import Place  # noqa: PLC0415 - an extra
    from service.bulk.planning import Asked, plan_for  # noqa: PLC0415
    from service.bulk.run import Running, run  # noqa: PLC0415

    asked = Asked(
        input=source, keep=keep or (), form=form, delimiter=delimiter, write=write, domain=DomainRef.parse(domain),
        device=device, part_rows=part_rows, batch_tokens=settings.max_batch_tokens,
        max_characters=settings.max_characters, precision=settings.cache_precision, **given,
    )  # fmt: skip
    place = Place(output)
    with bar("planning") as report:
        plan, calibration = plan_for(asked, settings.model_store, settings.encoder, place)
        name = f"{calibration.domain}@{calibration.version}"
        for notice in notices_of(calibration):
            remark(f"isosim: {name}: {notice}")
        how = Running(
            settings.model_store.resolve(), address, usable_cores(), cores, most, lenient=on_error == "null"
        )
        summary = run(plan, place, how, report)
    facts = vars(summary) | {"output": place.address, "domain": plan.domain, "version": plan.version, "rate": summary.rate}
    if as_json:
        print_json(facts)
        return
    for reason, count in summary.failed.items():
        remark(f"isosim: {count:,} rows have no result: {reason}")
    print(line_of(facts, name))


def line_of(facts: dict[str, Any], name: str) -> str:
    """What a person is told at the end."""
    there = f"{facts['output']}: {facts['rows']:,} rows in {facts['parts']:,} files, {facts['bytes'] / 1e6:,.1f} MB, {name}"
    if not facts["computed"]:
        return f"{there}; all were there already"
    return (
        f"{there}; {facts['computed']:,} rows in {facts['seconds']:,.1f} s, {facts['rate']:,.0f} rows/s, "
        f"{facts['sentences'] / facts['seconds']:,.0f} sentences/s on {facts['engines']} engines"
    )


def need_bulk() -> None:
    """Raises Unavailable without the packages that read, write and spread."""
    import importlib.util  # noqa: PLC0415

    from service.core.errors import Unavailable  # noqa: PLC0415

    missing = [name for name in ("pyarrow", "fsspec", "ray") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"this command needs {', '.join(missing)}: pip install 'isosim[ray]'")
