"""Fits a post-processing method by name. The exported calibrator can run with the weights of any method."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from isosim.arrays import Vectors, Weights
from isosim.errors import InvalidInput
from isosim.fitting import calibrator, linear
from isosim.fitting.flow import PAPER, ROBUST, FlowSettings, fit_flow

PARTIAL_POWER = 0.5
REMOVED = 1.0  # share of the mean direction that `mean-direction` removes
NULLED = 3  # number of directions that nulling removes
WHITENING_KEEP = 256  # number of dimensions that whitening-k keeps (Su et al., 2021, section 4)
SOFT_STRENGTH = 1.0
LOSING_DIMENSIONS = {"mean-direction", "nulling", "sn-nulling", "whitening-k"}
FLOWS = {"flow": ROBUST, "flow-paper": PAPER, "soft-flow": ROBUST}


def is_flow(method: str) -> bool:
    """Whether the method contains a flow, which is trained by gradient descent from a seed."""
    return method.partition(":")[0] in FLOWS


@dataclass(frozen=True)
class FittedMap:
    """A fitted method: its weights (None: identity), and the settings and results of the fit."""

    method: str
    weights: Weights | None
    settings: dict[str, Any]

    def __call__(self, x: Vectors) -> Vectors:  # (N, D) -> (N, D)
        """Maps vectors with the same torch functions from which the ONNX graph is exported."""
        if self.weights is None:
            return x
        with torch.no_grad():
            latents: Vectors = self.mathematics(torch.from_numpy(x), self.tensors()).numpy()
        return latents

    @property
    def mathematics(self) -> Callable[[torch.Tensor, calibrator.Tensors], torch.Tensor]:
        return calibrator.calibrate if is_flow(self.method) else calibrator.affine

    def again(self, x: Vectors) -> "FittedMap":
        """Fits the same method to other vectors (N, D), and reuses shrinkage, crowding, number of steps and seed."""
        if not is_flow(self.method):
            return fit(self.method, x, x[:0], 0, like=self.settings)
        names = {f.name for f in fields(FlowSettings)}
        known = {name: value for name, value in self.settings.items() if name in names}
        steps = {"max_steps": self.settings["steps"], "epochs": math.inf, "check_every": 0}
        settings = FlowSettings(**known | steps)
        return fit(self.method, x, x[:0], self.settings["seed"], flow_settings=settings, like=self.settings)

    def tensors(self) -> dict[str, torch.Tensor]:
        weights = self.weights or {}
        return {name: torch.from_numpy(array) for name, array in weights.items()}


def weights_of(affine: linear.Affine, flow: dict[str, torch.Tensor] | None = None) -> Weights:
    """Calibrator weights of an affine map, followed by a flow if one is given."""
    tensors = calibrator.identity(len(affine.mean)) | (flow or {})
    weights = {name: tensor.numpy() for name, tensor in tensors.items()}
    weights["mean"] = affine.mean.astype(np.float32)
    weights["matrix"] = np.ascontiguousarray(affine.matrix, np.float32)
    return weights


def fit(
    method: str,
    train: Vectors,
    held_out: Vectors,
    seed: int,
    *,
    progress: Callable[[float], None] = lambda _: None,
    flow_settings: FlowSettings | None = None,
    like: Mapping[str, Any] | None = None,
    spectrum: linear.Spectrum | None = None,
) -> FittedMap:
    """Fits a method to vectors (N, D) without labels.

    Args:
        held_out: (H, D) vectors on which a flow is evaluated during its training; linear methods do not use them.
        like: settings of an earlier fit; its shrinkage, crowding and strength are reused.
        spectrum: spectrum of `train`, if it is already known; computing it takes most of a linear method's time.

    Raises:
        ValueError: the method does not exist.
        FloatingPointError: the flow diverged.
        InvalidInput: all vectors are equal.
    """
    if method == "identity":
        return FittedMap(method, None, {})
    if linear.all_equal(train):
        raise InvalidInput(
            f"the encoder gives all {len(train)} sentences the same vector, and {method} needs different vectors: "
            "send texts that differ within the part that the encoder reads, or use the method identity"
        )
    name = method.partition(":")[0]
    affine, settings = _affine(method, train, like or {}, spectrum)
    if not is_flow(method):
        return FittedMap(method, weights_of(affine), settings)
    flow_settings = flow_settings or FLOWS[name]
    flow, facts = _flow(affine, train, held_out, flow_settings, seed, progress)
    return FittedMap(method, weights_of(affine, flow), settings | facts)


def _affine(
    method: str, train: Vectors, like: Mapping[str, Any], spectrum: linear.Spectrum | None
) -> tuple[linear.Affine, dict[str, Any]]:
    """A method's affine map, and its settings; shrinkage, crowding and strength come from `like` if it has them."""
    if method in {"flow", "flow-paper"}:
        return linear.identity(train.shape[1]), {}
    if method == "sn":
        return linear.standard_normalization(train.astype(np.float64)), {}
    name, _, argument = method.partition(":")
    if name == "mean-direction":
        share = float(argument or REMOVED)
        return linear.mean_direction(train.astype(np.float64), share), {"share": share}
    if name == "sn-nulling":
        x = train.astype(np.float64)
        affine, shrinkage = linear.standard_nulling(x, int(argument or NULLED), like.get("shrinkage"))
        return affine, {"shrinkage": shrinkage}
    spectrum = spectrum or linear.Spectrum.from_vectors(train, like.get("shrinkage"))
    settings: dict[str, Any] = {"shrinkage": spectrum.shrinkage}
    match name:
        case "centring":
            affine = linear.centring(spectrum)
        case "nulling":
            settings["directions"] = k = int(argument or NULLED)
            affine = linear.nulling(spectrum, k)
        case "whitening":
            affine = linear.whitening(spectrum)
        case "whitening-k":
            settings["keep"] = k = min(int(argument or WHITENING_KEEP), train.shape[1])
            affine = linear.whitening(spectrum, keep=k)
        case "partial":
            settings["power"] = power = float(argument or PARTIAL_POWER)
            affine = linear.whitening(spectrum, power=power)
        case "tempered":
            settings["crowding"] = c = like.get("crowding", linear.crowding(train.astype(np.float64)))
            affine = linear.tempered_whitening(spectrum, c)
        case "soft" | "soft-flow":
            settings["strength"] = strength = float(like.get("strength", argument or SOFT_STRENGTH))
            affine = linear.soft_whitening(spectrum, strength)
        case _:
            raise ValueError(f"no method {method!r}")
    return affine, settings


