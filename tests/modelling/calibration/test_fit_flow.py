"""Fitting a flow: one seed, one result; it improves; it does not diverge; its optimizer is the one it says."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isosim.fitting.calibrator import Flow
from isosim.fitting.flow import (
    PAPER,
    ROBUST,
    FlowFit,
    FlowParameters,
    FlowSettings,
    adamw,
    drop_bias_correction,
    fit_flow,
)

DIM = 16


def crowded(count: int, seed: int = 0) -> Tensor:
    """Vectors with a large common component and few wide directions, as a raw encoder gives them."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(DIM, DIM, generator=generator) * torch.logspace(0, -2, DIM)[:, None]
    return 4 * torch.randn(DIM, generator=generator) + torch.randn(count, DIM, generator=generator) @ mixing


STANDSTILL = 1e-12  # a learning rate too small to change any vector in float32
TRAIN, HELD_OUT = crowded(900).split([700, 200])
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
