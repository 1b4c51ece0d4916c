"""`isosim bulk`: embed, score, calibrate, or find similar pairs in files of any size, on Ray Data."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isosim.commands.calibration import SendMore, fit_options, print_fit
from isosim.commands.shared import AsJson, EncoderId, Store, domain_names, need_training, prune, stored, versions
from isosim.commands.terminal import EPILOG, bar, print_json, remark
from isosim.domains.calibrations import load_calibration
from isosim.encoders.device import usable_cores
from isosim.encoders.store import EncoderStore
from isosim.errors import Unavailable
from isosim.jobs.job import METHODS, PROMOTIONS
from isosim.jobs.requirements import MOST_SENTENCES, Allowance
from isosim.scoring.advice import SMALLEST_FMR
from isosim.scoring.calibration import DomainRef
from isosim.settings import Settings
from isosim.store.blobs import remote

if TYPE_CHECKING:
    from isosim.bulk.plan import BulkRequest, Task
    from isosim.bulk.run import RunOptions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Files of any size: Parquet, CSV, JSON lines, local or s3://, on one machine or a Ray cluster.",
    epilog=EPILOG,
)

Form = Literal["parquet", "csv", "jsonl"]
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
Domain = Annotated[str, typer.Option(help="name, name@3 or name@previous", autocompletion=versions)]
Keep = Annotated[list[str] | None, typer.Option(help="a column to copy to the output; may be repeated")]
FormatOption = Annotated[
    Form | None, typer.Option("--format", help="format of the input; default: by the file extension")
]
Delimiter = Annotated[str | None, typer.Option(help="delimiter of CSV; default: a comma, or a tab for .tsv")]
Write = Annotated[Form, typer.Option(help="format of the output")]
OnError = Annotated[
    Literal["null", "fail"],
    typer.Option(
        help="what to do with a row without usable text: 'null' writes an empty result and the reason in `error`; "
        "'fail' ends the job"
    ),
]
Address = Annotated[
    str | None, typer.Option(help="address of a Ray cluster, like ray-head:6379; default: start one on this machine")
]
Device = Annotated[Literal["auto", "cpu", "gpu"], typer.Option(help="device that engines run on")]
Cores = Annotated[
    int,
    typer.Option(
        "--cores-per-engine", min=1, help="CPU cores per engine; engines with one core each give the highest throughput"
    ),
]
Most = Annotated[
    int, typer.Option("--engines", min=0, help="maximum number of engines at a time; 0: one per GPU or core")
]
PartRows = Annotated[int, typer.Option(min=1, help="number of rows per file of the output")]


@app.command("embed", epilog=EPILOG)
def embed(
    source: Input,
    output: Output,
    column: Annotated[str, typer.Option(help="the column with the text")] = "text",
    domain: Domain = "default",
    space: Annotated[
        Literal["calibrated", "raw"],
        typer.Option(help="calibrated: by the domain's calibration; raw: the frozen encoder's vectors"),
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="scale vectors to unit length")] = True,
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
    """Compute vectors of a column's texts, as POST /embed does."""
    settings = bulk_settings(model_store, encoder)
    request = request_of(
        settings, "embed", source, [column], keep, domain, form=form, delimiter=delimiter, write=write, space=space,
        normalize=normalize, device=device, part_rows=part_rows,
    )  # fmt: skip
    execution = run_options(settings, address, cores, most, lenient=on_error == "null")
    carry_out(request, settings, execution, output, as_json=as_json)


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
    """Score pairs of texts, as POST /similarity does."""
    settings = bulk_settings(model_store, encoder)
    request = request_of(
        settings, "score", source, columns, keep, domain, form=form, delimiter=delimiter, write=write,
        space="calibrated", normalize=False, device=device, part_rows=part_rows, vectors=vectors,
    )  # fmt: skip
    execution = run_options(settings, address, cores, most, lenient=on_error == "null")
    carry_out(request, settings, execution, output, as_json=as_json)


