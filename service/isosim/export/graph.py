"""Exports encoder, pooling and calibrator as one ONNX graph. Each run of the graph may use other calibrator weights.

The calibrator's tensors are exported as graph *inputs*. After the export, each input gets a default value (an
initializer of the same name). The tensors are not exported as parameters, because the exporter's optimizer would merge
equal parameters. Overriding one of them would then change the others, and `latent` would be wrong.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.compose
import torch
from onnx import numpy_helper
from onnx.utils import Extractor
from torch import Tensor, nn
from torch.func import functional_call

from isosim.encoders.onnx_engine import PREFIX, open_session
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.export.encoder import Encoder
from isosim.fitting.calibrator import Calibrator, Tensors
from isosim.store.artifacts import verified

OPSET = 23  # the first opset with `Attention`, for which ONNX Runtime has a fused kernel
PARITY = 1e-4  # largest allowed difference between the outputs of torch and ONNX, fp32
PARITY_SHAPES = ((1, 5), (2, 3), (5, 40), (17, 9))  # (B, T); the export itself uses another shape, (3, 7)


class WeightedCalibrator(nn.Module):
    """Maps pooled vectors (B, D) and the calibrator's tensors, in the order of its `state_dict`, to `latent` (B, D)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.calibrator = Calibrator(dim)

    def forward(self, pooled: Tensor, tensors: list[Tensor]) -> Tensor:
        weights = dict(zip(self.calibrator.state_dict(), tensors, strict=True))
        latent: Tensor = functional_call(self.calibrator, weights, (pooled,))
        return latent


