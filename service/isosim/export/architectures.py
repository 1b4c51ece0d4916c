"""Loads transformers of the families that can be exported, and keeps their first layers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from isosim.errors import InvalidInput


@dataclass(frozen=True)
class Family:
    """Where the models of a family store their layers, and how they number tokens and compute attention."""

    layers: str  # path of the ModuleList that contains the layers
    # True: position ids start after the padding id. Example: RoBERTa has 514 position embeddings for 512 tokens.
    behind_padding: bool = False
    # True: `Encoder` passes position ids that count only real tokens. So padding on the left does not change a
    # decoder's output. ONNX Runtime's RotaryEmbedding also requires position ids for each text of a batch.
    positions: bool = False
    attention: str = "sdpa"  # implementation of attention in transformers
    shares: bool = False  # layers are divided into groups, and the layers of a group share their weights (ALBERT)


BERT = Family("encoder.layer")
ROBERTA = Family("encoder.layer", behind_padding=True)
FAMILIES = {
    "bert": BERT,
    "electra": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": Family("encoder.layer", behind_padding=True, attention="eager"),  # MPNet supports only this attention
    "distilbert": Family("transformer.layer"),
    "albert": Family("encoder.albert_layer_groups", shares=True),
    "modernbert": Family("layers", positions=True),
    "gpt2": Family("h", positions=True),
}


def configuration(folder: Path) -> Any:
    """The transformer's configuration.

    Raises:
        InvalidInput: the transformer cannot be exported; the message says why and what to do.
    """
    path = folder / "config.json"
    if not path.is_file():
        adapter = (folder / "adapter_config.json").is_file()
        raise InvalidInput(
            f"{folder} holds an adapter without its model; merge it (merge_and_unload) and save the merged model"
            if adapter
            else f"{folder} has no config.json; give the folder of a transformers or sentence-transformers checkpoint"
        )
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        kind = stated.get("model_type")
    except (ValueError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a JSON object: {error}") from error
    if "auto_map" in stated:
        raise InvalidInput(f"{path} requires the checkpoint's own code (auto_map), which isosim does not run")
    if "quantization_config" in stated:
        raise InvalidInput(
            f"{folder} is quantized; give the original checkpoint, and --precision to make the encoder smaller"
        )
    if stated.get("is_encoder_decoder"):
        raise InvalidInput(f"{folder} is a {kind}, an encoder with a decoder; only encoders and GPT-2 can be exported")
    if kind not in FAMILIES:
        what = "has no model_type in its config.json" if kind is None else f"is a {kind}"
        raise InvalidInput(f"{folder} {what}; these can be exported: {', '.join(sorted(FAMILIES))}")
    if stated.get("is_decoder"):
        raise InvalidInput(
            f"{folder} is a {kind} used as a decoder (is_decoder); only encoders and GPT-2 can be exported"
        )
    return AutoConfig.from_pretrained(folder)


def longest(config: Any) -> int:
    """Maximum number of tokens per text that the position embeddings allow."""
    offset = 0
    if FAMILIES[config.model_type].behind_padding:
        # MPNet always uses 1 as its padding id, regardless of the configuration.
        offset = 1 + (1 if config.model_type == "mpnet" else config.pad_token_id)
    room: int = config.max_position_embeddings
    return room - offset


def positions(mask: Tensor) -> Tensor:  # (B, T) -> (B, T)
    """Position of each token in its text, from 0. Padding is not counted."""
    return (mask.cumsum(1) - 1).clamp_min(0)


def load_transformer(folder: Path, layers: int, *, pooler: bool) -> nn.Module:
    """Loads the first `layers` layers of the transformer in float32.

    If the transformer has a final norm, it is applied after the last of these layers.

    Raises:
        InvalidInput: weights are missing or do not fit the configuration, or `pooler` is set and there is no pooler.
    """
    family = FAMILIES[AutoConfig.from_pretrained(folder).model_type]
    try:
        transformer, loading = AutoModel.from_pretrained(
            folder,
            attn_implementation=family.attention,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
        )
    except RuntimeError as error:  # a tensor does not have the size that config.json states
        raise InvalidInput(f"the weights in {folder} do not fit its config.json: {first_line(error)}") from error
    missing = sorted(name for name in loading["missing_keys"] if pooler or not name.startswith("pooler."))
    if missing:
        count = len(missing)
        raise InvalidInput(
            f"{folder} lacks {count} of the model's weights ({missing[0]} …); its vectors would be noise"
        )
    if pooler and getattr(transformer, "pooler", None) is None:
        raise InvalidInput(f"--pooling pooler: a {transformer.config.model_type} has no pooler")
    cut(transformer, family, layers)
    kept: nn.Module = transformer
    return kept


def cut(transformer: Any, family: Family, layers: int) -> None:
    """Keeps the first `layers` layers with their attention types and weights."""
    path, _, name = family.layers.rpartition(".")
    stack = transformer.get_submodule(path)
    whole, depth = getattr(stack, name), transformer.config.num_hidden_layers
    if family.shares:
        # In ALBERT, layer i uses group ⌊i · groups / depth⌋. After the cut, each group has one layer.
        whole = nn.ModuleList(whole[int(i / (depth / len(whole)))] for i in range(layers))
        transformer.config.num_hidden_groups = max(layers, 1)
    setattr(stack, name, whole[:layers])
    transformer.config.num_hidden_layers = layers


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
