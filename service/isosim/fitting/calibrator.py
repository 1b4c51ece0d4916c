"""The calibrator: an affine map followed by a flow. Every post-processing method can be written in this form.

This is the only implementation of the calibrator. Its weights are the tensors of its `state_dict`. The flow's training
computes them (`flow.py`), and so do linear methods (`linear.py`). The exporter makes them inputs of a graph
(`export/graph.py`), and the server runs this graph.

Shapes: B sentences, D dimensions, C channels of a level, K kept half, M moved half, H hidden width.
"""

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn

LEVELS = 3  # number of levels, as in BERT-flow's code; the paper says 2
DEPTH = 3  # steps per level
HIDDEN = 32  # width of a coupling network

Tensors = Mapping[str, Tensor]
"""A calibrator's weights by name, as in its `state_dict`."""


def level_sizes(dim: int) -> list[int]:
    """Number of channels that enter each level.

    After every level except the last, half of its channels are final: no later level changes them.
    """
    sizes = [dim]
    for _ in range(LEVELS - 1):
        sizes.append(sizes[-1] - sizes[-1] // 2)
    return sizes


def group_sizes(dim: int) -> list[int]:
    """Number of channels that become final at each level. Together, these channels are the latents.

    >>> level_sizes(384), group_sizes(384)
    ([384, 192, 96], [192, 96, 96])
    """
    sizes = level_sizes(dim)
    return [c // 2 for c in sizes[:-1]] + sizes[-1:]


class FlowStep(nn.Module):
    """Actnorm, permutation, additive coupling (Glow, Kingma & Dhariwal, 2018, section 3).

    Its tensors are scale (C,), shift (C,), permutation (C,) int64, and a coupling network: w1 (K, H), b1 (H,),
    w2 (H, H), b2 (H,), w3 (H, M), b3 (M,).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        kept, moved = channels // 2, channels - channels // 2
        self.scale = nn.Buffer(torch.ones(channels))
        self.shift = nn.Buffer(torch.zeros(channels))
        self.permutation = nn.Buffer(torch.arange(channels))
        self.w1 = nn.Buffer(torch.zeros(kept, HIDDEN))
        self.b1 = nn.Buffer(torch.zeros(HIDDEN))
        self.w2 = nn.Buffer(torch.zeros(HIDDEN, HIDDEN))
        self.b2 = nn.Buffer(torch.zeros(HIDDEN))
        self.w3 = nn.Buffer(torch.zeros(HIDDEN, moved))
        self.b3 = nn.Buffer(torch.zeros(moved))

    def coupling(self, kept: Tensor) -> Tensor:  # (B, K) -> (B, M)
        """Shift of an additive coupling: two ReLU layers and a linear one (NICE, Dinh et al., 2014, 3.2)."""
        hidden = torch.relu(torch.addmm(self.b1, kept, self.w1))
        hidden = torch.relu(torch.addmm(self.b2, hidden, self.w2))
        return torch.addmm(self.b3, hidden, self.w3)

    def forward(self, x: Tensor) -> Tensor:  # (B, C) -> (B, C)
        x = (x * self.scale + self.shift).index_select(1, self.permutation)
        half = x.shape[1] // 2
        kept, moved = x[:, :half], x[:, half:]
        return torch.cat([kept, moved + self.coupling(kept)], dim=1)


class Flow(nn.ModuleList):
    """Multi-scale flow: after each level except the last, half of the channels are final (RealNVP, section 3.6)."""

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Sequential(*(FlowStep(c) for _ in range(DEPTH))) for c in level_sizes(dim))

    def forward(self, x: Tensor) -> Tensor:  # (B, D) -> (B, D)
        final = []
        *inner, last = self
        for level in inner:
            x = level(x)
            half = x.shape[1] // 2
            final.append(x[:, :half])
            x = x[:, half:]
        return torch.cat([*final, last(x)], dim=1)


class Calibrator(nn.Module):
    """Maps encoder vectors to latents: z = flow((x − mean) · matrix). A new calibrator changes nothing.

    Its tensors are mean (D,), matrix (D, D), and for each step of the flow those of `FlowStep`: `flow.0.0.scale`.

    Raises:
        ValueError: `dim` is below 8, too small for three levels.

    >>> x = torch.arange(16.0).reshape(2, 8)
    >>> torch.equal(Calibrator(8)(x), x)
    True
    >>> doubled = Calibrator.from_weights({"mean": torch.ones(8), "matrix": 2 * torch.eye(8)}, strict=False)
    >>> doubled(x)[0].tolist()
    [-2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 8:
            raise ValueError(f"vectors of {dim} dimensions are too small for {LEVELS} levels; at least 8 are needed")
        self.mean = nn.Buffer(torch.zeros(dim))
        self.matrix = nn.Buffer(torch.eye(dim))
        self.flow = Flow(dim)

    @classmethod
    def from_weights(cls, weights: Tensors, *, strict: bool = True) -> Self:
        """A calibrator with these tensors, which are not copied; unless `strict`, others are those of the identity."""
        calibrator = cls(len(weights["mean"]))
        calibrator.load_state_dict(weights, strict=strict, assign=True)
        return calibrator

    def affine(self, pooled: Tensor) -> Tensor:  # (B, D) -> (B, D)
        """The affine map (pooled − mean) · matrix. Linear methods need only this: their flow changes nothing."""
        return (pooled - self.mean) @ self.matrix

    def forward(self, pooled: Tensor) -> Tensor:  # (B, D) -> (B, D)
        latent: Tensor = self.flow(self.affine(pooled))
        return latent

    def log_det(self) -> Tensor:  # ()
        """log|det dz/dx| (BERT-flow, section 3). It is the same for every x: couplings and permutations add 0."""
        scales = [step.scale.abs().log().sum() for step in self.flow.modules() if isinstance(step, FlowStep)]
        linear: Tensor = torch.linalg.slogdet(self.matrix).logabsdet
        return torch.stack(scales).sum() + linear


def bits_per_dimension(latent: Tensor, log_det: Tensor) -> Tensor:  # (B, D), () -> ()
    """Negative log-likelihood in bits per dimension: mean −(log N(z; 0, I) + log|det|) / (D ln 2) over the latents z.

    This is the objective of BERT-flow (section 3.2).

    >>> round(float(bits_per_dimension(torch.zeros(1, 8), torch.tensor(0.0))), 4)
    1.3257
    """
    dim = latent.shape[1]
    log_normal = -0.5 * (latent.square().sum(1) + dim * math.log(2 * math.pi))
    bits: Tensor = -(log_normal.mean() + log_det) / (dim * math.log(2))
    return bits