@app.command("calibrate", epilog=EPILOG)
def calibrate(
    source: Input,
    domain: Annotated[str, typer.Option(help="the domain to calibrate", autocompletion=domain_names)],
    column: Annotated[str, typer.Option(help="the column with the text")] = "text",
    sample: Annotated[
        int, typer.Option(min=200, max=MOST_SENTENCES, help="number of distinct texts to fit to, drawn from all rows")
    ] = 50_000,
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "auto",
    promote: Annotated[str, typer.Option(help=", ".join(PROMOTIONS))] = "if_better",
    seed: Annotated[int, typer.Option(help="seed of the sample and of the fit")] = 0,
    form: FormatOption = None,
    delimiter: Delimiter = None,
    address: Address = None,
    device: Device = "auto",
    cores: Cores = 1,
    most: Most = 0,
    yes: SendMore = False,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Draw a random sample of texts from a large corpus, embed the sample in parallel, and fit a calibration to it."""
    asked = fit_options(domain, method, promote, seed)
    need_training()
    settings = bulk_settings(model_store, encoder)
    from isosim.bulk.calibrating import Corpus, fit_sample  # noqa: PLC0415

    corpus = Corpus(source, column, form, delimiter, settings.max_characters)
    execution = run_options(settings, address, cores, most, lenient=True)
    remedy = f"give --yes to send more than {settings.max_remote_texts:,} texts (ISOSIM_MAX_REMOTE_TEXTS)"
    sending = Allowance(settings.encoder, None if yes else settings.max_remote_texts, remedy, remark)
    with bar("planning") as report:
        facts = fit_sample(
            corpus, sample, domain, asked, settings.encoder, device, execution, settings.threads, report, sending
        )
    prune(settings, domain)
    sample_facts = facts["report"]["sample"]
    drawn = f"{sample_facts['texts']:,} distinct texts of {sample_facts['rows']:,} rows"
    print_fit(facts, drawn, as_json=as_json)


@app.command("pairs", epilog=EPILOG)
def pairs(
    source: Input,
    output: Output,
    fmr: Annotated[
        float | None, typer.Option(min=SMALLEST_FMR, max=1, help="share of the domain's random pairs that may match")
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="instead of --fmr: share of the found pairs that should be true matches; needs labels"
        ),
    ] = None,
    clusters: Annotated[bool, typer.Option(help="also write clusters of connected rows")] = False,
    column: Annotated[str, typer.Option(help="the column with the text")] = "text",
    domain: Domain = "default",
    vectors: Annotated[
        str | None,
        typer.Option(
            help="folder for the vectors, to search again with another --fmr or --precision; default: OUTPUT/_vectors"
        ),
    ] = None,
    exact_up_to: Annotated[
        int, typer.Option(min=0, help="maximum number of rows for an exact search; more are searched with an index")
    ] = 100_000,
    recall: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="recall of the index: it must find at least this share of the pairs, measured on 2,000 rows",
        ),
    ] = 0.99,
    most_pairs: Annotated[
        int, typer.Option(min=1, help="maximum number of pairs; the command fails if it finds more")
    ] = 50_000_000,
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
    """Find near-duplicates: pairs of rows at or above the threshold for a false-match rate or a precision. Each pair is
    written once, with similarity and percentile.

    Rows are numbered from 0 over the whole input. The Ray cluster computes the vectors; the search runs on this
    machine.
    """
    if (fmr is None) == (precision is None):
        raise typer.BadParameter("give one of them", param_hint="--fmr or --precision")
    settings = bulk_settings(model_store, encoder)
    from isosim.bulk.pairs import VECTORS, PairSearch, find, threshold_of  # noqa: PLC0415
    from isosim.bulk.places import Place  # noqa: PLC0415
    from isosim.bulk.plan import plan_for  # noqa: PLC0415
    from isosim.bulk.run import run  # noqa: PLC0415

    place = Place(output)
    between = Place(vectors) if vectors else place.below(VECTORS)
    artifact = EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder)
    looked_at = load_calibration(settings.model_store, artifact, DomainRef.parse(domain), ["CPUExecutionProvider"])
    advice = threshold_of(looked_at, fmr or 0.0, precision)
    fmr = advice.facts["false_match_rate"] if fmr is None else fmr
    search = PairSearch(fmr, write, exact_up_to, recall, most=most_pairs, clusters=clusters, precision=precision)
    request = request_of(
        settings, "embed", source, [column], keep, domain, form=form, delimiter=delimiter, write="parquet",
        space="raw", normalize=False, device=device, part_rows=part_rows,
    )  # fmt: skip
    with bar("planning") as report:
        plan, calibration = plan_for(request, settings.model_store, settings.encoder, between, settings.seed_store)
        summary = run(plan, between, run_options(settings, address, cores, most, lenient=on_error == "null"), report)
        result = find(place, between, plan, calibration, search, usable_cores(), report)
    say_failed(summary.failed)
    facts = {**vars(result), "output": place.address, "domain": plan.domain, "version": plan.version, "fmr": fmr}
    # Share of duplicates at or above the threshold, estimated from the labelled pairs. The search may find fewer of
    # them, because its index may miss some.
    share = advice.facts.get("recall")
    if share is not None:
        facts["share_of_duplicates"] = {"recall": share, "interval": advice.facts["recall_interval"]}
    if as_json:
        print_json(facts)
        return
    beyond = (
        f", extrapolated, as {advice.pairs:,} random pairs are too few to measure this rate"
        if result.extrapolated
        else ""
    )
    print(
        f"{place.address}: {result.pairs:,} pairs of {result.rows:,} rows in {len(result.files):,} files; "
        f"{plan.domain}@{plan.version}, similarity ≥ {result.threshold:.4f}{beyond}; {search_of(result.recall)}"
    )
    interval = result.expected_false_interval
    if search.precision is not None:
        expected = "" if interval is None else " (95 % interval {:,.0f} to {:,.0f})".format(*interval)
        print(
            f"  {result.expected_false:,.0f} of them{expected} are expected to be false matches, if they are like the "
            "labelled pairs"
        )
        if share is not None:
            print(
                "  the found pairs include {:.0%} of all duplicates (95 % interval {:.0%} to {:.0%}), if all are like "
                "the labelled ones".format(share, *advice.facts["recall_interval"])
            )
    else:
        print(f"  {result.expected_false:,.0f} of them are expected by chance, if all rows are unrelated")
    if result.clusters is not None:
        print(f"  {result.clusters:,} clusters of connected rows: clusters.{write}")


def run_options(settings: Settings, address: str | None, cores: int, most: int, *, lenient: bool) -> "RunOptions":
    from isosim.bulk.run import RunOptions  # noqa: PLC0415

    store = settings.model_store if remote(settings.model_store) else settings.model_store.resolve()
    return RunOptions(store, address, usable_cores(), cores, most, lenient, settings.seed_store)


def request_of(
    settings: Settings,
    task: "Task",
    source: str,
    columns: Sequence[str],
    keep: Sequence[str] | None,
    domain: str,
    **options: Any,
) -> "BulkRequest":
    """Makes a request from a command's options and the limits in the settings."""
    from isosim.bulk.plan import BulkRequest  # noqa: PLC0415 - an extra

    return BulkRequest(
        task=task, input=source, columns=columns, keep=keep or (), domain=DomainRef.parse(domain),
        batch_tokens=settings.max_batch_tokens, max_characters=settings.max_characters,
        **options,
    )  # fmt: skip


def carry_out(
    request: "BulkRequest", settings: Settings, execution: "RunOptions", output: str, *, as_json: bool
) -> None:
    """Plans and runs a job, and prints its summary."""
    from isosim.bulk.places import Place  # noqa: PLC0415 - an extra
    from isosim.bulk.plan import plan_for  # noqa: PLC0415
    from isosim.bulk.run import run  # noqa: PLC0415

    place = Place(output)
    with bar("planning") as report:
        plan, calibration = plan_for(request, settings.model_store, settings.encoder, place, settings.seed_store)
        name = f"{calibration.domain}@{calibration.version}"
        for notice in calibration.notices:
            remark(f"isosim: {name}: {notice}")
        summary = run(plan, place, execution, report)
    facts = {**vars(summary), "rate": summary.rate, "output": place.address}
    facts |= {"domain": plan.domain, "version": plan.version, "encoder": plan.digest}
    if as_json:
        print_json(facts)
        return
    say_failed(summary.failed)
    print(line_of(facts, name))


def bulk_settings(model_store: Path | None, encoder: str | None) -> Settings:
    """Returns the settings, as `stored` does. Raises Unavailable if packages for files or clusters are missing."""
    settings = stored(model_store=model_store, encoder=encoder)
    missing = [name for name in ("pyarrow", "fsspec", "ray") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"this command needs {', '.join(missing)}: pip install 'isosim[ray]'")
    return settings


def search_of(recall: dict[str, Any] | None) -> str:
    """Describes the search of pairs: exact, or the index and its measured recall."""
    if recall is None:
        return "exact search"
    looked = f"{recall['looked_at']} of the index's {recall['cells']} cells (IVF) searched for each row"
    if recall["found"] is None:
        return f"{looked}; recall unknown, because an exact search among {recall['asked']:,} rows found no pairs"
    return f"{looked}, recall {recall['found']:.4f} on the {recall['pairs']:,} pairs among {recall['asked']:,} rows"


def say_failed(failed: dict[str, int]) -> None:
    for reason, count in failed.items():
        remark(f"isosim: {count:,} rows have no result: {reason}")


def line_of(facts: dict[str, Any], name: str) -> str:
    """The summary of a job in one line."""
    there = f"{facts['output']}: {facts['rows']:,} rows in {facts['parts']:,} files, {facts['bytes'] / 1e6:,.1f} MB"
    there = f"{there}, {name}"
    if not facts["computed"]:
        return f"{there}; all existed already"
    return (
        f"{there}; {facts['computed']:,} rows in {facts['seconds']:,.1f} s, {facts['rate']:,.0f} rows/s, "
        f"{facts['sentences'] / facts['seconds']:,.0f} sentences/s on {facts['engines']} engines"
    )
