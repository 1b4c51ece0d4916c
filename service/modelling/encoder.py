"""The frozen encoder in torch: a transformer cut to its first layers, and masked pooling."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from service.core.encoders import EncoderSpec
from service.core.errors import InvalidInput
from service.modelling.checkpoints import Checkpoint, sha256_of

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

Hidden = tuple[Tensor, ...]  # (B, T, D): embedding layer first, last layer last


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def masked_max(hidden: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, D)
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(hidden.dtype).min).amax(1)


POOLINGS: dict[str, Callable[[Hidden, Tensor], Tensor]] = {
    "mean": lambda hidden, mask: masked_mean(hidden[-1], mask),
    "cls": lambda hidden, mask: hidden[-1][:, 0],
    "max": lambda hidden, mask: masked_max(hidden[-1], mask),
    # What BERT-flow's code computes under the name last2avg: layer 1 and the last layer (a loop's slip).
    "first-last-avg": lambda hidden, mask: (masked_mean(hidden[1], mask) + masked_mean(hidden[-1], mask)) / 2,
    "last2avg": lambda hidden, mask: (masked_mean(hidden[-2], mask) + masked_mean(hidden[-1], mask)) / 2,
}
LAYERS_NEEDED = {"first-last-avg": 1, "last2avg": 1}


class Encoder(nn.Module):
    """Token ids to pooled vectors. Masked, deterministic, not normalized."""

    def __init__(self, transformer: nn.Module, pooling: str, *, token_types: bool) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling = pooling
        self.token_types = token_types

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(B, T) ids and mask (1: a token, 0: padding) -> (B, D)."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.token_types:
            inputs["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        output = self.transformer(**inputs, output_hidden_states=True)
        hidden = output.hidden_states or (output.last_hidden_state,)  # without layers transformers records none
        return POOLINGS[self.pooling](hidden, attention_mask)


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def weights_digest(folder: Path) -> str:
    """SHA-256 over the weight files' own hashes."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidInput(f"{folder} holds no *.safetensors weights; pickled weights are refused")
    return hashlib.sha256(" ".join(sha256_of(file) for file in files).encode()).hexdigest()


def describe(
    checkpoint: Checkpoint, *, pooling: str | None, layers: int | None, max_length: int | None, prompt: str
) -> EncoderSpec:
    """Everything that decides what vector a text gets; unset options are read from the checkpoint.

    Raises:
        InvalidInput: an option does not fit this checkpoint.
    """
    folder = checkpoint.folder
    if not (folder / "tokenizer.json").is_file():
        raise InvalidInput(f"{folder} has no tokenizer.json (a fast tokenizer is needed)")
    config = AutoConfig.from_pretrained(folder)
    depth = config.num_hidden_layers
    if layers is not None and not 0 <= layers <= depth:
        raise InvalidInput(f"--layers {layers}: this encoder has {depth} layers")
    stated = read_json(folder / "1_Pooling" / "config.json")
    found = [name for name in ("cls", "mean", "max") if stated.get(f"pooling_mode_{name}_token{'s' * (name != 'cls')}")]
    pooling = pooling or (found[0] if found else "mean")
    if pooling not in POOLINGS:
        raise InvalidInput(f"--pooling {pooling!r}: one of {', '.join(POOLINGS)}")
    kept = depth if layers is None else layers
    if kept < LAYERS_NEEDED.get(pooling, 0):
        raise InvalidInput(f"--pooling {pooling} needs at least one layer, --layers {kept} leaves none")
    offset = config.pad_token_id + 1 if config.model_type in {"roberta", "xlm-roberta", "camembert", "mpnet"} else 0
    longest = config.max_position_embeddings - offset
    if max_length is None:
        max_length = read_json(folder / "sentence_bert_config.json").get("max_seq_length") or longest
    if not 3 <= max_length <= longest:
        raise InvalidInput(f"--max-length {max_length}: this encoder takes 3 to {longest} tokens")
    return EncoderSpec(
        source=checkpoint.source,
        weights=weights_digest(folder),
        tokenizer=sha256_of(folder / "tokenizer.json"),
        pooling=pooling,
        layers=kept,
        max_length=max_length,
        prompt=prompt,
        precision="fp32",
        dim=config.hidden_size,
        pad_token_id=config.pad_token_id or 0,
    )


def load(checkpoint: Checkpoint, spec: EncoderSpec) -> Encoder:
    """The torch module behind a spec, in evaluation mode, float32.

    Raises:
        InvalidInput: the architecture does not keep its layers where an encoder of the BERT family does.
    """
    transformer = AutoModel.from_pretrained(
        checkpoint.folder, attn_implementation="sdpa", dtype=torch.float32, use_safetensors=True
    )
    stack = getattr(transformer, "encoder", None) or getattr(transformer, "transformer", None) or transformer
    name = next((name for name in ("layer", "layers", "h") if hasattr(stack, name)), "layer")
    if not isinstance(getattr(stack, name, None), nn.ModuleList):
        raise InvalidInput(f"{type(transformer).__name__} is not an encoder of the BERT family")
    setattr(stack, name, getattr(stack, name)[: spec.layers])
    transformer.config.num_hidden_layers = spec.layers
    token_types = getattr(transformer.config, "type_vocab_size", 0) > 1
    return Encoder(transformer, spec.pooling, token_types=token_types).eval().requires_grad_(False)
