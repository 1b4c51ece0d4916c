"""The calibrator's mathematics: identity, inverse, and the log-determinant against autograd."""

import pytest
import torch
from torch import Tensor

from isosim.fitting.calibrator import Calibrator, Flow, FlowStep, bits_per_dimension, group_sizes

dims = pytest.mark.parametrize("dim", [8, 9, 30, 37, 64])  # the smallest allowed, odd ones, odd halves


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
