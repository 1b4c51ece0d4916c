"""`isosim train`: train an encoder with the objectives of SBERT or SimCSE."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from isosim.commands.shared import AsJson, need_finetuning, with_options
from isosim.commands.terminal import answer, bar, remark
from isosim.errors import InvalidInput
from isosim.training.recipe import Recipe


@partial(with_options, Recipe, "recipe")
def train(
    recipe: Recipe,
    data: Annotated[
        Path,
        typer.Argument(help="training data: text for simcse, otherwise TSV, CSV or JSONL", exists=True, dir_okay=False),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder to write; named OUTPUT.training during training")
    ],
    encoder: Annotated[str, typer.Option(help="encoder to start from: a folder, a hub id or a known name")] = "minilm",
    revision: Annotated[str | None, typer.Option(help="revision of a hub id")] = None,
    dev: Annotated[
        Path | None,
        typer.Option(
            help="graded pairs, lines of score, tab, text, tab, text (like STS-B dev); the weights that rank them "
            "best are kept",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="licence of the result; default: the starting encoder's")] = None,
    as_json: AsJson = False,
) -> None:
    """Train an encoder. Running the same command again resumes an interrupted training.

    The trained encoder is written to the folder OUTPUT; `isosim export` exports it for use by isosim.
    """
    need_finetuning()
    if recipe.patience is not None and dev is None:
        raise InvalidInput("--patience needs --dev, the pairs to evaluate on")
    if recipe.word_deletion and recipe.objective != "simcse":
        raise InvalidInput(f"--word-deletion is an option for simcse; {recipe.objective} does not use it")
    with bar("reading") as progress:
        from isosim.export import checkpoints  # noqa: PLC0415 - torch takes seconds; the bar says so
        from isosim.training import run  # noqa: PLC0415

        start = checkpoints.resolve(encoder, revision)
        facts = run.train(start, recipe, data, output, dev=dev, licence=licence, report=progress)
    if (kept := facts["dev_kept"]) is not None:
        before, step = facts["dev_before"], facts["steps_kept"]
        remark(f"Spearman × 100 on {dev}: {100 * before:.2f} before, {100 * kept:.2f} after step {step}")
        if kept <= before:
            remark("no evaluation was better than the starting encoder: try other settings, or use it without training")
    answer({"output": str(output), **facts}, str(output), as_json=as_json)
