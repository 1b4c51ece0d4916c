"""Token vectors to one vector a text."""

from collections.abc import Callable

import torch
from torch import Tensor

Hidden = tuple[Tensor, ...]  # (B, T, D): embedding layer first, last layer last


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    return weighted(hidden, mask.unsqueeze(-1).to(hidden.dtype))


def weighted(hidden: Tensor, weights: Tensor) -> Tensor:  # (B, T, D), (B, T, 1) -> (B, D)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def masked_max(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(hidden.dtype).min).amax(1)


def mean_sqrt_len(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    """The sum over the square root of the length: the mean's direction, another norm."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1).sqrt()


def weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    """Each token weighs its place, from 1: in a causal model the later ones saw more (SGPT: Muennighoff, 2022)."""
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
    # What BERT-flow's code computes under the name last2avg: layer 1 and the last layer (a loop's slip).
    "first-last-avg": lambda hidden, mask: (masked_mean(hidden[1], mask) + masked_mean(hidden[-1], mask)) / 2,
    "last2avg": lambda hidden, mask: (masked_mean(hidden[-2], mask) + masked_mean(hidden[-1], mask)) / 2,
}
LAYERS_NEEDED = {"first-last-avg": 1, "last2avg": 1}
POOLER = "pooler"  # the checkpoint's own layer on the first token; supervised SimCSE's vectors (Gao et al., 2021)
NAMES = [*POOLINGS, POOLER]


def parts(pooling: str) -> list[str]:
    """The poolings whose vectors stand one after the other: `cls+mean` has twice the dimensions."""
    return pooling.split("+")


def pool(pooling: str, hidden: Hidden, mask: Tensor, pooler: Tensor | None) -> Tensor:
    """(B, T, D) a layer, (B, T), the pooler's (B, D) -> (B, D × parts)."""
    found = []
    for name in parts(pooling):
        vectors = pooler if name == POOLER else POOLINGS[name](hidden, mask)
        assert vectors is not None  # noqa: S101 - `load` refuses a pooler that is not there
        found.append(vectors)
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)
