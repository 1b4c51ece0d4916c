"""Products with constant matrices in an encoder's graph: found, and made alike whatever the family writes."""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def weight_products(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """Products with a constant matrix, by the activation they share: queries, keys and values have one."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            found.setdefault(node.input[0], []).append(node)
    return found


def separated(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function, each product with a constant matrix a MatMul on a matrix of its own.

    GPT-2's layers are Gemm; ALBERT's share their matrices, and smoothing one of them for one place would change all.
    """
    matrices = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 2}
    apart = onnx.ModelProto()
    apart.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    taken: set[str] = set()
    for node in apart.graph.node:
        turned = transposed(node) if node.op_type in ("MatMul", "Gemm") and node.input[1] in matrices else None
        if turned is None:
            nodes.append(node)
            continue
        name = node.input[1]
        if name in taken or turned:
            node.input[1] = f"{name}.{len(nodes)}"
            matrix = numpy_helper.to_array(matrices[name])
            own = np.ascontiguousarray(matrix.T) if turned else matrix
            apart.graph.initializer.append(numpy_helper.from_array(own, node.input[1]))
        taken.add(name)
        nodes.extend([node] if node.op_type == "MatMul" else product_and_sum(node))
    del apart.graph.node[:]
    apart.graph.node.extend(nodes)
    return apart


def transposed(node: onnx.NodeProto) -> bool | None:
    """Whether the product takes its matrix transposed; None where it scales, or turns its input: no linear layer."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if given.get("alpha", 1.0) != 1 or given.get("beta", 1.0) != 1 or given.get("transA", 0):
        return None
    return bool(given.get("transB", 0))


def product_and_sum(gemm: onnx.NodeProto) -> list[onnx.NodeProto]:
    if len(gemm.input) < 3 or not gemm.input[2]:
        return [helper.make_node("MatMul", gemm.input[:2], gemm.output, name=gemm.name)]
    product = f"{gemm.output[0]}.product"
    return [
        helper.make_node("MatMul", gemm.input[:2], [product], name=gemm.name),
        helper.make_node("Add", [product, gemm.input[2]], gemm.output),
    ]
