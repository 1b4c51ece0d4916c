"""Every method a caller may ask for becomes weights that the exported graph takes and agrees with."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from service.adapters.encoder_store import EncoderArtifact
from service.adapters.onnx_engine import OnnxCalibrator
from service.core.jobs import METHODS
from service.modelling import linear
from service.modelling.flow import PAPER, ROBUST
from service.modelling.methods import Vectors, bits_per_dimension, fit, gaussian_bits_per_dimension


def crowded(count: int, dim: int, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dim, dim)) * np.logspace(0, -1, dim)[:, None]
    x = 4 * rng.standard_normal(dim) + rng.standard_normal((count, dim)) @ mixing
    return x.astype(np.float32)


TRAIN, HELD_OUT = np.split(crowded(400, 32), [300])
SHORT = {"flow": replace(ROBUST, max_steps=6, check_every=3), "flow-paper": replace(PAPER, max_steps=6)}


@pytest.fixture(scope="module")
def graph(tiny: EncoderArtifact) -> OnnxCalibrator:
    return OnnxCalibrator(tiny.calibrator, ["CPUExecutionProvider"])


@pytest.mark.parametrize("method", [*(m for m in METHODS if m != "auto"), "nulling:1", "whitening-k:8", "partial:0.3"])
def test_a_methods_weights_fit_the_exported_graph_and_agree_with_torch(graph: OnnxCalibrator, method: str) -> None:
    fitted = fit(method, TRAIN, HELD_OUT, seed=0, flow_settings=SHORT.get(method))
    latents = fitted(HELD_OUT)
    if fitted.weights is None:
        np.testing.assert_array_equal(latents, HELD_OUT)
        return
    assert not np.allclose(latents, HELD_OUT, atol=0.01)
    np.testing.assert_allclose(graph.bind(fitted.weights)(HELD_OUT), latents, rtol=0, atol=1e-4)


def test_only_identity_has_no_weights() -> None:
    without = {
        m for m in METHODS if m != "auto" and fit(m, TRAIN, HELD_OUT, 0, flow_settings=SHORT.get(m)).weights is None
    }
    assert without == {"identity"}


@pytest.mark.parametrize("method", ["magic", "auto", "", "flow:3"])
def test_an_unknown_method_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="no method"):
        fit(method, TRAIN, HELD_OUT, seed=0)


@pytest.mark.parametrize("method", ["centring", "sn", "tempered", "whitening", "partial", "whitening-k:8"])
def test_methods_that_spread_a_crowded_space_spread_it(method: str) -> None:
    before = linear.crowding(HELD_OUT.astype(np.float64))
    after = linear.crowding(fit(method, TRAIN, HELD_OUT, seed=0)(HELD_OUT).astype(np.float64))
    assert before > 0.5
    assert after < 0.1


def test_the_held_out_vectors_do_not_enter_a_linear_fit() -> None:
    one, other = (fit("whitening", TRAIN, held, 0).weights for held in (HELD_OUT, -HELD_OUT))
    assert one is not None
    assert other is not None
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", [*(m for m in METHODS if m not in {"auto", "identity"}), "nulling:1", "partial:0.3"])
def test_a_map_fitted_again_to_the_same_text_is_the_same_map(method: str) -> None:
    settings = SHORT.get(method)
    fitted = fit(method, TRAIN, TRAIN[:0], 3, flow_settings=replace(settings, check_every=0) if settings else None)
    again = fitted.again(TRAIN)
    assert again.method == fitted.method
    np.testing.assert_allclose(again(HELD_OUT), fitted(HELD_OUT), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["tempered", "whitening", "flow"])
def test_a_map_fitted_again_to_other_text_keeps_its_strength(method: str) -> None:
    fitted = fit(method, TRAIN, HELD_OUT, 0, flow_settings=SHORT.get(method))
    again = fitted.again(TRAIN[:150])
    for name in {"shrinkage", "crowding", "steps", "permutation", "start_deviation"} & fitted.settings.keys():
        assert again.settings[name] == fitted.settings[name]
    assert not np.array_equal(again(HELD_OUT), fitted(HELD_OUT))


@pytest.mark.parametrize("method", ["identity", "nulling", "whitening-k:8"])
def test_a_map_without_a_density_has_no_bits_per_dimension(method: str) -> None:
    assert bits_per_dimension(fit(method, TRAIN, HELD_OUT, 0), HELD_OUT) is None


def test_a_fitted_flow_is_reported_with_the_bits_its_fit_found() -> None:
    fitted = fit("flow", TRAIN, HELD_OUT, 0, flow_settings=SHORT["flow"])
    assert bits_per_dimension(fitted, HELD_OUT) == pytest.approx(fitted.settings["bits_per_dimension"], rel=1e-4)


def test_the_gaussian_to_beat_is_the_one_with_the_shrunk_covariance() -> None:
    spectrum = linear.Spectrum.of(TRAIN.astype(np.float64))
    covariance = torch.from_numpy((spectrum.vectors * spectrum.values) @ spectrum.vectors.T)
    gaussian = torch.distributions.MultivariateNormal(torch.from_numpy(spectrum.mean), covariance)
    nats = -float(gaussian.log_prob(torch.from_numpy(HELD_OUT.astype(np.float64))).mean())
    assert gaussian_bits_per_dimension(TRAIN, HELD_OUT) == pytest.approx(nats / (32 * np.log(2)), rel=1e-9)