def _flow(
    affine: linear.Affine,
    train: Vectors,
    held_out: Vectors,
    settings: FlowSettings,
    seed: int,
    progress: Callable[[float], None],
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Fits a flow to the output of the affine map. Returns the flow's tensors, and facts for the report.

    The facts are the flow's settings and results. Bits per dimension are those of the affine map and the flow together.
    """
    first, check = (torch.from_numpy(affine(x.astype(np.float64)).astype(np.float32)) for x in (train, held_out))
    result = fit_flow(first, check, settings, seed, progress)
    affine_bits = -np.linalg.slogdet(affine.matrix).logabsdet / (len(affine.mean) * math.log(2))
    facts = asdict(settings) | {
        "seed": seed,
        "steps": result.steps,
        "start_bits_per_dimension": result.start_bits_per_dimension + float(affine_bits),
        "bits_per_dimension": result.bits_per_dimension + float(affine_bits),
    }
    return result.tensors, facts


def bits_per_dimension(fitted: FittedMap, x: Vectors) -> float | None:
    """Negative log-likelihood of vectors x (N, D) in bits per dimension.

    None for maps without a density: identity, and maps that lose dimensions.
    """
    if fitted.weights is None:
        return None
    tensors = {name: t.double() if t.is_floating_point() else t for name, t in fitted.tensors().items()}
    with torch.no_grad():
        log_det = calibrator.log_det(tensors)
        if not torch.isfinite(log_det) or fitted.method.partition(":")[0] in LOSING_DIMENSIONS:
            return None
        latents = fitted.mathematics(torch.from_numpy(x).double(), tensors)
        return float(calibrator.bits_per_dimension(latents, log_det))


def gaussian_bits_per_dimension(spectrum: linear.Spectrum, held_out: Vectors) -> float:
    """Bits per dimension of held-out vectors (N, D) under a Gaussian with the spectrum's mean and covariance.

    A flow must do better than this baseline.
    """
    projected = (held_out - spectrum.mean) @ spectrum.vectors
    squares = np.square(projected).mean(0) / spectrum.values
    nats = 0.5 * (squares + np.log(2 * np.pi * spectrum.values)).sum()
    return float(nats / (len(spectrum.values) * np.log(2)))
