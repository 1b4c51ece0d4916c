"""The flow's parameters: what becomes of them, where gradients reach, and where training starts."""

import math

import pytest
import torch
from torch import Tensor

from isosim.fitting.calibrator import DEPTH, LEVELS, Calibrator, bits_per_dimension
from isosim.fitting.flow import PAPER, Actnorm, FlowParameters, StepParameters, adamw

dims = pytest.mark.parametrize("dim", [8, 9, 37])


def new_flow(dim: int, seed: int = 0) -> FlowParameters:
    """A flow whose channels are in random order; the service's are in reverse order, which is its own inverse."""
    generator = torch.Generator().manual_seed(seed)
    model = FlowParameters(dim, generator)
    for module in model.ordered().values():
        module.permutation = torch.randperm(len(module.permutation), generator=generator)
    return model


def random_flow(dim: int) -> FlowParameters:
    """All parameters away from where training starts, in float64."""
    model = new_flow(dim).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.3)
    return model


def crowded(count: int, dim: int) -> Tensor:
    """Vectors around one far mean, channels of different width."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.linspace(0.1, 2, dim)
    return 3 * torch.randn(dim, generator=generator) + spread * torch.randn(count, dim, generator=generator)


def actnorm(x: Tensor, module: Actnorm) -> Tensor:
    return (x + module.bias) * torch.exp(3 * module.log_scale)


def unfolded_step(x: Tensor, module: StepParameters) -> Tensor:
    """A step as the literature writes it: actnorms and output scale as layers of their own."""
    x = actnorm(x, module.actnorm)[:, module.permutation]
    kept, moved = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
    hidden = torch.relu(actnorm(kept @ module.w1, module.norm1))
    hidden = torch.relu(actnorm(hidden @ module.w2, module.norm2))
    shift = (hidden @ module.w3 + module.b3) * torch.exp(3 * module.log_scale3)
    return torch.cat([kept, moved + shift], dim=1)


def unfolded_flow(x: Tensor, model: FlowParameters) -> Tensor:
    final = []
    modules = list(model.ordered().values())
    for level in range(LEVELS):
        for module in modules[level * DEPTH : (level + 1) * DEPTH]:
            x = unfolded_step(x, module)
        if level < LEVELS - 1:
            final.append(x[:, : x.shape[1] // 2])
            x = x[:, x.shape[1] // 2 :]
    return torch.cat([*final, x], dim=1)


@dims
def test_folded_weights_do_what_the_layers_they_were_folded_from_did(dim: int) -> None:
    model, x = random_flow(dim), crowded(6, dim).double()
    torch.testing.assert_close(model(x), unfolded_flow(x, model), rtol=1e-10, atol=1e-10)


@dims
def test_the_training_objective_uses_the_calibrators_log_determinant(dim: int) -> None:
    model = random_flow(dim)
    calibrator = Calibrator(dim).double()
    calibrator.flow.load_state_dict(model.tensors())
    torch.testing.assert_close(model.log_det(), calibrator.log_det())


@dims
def test_gradients_reach_every_parameter_once_the_zero_start_is_left(dim: int) -> None:
    model, x = new_flow(dim), crowded(64, dim)
    optimizer = adamw(model, PAPER)
    for _ in range(2):
        optimizer.zero_grad()
        loss = bits_per_dimension(model(x), model.log_det())
        loss.backward()
        optimizer.step()
    unmoved = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert unmoved == []


@dims
def test_a_new_flow_changes_nothing_but_the_order(dim: int) -> None:
    x = crowded(3, dim)
    latent = new_flow(dim)(x)
    assert torch.equal(latent.sort(1).values, x.sort(1).values)


@dims
@pytest.mark.parametrize("scale", [0.02, 1.0, 7.0])
def test_a_start_is_the_multiplication_by_one_number(dim: int, scale: float) -> None:
    x, model = crowded(5, dim), new_flow(dim)
    before = model(x)
    model.start_at(scale)
    torch.testing.assert_close(model(x), scale * before, rtol=1e-5, atol=1e-6)
    assert float(model.log_det().detach()) == pytest.approx(dim * math.log(scale), rel=1e-5, abs=1e-6)
