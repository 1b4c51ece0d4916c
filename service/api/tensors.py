"""Tensors of the Open Inference Protocol (KServe V2): JSON, and Triton's binary extension.

Binary: the body is JSON of as many bytes as the header `Inference-Header-Content-Length` says, then the tensors' bytes
one after the other; a BYTES element is its length (4 bytes, little-endian) and its bytes.
"""

import struct
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import ValidationError

from service.api.schemas import Compatible, example
from service.core.errors import InvalidInput

LENGTH = struct.Struct("<I")
Datatype = Literal["FP32", "FP64"]
DTYPES: dict[Datatype, str] = {"FP32": "<f4", "FP64": "<f8"}


class Parameters(Compatible):
    binary_data_size: int | None = None
    binary_data: bool | None = None
    binary_data_output: bool | None = None


class InputTensor(Compatible):
    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = Parameters()
    data: list[Any] | None = None


class WantedOutput(Compatible):
    name: str
    parameters: Parameters = Parameters()


class InferRequest(Compatible):
    """The protocol's body. Inputs: `text`, or `text_1` and `text_2`; BYTES of shape [n] or [n, 1]."""

    model_config = example(
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["A man is playing a guitar."]}]}
    )

    id: str | None = None
    inputs: list[InputTensor]
    outputs: list[WantedOutput] | None = None
    parameters: Parameters = Parameters()


def read(body: bytes, header_length: str | None) -> tuple[InferRequest, dict[str, list[str]]]:
    """The request and its inputs' texts by name.

    Raises:
        InvalidInput: what does not follow the protocol, naming the tensor.
    """
    split = len(body)
    if header_length is not None:
        if not header_length.isdigit() or int(header_length) > len(body):
            raise InvalidInput(f"inference-header-content-length {header_length!r}: the body has {len(body)} bytes")
        split = int(header_length)
    try:
        request = InferRequest.model_validate_json(body[:split])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{where or 'body'}: {first['msg']}") from None
    rest = memoryview(body)[split:]
    texts: dict[str, list[str]] = {}
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size
        if tensor.datatype != "BYTES":
            raise InvalidInput(f"input {tensor.name!r} is {tensor.datatype}; texts are BYTES")
        if size is None:
            texts[tensor.name] = list(flat(tensor.data or [], tensor.name))
        elif 0 <= size <= len(rest):
            texts[tensor.name] = list(elements(rest[:size], tensor.name))
            rest = rest[size:]
        else:
            raise InvalidInput(f"input {tensor.name!r} announces {size} bytes, {len(rest)} are left in the body")
        count = 1
        for extent in tensor.shape:
            count *= extent
        if count != len(texts[tensor.name]) or sum(extent != 1 for extent in tensor.shape) > 1:
            found = len(texts[tensor.name])
            raise InvalidInput(
                f"input {tensor.name!r} has shape {tensor.shape} and {found} elements; give [n] or [n, 1]"
            )
    if rest:
        raise InvalidInput(f"{len(rest)} bytes of the body belong to no input")
    return request, texts


def flat(data: list[Any], name: str) -> Iterator[str]:
    for entry in data:
        if isinstance(entry, list):
            yield from flat(entry, name)
        elif isinstance(entry, str):
            yield entry
        else:
            raise InvalidInput(f"input {name!r}: expected texts, found {type(entry).__name__}")


def elements(content: memoryview, name: str) -> Iterator[str]:
    """Raises InvalidInput where lengths and bytes do not fit, or a text is not UTF-8."""
    at = 0
    while at < len(content):
        if at + LENGTH.size > len(content):
            raise InvalidInput(f"input {name!r} ends within an element's length")
        (size,) = LENGTH.unpack_from(content, at)
        at += LENGTH.size
        if at + size > len(content):
            raise InvalidInput(f"input {name!r} ends within an element")
        try:
            yield bytes(content[at : at + size]).decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"input {name!r} holds a text that is not UTF-8 (byte {error.start + 1})") from None
        at += size


def write(
    head: dict[str, Any], request: InferRequest, outputs: dict[str, tuple[Datatype, npt.NDArray[np.floating]]]
) -> tuple[bytes, dict[str, str]]:
    """The answer's body and headers: each output in the form that was asked for.

    Raises:
        InvalidInput: an output was asked for that there is none of.
    """
    wanted = request.outputs or [WantedOutput(name=name) for name in outputs]
    tensors: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output in wanted:
        if output.name not in outputs:
            raise InvalidInput(f"output {output.name!r}: these inputs give {', '.join(outputs)}")
        datatype, values = outputs[output.name]
        values = np.ascontiguousarray(values, DTYPES[datatype])
        tensor: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": list(values.shape)}
        asked = output.parameters.binary_data
        if asked if asked is not None else bool(request.parameters.binary_data_output):
            binary.append(values.tobytes())
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = values.ravel()
        tensors.append(tensor)
    content = orjson.dumps(head | {"outputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return content, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(content))}
    return b"".join([content, *binary]), headers
