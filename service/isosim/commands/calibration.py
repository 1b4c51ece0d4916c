"""`isosim calibrate`, `label` and `threshold`: calibrate from files, and read thresholds."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, get_args

import typer

from isosim.commands.client import PinnedVersion, asking, finished, pinned
from isosim.commands.domains import print_precisions, print_report, said
from isosim.commands.files import Charset, Column, FileFormat, Header, Sheet, limits, notices
from isosim.commands.shared import AsJson
from isosim.commands.terminal import answer, print_json
from isosim.errors import InvalidInput
from isosim.jobs.job import METHODS, PROMOTIONS
from isosim.jobs.labelled_pairs import labelled_pairs
from isosim.jobs.sandbox import Reading, read_path
from isosim.jobs.tables import kind_of_name
from isosim.jobs.text_lines import STDIN, opened
from isosim.jobs.vector_files import NpyFile
from isosim.scoring.advice import Target
from isosim.scoring.distances import Metric, Space
from isosim_client import Client, Job, Threshold

Labels = Annotated[
    Path | None, typer.Option(help="labelled pairs: .tsv or .csv with rows of label, a, b or a, b, label")
]
Grades = Annotated[
    bool, typer.Option("--grades", help="the labels are grades within 0 to 1 or 0 to 5, not 1 (match) and 0 (no match)")
]


@asking
def calibrate(
    client: Client,
    file: Annotated[
        Path,
        typer.Argument(
            help="text with one sentence per line, a table (CSV, TSV, NDJSON, Parquet, .xlsx) or your own vectors "
            "(.npy, or NDJSON with their texts); - reads standard input"
        ),
    ],
    domain: Annotated[str, typer.Option(help="the domain to calibrate")],
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "auto",
    promote: Annotated[str, typer.Option(help=", ".join(PROMOTIONS))] = "if_better",
    seed: int = 0,
    labels: Labels = None,
    grades: Grades = False,
    force: Annotated[
        bool, typer.Option("--force", help="take each line as a sentence even if lines look like rows of a table")
    ] = False,
    column: Column = None,
    charset: Charset = None,
    file_format: FileFormat = None,
    sheet: Sheet = None,
    header: Header = None,
    as_json: AsJson = False,
) -> None:
    """Fit a calibration to sentences, or to vectors computed elsewhere, and wait for it. Ctrl-C cancels it."""
    if labels == STDIN == file:
        raise typer.BadParameter("FILE reads standard input, which can be read only once", param_hint="--labels")
    reading = Reading("entries", column, file_format, charset, sheet, header, force)  # type: ignore[arg-type]
    kind = kind_of(grades)
    pairs = [] if labels is None else labelled_pairs(labels, kind)
    with sentences(file, reading, labelled=bool(pairs)) as source:
        job = client.calibrate(
            source, domain=domain, method=method, promote=promote, seed=seed, labels=pairs, kind=kind
        )
        print_fit(finished(client, job), as_json=as_json)


@contextmanager
def sentences(file: Path, reading: Reading, *, labelled: bool) -> Iterator[Path | Iterable[Any]]:
    """What a calibration posts of a file.

    Vectors and lines of JSON are posted as they are, all other files as their sentences. `labelled`: labelled pairs
    follow; then vectors are posted as lines of JSON too.

    Raises:
        InvalidInput, EmptyInput, UnsupportedMedia: the file cannot be read; the message names it.
    """
    kind = file.suffix.lower()
    if kind == ".npz":
        raise typer.BadParameter("a .npz holds several arrays; save one as .npy (numpy.save)", param_hint="FILE")
    if kind == ".npy":
        if reading.column is not None:
            raise typer.BadParameter("a .npy has no columns", param_hint="--column")
        vectors = NpyFile(file)
        yield ({"vector": row.tolist()} for block in vectors.blocks() for row in block) if labelled else file
    elif (reading.kind or kind_of_name(file.name)) == "ndjson" and reading.column is None:
        with opened(file) as content, NamedTemporaryFile(suffix=".ndjson") as copy:
            shutil.copyfileobj(content.file, copy)
            copy.flush()
            yield Path(copy.name)
    else:
        with read_path(file, reading, limits()) as (facts, entries):
            notices(file, facts)
            yield entries


@asking
def label(
    client: Client,
    labels: Annotated[
        Path,
        typer.Argument(
            help="labelled pairs: .tsv or .csv with rows of label, a, b or a, b, label; - reads standard input"
        ),
    ],
    domain: Annotated[str, typer.Option(help="the domain or version to add probabilities to: name or name@3")],
    promote: Annotated[str, typer.Option(help=", ".join(PROMOTIONS))] = "if_better",
    seed: int = 0,
    grades: Grades = False,
    as_json: AsJson = False,
) -> None:
    """Learn probabilities from labelled pairs; makes a new version with the same similarities and percentiles."""
    kind = kind_of(grades)
    pairs = labelled_pairs(labels, kind)
    base = pinned(client, domain)
    job = client.add_labels(base.domain, pairs, kind=kind, version=base.version, promote=promote, seed=seed)
    print_fit(finished(client, job), as_json=as_json)


def kind_of(grades: bool) -> str:
    return "grades" if grades else "matches"


def print_fit(job: Job, *, as_json: bool) -> None:
    """Prints the version that a job has made, and its report."""
    report = job.report or {}
    if as_json:
        facts = {"domain": job.domain, "version": job.version, "promoted": job.promoted}
        print_json(facts | {"promotion": report["promotion"], "report": report})
        return
    print(f"{job.domain}@{job.version}: {report['method']}")
    print_report(report)
    print(f"  {'promoted' if job.promoted else 'not promoted'}: {report['promotion']}")
    print_precisions(report)


@asking
def threshold(
    client: Client,
    domain: Annotated[str, typer.Argument(help="name, name@3 or name@previous")],
    fmr: Annotated[float | None, typer.Option(help="false-match rate among random pairs")] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="wanted share of true matches among the pairs that reach the threshold; needs labels"),
    ] = None,
    false_hit_rate: Annotated[
        float | None, typer.Option(help="share of searches that may return a wrong match; needs --gallery")
    ] = None,
    gallery: Annotated[int | None, typer.Option(help="number of entries searched")] = None,
    space: Annotated[
        Space | None,
        typer.Option(
            help="calibrated: a threshold for vectors of isosim/<domain>, the default; raw: for the frozen encoder's "
            "vectors. With --unit required unless the version uses the method identity"
        ),
    ] = None,
    unit: Annotated[
        Metric | None,
        typer.Option(
            help="also print the threshold as a distance between vectors of --space, as vector databases compute it: "
            f"{', '.join(get_args(Metric))}"
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(help="save the requested rate or precision under a name, for use in scoring requests"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the similarity threshold for a false-match rate, a precision or a rate of false hits. With --save, also
    save the requested rate or precision."""
    if save is not None and (space is not None or unit is not None):
        raise typer.BadParameter("saves only a rate or a precision", param_hint="--save")
    target = Target(fmr, precision, false_hit_rate, gallery)
    version = pinned(client, domain)
    if save is not None:
        save_target(client, version, domain, save, target, as_json=as_json)
        return
    advice = client.threshold(str(version), **target.facts, space=space, unit=unit)  # type: ignore[arg-type]
    if as_json:
        print_json(given(advice) | {"target": target.facts})
        return
    if advice.distance is not None:
        print(f"{version}: {unit} {'≥' if unit == 'inner_product' else '≤'} {advice.distance:.6g}")
    print_advice(target, advice)


