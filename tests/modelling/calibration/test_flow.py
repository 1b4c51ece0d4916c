"""The flow: its mathematics against autograd, where training starts, and what a fit gives."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isosim.fitting.calibrator import DEPTH, LEVELS, Calibrator, Flow, FlowStep, bits_per_dimension, group_sizes
from isosim.fitting.flow import (
    PAPER,
    ROBUST,
    Actnorm,
    FlowFit,
    FlowParameters,
    FlowSettings,
    StepParameters,
    adamw,
    drop_bias_correction,
    fit_flow,
)

dims = pytest.mark.parametrize("dim", [8, 9, 30, 37, 64])  # the smallest allowed, odd ones, odd halves


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


DIM = 16


def common_direction(count: int, seed: int = 0) -> Tensor:
    """Vectors with a large common component and few wide directions, as a raw encoder gives them."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(DIM, DIM, generator=generator) * torch.logspace(0, -2, DIM)[:, None]
    return 4 * torch.randn(DIM, generator=generator) + torch.randn(count, DIM, generator=generator) @ mixing


STANDSTILL = 1e-12  # a learning rate too small to change any vector in float32
TRAIN, HELD_OUT = common_direction(900).split([700, 200])
presets = pytest.mark.parametrize("preset", [PAPER, ROBUST], ids=["paper", "robust"])


def mapped(x: Tensor, fit: FlowFit) -> Tensor:
    flow = Flow(DIM)
    flow.load_state_dict(fit.tensors)
    latents: Tensor = flow(x)
    return latents


def same(a: FlowFit, b: FlowFit) -> bool:
    return all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


