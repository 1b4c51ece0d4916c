"""Identity of an encoder: all properties that decide which vector a text gets."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Engine = Literal["onnxruntime", "cuda", "openvino"]  # what computes vectors; "cuda" is ONNX Runtime on a GPU
# On OpenVINO, padded lengths are multiples of this number, and it decides the last bits of vectors. Each shape of input
# takes memory: after 3,000 batches of 3 to 128 tokens, a process had grown by 69 MB with multiples of 4, and by 251 MB
# with every length (bf16, two streams).
BUCKET = 4
GRAPH_FORMAT = 1  # increase it if newly exported graphs compute other vectors from the same weights


@dataclass(frozen=True)
class EncoderSpec:
    """Properties of an encoder that decide its vectors. `digest` identifies it in caches, manifests and headers."""

    source: str
    weights: str  # SHA-256
    tokenizer: str  # SHA-256 of tokenizer.json
    pooling: str
    layers: int
    max_length: int  # maximum number of tokens per text, including special tokens
    prompt: str
    precision: str
    dim: int
    pad_token_id: int

    @property
    def cpu_engine(self) -> Engine:
        """The engine that computes this encoder's vectors on a processor, unless a setting chooses another one."""
        return "openvino" if self.number_format == "bf16" else "onnxruntime"

    @property
    def number_format(self) -> str:
        """fp32, fp16, bf16 or int8. `precision` of the reduced ones also names what else decides their vectors: a hash
        of the graph, or the engine."""
        return self.precision.partition("-")[0]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all fields except `source`, which does not change a vector."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k != "source"} | {"format": GRAPH_FORMAT}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
