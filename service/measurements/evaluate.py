"""`isosim evaluate`: the papers' tables for any encoder of the store."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated

import typer

from service.adapters.encoder.store import EncoderStore
from service.adapters.labelled_pairs import read_sets
from service.adapters.text_lines import read_text
from service.commands.shared import AsJson, EncoderId, Store, need_training, stored
from service.commands.terminal import bar, print_json, print_table, remark
from service.core.jobs.job import METHODS

KNOWN = (*METHODS, "sn-nulling")  # the last one is of interest for the papers' tables alone


def evaluate(
    sts: Annotated[Path, typer.Option(help="folder with sts12 … sts16, stsb, sick", exists=True, file_okay=False)],
    methods: Annotated[
        str, typer.Option(help="comma-separated; a parameter after a colon: nulling:10")
    ] = "identity,auto,flow",
    fit_on: Annotated[
        Path | None,
        typer.Option(help="sentences, or score-TAB-pairs, to fit on; else each set's own", exists=True, dir_okay=False),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="label-TAB-pair file for the AUC", exists=True, dir_okay=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="comma-separated; only a flow depends on them")] = "0",
    report: Annotated[Path | None, typer.Option(help="a folder for Markdown and figures", file_okay=False)] = None,
    cache: Annotated[Path | None, typer.Option(help="a folder that keeps vectors between commands")] = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """STS12–16, STS-B, SICK-R, lexical similarity and question pairs, without labels in the fit."""
    need_training()
    settings = stored(model_store=model_store, encoder=encoder)
    from service.measurements import reproduction  # noqa: PLC0415
    from service.measurements import sts as quality  # noqa: PLC0415
    from service.measurements.sources import Encoder  # noqa: PLC0415
    from service.modelling.calibration.methods import is_flow  # noqa: PLC0415

    named, numbers = method_names(methods), seed_numbers(seeds)
    artifact = EncoderStore(settings.model_store).find(settings.encoder)
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
            f"no method {', '.join(unknown)!r}; there are {', '.join(KNOWN)}", param_hint="--methods"
        )
    return names


def seed_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: numbers, comma-separated", param_hint="--seeds") from None