@presets
def test_a_seed_gives_one_result_and_another_seed_another(preset: FlowSettings) -> None:
    settings = replace(preset, max_steps=8, check_every=0)
    first, again, other = (fit_flow(TRAIN, HELD_OUT, settings, seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert first == replace(again, tensors=first.tensors)
    assert not same(first, other)


@presets
def test_seeds_do_not_diverge_on_crowded_vectors(preset: FlowSettings) -> None:
    settings = replace(preset, max_steps=6, check_every=6 if preset.check_every else 0)
    fits = [fit_flow(TRAIN, HELD_OUT, settings, seed) for seed in range(12)]
    assert all(torch.isfinite(tensor).all() for fit in fits for tensor in fit.tensors.values())
    assert all(fit.bits_per_dimension < fit.start_bits_per_dimension for fit in fits)


@presets
def test_held_out_bits_per_dimension_improve_with_more_steps(preset: FlowSettings) -> None:
    settings = replace(preset, epochs=5.0, max_steps=None)
    few, many = (fit_flow(TRAIN, HELD_OUT, replace(settings, max_steps=n), seed=0) for n in (25, 50))
    assert few.start_bits_per_dimension == many.start_bits_per_dimension
    assert many.bits_per_dimension < few.bits_per_dimension < few.start_bits_per_dimension - 0.01


def test_a_fit_that_gets_no_better_stops_after_its_patience() -> None:
    still = replace(ROBUST, learning_rate=STANDSTILL, check_every=2, patience=3)
    assert fit_flow(TRAIN, HELD_OUT, still, seed=0).steps == 2 * 3


@presets
@pytest.mark.parametrize("sentences", [1, 2, 3, 4, 20])
def test_a_sample_smaller_than_a_batch_is_fitted_without_nan(preset: FlowSettings, sentences: int) -> None:
    fit = fit_flow(TRAIN[:sentences], HELD_OUT, replace(preset, max_steps=5), seed=0)
    assert math.isfinite(fit.bits_per_dimension)
    assert torch.isfinite(mapped(TRAIN, fit)).all()


@presets
@pytest.mark.parametrize("poison", [math.inf, math.nan])
def test_vectors_without_a_likelihood_are_an_error_and_no_result(preset: FlowSettings, poison: float) -> None:
    x = TRAIN.clone()
    x[:, 3] = poison
    with pytest.raises(FloatingPointError, match=r"at step 0 \(seed 7\)"):
        fit_flow(x, HELD_OUT, preset, seed=7)


def test_dropped_bias_correction_leaves_the_update_of_the_official_code() -> None:
    """m ← β₁m + (1−β₁)g; v ← β₂v + (1−β₂)g²; p ← p − η (m / (√v + ε) + λp), nothing divided by 1 − βᵗ."""
    generator = torch.Generator().manual_seed(0)
    model = FlowParameters(8, generator).double()
    optimizer = adamw(model, PAPER)
    expected = [p.detach().clone() for p in model.parameters()]
    first = [torch.zeros_like(p) for p in expected]
    second = [torch.zeros_like(p) for p in expected]
    for t in range(1, 31):
        for i, parameter in enumerate(model.parameters()):
            g = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = g
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.999 * second[i] + 0.001 * g * g
            update = first[i] / (second[i].sqrt() + 1e-6) + 0.01 * expected[i]
            expected[i] = expected[i] - 1e-3 * update
        drop_bias_correction(optimizer, t, PAPER)
        optimizer.step()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-12, atol=1e-12)


def random_calibrator(dim: int, seed: int = 0) -> Calibrator:
    """Every tensor random, in float64; scales positive, as actnorm makes them."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in Calibrator(dim).state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if name.endswith(".permutation"):
            weights[name] = torch.randperm(len(tensor), generator=generator)
        elif name.endswith(".scale"):
            weights[name] = torch.exp(0.5 * noise)
        else:
            weights[name] = tensor + noise / tensor.shape[0] ** 0.5
    return Calibrator.from_weights(weights)


def step_inverse(y: Tensor, step: FlowStep) -> Tensor:  # (B, C) -> (B, C)
    half = y.shape[1] // 2
    kept, moved = y[:, :half], y[:, half:]
    x = torch.cat([kept, moved - step.coupling(kept)], dim=1)
    x = x.index_select(1, torch.argsort(step.permutation))
    return (x - step.shift) / step.scale


def flow_inverse(z: Tensor, flow: Flow) -> Tensor:  # (B, D) -> (B, D)
    final = list(torch.split(z, group_sizes(z.shape[1]), dim=1))
    x = final.pop()
    for level in reversed(range(len(flow))):
        if level < len(flow) - 1:
            x = torch.cat([final.pop(), x], dim=1)
        for step in reversed([*flow[level].children()]):
            assert isinstance(step, FlowStep)
            x = step_inverse(x, step)
    return x


def vectors(count: int, dim: int) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@dims
def test_identity_weights_change_no_bit(dim: int) -> None:
    x = vectors(5, dim).float()
    assert torch.equal(Calibrator(dim)(x), x)
    assert Calibrator(dim).log_det() == 0


@dims
def test_the_flow_is_undone_by_its_inverse(dim: int) -> None:
    x, flow = vectors(5, dim), random_calibrator(dim).flow
    latent = flow(x)
    assert (latent - x).abs().max() > 0.1
    torch.testing.assert_close(flow_inverse(latent, flow), x, rtol=0, atol=1e-8)
    torch.testing.assert_close(flow(flow_inverse(x, flow)), x, rtol=0, atol=1e-8)


@dims
@pytest.mark.parametrize("seed", [0, 1])
def test_the_log_determinant_is_that_of_the_jacobian_everywhere(dim: int, seed: int) -> None:
    calibrator = random_calibrator(dim, seed)
    for x in vectors(2, dim):
        jacobian = torch.autograd.functional.jacobian(lambda v: calibrator(v[None])[0], x)
        torch.testing.assert_close(calibrator.log_det(), torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-9, atol=1e-9)


@dims
def test_a_row_of_a_batch_is_mapped_as_if_alone(dim: int) -> None:
    x, calibrator = vectors(5, dim), random_calibrator(dim)
    alone = torch.cat([calibrator(row[None]) for row in x])
    torch.testing.assert_close(calibrator(x), alone, rtol=0, atol=1e-11)


def test_bits_per_dimension_are_those_of_the_gaussian_an_affine_map_describes() -> None:
    calibrator, drawn = Calibrator(8).double(), random_calibrator(8)
    calibrator.mean, calibrator.matrix = drawn.mean, drawn.matrix
    x = vectors(50, 8)
    precision = calibrator.matrix @ calibrator.matrix.T
    gaussian = torch.distributions.MultivariateNormal(calibrator.mean, precision_matrix=precision)
    nats = -gaussian.log_prob(x).mean()
    bits = bits_per_dimension(calibrator(x), calibrator.log_det())
    torch.testing.assert_close(bits, nats / (8 * torch.log(torch.tensor(2.0, dtype=torch.float64))))


def test_vectors_too_small_for_three_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        Calibrator(7)


def test_the_identitys_flow_gives_back_what_it_is_given_bit_for_bit() -> None:
    given = {"mean": torch.randn(33), "matrix": torch.randn(33, 33)}
    calibrator = Calibrator.from_weights(given, strict=False)
    x = torch.randn(20, 33)
    assert torch.equal(calibrator(x), calibrator.affine(x))
