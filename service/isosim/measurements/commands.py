"""`isosim measure …` checks promises of the service (exit code 1: broken). `isosim evaluate` compares methods."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from isosim.commands.shared import AsJson, EncoderId, Store, need_finetuning, need_training, stored
from isosim.commands.terminal import EPILOG, bar, print_json, print_table, remark
from isosim.encoders.store import EncoderStore
from isosim.jobs.job import METHODS
from isosim.jobs.labelled_pairs import read_sets
from isosim.jobs.text_lines import read_text

measure = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Measure what the service promises, on fixed corpora.",
    epilog=EPILOG,
)

Data = Annotated[Path, typer.Option(help="folder with subfolders text, pairs and sts", exists=True, file_okay=False)]
Cache = Annotated[Path | None, typer.Option(help="folder to cache vectors in")]
Figure = Annotated[Path | None, typer.Option(help="PNG file to write")]
Sources = Annotated[str | None, typer.Option(help="comma-separated; default: all six")]


def encoder_of(model_store: Path | None, encoder: str | None, cache: Path | None) -> Any:
    """Opens an encoder of the store; its vectors are cached in the folder `cache`.

    `isosim.measurements.sources` is not imported at the top of the module, because it loads the packages for training.
    """
    need_training()
    from isosim.measurements.sources import Encoder  # noqa: PLC0415

    settings = stored(model_store=model_store, encoder=encoder)
    return Encoder(EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder), cache)


def chosen_sources(named: str | None) -> list[str]:
    from isosim.measurements.sources import SOURCES  # noqa: PLC0415 - imports numpy and the encoder

    chosen = [*SOURCES] if named is None else named.split(",")
    if not set(chosen) <= SOURCES.keys():
        raise typer.BadParameter(f"unknown source; choose from {', '.join(SOURCES)}", param_hint="--sources")
    return chosen


def show(table: Table, results: Sequence[Any], *, as_json: bool) -> None:
    """Prints the results, and exits with code 1 if a promise is not kept."""
    if as_json:
        print(json.dumps([dataclasses.asdict(result) for result in results]))
    else:
        print_table(table)
    if not all(getattr(result, "kept", True) for result in results):
        raise typer.Exit(1)


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 3) -> str:
    low, high = scale * min(values), scale * max(values)
    return f"{scale * float(np.mean(values)):.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


@measure.command()
def thresholds(
    data: Data,
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "auto",
    rate: Annotated[float, typer.Option(help="nominal false-match rate: 0.01 or 0.001")] = 0.01,
    sentences: Annotated[int, typer.Option(min=200, help="number of sentences to calibrate with, per domain")] = 2000,
    splits: Annotated[int, typer.Option(min=1)] = 20,
    figure: Figure = None,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """False-match rates among held-out pairs, with one raw threshold for all domains and with calibrated thresholds."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import thresholds as quality  # noqa: PLC0415

    if rate not in quality.BARS:
        raise typer.BadParameter(f"one of {', '.join(str(known) for known in quality.BARS)}", param_hint="--rate")
    with bar("embedding") as progress:
        sources = quality.embed_sources(data, encode, sentences, progress)
        results = quality.measure(
            sources, encode.vectors, method, sentences=sentences, nominal=rate, splits=splits, progress=progress
        )
    if figure is not None:
        quality.figure(results, encode.artifact.id, figure)
    low, high = quality.BARS[rate][1]
    columns = ("source", "sentences", "method", "raw, %", "calibrated, %", f"splits in {low}–{high}×", "kept")
    table = Table(*columns, title=f"{encode.artifact.id} · false matches at a nominal {rate:.1%}, {splits} splits")
    for r in results:
        raw = f"{100 * float(np.mean(r.raw_rates)):.2f}"
        shown = (r.source, str(r.sentences), r.method, raw, spread(r.rates, 100), f"{r.share_within:.0%}")
        table.add_row(*shown, "yes" if r.kept else "NO")
    show(table, results, as_json=as_json)


