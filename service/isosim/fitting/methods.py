"""Fits a post-processing method. The exported calibrator can run with the weights of any method."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

from isosim.arrays import Vectors, Weights
from isosim.errors import InvalidInput
from isosim.fitting import linear
from isosim.fitting.calibrator import Calibrator
from isosim.fitting.flow import PAPER, ROBUST, FlowSettings, fit_flow
from isosim.scoring.method import IDENTITY, Method

DEFAULT_STRENGTHS = {  # of the methods that have a strength
    "partial": 0.5,
    "mean-direction": 1.0,
    "nulling": 3,
    "sn-nulling": 3,
    "whitening-k": 256,  # Su et al., 2021, section 4
    "soft": 1.0,
    "soft-flow": 1.0,
}
PRESETS = {"flow": ROBUST, "flow-paper": PAPER, "soft-flow": ROBUST}


@dataclass(frozen=True)
class FittedMap:
    """A fitted method: its weights (None: identity), and the settings and results of the fit."""

    method: Method
    weights: Weights | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Vectors) -> Vectors:  # (N, D) -> (N, D)
        """Maps vectors with the same mathematics from which the ONNX graph is exported."""
        if self.weights is None:
            return x
        calibrator = Calibrator.from_weights({name: torch.from_numpy(array) for name, array in self.weights.items()})
        with torch.no_grad():
            latents: Vectors = (calibrator if self.method.is_flow else calibrator.affine)(torch.from_numpy(x)).numpy()
        return latents

    def refit(self, x: Vectors) -> "FittedMap":
        """Fits the same method to other vectors (N, D), and reuses shrinkage, crowding, number of steps and seed."""
        if not self.method.is_flow:
            return fit(self.method, x, x[:0], 0, like=self.settings)
        names = {f.name for f in fields(FlowSettings)}
        known = {name: value for name, value in self.settings.items() if name in names}
        steps = {"max_steps": self.settings["steps"], "epochs": math.inf, "check_every": 0}
        settings = FlowSettings(**known | steps)
        return fit(self.method, x, x[:0], self.settings["seed"], flow_settings=settings, like=self.settings)


UNCHANGED = FittedMap(IDENTITY)


def weights_of(affine: linear.Affine, flow: dict[str, torch.Tensor] | None = None) -> Weights:
    """Calibrator weights of an affine map, followed by a flow if one is given."""
    calibrator = Calibrator(len(affine.mean))
    if flow is not None:
        calibrator.flow.load_state_dict(flow)
    weights = {name: tensor.numpy() for name, tensor in calibrator.state_dict().items()}
    weights["mean"] = affine.mean.astype(np.float32)
    weights["matrix"] = np.ascontiguousarray(affine.matrix, np.float32)
    return weights


def fit(
    method: Method,
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
        like: settings of an earlier fit; its shrinkage and crowding are reused.
        spectrum: spectrum of `train`, if it is already known; computing it takes most of a linear method's time.

    Raises:
        ValueError: the method does not exist, or has no such strength.
        FloatingPointError: the flow diverged.
        InvalidInput: all vectors are equal.
    """
    if method.strength is not None and method.name not in DEFAULT_STRENGTHS:
        raise ValueError(f"no method '{method}': {method.name} has no strength")
    if method.name == "identity":
        return UNCHANGED
    if linear.all_equal(train):
        raise InvalidInput(
            f"the encoder gives all {len(train)} sentences the same vector, and {method} needs different vectors: "
            "send texts that differ within the part that the encoder reads, or use the method identity"
        )
    affine, settings = _affine(method, train, like or {}, spectrum)
    if not method.is_flow:
        return FittedMap(method, weights_of(affine), settings)
    flow, facts = _flow(affine, train, held_out, flow_settings or PRESETS[method.name], seed, progress)
    return FittedMap(method, weights_of(affine, flow), settings | facts)


def _affine(
    method: Method, train: Vectors, like: Mapping[str, Any], spectrum: linear.Spectrum | None
) -> tuple[linear.Affine, dict[str, Any]]:
    """A method's affine map, and what a fit to other vectors reuses; it comes from `like` if that has it."""
    strength = DEFAULT_STRENGTHS.get(method.name, 0.0) if method.strength is None else method.strength
    match method.name:
        case "flow" | "flow-paper":
            return linear.identity(train.shape[1]), {}
        case "sn":
            return linear.standard_normalization(train.astype(np.float64)), {}
        case "mean-direction":
            return linear.mean_direction(train.astype(np.float64), strength), {}
        case "sn-nulling":
            x = train.astype(np.float64)
            affine, shrinkage = linear.standard_nulling(x, int(strength), like.get("shrinkage"))
            return affine, {"shrinkage": shrinkage}
    spectrum = spectrum or linear.Spectrum.from_vectors(train, like.get("shrinkage"))
    settings: dict[str, Any] = {"shrinkage": spectrum.shrinkage}
    match method.name:
        case "centring":
            affine = linear.centring(spectrum)
        case "nulling":
            affine = linear.nulling(spectrum, int(strength))
        case "whitening":
            affine = linear.whitening(spectrum)
        case "whitening-k":
            affine = linear.whitening(spectrum, keep=int(strength))
        case "partial":
            affine = linear.whitening(spectrum, power=strength)
        case "tempered":
            settings["crowding"] = c = like.get("crowding", linear.crowding(train.astype(np.float64)))
            affine = linear.tempered_whitening(spectrum, c)
        case "soft" | "soft-flow":
            affine = linear.soft_whitening(spectrum, strength)
        case _:
            raise ValueError(f"no method '{method}'")
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
