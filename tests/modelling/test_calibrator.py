"""The calibrator's mathematics: identity, inverse, and the log-determinant against autograd."""

import pytest
import torch
from torch import Tensor

from isosim.fitting.calibrator import (
    DEPTH,
    LEVELS,
    Tensors,
    affine,
    bits_per_dimension,
    calibrate,
    coupling,
    flow,
    group_sizes,
    identity,
    log_det,
)

dims = pytest.mark.parametrize("dim", [8, 9, 30, 37, 64])  # the smallest allowed, odd ones, odd halves


def random_weights(dim: int, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor random, in float64; scales positive, as actnorm makes them."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in identity(dim).items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if name.endswith(".permutation"):
            weights[name] = torch.randperm(len(tensor), generator=generator)
        elif name.endswith(".scale"):
            weights[name] = torch.exp(0.5 * noise)
        else:
            weights[name] = tensor + noise / tensor.shape[0] ** 0.5
    return weights


def step_inverse(y: Tensor, w: Tensors, name: str) -> Tensor:  # (B, C) -> (B, C)
    half = y.shape[1] // 2
    kept, moved = y[:, :half], y[:, half:]
    x = torch.cat([kept, moved - coupling(kept, w, name)], dim=1)
    x = x.index_select(1, torch.argsort(w[name + "permutation"]))
    return (x - w[name + "shift"]) / w[name + "scale"]


def flow_inverse(z: Tensor, w: Tensors) -> Tensor:  # (B, D) -> (B, D)
    final = list(torch.split(z, group_sizes(z.shape[1]), dim=1))
    x = final.pop()
    for level in reversed(range(LEVELS)):
        if level < LEVELS - 1:
            x = torch.cat([final.pop(), x], dim=1)
        for depth in reversed(range(DEPTH)):
            x = step_inverse(x, w, f"flow.{level}.{depth}.")
    return x


def calibrate_inverse(latent: Tensor, w: Tensors) -> Tensor:  # (B, D) -> (B, D)
    """Maps latents back to encoder vectors; the matrix must be invertible."""
    centred: Tensor = torch.linalg.solve(w["matrix"].T, flow_inverse(latent, w).T).T
    return centred + w["mean"]


def vectors(count: int, dim: int) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@dims
def test_identity_weights_change_no_bit(dim: int) -> None:
    x = vectors(5, dim).float()
    assert torch.equal(calibrate(x, identity(dim)), x)
    assert log_det(identity(dim)) == 0


@dims
def test_the_flow_is_undone_by_its_inverse(dim: int) -> None:
    x, weights = vectors(5, dim), random_weights(dim)
    latent = flow(x, weights)
    assert (latent - x).abs().max() > 0.1
    torch.testing.assert_close(flow_inverse(latent, weights), x, rtol=0, atol=1e-8)
    torch.testing.assert_close(flow(flow_inverse(x, weights), weights), x, rtol=0, atol=1e-8)


@dims
def test_latents_lead_back_to_the_encoders_vectors(dim: int) -> None:
    x, weights = vectors(5, dim), random_weights(dim)
    condition = float(torch.linalg.cond(weights["matrix"]))
    back = calibrate_inverse(calibrate(x, weights), weights)
    torch.testing.assert_close(back, x, rtol=0, atol=1e-10 * condition)


@dims
@pytest.mark.parametrize("seed", [0, 1])
def test_the_log_determinant_is_that_of_the_jacobian_everywhere(dim: int, seed: int) -> None:
    weights = random_weights(dim, seed)
    for x in vectors(2, dim):
        jacobian = torch.autograd.functional.jacobian(lambda v: calibrate(v[None], weights)[0], x)
        torch.testing.assert_close(log_det(weights), torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-9, atol=1e-9)


@dims
def test_a_row_of_a_batch_is_mapped_as_if_alone(dim: int) -> None:
    x, weights = vectors(5, dim), random_weights(dim)
    alone = torch.cat([calibrate(row[None], weights) for row in x])
    torch.testing.assert_close(calibrate(x, weights), alone, rtol=0, atol=1e-11)


def test_bits_per_dimension_are_those_of_the_gaussian_an_affine_map_describes() -> None:
    weights = {name: t.double() if t.is_floating_point() else t for name, t in identity(8).items()}
    weights |= {name: random_weights(8)[name] for name in ("mean", "matrix")}
    x = vectors(50, 8)
    gaussian = torch.distributions.MultivariateNormal(
        weights["mean"], precision_matrix=weights["matrix"] @ weights["matrix"].T
    )
    nats = -gaussian.log_prob(x).mean()
    bits = bits_per_dimension(calibrate(x, weights), log_det(weights))
    torch.testing.assert_close(bits, nats / (8 * torch.log(torch.tensor(2.0, dtype=torch.float64))))


def test_vectors_too_small_for_three_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        identity(7)


def test_the_identitys_flow_gives_back_what_it_is_given_bit_for_bit() -> None:
    w = identity(33)
    w["mean"], w["matrix"] = torch.randn(33), torch.randn(33, 33)
    x = torch.randn(20, 33)
    assert torch.equal(calibrate(x, w), affine(x, w))
