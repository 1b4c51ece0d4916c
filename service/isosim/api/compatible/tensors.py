"""Tensors of the Open Inference Protocol (KServe V2): JSON, and Triton's binary extension.

A binary body begins with JSON. The header `Inference-Header-Content-Length` states the JSON's length in bytes. The
tensors follow the JSON. Each element of a BYTES tensor is sent as its length (4 bytes, little-endian) and its bytes.
"""

import re
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import Field, TypeAdapter, WithJsonSchema

from isosim.api.bodies import FIRST_FAULT, WHOLE, Compatible, example
from isosim.api.scoring.request import check_count
from isosim.api.validation import parse_json
from isosim.errors import InvalidInput

LENGTH = struct.Struct("<I")
Datatype = Literal["FP32", "FP64"]
BYTE_COUNT = re.compile("[0-9]{1,9}")
SHOWN = 80  # an error message quotes at most this many characters of a value in the request
DTYPES: dict[Datatype, str] = {"FP32": "<f4", "FP64": "<f8"}


class TensorParameters(Compatible):
    binary_data_size: Annotated[int, WHOLE] | None = None
    binary_data: bool | None = None
    binary_data_output: bool | None = None


# Of shape [n] or [n, 1].
TEXTS = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}}


class InputTensor(Compatible):
    name: str
    shape: Annotated[list[Annotated[int, WHOLE]], FIRST_FAULT]
    datatype: str
    parameters: TensorParameters | None = None
    data: Annotated[list[Any], WithJsonSchema(TEXTS)] | None = None


class WantedOutput(Compatible):
    name: str
    parameters: TensorParameters | None = None


class InferRequest(Compatible):
    """The protocol's body. Inputs: `text`, or `text_1` and `text_2`; BYTES of shape [n] or [n, 1]."""

    model_config = example(
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["A man is playing a guitar."]}]}
    )

    id: str | None = None
    inputs: Annotated[list[InputTensor], FIRST_FAULT]
    outputs: Annotated[list[WantedOutput], FIRST_FAULT] = Field(default=[], description="wanted outputs; empty: all")
    parameters: TensorParameters | None = None


INFER = TypeAdapter(InferRequest)


def read(body: bytes, header_length: str | None, most: int) -> tuple[InferRequest, dict[str, list[str]]]:
    """Parses a body. Returns the request, and a dictionary: name of an input tensor -> its texts, at most `most`.

    Raises:
        EmptyInput, InvalidInput: the body does not follow the protocol; the message names the tensor.
    """
    split = len(body)
    if header_length is not None:
        if not BYTE_COUNT.fullmatch(header_length) or int(header_length) > len(body):
            raise InvalidInput(
                f"inference-header-content-length is {header_length[:SHOWN]!r}; it must be a number of bytes, at most "
                f"{split}, the length of the body"
            )
        split = int(header_length)
    request = parse_json(INFER, body[:split])
    for kind, named in (("input", request.inputs), ("output", request.outputs)):
        if len({tensor.name for tensor in named}) < len(named):
            raise InvalidInput(f"an {kind} is named twice")
    rest = memoryview(body)[split:]
    texts: dict[str, list[str]] = {}
    for tensor in request.inputs:
        name = tensor.name[:SHOWN]
        size = tensor.parameters.binary_data_size if tensor.parameters is not None else None
        count = extent(tensor, most)
        if size is None:
            texts[tensor.name] = list(flat(tensor.data or [], name))
        elif 0 <= size <= len(rest):
            texts[tensor.name] = list(islice(elements(rest[:size], name), most + 1))
            rest = rest[size:]
        else:
            raise InvalidInput(f"input {name!r} announces {size} bytes, but {len(rest)} are left in the body")
        if count != len(texts[tensor.name]):
            raise InvalidInput(f"input {name!r} has {len(texts[tensor.name])} elements, but its shape says {count}")
    if rest:
        raise InvalidInput(f"{len(rest)} bytes of the body belong to no input")
    return request, texts


def extent(tensor: InputTensor, most: int) -> int:
    """Number of texts according to the tensor's shape. Raises EmptyInput or InvalidInput."""
    name = tensor.name[:SHOWN]
    if tensor.datatype != "BYTES":
        raise InvalidInput(f"input {name!r} has the datatype {tensor.datatype[:SHOWN]}; texts need BYTES")
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ([], [1]):
        raise InvalidInput(f"input {name!r}: give a shape of [n] or [n, 1]")
    check_count(tensor.shape[0], f"shape of {name}", most)
    if tensor.shape[0] < 0:
        raise InvalidInput(f"input {name!r}: a shape cannot be negative")
    return tensor.shape[0]


def flat(data: list[Any], name: str) -> Iterator[str]:
    for entry in data:
        if isinstance(entry, list):
            yield from flat(entry, name)
        elif isinstance(entry, str):
            yield entry
        else:
            raise InvalidInput(f"input {name!r}: expected texts, found {type(entry).__name__}")


def elements(content: memoryview, name: str) -> Iterator[str]:
    """Texts of a binary tensor. Raises InvalidInput if lengths and bytes disagree or a text is not UTF-8."""
    at = 0
    while at < len(content):
        if at + LENGTH.size > len(content):
            raise InvalidInput(f"input {name!r} ends within the 4-byte length of an element")
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
    """The answer's body and headers, with each output as JSON or binary as requested.

    Raises:
        InvalidInput: the request names an output that does not exist.
    """
    wanted = request.outputs or [WantedOutput(name=name) for name in outputs]
    binary_by_default = request.parameters is not None and bool(request.parameters.binary_data_output)
    tensors: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output in wanted:
        if output.name not in outputs:
            raise InvalidInput(
                f"there is no output {output.name[:SHOWN]!r}; these inputs have the outputs {', '.join(outputs)}"
            )
        datatype, values = outputs[output.name]
        values = np.ascontiguousarray(values, DTYPES[datatype])
        tensor: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": list(values.shape)}
        asked = output.parameters.binary_data if output.parameters is not None else None
        if binary_by_default if asked is None else asked:
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
