"""The settings of a training, which are options of `isosim train`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Argument, Option

Objective = Literal["simcse", "simcse-supervised", "classification", "regression", "triplet"]


@dataclass(frozen=True)
class Recipe:
    """Settings of a training. An option of None means the start encoder's value."""

    objective: Annotated[Objective, Argument(help="training objective")]
    layers: Annotated[int | None, Option(min=1, help="keep the first N transformer layers")] = None
    pooling: Annotated[Literal["cls", "mean", "max"] | None, Option(help="default: that of the starting encoder")] = (
        None
    )
    dropout: Annotated[
        float | None, Option(min=0, max=0.99, help="dropout rate; default: that of the starting encoder")
    ] = None
    word_deletion: Annotated[
        float, Option(min=0, max=0.99, help="simcse: share of words removed from each of a sentence's two views")
    ] = 0.0
    patience: Annotated[
        int | None, Option(min=1, help="stop after this number of evaluations without improvement; needs --dev")
    ] = None
    every: Annotated[
        # source of the default: SimCSE's code
        int, Option(min=1, help="steps between checkpoints; with --dev, each checkpoint is evaluated")
    ] = 125
    epochs: Annotated[float, Option(min=0.001, help="passes over the data")] = 1.0
    steps: Annotated[int | None, Option(min=1, help="number of steps, instead of epochs")] = None
    # Source of the next two defaults: SimCSE, appendix A, for BERT-base.
    batch_size: Annotated[int, Option(min=1, help="examples in each step")] = 64
    learning_rate: Annotated[float, Option(min=0, help="highest learning rate; it falls linearly to 0")] = 3e-5
    warmup: Annotated[float, Option(min=0, max=0.99, help="share of the steps over which the learning rate rises")] = (
        0.0
    )
    weight_decay: Annotated[float, Option(min=0, help="weight decay of AdamW")] = 0.0
    max_length: Annotated[
        # source of the default: SimCSE's code; the result accepts longer texts
        int, Option(min=3, help="maximum number of tokens per sentence in training")
    ] = 32
    temperature: Annotated[float, Option(min=0.001, help="simcse: temperature")] = 0.05  # source: SimCSE, section 3
    margin: Annotated[  # source of the default: SBERT, section 3
        float, Option(min=0, help="triplet: margin, a Euclidean distance")
    ] = 1.0
    grades: Annotated[
        tuple[float, float] | None,
        Option(help="regression: lowest and highest grade; default: those in the data", metavar="LOW HIGH"),
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], Option(help="number format in training; fp16 on a GPU only")
    ] = "fp32"
    seed: Annotated[int, Option(help="the same seed gives the same weights on the same machine")] = 0
