"""Pools token vectors into one vector per text, and builds the checkpoint's modules after the pooling."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from isosim.errors import InvalidInput
from isosim.store.artifacts import sha256

Hidden = tuple[Tensor, ...]  # one (B, T, D) tensor per layer: the embedding layer first, the last layer last


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    return weighted(hidden, mask.unsqueeze(-1).to(hidden.dtype))


def weighted(hidden: Tensor, weights: Tensor) -> Tensor:  # (B, T, D), (B, T, 1) -> (B, D)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def masked_max(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(hidden.dtype).min).amax(1)


def mean_sqrt_len(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    """Sum divided by the square root of the number of tokens. The sum has the same direction as the mean."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1).sqrt()


def weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    """Mean in which the n-th token has weight n (SGPT: Muennighoff, 2022).

    In causal models later tokens have more context.
    """
    return weighted(hidden, (mask.cumsum(1) * mask).unsqueeze(-1).to(hidden.dtype))


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).amax(1)
    return hidden.gather(1, last.view(-1, 1, 1).expand(-1, 1, hidden.shape[2])).squeeze(1)


POOLINGS: dict[str, Callable[[Hidden, Tensor], Tensor]] = {
    "mean": lambda hidden, mask: masked_mean(hidden[-1], mask),
    "cls": lambda hidden, mask: hidden[-1][:, 0],
    "max": lambda hidden, mask: masked_max(hidden[-1], mask),
    "mean-sqrt-len": lambda hidden, mask: mean_sqrt_len(hidden[-1], mask),
    "weighted-mean": lambda hidden, mask: weighted_mean(hidden[-1], mask),
    "last-token": lambda hidden, mask: last_token(hidden[-1], mask),
    # BERT-flow's code calls this pooling last2avg. The code was meant to average the last two layers, but because of a
    # bug in a loop, the code averages the first and the last layer.
    "first-last-avg": lambda hidden, mask: (masked_mean(hidden[1], mask) + masked_mean(hidden[-1], mask)) / 2,
    "last2avg": lambda hidden, mask: (masked_mean(hidden[-2], mask) + masked_mean(hidden[-1], mask)) / 2,
}
LAYERS_NEEDED = {"first-last-avg": 1, "last2avg": 1}
# The pooler is a trained layer of the checkpoint. Its input is the first token's vector. Supervised SimCSE uses the
# pooler's output (Gao et al., 2021).
POOLER = "pooler"
NAMES = [*POOLINGS, POOLER]


def parts(pooling: str) -> list[str]:
    """Names of the poolings whose vectors are concatenated, for example cls and mean for `cls+mean`."""
    return pooling.split("+")


def pool(pooling: str, hidden: Hidden, mask: Tensor, pooler: Tensor | None) -> Tensor:
    """Pools the hidden states (B, T, D) of the layers under the mask (B, T). `pooler`: the pooler's output (B, D).

    Returns:
        (B, D × number of poolings)
    """
    vectors_of_each = []
    for name in parts(pooling):
        vectors = pooler if name == POOLER else POOLINGS[name](hidden, mask)
        assert vectors is not None  # noqa: S101 - `load` refuses a missing pooler
        vectors_of_each.append(vectors)
    return vectors_of_each[0] if len(vectors_of_each) == 1 else torch.cat(vectors_of_each, dim=1)


WEIGHTS = "model.safetensors"
L = TypeVar("L", bound=nn.Module)


@dataclass(frozen=True)
class Module:
    """A module of the checkpoint. `stated` is the content of its config.json."""

    kind: str
    folder: Path
    stated: dict[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 (hex) of the kind, the configuration and the weights."""
        weights = self.folder / WEIGHTS
        facts = {"kind": self.kind, "stated": self.stated, "weights": sha256(weights) if weights.is_file() else ""}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class Dense(nn.Module):
    """An affine map and an activation, and a residual connection if the checkpoint has one. (B, D) -> (B, E)"""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None) -> None:
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.linear(x))
        return y if self.residual is None else y + self.residual(x)


class UnitLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1)


def build(modules: tuple[Module, ...], dim: int) -> tuple[nn.Sequential, int]:
    """Builds the modules after the pooling. Returns the modules, which map (B, dim) to (B, D), and D.

    Raises:
        InvalidInput: a module expects another number of dimensions, is not supported, or lacks weights.
    """
    built: list[nn.Module] = []
    for module in modules:
        if module.kind == "Normalize":
            built.append(UnitLength())
        elif module.kind == "LayerNorm":
            built.append(fill(nn.LayerNorm(dim), weights_of(module), "norm", module))
        else:
            made, dim = dense(module, dim)
            built.append(made)
    return nn.Sequential(*built), dim


def dense(module: Module, dim: int) -> tuple[Dense, int]:
    stated = module.stated
    takes, gives = size(module, "in_features"), size(module, "out_features")
    if takes != dim:
        raise InvalidInput(
            f"{module.folder} takes {takes} dimensions, but the pooling gives {dim}; give another --pooling"
        )
    weights = weights_of(module)
    linear = fill(nn.Linear(takes, gives, bias=bool(stated.get("bias", True))), weights, "linear", module)
    residual: nn.Module | None = None
    if stated.get("use_residual"):
        added = nn.Linear(takes, gives, bias=False)
        residual = nn.Identity() if takes == gives else fill(added, weights, "residual", module)
    return Dense(linear, activation(stated.get("activation_function", "torch.nn.Tanh"), module), residual), gives


def size(module: Module, key: str) -> int:
    width = module.stated.get(key)
    if not isinstance(width, int):
        raise InvalidInput(f"{module.folder} has no {key} in its config.json")
    return width


def activation(name: str, module: Module) -> nn.Module:
    """An activation of torch.nn, constructed without arguments as in sentence-transformers."""
    kind = getattr(nn, name.rpartition(".")[2], None)
    if not name.startswith("torch.nn.") or not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise InvalidInput(f"{module.folder} has the activation {name!r}; only those of torch.nn can be exported")
    made: nn.Module = kind()
    return made


def weights_of(module: Module) -> dict[str, Tensor]:
    path = module.folder / WEIGHTS
    if not path.is_file():
        raise InvalidInput(f"{module.folder} has no {WEIGHTS}; pickled weights are refused: save them as safetensors")
    return {name: tensor.to(torch.float32) for name, tensor in load_file(path).items()}


def fill(layer: L, weights: dict[str, Tensor], prefix: str, module: Module) -> L:
    own = {name.removeprefix(f"{prefix}."): tensor for name, tensor in weights.items() if name.startswith(f"{prefix}.")}
    try:
        layer.load_state_dict(own)
    except RuntimeError as error:
        raise InvalidInput(f"the weights in {module.folder} do not fit its config.json") from error
    return layer