class CalibratedEncoder(nn.Module):
    """Maps token ids and the calibrator's tensors to `pooled` and `latent`, both (B, D)."""

    def __init__(self, encoder: Encoder, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.calibrator = WeightedCalibrator(dim)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        pooled = self.encoder(ids, mask, types if self.encoder.token_types else None)
        return pooled, self.calibrator(pooled, tensors)


@contextmanager
def quiet() -> Iterator[None]:
    """Hides the exporter's progress messages and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def export_joined(encoder: Encoder) -> onnx.ModelProto:
    """Exports the joined graph with identity weights: `latent` equals `pooled` unless weights are passed."""
    dim = encoder.spec.dim
    ids = torch.tensor([[2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0]])
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    tokens = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), dynamic)
    given = (ids, (ids > 0).long(), torch.zeros_like(ids))
    model = traced(CalibratedEncoder(encoder, dim), given, tokens, ["pooled", "latent"], dim)
    if not encoder.token_types:
        (unused,) = (i for i in model.graph.input if i.name == "token_type_ids")
        model.graph.input.remove(unused)
    onnx.checker.check_model(model, full_check=True)
    return model


def export_calibrator(dim: int) -> onnx.ModelProto:
    """Exports the calibrator alone, with identity weights, for vectors (B, D) sent by a remote server or a caller."""
    pooled = {"pooled": {0: torch.export.Dim.DYNAMIC}}
    return traced(WeightedCalibrator(dim), (torch.zeros(3, dim),), pooled, ["latent"], dim)


def traced(
    module: nn.Module, given: tuple[Tensor, ...], dynamic: dict[str, Any], outputs: list[str], dim: int
) -> onnx.ModelProto:
    """Exports a module that takes `given`, and then the calibrator's tensors, which the graph gets as initializers too.

    Args:
        dynamic: for each input by name, its axes of any size, which are named `batch` and `length`.
    """
    weights = Calibrator(dim).state_dict()
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            (*given, list(weights.values())),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[*dynamic, *(PREFIX + name for name in weights)],
            output_names=outputs,
            dynamic_shapes=(*dynamic.values(), [None] * len(weights)),
        )
    assert program is not None  # noqa: S101 - only the legacy exporter returns None
    model = program.model_proto
    for value in [*model.graph.input, *model.graph.output]:
        for size, name in zip(value.type.tensor_type.shape.dim, ("batch", "length"), strict=False):
            if size.dim_param:
                size.dim_param = name
    model.graph.initializer.extend(
        numpy_helper.from_array(tensor.numpy(), PREFIX + name) for name, tensor in weights.items()
    )
    return model


def cut(model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Splits the joined graph into the encoder (token ids → pooled) and the calibrator (pooled, weights → latent)."""
    names = [value.name for value in model.graph.input]
    weights = [name for name in names if name.startswith(PREFIX)]
    extractor = Extractor(model)
    encoder = extractor.extract_model([name for name in names if name not in weights], ["pooled"])
    calibrator = extractor.extract_model(["pooled", *weights], ["latent"])
    return encoder, calibrator


def join(encoder: onnx.ModelProto, calibrator: onnx.ModelProto) -> onnx.ModelProto:
    """Joins encoder and calibrator into one graph: token ids and calibrator weights → pooled, latent.

    Both graphs may contain values of the same name, so the encoder's values are renamed.
    """
    encoder = onnx.compose.add_prefix(
        encoder, "encoder/", rename_inputs=False, rename_outputs=False, rename_value_infos=False
    )
    del encoder.graph.value_info[:]  # shapes of inner values, which are optional; it also names the output `pooled`
    versions = {entry.domain: entry.version for model in (encoder, calibrator) for entry in model.opset_import}
    for model in (encoder, calibrator):
        del model.opset_import[:]
        model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
        model.ir_version = max(encoder.ir_version, calibrator.ir_version)
    joined: onnx.ModelProto = onnx.compose.merge_models(
        encoder, calibrator, io_map=[("pooled", "pooled")], inputs=None, outputs=["pooled", "latent"]
    )
    onnx.checker.check_model(joined, full_check=True)
    return joined


def joined_graph(artifact: EncoderArtifact) -> onnx.ModelProto:
    """The parts of an encoder in the store as one graph.

    Raises:
        CorruptArtifact: a part does not match the manifest.
    """
    for part in (artifact.encoder, artifact.calibrator):
        verified(artifact.folder, part.name)
    return join(onnx.load(artifact.encoder), onnx.load(artifact.calibrator))


def with_weights(model: onnx.ModelProto, weights: dict[str, npt.NDArray[np.generic]]) -> onnx.ModelProto:
    """A copy of the graph in which the calibrator's weights are constants instead of inputs."""
    baked = onnx.ModelProto()
    baked.CopyFrom(model)
    inputs = [value for value in baked.graph.input if not value.name.startswith(PREFIX)]
    del baked.graph.input[:]
    baked.graph.input.extend(inputs)
    for initializer in baked.graph.initializer:
        if initializer.name.startswith(PREFIX):
            value = weights[initializer.name.removeprefix(PREFIX)]
            initializer.CopyFrom(numpy_helper.from_array(value, initializer.name))
    onnx.checker.check_model(baked, full_check=True)
    return baked


def random_weights(dim: int, seed: int) -> dict[str, Tensor]:
    """Random calibrator tensors for the parity check."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in Calibrator(dim).state_dict().items():
        if name.endswith("permutation"):
            weights[name] = torch.randperm(len(tensor), generator=generator)
        else:
            weights[name] = tensor + 0.5 * torch.randn(tensor.shape, generator=generator) / tensor.shape[0] ** 0.5
    return weights


def runs(joined: onnx.ModelProto, dim: int, vocabulary: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensors]]:
    """Runs the graph on random token ids, masks and calibrator weights, once for each of PARITY_SHAPES.

    Yields ids, mask, outputs (2, B, D) and the calibrator's weights.

    Raises:
        ArithmeticError: the calibrator's weights changed `pooled`.
    """
    session = open_session(joined.SerializeToString(), 0)
    weights = random_weights(dim, seed=0)
    overrides = {PREFIX + name: tensor.numpy() for name, tensor in weights.items()}
    names = {value.name for value in session.get_inputs()}
    generator = torch.Generator().manual_seed(1)
    for batch, length in PARITY_SHAPES:
        ids = torch.randint(5, vocabulary, (batch, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[batch // 2, length // 2 + 1 :] = 0
        all_feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        feeds = {name: tensor.numpy() for name, tensor in all_feeds.items() if name in names}
        outputs = session.run(["pooled", "latent"], feeds | overrides)
        if not np.array_equal(outputs[0], session.run(["pooled"], feeds)[0]):
            raise ArithmeticError("the calibrator's weights changed `pooled`")
        yield ids, mask, torch.from_numpy(np.stack(outputs)), weights


def check_parity(encoder: Encoder, joined: onnx.ModelProto) -> float:
    """Largest difference between torch and ONNX in `pooled` and `latent`.

    Raises:
        ArithmeticError: the difference is above 1e-4, or the calibrator's weights changed `pooled`.
        InvalidInput: the padding of a batch changes a text's vector.
    """
    transformer: Any = encoder.model[0]
    vocabulary = transformer.config.vocab_size
    differences, dim = [], encoder.spec.dim
    for ids, mask, outputs, weights in runs(joined, dim, vocabulary):
        module = CalibratedEncoder(encoder, dim)
        with torch.no_grad():
            expected = torch.stack(module(ids, mask, torch.zeros_like(ids), list(weights.values())))
            row = mask.sum(1).argmin()
            alone = encoder(ids[row, mask[row] == 1][None], mask[row, mask[row] == 1][None])[0]
        if not torch.allclose(alone, expected[0, row], rtol=0, atol=PARITY):
            raise InvalidInput("this encoder gives a text another vector if its batch is padded; it cannot be served")
        differences.append(float((expected - outputs).abs().max()))
    return within_parity(differences)


def check_latents(joined: onnx.ModelProto, dim: int) -> float:
    """Largest difference between torch and ONNX in `latent`. Both compute `latent` from the graph's `pooled`.

    This is the check for encoders of lower precision. Their `pooled` may differ from torch's by more than 1e-4.

    Raises:
        ArithmeticError: the difference is above 1e-4, or the calibrator's weights changed `pooled`.
    """
    differences = []
    for _, _, (pooled, latent), weights in runs(joined, dim, vocabulary=100):
        with torch.no_grad():
            differences.append(float((Calibrator.from_weights(weights)(pooled) - latent).abs().max()))
    return within_parity(differences)


def within_parity(differences: list[float]) -> float:
    worst = float(np.max(differences))  # NaN if a difference is NaN; the check then fails too
    if not worst <= PARITY:
        raise ArithmeticError(f"torch and ONNX differ by {worst:.1e} (limit {PARITY:.0e})")
    return worst
