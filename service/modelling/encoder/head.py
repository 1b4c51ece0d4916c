"""What a sentence-transformers checkpoint does with the pooled vector: linear layers, norms."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from service.core.errors import InvalidInput
from service.modelling.encoder.checkpoints import sha256_of

WEIGHTS = "model.safetensors"
L = TypeVar("L", bound=nn.Module)


@dataclass(frozen=True)
class Module:
    """One module behind the pooling: its kind, its folder, and what its config.json says."""

    kind: str
    folder: Path
    stated: dict[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 (hex) of all that decides what it computes."""
        weights = self.folder / WEIGHTS
        facts = {"kind": self.kind, "stated": self.stated, "weights": sha256_of(weights) if weights.is_file() else ""}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class Dense(nn.Module):
    """An affine map and an activation, beside the input where the checkpoint adds that (B, D) -> (B, E)."""

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
    """Pooled vectors (B, dim) to the checkpoint's (B, D), and D.

    Raises:
        InvalidInput: a module does not take what comes before it, or is nothing that is run here.
    """
    built: list[nn.Module] = []
    for module in modules:
        if module.kind == "Normalize":
            built.append(UnitLength())
        elif module.kind == "LayerNorm":
            built.append(filled(nn.LayerNorm(dim), weights_of(module), "norm", module))
        else:
            made, dim = dense(module, dim)
            built.append(made)
    return nn.Sequential(*built), dim


def dense(module: Module, dim: int) -> tuple[Dense, int]:
    stated = module.stated
    takes, gives = size(module, "in_features"), size(module, "out_features")
    if takes != dim:
        raise InvalidInput(f"{module.folder} takes {takes} dimensions and the pooling gives {dim}: another --pooling?")
    weights = weights_of(module)
    linear = filled(nn.Linear(takes, gives, bias=bool(stated.get("bias", True))), weights, "linear", module)
    residual: nn.Module | None = None
    if stated.get("use_residual"):
        added = nn.Linear(takes, gives, bias=False)
        residual = nn.Identity() if takes == gives else filled(added, weights, "residual", module)
    return Dense(linear, activation(stated.get("activation_function", "torch.nn.Tanh"), module), residual), gives


def size(module: Module, key: str) -> int:
    found = module.stated.get(key)
    if not isinstance(found, int):
        raise InvalidInput(f"{module.folder} does not say {key} in its config.json")
    return found


def activation(name: str, module: Module) -> nn.Module:
    """A class of torch.nn, made without arguments as sentence-transformers makes it."""
    kind = getattr(nn, name.rpartition(".")[2], None)
    if not name.startswith("torch.nn.") or not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise InvalidInput(f"{module.folder} has the activation {name!r}; only those of torch.nn can be exported")
    made: nn.Module = kind()
    return made


def weights_of(module: Module) -> dict[str, Tensor]:
    path = module.folder / WEIGHTS
    if not path.is_file():
        raise InvalidInput(f"{module.folder} holds no {WEIGHTS}; pickled weights are refused: save it as safetensors")
    return {name: tensor.to(torch.float32) for name, tensor in load_file(path).items()}


def filled(layer: L, weights: dict[str, Tensor], prefix: str, module: Module) -> L:
    own = {name.removeprefix(f"{prefix}."): tensor for name, tensor in weights.items() if name.startswith(f"{prefix}.")}
    try:
        layer.load_state_dict(own)
    except RuntimeError as error:
        raise InvalidInput(f"the weights in {module.folder} do not fit its config.json") from error
    return layer