@measure.command()
def moved_thresholds(
    data: Data,
    to: Annotated[str, typer.Option(help="id of the encoder to which thresholds are converted")],
    sources: Sources = None,
    sentences: Annotated[int, typer.Option(min=200, help="number of sentences to calibrate with, per domain")] = 2000,
    splits: Annotated[int, typer.Option(min=1)] = 5,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """False-match rates among held-out pairs, before and after a threshold is converted for another encoder."""
    both = encoder_of(model_store, encoder, cache), encoder_of(model_store, to, cache)
    from isosim.measurements import moved_thresholds as quality  # noqa: PLC0415

    chosen = chosen_sources(sources)
    with bar("embedding") as progress:
        results = quality.measure(data, both, chosen, sentences=sentences, splits=splits, progress=progress)
    title = f"{both[0].artifact.id} to {both[1].artifact.id} · false matches, %, means of {splits} splits"
    columns = ("source", "methods", "old threshold", "before", "carried over", "after", "old number reused", "kept")
    table = Table(*columns, title=title)
    for r in results:
        figures = (
            mean(r.similarity, 1, 4), mean(r.before), mean(r.equivalent, 1, 4), mean(r.after), mean(r.reused),
        )  # fmt: skip
        shown = (r.source, " → ".join(r.methods), *figures)
        table.add_row(*shown, "yes" if r.kept else "NO", end_section=r.nominal == quality.RATES[-1])
    show(table, results, as_json=as_json)


def mean(values: Sequence[float], scale: float = 100.0, digits: int = 3) -> str:
    return f"{scale * float(np.mean(values)):.{digits}f}"


@measure.command()
def searches(
    data: Data,
    sources: Sources = None,
    splits: Annotated[int, typer.Option(min=1)] = 20,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Share of held-out queries that find a wrong match among held-out entries, at the thresholds for searches."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import searches as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        results = quality.measure(data, encode, chosen_sources(sources), splits, progress)
    low, high = quality.SPLIT_BARS
    title = f"{encode.artifact.id} · searches with a wrong match at a nominal {quality.NOMINAL:.0%}, {splits} splits"
    columns = (
        "source",
        "sentences",
        "entries",
        "wrong matches, %",
        f"splits in {low}–{high} %",
        "extrapolated",
        "kept",
    )
    table = Table(*columns, title=title)
    for r in results:
        rates = (spread(r.rates, 100, 2), f"{r.share_within:.0%}", "yes" if r.extrapolated else "")
        table.add_row(r.source, f"{r.sentences:,}", f"{r.gallery:,}", *rates, "yes" if r.kept else "NO")
    show(table, results, as_json=as_json)


@measure.command()
def ranking(
    sts: Annotated[Path, typer.Option(help="folder with sts12 … sts16, stsb, sick", exists=True, file_okay=False)],
    encoders: Annotated[str, typer.Option(help="comma-separated ids of encoders in the store")],
    rivals: Annotated[str, typer.Option(help="comma-separated methods to compare `auto` with")] = "tempered,flow",
    cache: Cache = None,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much `auto`, fitted without labels, changes Spearman × 100 on each STS set, compared with identity.

    Fails if `auto` loses more than 1 point on any set, or if its mean change is too small.
    """
    need_training()
    settings = stored(model_store=model_store)
    from isosim.measurements import sts as quality  # noqa: PLC0415
    from isosim.measurements.sources import Encoder  # noqa: PLC0415

    sets = read_sets(sts)
    methods = [method for method in rivals.split(",") if method]
    views = []
    with bar("embedding") as progress:
        for name in encoders.split(","):
            encode = Encoder(EncoderStore.at(settings.model_store, settings.seed_store).find(name), cache)
            ready = quality.Evaluation(encode, sets, progress=lambda done, name=name: progress(name, done))  # type: ignore[misc]
            views.append(quality.measure_views(ready, methods, progress))
    table = Table("view", "", *sets, "mean", "worst", title="change of Spearman × 100 against identity, subsets joined")
    for view in views:
        table.add_row(view.encoder, "identity", *(f"{v:.1f}" for v in view.identity.values()))
        for method, changes in view.changes.items():
            cells = [f"{changes[name]:+.2f}" for name in sets]
            table.add_row("", method, *cells, f"{view.mean(method):+.2f}", f"{view.worst(method):+.2f}")
        table.add_row("", "chosen", *view.chosen.values(), end_section=True)
    show(table, views, as_json=as_json)


@measure.command()
def probabilities(
    data: Data,
    draws: Annotated[int, typer.Option(min=1)] = 100,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Error of probabilities learnt from 100 and 1,000 labelled Quora pairs, measured on other pairs."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import probabilities as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        method, results = quality.measure(data, encode, draws, progress)
    columns = ("labels", "ECE", "Brier", "bar", "curve fitted to STS-B: ECE", "Brier", "kept")
    table = Table(*columns, title=f"{encode.artifact.id}, {method} · held-out pairs, {draws} draws")
    for r in results:
        base = (f"{r.baseline_ece:.4f}", f"{r.baseline_brier:.4f}")
        errors = (spread(r.ece, digits=4), spread(r.brier, digits=4), f"{quality.ECE_BARS[r.pairs]}")
        table.add_row(str(r.pairs), *errors, *base, "yes" if r.kept else "NO")
    show(table, results, as_json=as_json)


@measure.command()
def recall(
    data: Data,
    draws: Annotated[int, typer.Option(min=1)] = 200,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """How often 95 % intervals of recall and precision contain the true values, on labelled Quora pairs."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import recall as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        results = quality.measure(data, encode, draws, progress)
    title = f"{encode.artifact.id} · 95 % intervals of recall and precision, {draws} draws of labels"
    table = Table("of the", "labels", "drawn", "precision", "reached by", "covered", "mean width", "kept", title=title)
    for r in results:
        drawn = ("by score, with weights" if r.weighted else "evenly", f"{r.precision:g}", str(r.draws))
        table.add_row(r.figure, str(r.labels), *drawn, f"{r.covered:.1%}", f"{r.width:.3f}", "yes" if r.kept else "NO")
    show(table, results, as_json=as_json)


@measure.command()
def languages(
    text: Annotated[Path, typer.Option(help="folder with a file NAME.txt per language", exists=True, file_okay=False)],
    names: Annotated[str | None, typer.Option(help="comma-separated NAMEs; the first sets the raw threshold")] = None,
    sentences: Annotated[int, typer.Option(min=800, help="sentences per language; half for calibration")] = 4000,
    splits: Annotated[int, typer.Option(min=1)] = 10,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """False-match rates of each language with raw cosines, a common calibration, and the language's own calibration."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import languages as quality  # noqa: PLC0415

    read = quality.read(text, names.split(",") if names else None, sentences)
    with bar("embedding") as progress:
        results = quality.measure(quality.embedded(read, encode, progress), encode.vectors, splits, progress)
    title = f"{encode.artifact.id} · false matches at a nominal {quality.NOMINAL:.0%}, %, {splits} splits"
    table = Table("language", "sentences", "raw", "one calibration for all", "one a language", "chosen", title=title)
    for r in results:
        rates = [spread(rates, 100, 2) if rates else "–" for rates in (r.raw, r.mixed, r.own)]
        table.add_row(r.language, f"{r.sentences:,}", *rates, ", ".join(sorted(set(r.methods))))
    show(table, results, as_json=as_json)


@measure.command()
def foreign_text(
    data: Data,
    seed: int = 0,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Share of texts that a Wikipedia domain flags: unseen Wikipedia sentences, and seven other kinds of text."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import foreign_text as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        result = quality.measure(data, encode, progress, seed)
    fifths = ", ".join(f"{100 * share:.2f}" for share in result.by_length)
    title = (
        f"{encode.artifact.id} · false alarms {100 * result.false_alarms:.2f} % "
        f"(for each fifth of the sentences, from the shortest to the longest: {fifths})"
    )
    table = Table("text", "AUROC", "flagged", title=title)
    for kind, auroc in result.auroc.items():
        table.add_row(kind, f"{auroc:.3f}", f"{result.detected[kind]:.1%}")
    show(table, [result], as_json=as_json)


@measure.command()
def unknown_words(
    data: Data,
    seed: int = 0,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """What scores are worth if a share of the words of English text is replaced by words of an unknown script."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import unknown_words as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        results = quality.measure(data, encode, progress, seed)
    title = f"{encode.artifact.id} · false matches at a nominal {quality.NOMINAL:.0%}, by the share of unknown words"
    table = Table("unknown", *quality.SOURCES, "Spearman, STS-B", title=title)
    for r in results:
        table.add_row(f"{r.share:.2f}", *(f"{rate:.1%}" for rate in r.false_matches.values()), f"{r.spearman:.3f}")
    show(table, results, as_json=as_json)


@measure.command()
def text_size(
    data: Data,
    figure: Figure = None,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """How threshold error and ranking depend on the number of sentences to which a calibration is fitted."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import text_size as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        results = quality.measure(data, encode, progress)
    if figure is not None:
        quality.figure(results, encode.artifact.id, figure)
    columns = ("sentences", "chosen", "false matches at 1 %", "draws in 0.7–1.4 %", "resolution", "gain on STS-B")
    table = Table(*columns, title=f"{encode.artifact.id} · calibrations from little text")
    for r in results:
        gains = spread(r.gains, digits=1) if r.gains else "–"
        shown = (", ".join(r.methods), spread(r.rates, 100), f"{r.within:.0%}", f"{r.resolution:.0e}")
        table.add_row(f"{r.sentences:,}", *shown, gains)
    show(table, results, as_json=as_json)


@measure.command()
def repeated_texts(
    data: Data,
    draws: Annotated[int, typer.Option(min=1)] = 5,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Whether thresholds keep their false-match rates if up to a fifth of the texts begin with the same notice."""
    encode = encoder_of(model_store, encoder, cache)
    from isosim.measurements import repeated_texts as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        results = quality.measure(data, encode, draws, progress)
    title = f"{encode.artifact.id}, identity · false matches, % of pairs of {quality.SENTENCES} texts, {draws} draws"
    table = Table(
        "repeated", "asked for", "smallest reachable", "refused", "counted", "on other texts", "kept", title=title
    )
    for r in results:
        rates = [spread(rates, 100, 3) if rates else "–" for rates in (r.counted, r.unseen)]
        reachable = mean(r.reachable) if max(r.reachable) else "–"
        shown = (f"{r.share:.0%}", f"{100 * r.nominal:g}", reachable, f"{r.refused} of {draws}", *rates)
        table.add_row(*shown, "yes" if r.kept else "NO", end_section=r.nominal == quality.RATES[-1])
    show(table, results, as_json=as_json)


@measure.command()
def cost(
    data: Data,
    sentences: Annotated[int, typer.Option(min=1000)] = 10_000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """How much longer a calibration takes than only embedding its sentences. Run this on an idle machine."""
    artifact = encoder_of(model_store, encoder, None).artifact
    from isosim.measurements import fit_cost as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        result = quality.measure(data, artifact, sentences, rounds, progress)
    table = Table("sentences alone, s", "calibration, s", "longer by", "kept", title=f"{artifact.id}, {result.method}")
    times = (spread(result.embedding, digits=1), spread(result.job, digits=1))
    table.add_row(*times, f"{result.overhead:.0%}", "yes" if result.kept else "NO")
    show(table, [result], as_json=as_json)


@measure.command()
def encoders(
    data: Data,
    work: Annotated[Path, typer.Option(help="folder for trained encoders and results; existing ones are reused")],
    seeds: Annotated[str, typer.Option(help="seeds of SimCSE, comma-separated; SBERT uses the first")] = "0,1",
    report: Annotated[Path | None, typer.Option(help="folder for encoders.md", file_okay=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Train encoders with SimCSE and SBERT, and measure each with identity, whitening, a flow and `auto`."""
    need_finetuning()
    from isosim.measurements import trained_encoders as quality  # noqa: PLC0415

    with bar("embedding") as progress:
        rows, trained = quality.measure(data, work, seed_numbers(seeds), progress, remark)
    promises = quality.promises(rows)
    if report is not None:
        given = f"isosim measure encoders --data DATA --work WORK --seeds {seeds} --report {report}"
        remark(str(quality.write_report(report, given, rows, trained)))
    if not as_json:
        for grid in (trained, quality.grid(rows), quality.choices(rows)):
            print_table(grid.rich())
    table = Table("", "found", "bar", "kept", title="Promises")
    for one in promises:
        table.add_row(one.said, f"{one.value:.2f}", f"{one.bar:.2f}", "yes" if one.kept else "NO")
    show(table, [*rows, *promises] if as_json else promises, as_json=as_json)


KNOWN = (*METHODS, "sn-nulling")  # sn-nulling: only to reproduce the results published for SN + NATSV


def evaluate(
    sts: Annotated[Path, typer.Option(help="folder with sts12 … sts16, stsb, sick", exists=True, file_okay=False)],
    methods: Annotated[
        str, typer.Option(help="comma-separated methods; some take a parameter, as in nulling:10")
    ] = "identity,auto,flow",
    fit_on: Annotated[
        Path | None,
        typer.Option(
            help="file to fit to: sentences, or lines of score TAB text TAB text; default: each set's own text",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help="file of labelled pairs (label TAB text TAB text) for the AUC", exists=True, dir_okay=False),
    ] = None,
    seeds: Annotated[str, typer.Option(help="comma-separated seeds; only flows depend on them")] = "0",
    report: Annotated[Path | None, typer.Option(help="folder for Markdown and figures", file_okay=False)] = None,
    cache: Cache = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate methods fitted without labels on STS12–16, STS-B, SICK-R, lexical similarity and question pairs."""
    need_training()
    settings = stored(model_store=model_store, encoder=encoder)
    from isosim.fitting.methods import is_flow  # noqa: PLC0415
    from isosim.measurements import reproduction  # noqa: PLC0415
    from isosim.measurements import sts as quality  # noqa: PLC0415
    from isosim.measurements.sources import Encoder  # noqa: PLC0415

    named, numbers = method_names(methods), seed_numbers(seeds)
    artifact = EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder)
    sets = read_sets(sts)
    text = None if fit_on is None else read_text(fit_on)
    rows, beside = [], []
    with bar("embedding") as progress:
        ready = quality.Evaluation(Encoder(artifact, cache), sets, progress=lambda done: progress("embedding", done))
        more = reproduction.Reproduction(ready, sts, questions)
        runs = [(method, seed) for method in named for seed in (numbers if is_flow(method) else numbers[:1])]
        for done, (method, seed) in enumerate(runs):
            progress(f"{method} {seed}", done / len(runs))
            rows.append(ready.run(method, seed, text))
            beside.append(more.run(method, seed, text))
    grids = reproduction.grids(rows, beside, more.gold_edit_distance, artifact.id)
    if report is not None:
        given = {"--sts": sts, "--encoder": artifact.id, "--methods": methods, "--seeds": seeds}
        given |= {"--fit-on": fit_on, "--questions": questions}
        command = "isosim evaluate " + " ".join(f"{k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None)
        remark(str(reproduction.write_report(report, artifact.id, command, grids, beside)))
    if as_json:
        facts = {"sts": [dataclasses.asdict(r) for r in rows], "beside": [dataclasses.asdict(b) for b in beside]}
        print_json(facts)
        return
    for grid in grids:
        print_table(grid.rich())


def method_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name.partition(":")[0] not in KNOWN]
    if unknown or not names:
        raise typer.BadParameter(
            f"unknown method {', '.join(unknown)!r}; choose from {', '.join(KNOWN)}", param_hint="--methods"
        )
    return names


def seed_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of integers, such as 0,1", param_hint="--seeds") from None
