"""Trains the flow: the parameters, two presets of settings, and the training loop.

Source: Li et al., "On the Sentence Embeddings from Pre-trained Language Models", EMNLP 2020, section 3;
details that the paper omits follow its official code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isosim.fitting.calibrator import DEPTH, HIDDEN, Flow, bits_per_dimension, level_sizes

CHECKED = 1000  # largest number of sentences on which the flow is evaluated
LOG_SCALE_FACTOR = 3.0  # actnorm's scale is exp(3 · log_scale), as in the official code


@dataclass(frozen=True)
class FlowSettings:
    """Training settings of a flow; `PAPER` and `ROBUST` are the two presets."""

    learning_rate: float = 1e-3
    batch: int = 64  # sentences per batch; the official code uses 32 pairs
    epochs: float = 1.0
    max_steps: int | None = None
    weight_decay: float = 0.01
    clip: float = 1.0  # largest norm of the gradient; a larger gradient is scaled down to this norm
    # The untrained flow scales vectors to this standard deviation; None: the untrained flow is the identity.
    start_deviation: float | None = None
    check_every: int = 0  # steps between evaluations on the held-out vectors; 0: no early stop
    patience: int = 3  # number of checks without improvement after which the training stops


PAPER = FlowSettings()
# Reasons for the settings of `ROBUST`. The last two reasons also apply to `PAPER`. Scores are mean Spearman
# correlations × 100 on the seven STS sets, with vectors of MiniLM's third layer.
# - `max_steps`: flows fitted to the text of the STS sets score 66.8 after 80 steps, 66.7 after 120 and 67.0 after 160.
#   Flows fitted to other text also score highest after 160 steps.
# - `start_deviation`: before the training, the flow multiplies all channels by one number, which gives the training
#   vectors this standard deviation. If each channel is standardized separately instead, as in Glow (data-dependent
#   actnorm), flows score 1 to 2 points lower.
# - Order of the channels: every step reverses it. With random permutations, flows score 1 point lower.
# - AdamW: its bias correction is turned off (`drop_bias_correction`). With the correction, flows score 1 point lower.
ROBUST = FlowSettings(epochs=math.inf, max_steps=160, start_deviation=1 / 3, check_every=20)


class Actnorm(nn.Module):
    """Scale and bias per channel: y = (x + bias) · exp(3 · log_scale) (Glow, section 3.1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    @property
    def scale(self) -> Tensor:  # (C,)
        return torch.exp(LOG_SCALE_FACTOR * self.log_scale)


class StepParameters(nn.Module):
    """The trained parameters of a `FlowStep`; `tensors` converts them to its tensors."""

    permutation: Tensor

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        kept, moved = channels // 2, channels - channels // 2
        self.actnorm = Actnorm(channels)
        self.register_buffer("permutation", torch.arange(channels).flip(0))
        self.w1 = nn.Parameter(0.05 * torch.randn(kept, HIDDEN, generator=generator))
        self.norm1 = Actnorm(HIDDEN)
        self.w2 = nn.Parameter(0.05 * torch.randn(HIDDEN, HIDDEN, generator=generator))
        self.norm2 = Actnorm(HIDDEN)
        self.w3 = nn.Parameter(torch.zeros(HIDDEN, moved))
        self.b3 = nn.Parameter(torch.zeros(moved))
        self.log_scale3 = nn.Parameter(torch.zeros(moved))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the `FlowStep`, differentiable. Weights and biases are multiplied by the scales."""
        scale, scale1, scale2 = self.actnorm.scale, self.norm1.scale, self.norm2.scale
        scale3 = torch.exp(LOG_SCALE_FACTOR * self.log_scale3)
        return {
            "scale": scale,
            "shift": self.actnorm.bias * scale,
            "permutation": self.permutation,
            "w1": self.w1 * scale1,
            "b1": self.norm1.bias * scale1,
            "w2": self.w2 * scale2,
            "b2": self.norm2.bias * scale2,
            "w3": self.w3 * scale3,
            "b3": self.b3 * scale3,
        }


class FlowParameters(nn.Module):
    """The trained parameters of a `Flow`, which computes with the tensors that they are converted to."""

    def __init__(self, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.flow = Flow(dim)
        names = [(f"{level}.{depth}", c) for level, c in enumerate(level_sizes(dim)) for depth in range(DEPTH)]
        self.names = [name for name, _ in names]
        self.steps = nn.ModuleList(StepParameters(c, generator) for _, c in names)

    def ordered(self) -> dict[str, StepParameters]:
        """The steps in the order in which they are applied, by their names in the flow, such as `0.2`."""
        both = zip(self.names, self.steps, strict=True)
        return {name: step for name, step in both if isinstance(step, StepParameters)}

    def tensors(self) -> dict[str, Tensor]:
        """The flow's tensors by name, such as `0.2.scale`; differentiable."""
        each = ((name, step.tensors()) for name, step in self.ordered().items())
        return {f"{name}.{tensor}": value for name, tensors in each for tensor, value in tensors.items()}

    def forward(self, x: Tensor) -> Tensor:  # (B, D) -> (B, D)
        latent: Tensor = functional_call(self.flow, self.tensors(), (x,))
        return latent

    def log_det(self) -> Tensor:  # ()
        """Log-determinant, the same for every input: the sum of ln(scale) over all channels of the steps' actnorms."""
        sums = [step.actnorm.log_scale.sum() for step in self.ordered().values()]
        return LOG_SCALE_FACTOR * torch.stack(sums).sum()

    @torch.no_grad()
    def start_at(self, scale: float) -> None:
        """Initializes the flow as a multiplication by a positive number.

        >>> model = FlowParameters(8, torch.Generator().manual_seed(0))
        >>> model.start_at(0.5)
        >>> round(model.log_det().item() / math.log(2), 4)
        -8.0
        """
        self.ordered()["0.0"].actnorm.log_scale.fill_(math.log(scale) / LOG_SCALE_FACTOR)


@dataclass(frozen=True)
class FlowFit:
    """A fitted flow's tensors and the results of the training."""

    tensors: dict[str, Tensor]
    steps: int
    # Mean negative log-likelihood per dimension, in bits, of the first CHECKED held-out vectors. If no vectors are held
    # out, training vectors are used instead.
    bits_per_dimension: float
    start_bits_per_dimension: float  # the value of `bits_per_dimension` before the first training step


def adamw(flow: FlowParameters, settings: FlowSettings) -> torch.optim.AdamW:
    return torch.optim.AdamW(flow.parameters(), lr=settings.learning_rate, eps=1e-6, weight_decay=settings.weight_decay)


def drop_bias_correction(optimizer: torch.optim.AdamW, step: int, settings: FlowSettings) -> None:
    """Turns off AdamW's bias correction for the next step, as in BERT's optimizer, which the official code uses.

    m and v are AdamW's running means of the gradient and of its square. At step t, PyTorch divides m by 1 − β₁ᵗ and v
    by 1 − β₂ᵗ. To undo this, the learning rate, ε and the weight decay are rescaled. The update is then m / (√v + ε).
    """
    for group in optimizer.param_groups:
        first, second = (1 - beta**step for beta in group["betas"])
        group["lr"] = settings.learning_rate * first / math.sqrt(second)
        group["eps"] = 1e-6 / math.sqrt(second)
        group["weight_decay"] = settings.weight_decay * settings.learning_rate / group["lr"]


def fit_flow(
    train: Tensor,
    held_out: Tensor,
    settings: FlowSettings,
    seed: int,
    progress: Callable[[float], None] = lambda _: None,
) -> FlowFit:
    """Fits a flow to vectors by maximum likelihood (BERT-flow, section 3.2); deterministic for a seed.

    Args:
        train: (N, D) vectors.
        held_out: (H, D) vectors on which the flow is evaluated; if H is 0, `train` is used.
        progress: called with the completed share, 0–1.

    Raises:
        FloatingPointError: the objective became infinite or NaN.

    >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)) * 3
    >>> fit = fit_flow(x, x[:0], FlowSettings(max_steps=5, epochs=math.inf), seed=0)
    >>> fit.steps, fit.bits_per_dimension < fit.start_bits_per_dimension
    (5, True)
    """
    generator = torch.Generator().manual_seed(seed)
    model = FlowParameters(train.shape[1], generator)
    if settings.start_deviation is not None:
        model.start_at(settings.start_deviation / max(float(train.std()), 1e-12))

    check = (held_out if len(held_out) else train)[:CHECKED]

    @torch.no_grad()
    def evaluate() -> float:
        return float(bits_per_dimension(model(check), model.log_det()))

    start = best = evaluate()
    best_tensors = {name: t.detach().clone() for name, t in model.tensors().items()}
    optimizer = adamw(model, settings)
    batches_an_epoch = max(1, len(train) // settings.batch)
    total = math.ceil(min(settings.epochs * batches_an_epoch, settings.max_steps or math.inf))
    done = stale = 0
    order = torch.empty(0, dtype=torch.long)
    while done < total and stale < settings.patience:
        if len(order) < settings.batch:
            order = torch.randperm(len(train), generator=generator)
        batch, order = train[order[: settings.batch]], order[settings.batch :]
        loss = bits_per_dimension(model(batch), model.log_det())
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the flow diverged at step {done} (seed {seed})")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        done += 1
        drop_bias_correction(optimizer, done, settings)
        optimizer.step()
        if settings.check_every and (done % settings.check_every == 0 or done == total):
            value = evaluate()
            if value < best:
                best, stale = value, 0
                best_tensors = {name: t.detach().clone() for name, t in model.tensors().items()}
            else:
                stale += 1
        progress(done / total)
    if not settings.check_every:
        best, best_tensors = evaluate(), {name: t.detach().clone() for name, t in model.tensors().items()}
    if not math.isfinite(best):
        raise FloatingPointError(f"the flow diverged (seed {seed})")
    return FlowFit(best_tensors, done, best, start)
