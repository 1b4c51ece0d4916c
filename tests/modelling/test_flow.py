"""The flow's parameters: what becomes of them, where gradients reach, and the data-dependent start."""

import pytest
import torch
from torch import Tensor

from service.modelling import calibrator
from service.modelling.calibrator import DEPTH, LEVELS, bits_per_dimension, flow, step
from service.modelling.flow import LOG_SCALE_FACTOR, MIN_STD, PAPER, Actnorm, Flow, Step, adamw

dims = pytest.mark.parametrize("dim", [8, 9, 37])


def new_flow(dim: int, seed: int = 0) -> Flow:
    return Flow(dim, "random", torch.Generator().manual_seed(seed))


def random_flow(dim: int) -> Flow:
    """All parameters away from where training starts, in float64."""
    model = new_flow(dim).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def crowded(count: int, dim: int) -> Tensor:
    """Vectors around one far mean, channels of different width."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.linspace(0.1, 2, dim)
    return 3 * torch.randn(dim, generator=generator) + spread * torch.randn(count, dim, generator=generator)


def actnorm(x: Tensor, module: Actnorm) -> Tensor:
    return (x + module.bias) * torch.exp(3 * module.log_scale)


def unfolded_step(x: Tensor, module: Step) -> Tensor:
    """A step as the literature writes it: actnorms and output scale as layers of their own."""
    x = actnorm(x, module.actnorm)[:, module.permutation]
    kept, moved = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
    hidden = torch.relu(actnorm(kept @ module.w1, module.norm1))
    hidden = torch.relu(actnorm(hidden @ module.w2, module.norm2))
    shift = (hidden @ module.w3 + module.b3) * torch.exp(3 * module.log_scale3)
    return torch.cat([kept, moved + shift], dim=1)


def unfolded_flow(x: Tensor, model: Flow) -> Tensor:
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
    torch.testing.assert_close(flow(x, model.tensors()), unfolded_flow(x, model), rtol=1e-10, atol=1e-10)


@dims
def test_the_training_objective_uses_the_calibrators_log_determinant(dim: int) -> None:
    model = random_flow(dim)
    whole = calibrator.identity(dim, torch.float64) | model.tensors()
    torch.testing.assert_close(model.log_det(), calibrator.log_det(whole))


@dims
def test_a_flows_tensors_are_all_the_calibrator_asks_for(dim: int) -> None:
    wanted = {k: (v.shape, v.dtype) for k, v in calibrator.identity(dim).items() if k.startswith("flow.")}
    assert {k: (v.shape, v.dtype) for k, v in new_flow(dim).tensors().items()} == wanted


@dims
def test_gradients_reach_every_parameter_once_the_zero_start_is_left(dim: int) -> None:
    model, x = new_flow(dim), crowded(64, dim)
    optimizer = adamw(model, PAPER)
    for _ in range(2):
        optimizer.zero_grad()
        loss = bits_per_dimension(flow(x, model.tensors()), model.log_det())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    unmoved = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert unmoved == []


@dims
def test_a_new_flow_changes_nothing_but_the_order(dim: int) -> None:
    x = crowded(3, dim)
    latent = flow(x, new_flow(dim).tensors())
    assert torch.equal(latent.sort(1).values, x.sort(1).values)


@dims
def test_every_actnorm_starts_with_zero_mean_and_unit_variance(dim: int) -> None:
    x = crowded(500, dim)
    model = new_flow(dim)
    model.initialize(x)
    tensors = model.tensors()
    for name, module in model.ordered().items():
        if name.endswith(".0.") and name != "flow.0.0.":
            x = x[:, x.shape[1] // 2 :]
        normed = actnorm(x, module.actnorm)
        torch.testing.assert_close(normed.mean(0), torch.zeros(normed.shape[1]), rtol=0, atol=1e-3)
        torch.testing.assert_close(normed.std(0), torch.ones(normed.shape[1]), rtol=0, atol=1e-3)
        kept = normed[:, module.permutation][:, : x.shape[1] // 2]
        hidden = actnorm(kept @ module.w1, module.norm1)
        torch.testing.assert_close(hidden.mean(0), torch.zeros(hidden.shape[1]), rtol=0, atol=1e-3)
        deviation = hidden.std(0).detach()
        assert float(deviation.max()) <= 1.001  # less where a nearly constant channel was clamped
        assert float(deviation.median()) == pytest.approx(1, abs=1e-3)
        x = step(x, tensors, name)


@pytest.mark.parametrize("constant", [1, 4, 8, 16])
def test_constant_channels_are_not_blown_up(constant: int) -> None:
    x = crowded(500, 16)
    x[:, :constant] = 5.0
    model = new_flow(16)
    model.initialize(x)
    assert torch.isfinite(flow(x, model.tensors())).all()
    first = model.ordered()["flow.0.0."].actnorm
    if constant < 16:
        assert float(first.scale.detach().max()) <= 1.001 / (MIN_STD * float(x.std(0).mean()))


@pytest.mark.parametrize("sentences", [1, 2, 3, 4])
def test_a_start_from_very_few_sentences_has_no_nan(sentences: int) -> None:
    x = crowded(500, 16)
    model = new_flow(16)
    model.initialize(x[:sentences])
    assert torch.isfinite(flow(x, model.tensors())).all()


def test_a_seed_means_one_flow() -> None:
    def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
        return all(torch.equal(a[name], b[name]) for name in a)

    assert same(new_flow(16, 1).tensors(), new_flow(16, 1).tensors())
    assert not same(new_flow(16, 1).tensors(), new_flow(16, 2).tensors())
    assert LOG_SCALE_FACTOR == 3.0  # the official code's; `unfolded_step` has it written out
