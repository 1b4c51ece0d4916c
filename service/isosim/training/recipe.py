"""The settings of a training."""

from dataclasses import dataclass
from typing import Literal

Objective = Literal["simcse", "simcse-supervised", "classification", "regression", "triplet"]
Pooling = Literal["cls", "mean", "max"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Recipe:
    """Settings of a training. An option of None means the start encoder's value."""

    objective: Objective
    pooling: Pooling | None = None
    layers: int | None = None  # number of transformer layers to keep
    dropout: float | None = None
    word_deletion: float = 0.0  # simcse: probability with which each word of a sentence is deleted
    max_length: int = 32  # tokens of a training sentence (source: SimCSE's code); the result accepts longer texts
    batch_size: int = 64  # source: SimCSE, appendix A, for BERT-base
    learning_rate: float = 3e-5  # source: SimCSE, appendix A, for BERT-base
    warmup: float = 0.0  # share of the steps in which the learning rate rises; then it falls linearly to 0
    weight_decay: float = 0.0
    epochs: float = 1.0
    steps: int | None = None  # number of optimizer steps; None: as many as `epochs` has
    every: int = 125  # steps between checkpoints and between evaluations (source: SimCSE's code)
    patience: int | None = None  # evaluations without a better score after which the training stops; None: never
    temperature: float = 0.05  # simcse, simcse-supervised (source: SimCSE, section 3)
    margin: float = 1.0  # triplet: Euclidean distance (source: SBERT, section 3)
    # regression: the grades that become cosine 0 and cosine 1; None: the lowest and the highest grade of the file
    grades: tuple[float, float] | None = None
    precision: Precision = "fp32"
    seed: int = 0
