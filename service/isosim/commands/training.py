"""`isosim train`: train an encoder with the objectives of SBERT or SimCSE."""

from pathlib import Path
from typing import Annotated

import typer

from isosim.commands.shared import AsJson, need_finetuning
from isosim.commands.terminal import answer, bar, remark
from isosim.errors import InvalidInput
from isosim.training.recipe import Objective, Pooling, Precision, Recipe


def train(
    objective: Annotated[Objective, typer.Argument(help="training objective")],
    data: Annotated[
        Path,
        typer.Argument(help="training data: text for simcse, otherwise TSV, CSV or JSONL", exists=True, dir_okay=False),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder to write; named OUTPUT.training during training")
    ],
    encoder: Annotated[str, typer.Option(help="encoder to start from: a folder, a hub id or a known name")] = "minilm",
    revision: Annotated[str | None, typer.Option(help="revision of a hub id")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="keep the first N transformer layers")] = None,
    pooling: Annotated[Pooling | None, typer.Option(help="default: that of the starting encoder")] = None,
    dropout: Annotated[
        float | None, typer.Option(min=0, max=0.99, help="dropout rate; default: that of the starting encoder")
    ] = None,
    word_deletion: Annotated[
        float, typer.Option(min=0, max=0.99, help="simcse: share of words removed from each of a sentence's two views")
    ] = 0.0,
    dev: Annotated[
        Path | None,
        typer.Option(
            help="graded pairs, lines of score, tab, text, tab, text (like STS-B dev); the weights that rank them "
            "best are kept",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="stop after this number of evaluations without improvement")
    ] = None,
    every: Annotated[
        int, typer.Option(min=1, help="steps between checkpoints; with --dev, each checkpoint is evaluated")
    ] = 125,
    epochs: Annotated[float, typer.Option(min=0.001, help="passes over the data")] = 1.0,
    steps: Annotated[int | None, typer.Option(min=1, help="number of steps, instead of epochs")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="examples in each step")] = 64,
    learning_rate: Annotated[float, typer.Option(min=0, help="highest learning rate; it falls linearly to 0")] = 3e-5,
    warmup: Annotated[
        float, typer.Option(min=0, max=0.99, help="share of the steps over which the learning rate rises")
    ] = 0.0,
    weight_decay: Annotated[float, typer.Option(min=0, help="weight decay of AdamW")] = 0.0,
    max_length: Annotated[int, typer.Option(min=3, help="maximum number of tokens per sentence in training")] = 32,
    temperature: Annotated[float, typer.Option(min=0.001, help="simcse: temperature")] = 0.05,
    margin: Annotated[float, typer.Option(min=0, help="triplet: margin, a Euclidean distance")] = 1.0,
    grades: Annotated[
        tuple[float, float] | None,
        typer.Option(help="regression: lowest and highest grade; default: those in the data", metavar="LOW HIGH"),
    ] = None,
    precision: Annotated[Precision, typer.Option(help="number format in training; fp16 on a GPU only")] = "fp32",
    seed: Annotated[int, typer.Option(help="the same seed gives the same weights on the same machine")] = 0,
    licence: Annotated[str | None, typer.Option(help="licence of the result; default: the starting encoder's")] = None,
    as_json: AsJson = False,
) -> None:
    """Train an encoder. Running the same command again resumes an interrupted training.

    The trained encoder is written to the folder OUTPUT; `isosim export` exports it for use by isosim.
    """
    need_finetuning()
    if patience is not None and dev is None:
        raise InvalidInput("--patience needs --dev, the pairs to evaluate on")
    if word_deletion and objective != "simcse":
        raise InvalidInput(f"--word-deletion is an option for simcse; {objective} does not use it")
    recipe = Recipe(
        objective=objective, pooling=pooling, layers=layers, dropout=dropout, word_deletion=word_deletion,
        max_length=max_length, batch_size=batch_size, learning_rate=learning_rate, warmup=warmup,
        weight_decay=weight_decay, epochs=epochs, steps=steps, every=every, patience=patience, temperature=temperature,
        margin=margin, grades=grades, precision=precision, seed=seed,
    )  # fmt: skip
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
