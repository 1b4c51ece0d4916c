"""Everything that determines a trained encoder's weights. If any of it has changed, a training does not resume."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isosim.encoders.spec import EncoderSpec
from isosim.errors import InvalidInput
from isosim.store.artifacts import sha256
from isosim.training.objectives import Knobs

Precision = Literal["fp32", "bf16", "fp16"]
POOLINGS = ("cls", "mean", "max")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training."""

    objective: str
    # The training begins with the weights of the start encoder.
    pooling: str | None = None  # None: the start encoder's pooling
    layers: int | None = None  # number of layers to keep; None: all layers of the start encoder
    dropout: float | None = None  # dropout probability; None: the start encoder's probability
    # Probability with which each word of a training sentence is deleted; for simcse only.
    word_deletion: float = 0.0
    # Training sentences are cut to this many tokens (source: SimCSE's code). The trained encoder may accept more.
    max_length: int = 32
    batch_size: int = 64  # source: SimCSE's appendix A, for BERT-base
    learning_rate: float = 3e-5  # source: SimCSE's appendix A, for BERT-base
    warmup: float = 0.0  # share of the steps in which the learning rate rises; then the rate falls linearly to 0
    weight_decay: float = 0.0
    epochs: float = 1.0
    steps: int | None = None  # number of optimizer steps; overrides epochs
    every: int = 125  # steps between evaluations and between checkpoints (source: SimCSE's code)
    patience: int | None = None  # training stops after this many evaluations without a better score; None: never
    knobs: Knobs = dataclasses.field(default_factory=Knobs)
    precision: Precision = "fp32"
    seed: int = 0

    def check(self) -> None:
        """Raises InvalidInput if a value is out of range."""
        above_zero = ("batch_size", "learning_rate", "epochs", "every", "max_length")
        given = {name: getattr(self, name) for name in above_zero}
        given |= {name: getattr(self, name) for name in ("steps", "patience") if getattr(self, name) is not None}
        given |= {"temperature": self.knobs.temperature, "margin": self.knobs.margin}
        for name, value in given.items():
            if not value > 0:
                raise InvalidInput(f"--{name.replace('_', '-')} {value:g}: a number above 0 is needed")
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise InvalidInput(f"--pooling {self.pooling!r} cannot be trained; give one of {', '.join(POOLINGS)}")
        for name, share in (
            ("dropout", self.dropout),
            ("warmup", self.warmup),
            ("word-deletion", self.word_deletion),
        ):
            if share is not None and not 0 <= share < 1:
                raise InvalidInput(f"--{name} {share:g}: a share from 0 to below 1 is needed")
        if self.word_deletion and self.objective != "simcse":
            raise InvalidInput(f"--word-deletion is an option for simcse; {self.objective} does not use it")


@dataclass(frozen=True)
class Source:
    """A file of training examples or development pairs."""

    name: str
    sha256: str
    examples: int

    @classmethod
    def from_file(cls, path: Path, examples: int) -> "Source":
        return cls(path.name, sha256(path), examples)


@dataclass(frozen=True)
class Identity:
    """Everything that determines the trained weights, bit for bit."""

    recipe: Recipe
    start: EncoderSpec
    data: Source
    dev: Source | None
    versions: dict[str, str]

    def facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def differences(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """Lists what differs between two identities, for example `recipe.batch_size was 64, now 32`.

    File names and the start encoder's origin are ignored, because hashes identify the contents.
    """
    changes = []
    for key in [*now, *(key for key in before if key not in now)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += differences(old, new, f"{path}{key}.")
        elif old != new and f"{path}{key}" not in {"start.source", "data.name", "dev.name"}:
            changes.append(f"{path}{key} was {old}, now {new}")
    return changes
