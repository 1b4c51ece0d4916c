"""`isosim evaluate`: the papers' tables for an encoder and a set of methods."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from isosim.commands.shared import AsJson, EncoderId, Store, encoder_of, need_training, stored
from isosim.commands.terminal import bar, print_json
from isosim.jobs.job import METHODS
from isosim.jobs.offline import open_texts
from isosim.jobs.text_lines import read_text
from isosim.scoring.method import Method

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
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate methods fitted without labels on STS12–16, STS-B, SICK-R, lexical similarity and question pairs."""
    need_training()
    settings = stored(model_store=model_store, encoder=encoder)
    named, numbers = parse_methods(methods), seed_numbers(seeds)
    artifact = encoder_of(settings)
    text = None if fit_on is None else read_text(fit_on)
    with bar("reading") as progress:
        from isosim.sts import Evaluation, tables  # noqa: PLC0415 - torch takes seconds; the bar says so

        encode = open_texts(artifact)
        ready = Evaluation(
            artifact, sts, lambda texts: encode(texts, lambda done: progress("embedding", done)).vectors, questions
        )
        runs = [(method, seed) for method in named for seed in (numbers if method.is_flow else numbers[:1])]
        results = []
        for done, (method, seed) in enumerate(runs):
            progress(f"{method} {seed}", done / len(runs))
            results.append(ready.run(method, seed, text))
    if as_json:
        print_json([dataclasses.asdict(one) for one in results])
    else:
        print(tables(results, ready.gold_edit_distance, artifact.id))


def parse_methods(text: str) -> list[Method]:
    written = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in written if name.partition(":")[0] not in KNOWN]
    if unknown or not written:
        raise typer.BadParameter(
            f"unknown method {', '.join(unknown)!r}; choose from {', '.join(KNOWN)}", param_hint="--methods"
        )
    return [Method.parse(name) for name in written]


def seed_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of integers, such as 0,1", param_hint="--seeds") from None