def given(answer: object) -> dict[str, Any]:
    """The fields of an answer that the server sent."""
    return {name: value for name, value in vars(answer).items() if value is not None}


def print_advice(target: Target, advice: Threshold) -> None:
    """Prints a version's threshold for a target."""
    low, high = advice.interval or (advice.similarity, advice.similarity)
    beyond = ", too few to measure this rate, so the threshold is extrapolated" if advice.extrapolated else ""
    kind = "random pairs" if target.fmr is not None else "labelled pairs"
    kind = "comparisons in searches" if target.false_hit_rate is not None else kind
    print(
        f"{advice.domain}@{advice.version}: similarity ≥ {advice.similarity:.4f} "
        f"(95 % interval {low:.4f} to {high:.4f}; from {advice.pairs:,} {kind}{beyond})"
    )
    if (shares := advice.precision_interval) is not None:
        print(
            f"  precision {target.precision:.0%}, as requested (95 % interval from the labelled pairs with at "
            f"least this similarity: {shares[0]:.0%} to {shares[1]:.0%})"
        )
    if advice.recall is not None and advice.recall_interval is not None:
        low, high = advice.recall_interval
        print(f"  lets through {advice.recall:.0%} of the matches (95 % interval {low:.0%} to {high:.0%})")
    if (learnt := advice.with_texts) is not None:
        low, high = learnt.recall_interval
        print(
            f"  pairs of texts match by their words too: from a probability of {learnt.probability:.4f} on, which lets "
            f"through {learnt.recall:.0%} of the matches ({low:.0%} to {high:.0%})"
        )
    if target.false_hit_rate is not None and target.gallery is not None:
        print(
            f"  {target.false_hit_rate:.3g} of searches among {target.gallery:,} entries end with a wrong match; "
            f"the threshold's false-match rate for a pair is {advice.false_match_rate:.2g}"
        )


def save_target(
    client: Client, version: PinnedVersion, domain: str, name: str, target: Target, *, as_json: bool
) -> None:
    """Saves a target for all versions of a domain; prints its threshold for the version in use."""
    if domain != version.domain:
        raise InvalidInput(
            f"domain {domain!r}: a threshold is saved for all versions; give the name without a version: "
            f"{version.domain}"
        )
    client.save_threshold(domain, name, **target.facts)  # type: ignore[arg-type]
    (saved,) = (one for one in client.thresholds(domain).thresholds if one.name == name)
    told = {"similarity": saved.similarity, "notice": saved.notice}
    facts = {"domain": domain, "name": name, "target": target.facts, "version": version.version, **told}
    at = saved.notice if saved.similarity is None else f"similarity ≥ {saved.similarity:.4f}"
    answer(facts, f"{domain}: {name} is saved ({said(target.facts)})\n  {version}: {at}", as_json=as_json)
