"""`isosim train`: train an encoder with the objectives of SBERT or SimCSE."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from isosim.commands.shared import AsJson, need_finetuning
from isosim.commands.terminal import bar, print_json, remark
from isosim.errors import InvalidInput

Objective = Literal["simcse", "simcse-supervised", "classification", "regression", "triplet"]


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
    layers: Annotated[int | None, typer.Option(help="keep the first N transformer layers")] = None,
    pooling: Annotated[str | None, typer.Option(help="cls, mean or max; default: that of the starting encoder")] = None,
    dropout: Annotated[float | None, typer.Option(help="dropout rate; default: that of the starting encoder")] = None,
    word_deletion: Annotated[
        float, typer.Option(help="simcse: share of words removed from each of a sentence's two views")
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
        int | None, typer.Option(help="stop after this number of evaluations without improvement")
    ] = None,
    every: Annotated[
        int, typer.Option(help="steps between checkpoints; with --dev, each checkpoint is evaluated")
    ] = 125,
    epochs: Annotated[float, typer.Option(help="passes over the data")] = 1.0,
    steps: Annotated[int | None, typer.Option(help="number of steps, instead of epochs")] = None,
    batch_size: Annotated[int, typer.Option(help="examples in each step")] = 64,
    learning_rate: Annotated[float, typer.Option(help="highest learning rate; it falls linearly to 0")] = 3e-5,
    warmup: Annotated[float, typer.Option(help="share of the steps over which the learning rate rises")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="weight decay of AdamW")] = 0.0,
    max_length: Annotated[int, typer.Option(help="maximum number of tokens per sentence in training")] = 32,
    temperature: Annotated[float, typer.Option(help="simcse: temperature")] = 0.05,
    margin: Annotated[float, typer.Option(help="triplet: margin, a Euclidean distance")] = 1.0,
    grades: Annotated[
        str | None,
        typer.Option(help="regression: lowest and highest grade; default: those in the data", metavar="LOW,HIGH"),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], typer.Option(help="number format in training; fp16 on a GPU only")
    ] = "fp32",
    seed: Annotated[int, typer.Option(help="the same seed gives the same weights on the same machine")] = 0,
    licence: Annotated[str | None, typer.Option(help="licence of the result; default: the starting encoder's")] = None,
    as_json: AsJson = False,
) -> None:
    """Train an encoder. Running the same command again resumes an interrupted training.

    The trained encoder is written to the folder OUTPUT; `isosim export` exports it for use by isosim.
    """
    need_finetuning()
    between = bounds(grades)
    if patience is not None and dev is None:
        raise InvalidInput("--patience needs --dev, the pairs to evaluate on")
    with bar("reading") as progress:
        from isosim.export import checkpoints  # noqa: PLC0415 - torch takes seconds; the bar says so
        from isosim.training import run  # noqa: PLC0415
        from isosim.training.objectives import Knobs  # noqa: PLC0415
        from isosim.training.recipe import Recipe  # noqa: PLC0415

        recipe = Recipe(
            objective=objective, pooling=pooling, layers=layers, dropout=dropout,
            word_deletion=word_deletion, max_length=max_length,
            batch_size=batch_size, learning_rate=learning_rate, warmup=warmup, weight_decay=weight_decay,
            epochs=epochs, steps=steps, every=every, patience=patience,
            knobs=Knobs(temperature, margin, between), precision=precision, seed=seed,
        )  # fmt: skip
        start = checkpoints.resolve(encoder, revision)
        trained = run.train(start, recipe, data, output, dev=dev, licence=licence, report=progress)
    if as_json:
        print_json({"output": str(trained.folder), "was_there": trained.was_there, **trained.facts})
        return
    if trained.was_there:
        remark(f"{trained.folder} is trained already")
    elif (kept := trained.facts["dev_kept"]) is not None:
        before, step = trained.facts["dev_before"], trained.facts["steps_kept"]
        remark(f"Spearman × 100 on {dev}: {100 * before:.2f} before, {100 * kept:.2f} after step {step}")
        if kept <= before:
            remark("no evaluation was better than the starting encoder: try other settings, or use it without training")
    print(trained.folder)


def bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}; give LOW,HIGH, like 0,5 for grades from 0 to 5", param_hint="--grades"
        ) from None
    if not low < high:
        raise typer.BadParameter(f"{text!r}: give the lowest grade first", param_hint="--grades")
    return low, high
