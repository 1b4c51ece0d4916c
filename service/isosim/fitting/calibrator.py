"""The calibrator: an affine map followed by a flow. Every post-processing method can be written in this form.

This is the only implementation of the calibrator. Its weights are named tensors. The flow's training computes them
(`flow.py`), and so do linear methods (`linear.py`). The exporter makes them inputs of a graph (`export.py`), and the
server runs this graph.

Shapes: B sentences, D dimensions, C channels of a level, K kept half, M moved half, H hidden width.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

LEVELS = 3  # number of levels, as in BERT-flow's code; the paper says 2
DEPTH = 3  # steps per level
HIDDEN = 32  # width of a coupling network

Tensors = Mapping[str, Tensor]
"""A calibrator's weights by name; see `identity` for names and shapes."""


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


def steps(dim: int) -> list[tuple[str, int]]:
    """For each step, in order: the prefix of its tensors' names, and its number of channels C."""
    return [(f"flow.{level}.{step}.", c) for level, c in enumerate(level_sizes(dim)) for step in range(DEPTH)]


def identity(dim: int) -> dict[str, Tensor]:
    """Weights of a calibrator that changes nothing.

    Every calibrator has these tensors: mean (D,), matrix (D, D). Each step has scale (C,), shift (C,), permutation (C,)
    int64, and a coupling network: w1 (K, H), b1 (H,), w2 (H, H), b2 (H,), w3 (H, M), b3 (M,).

    Raises:
        ValueError: `dim` is below 8, too small for three levels.
    """
    if dim < 8:
        raise ValueError(f"vectors of {dim} dimensions are too small for {LEVELS} levels; at least 8 are needed")
    weights = {"mean": torch.zeros(dim), "matrix": torch.eye(dim)}
    for name, c in steps(dim):
        kept, moved = c // 2, c - c // 2
        weights |= {
            name + "scale": torch.ones(c),
            name + "shift": torch.zeros(c),
            name + "permutation": torch.arange(c),
            name + "w1": torch.zeros(kept, HIDDEN),
            name + "b1": torch.zeros(HIDDEN),
            name + "w2": torch.zeros(HIDDEN, HIDDEN),
            name + "b2": torch.zeros(HIDDEN),
            name + "w3": torch.zeros(HIDDEN, moved),
            name + "b3": torch.zeros(moved),
        }
    return weights


def coupling(kept: Tensor, w: Tensors, name: str) -> Tensor:  # (B, K) -> (B, M)
    """Shift of an additive coupling, computed by two ReLU layers and a linear one (NICE, Dinh et al., 2014, 3.2)."""
    hidden = torch.relu(torch.addmm(w[name + "b1"], kept, w[name + "w1"]))
    hidden = torch.relu(torch.addmm(w[name + "b2"], hidden, w[name + "w2"]))
    return torch.addmm(w[name + "b3"], hidden, w[name + "w3"])


def step(x: Tensor, w: Tensors, name: str) -> Tensor:  # (B, C) -> (B, C)
    """Actnorm, permutation, additive coupling (Glow, Kingma & Dhariwal, 2018, section 3)."""
    x = (x * w[name + "scale"] + w[name + "shift"]).index_select(1, w[name + "permutation"])
    half = x.shape[1] // 2
    kept, moved = x[:, :half], x[:, half:]
    return torch.cat([kept, moved + coupling(kept, w, name)], dim=1)


def flow(x: Tensor, w: Tensors) -> Tensor:  # (B, D) -> (B, D)
    """Multi-scale flow: after each level except the last, half of the channels are final (RealNVP, section 3.6)."""
    final = []
    for level in range(LEVELS):
        for depth in range(DEPTH):
            x = step(x, w, f"flow.{level}.{depth}.")
        if level < LEVELS - 1:
            half = x.shape[1] // 2
            final.append(x[:, :half])
            x = x[:, half:]
    return torch.cat([*final, x], dim=1)


def affine(pooled: Tensor, w: Tensors) -> Tensor:  # (B, D) -> (B, D)
    """The affine map (pooled − mean) · matrix. Linear methods need only this map: their flow changes nothing."""
    return (pooled - w["mean"]) @ w["matrix"]


def calibrate(pooled: Tensor, w: Tensors) -> Tensor:  # (B, D) -> (B, D)
    """Maps encoder vectors to latents: z = flow((x − mean) · matrix).

    >>> x = torch.arange(16.0).reshape(2, 8)
    >>> torch.equal(calibrate(x, identity(8)), x)
    True
    >>> calibrate(x, identity(8) | {"mean": torch.ones(8), "matrix": 2 * torch.eye(8)})[0].tolist()
    [-2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    """
    return flow(affine(pooled, w), w)


def log_det(w: Tensors) -> Tensor:  # ()
    """log|det dz/dx| (BERT-flow, section 3). It does not depend on x, since couplings and permutations contribute 0."""
    scales = [w[name].abs().log().sum() for name in w if name.endswith(".scale")]
    linear: Tensor = torch.linalg.slogdet(w["matrix"]).logabsdet
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
