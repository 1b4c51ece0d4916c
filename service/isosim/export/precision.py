"""Makes encoders of lower precision.

int8 changes matrix multiplications. Their inputs are quantized to 8 bits, and their weights to 7 bits with one scale
per column. Their outputs stay float. Weights have 7 bits, because processors without VNNI add pairs of products in 16
bits. With 8-bit weights, these sums could overflow. With 7 bits, all x64 processors compute the same integers.

The range of the inputs is fixed at export, so that a text's score does not depend on the other texts of its batch.
ONNX Runtime's dynamic quantization would determine a range for each batch.

A few channels of the inputs have far larger values than the others. One range for all channels would be too coarse for
the others. Therefore, part of each channel's range is first moved into the weights (SmoothQuant: Xiao et al., ICML
2023, equation 4).
"""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import Feeds, OnnxEncoder
from isosim.errors import InvalidInput

SENTENCES = 512  # number of sentences from which the ranges are determined
# SmoothQuant's α; a higher α moves more of the range into the weights. On minilm and Python's documentation, the mean
# change of a cosine is 0.0078, 0.0076, 0.0087 at α = 0.7, 0.8, 0.9.
STRENGTH = 0.8
LONGEST = 64  # texts are cut to this many tokens; longer texts take more time, but do not change the ranges


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Gives the sentences to ONNX Runtime's quantizer one by one, so that padding does not affect the ranges."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def channel_ranges(model: onnx.ModelProto, names: Sequence[str], feeds: Sequence[Feeds]) -> dict[str, Vectors]:
    """Largest absolute value (D,) of each channel (last axis) of the named tensors."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watched.onnx"
        onnx.save(watched, path)
        session = OnnxEncoder(path, 0).session
    ranges: dict[str, Vectors] = {}
    for feed in feeds:
        for name, value in zip(names, session.run(list(names), feed), strict=True):
            largest = np.abs(value).reshape(-1, value.shape[-1]).max(0)
            ranges[name] = np.maximum(ranges[name], largest) if name in ranges else largest
    return ranges


def smooth(model: onnx.ModelProto, ranges: dict[str, Vectors], strength: float) -> onnx.ModelProto:
    """An equivalent graph. Part of each channel's range is moved from the activations into the weights."""
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    matrices = {tensor.name: tensor for tensor in moved.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    groups = weight_products(moved)
    scaled: dict[str, str] = {}
    for node in moved.graph.node:
        group = groups.get(node.input[0], []) if node.input else []
        if any(node is one for one in group):
            name = node.input[0]
            if name not in scaled:
                weights = [numpy_helper.to_array(matrices[one.input[1]]) for one in group]
                largest = np.max([np.abs(weight).max(1) for weight in weights], 0).clip(1e-5)
                factor = (ranges[name].clip(1e-5) ** strength / largest ** (1 - strength)).astype(np.float32)
                for one, weight in zip(group, weights, strict=True):
                    matrices[one.input[1]].CopyFrom(numpy_helper.from_array(weight * factor[:, None], one.input[1]))
                scaled[name] = f"{name}.smoothed"
                moved.graph.initializer.append(numpy_helper.from_array(1 / factor, f"{name}.smoothing"))
                nodes.append(helper.make_node("Mul", [name, f"{name}.smoothing"], [scaled[name]]))
            node.input[0] = scaled[name]
        nodes.append(node)
    del moved.graph.node[:]
    moved.graph.node.extend(nodes)
    return moved


def quantize(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> onnx.ModelProto:
    """Quantizes the multiplications with constant matrices to 8-bit integers; their results stay float."""
    products = [node.name for group in weight_products(model).values() for node in group]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "target.onnx"
        onnx.save(model, source)
        quantize_static(
            source,
            target,
            Calibration(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=products,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        )
        return onnx.load(target)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Converts weights and activations to 16 bits, for GPUs; the output vectors stay float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - slow to import

    converted: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    # The converter adds a cast twice if a node takes a value twice, such as the Range of a weighted mean.
    nodes = {node.output[0]: node for node in converted.graph.node}
    del converted.graph.node[:]
    converted.graph.node.extend(nodes.values())
    return converted


def fingerprint(model: onnx.ModelProto) -> str:
    """Hash (12 hex digits) of a graph's constants. The ranges of the inputs are also constants."""
    tensors = sorted((tensor.name, numpy_helper.to_array(tensor).tobytes()) for tensor in model.graph.initializer)
    digest = hashlib.sha256()
    for name, content in tensors:
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:12]


def int8(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> onnx.ModelProto:
    """Smooths and quantizes the graph; `feeds` are the texts from which the ranges are determined.

    Raises:
        InvalidInput: smoothing does not fit the graph, as of GPT-2 (no such products) and ALBERT (shared matrices).
    """
    groups = weight_products(model)
    matrices = [node.input[1] for group in groups.values() for node in group]
    if not matrices or len({*matrices}) < len(matrices):
        why = "layers share their matrices" if matrices else "layers are no products of matrices"
        raise InvalidInput(f"--precision int8: this encoder's {why}; use fp32 or bf16")
    return quantize(smooth(model, channel_ranges(model, list(groups), feeds), STRENGTH), feeds)


def weight_products(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """Nodes that multiply by a constant matrix, grouped by their input. Queries, keys and values share an input."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    products: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            products.setdefault(node.input[0], []).append(node)
    return products
