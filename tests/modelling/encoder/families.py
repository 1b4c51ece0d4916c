"""A tiny randomly initialized checkpoint of every family, each with a real tokenizer of its kind."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from tests.text import sentences

VOCABULARY = 400
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
    "initializer_range": 0.2,
}  # fmt: skip
BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
ROBERTA = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
ALBERT = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}


def trained(kind: str, special: list[str]) -> Tokenizer:
    """A vocabulary of the tests' sentences; the special tokens have the first ids."""
    trainer: Any
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=next(name for name in special if "unk" in name.lower())))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=VOCABULARY, special_tokens=special, show_progress=False, **{"unk_token": "<unk>"}
        )
    tokenizer.train_from_iterator(sentences(600), trainer)
    return tokenizer


@dataclass(frozen=True)
class Case:
    """A family: its model, its tokenizer, and a pooling to see through the export."""

    model: Callable[[], Any]
    tokenizer: str
    special: dict[str, str]
    cls: str
    pooling: str = "mean"
    depth: int = 2
    norm: str = ""  # behind the layers, cut or not

    def write(self, folder: Path, *, surrounded: bool = True) -> Path:
        """`surrounded=False`: tokenizer.json says nothing of special tokens around a text."""
        torch.manual_seed(0)
        self.model().eval().save_pretrained(folder)
        special = list(dict.fromkeys(self.special.values()))
        tokenizer = trained(self.tokenizer, special)
        if "cls_token" in self.special and surrounded:
            first, last = self.special["cls_token"], self.special["sep_token"]
            ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
            tokenizer.post_processor = TemplateProcessing(
                single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}", special_tokens=ids
            )
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": self.cls, "model_max_length": 48, **self.special}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder


def by_hand(pooling: str, states: list[Tensor], pooler: Tensor | None = None) -> Tensor:
    """One text's vector out of its hidden states (T, D) a layer, nothing padded."""
    last = states[-1]
    place = torch.arange(1, len(last) + 1, dtype=torch.float32)
    ways: dict[str, Callable[[], Any]] = {
        "mean": lambda: last.mean(0),
        "cls": lambda: last[0],
        "max": lambda: last.max(0).values,
        "mean_sqrt_len_tokens": lambda: last.sum(0) / len(last) ** 0.5,
        "weightedmean": lambda: (last * place[:, None]).sum(0) / place.sum(),
        "lasttoken": lambda: last[-1],
        "first-last-avg": lambda: (states[1].mean(0) + last.mean(0)) / 2,
        "last2avg": lambda: (states[-2].mean(0) + last.mean(0)) / 2,
        "pooler": lambda: pooler,
    }
    return torch.cat([ways[name]() for name in pooling.split("+")])


FAMILIES = {
    "bert": Case(
        lambda: hf.BertModel(hf.BertConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=64)),
        "wordpiece", BERT, "BertTokenizer", "pooler",
    ),
    "roberta": Case(
        lambda: hf.RobertaModel(
            hf.RobertaConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=66, type_vocab_size=1)
        ),
        "bytes", ROBERTA, "RobertaTokenizer", "cls",
    ),
    "xlm-roberta": Case(
        lambda: hf.XLMRobertaModel(
            hf.XLMRobertaConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=66, type_vocab_size=1)
        ),
        "unigram", ROBERTA, "XLMRobertaTokenizer", "max",
    ),
    "distilbert": Case(
        lambda: hf.DistilBertModel(
            hf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64,
                initializer_range=0.2,
            )
        ),
        "wordpiece", BERT, "DistilBertTokenizer", "last2avg",
    ),
    "mpnet": Case(
        lambda: hf.MPNetModel(hf.MPNetConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=66)),
        "wordpiece", ROBERTA, "MPNetTokenizer",
    ),
    "electra": Case(
        lambda: hf.ElectraModel(
            hf.ElectraConfig(**SIZES, num_hidden_layers=2, embedding_size=16, max_position_embeddings=64)
        ),
        "wordpiece", BERT, "ElectraTokenizer", "mean_sqrt_len_tokens",
    ),
    "albert": Case(
        lambda: hf.AlbertModel(
            hf.AlbertConfig(
                **SIZES, num_hidden_layers=4, embedding_size=16, max_position_embeddings=64
            )
        ),
        "unigram", ALBERT, "AlbertTokenizer", "first-last-avg", 4,
    ),
    "modernbert": Case(
        lambda: hf.ModernBertModel(
            hf.ModernBertConfig(  # type: ignore[call-arg]
                **SIZES, num_hidden_layers=3, global_attn_every_n_layers=2, local_attention=8,
                max_position_embeddings=64, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2,
                eos_token_id=3,
            )
        ),
        "bytes", BERT, "PreTrainedTokenizerFast", "cls+mean", 3, "final_norm",
    ),
    "gpt2": Case(
        lambda: hf.GPT2Model(
            hf.GPT2Config(
                vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0,
                initializer_range=0.2,
            )
        ),
        "bytes", GPT2, "GPT2Tokenizer", "mean+weightedmean+lasttoken", 2, "ln_f",
    ),
    "qwen2": Case(
        lambda: hf.Qwen2Model(
            hf.Qwen2Config(
                **SIZES, num_hidden_layers=2, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0,
                eos_token_id=0,
            )
        ),
        "bytes", GPT2, "PreTrainedTokenizerFast", "lasttoken", 2, "norm",
    ),
}  # fmt: skip
