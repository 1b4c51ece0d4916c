"""The frozen encoder in torch: a transformer's first layers, a pooling, and the modules that the checkpoint applies to
the pooled vectors."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from isosim.encoders.spec import EncoderSpec
from isosim.errors import InvalidInput
from isosim.export import architectures, checkpoint_config
from isosim.export.checkpoint_config import CheckpointFacts, tokenizer_json
from isosim.export.checkpoints import Checkpoint
from isosim.export.pooling import LAYERS_NEEDED, NAMES, POOLER, POOLINGS, Module, build, parts, pool
from isosim.store.artifacts import sha256

__all__ = ["POOLINGS", "Encoder", "describe", "load"]

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class Encoder(nn.Module):
    """Maps token ids to one vector per text. Vectors are deterministic, independent of padding, and not normalized."""

    def __init__(
        self,
        transformer: nn.Module,
        pooling: str,
        *,
        token_types: bool,
        positions: bool = False,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling = pooling
        self.token_types = token_types
        self.positions = positions
        self.head = head or nn.Identity()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(B, T) ids and mask (1: a token, 0: padding) -> (B, D)."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.token_types:
            inputs["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        if self.positions:
            inputs["position_ids"] = architectures.positions(attention_mask)
        output = self.transformer(**inputs, output_hidden_states=True)
        # The last tensor of hidden_states may lack the final norm, so last_hidden_state replaces it. If hidden_states
        # is empty or None, as with 0 layers, `hidden` contains only last_hidden_state.
        hidden = (*(output.hidden_states or (None,))[:-1], output.last_hidden_state)
        pooled = pool(self.pooling, hidden, attention_mask, getattr(output, "pooler_output", None))
        vectors: Tensor = self.head(pooled)
        return vectors


def weights_digest(folder: Path, head: tuple[Module, ...] = ()) -> str:
    """SHA-256 (hex) of the hashes of all weight files and of all modules after the pooling.

    Raises:
        InvalidInput: there are no safetensors weights.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidInput(
            f"{folder} has no *.safetensors weights, and pickled weights are refused; if you trust them, load the "
            "model with transformers and write safetensors with save_pretrained"
        )
    digests = [*map(sha256, files), *(module.digest() for module in head)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def describe(
    checkpoint: Checkpoint, *, pooling: str | None, layers: int | None, max_length: int | None, prompt: str | None
) -> EncoderSpec:
    """The encoder's spec: everything that determines a text's vector. An option of None means the checkpoint's value.

    Raises:
        InvalidInput: the checkpoint cannot be exported, or an option does not fit the checkpoint.
    """
    facts = checkpoint_config.read(checkpoint.folder)
    config = architectures.configuration(facts.transformer)
    depth = config.num_hidden_layers
    if layers is not None and not 0 <= layers <= depth:
        raise InvalidInput(f"--layers {layers}: this encoder has {depth} layers")
    kept = depth if layers is None else layers
    pooling = pooling or facts.pooling or "mean"
    check_pooling(pooling, kept)
    room = architectures.longest(config)
    if max_length is None:
        max_length = min(facts.max_length or room, room)
    if not 3 <= max_length <= room:
        raise InvalidInput(f"--max-length {max_length}: this encoder takes 3 to {room} tokens")
    return EncoderSpec(
        source=checkpoint.source,
        weights=weights_digest(facts.transformer, facts.head),
        tokenizer=hashlib.sha256(tokenizer_json(facts)).hexdigest(),
        pooling=pooling,
        layers=kept,
        max_length=int(max_length),
        prompt=prompt_of(facts, prompt),
        precision="fp32",
        dim=build(facts.head, config.hidden_size * len(parts(pooling)))[1],
        pad_token_id=config.pad_token_id or 0,
    )


def check_pooling(pooling: str, layers: int) -> None:
    for name in parts(pooling):
        if name not in NAMES:
            raise InvalidInput(f"--pooling {pooling!r}: give one of {', '.join(NAMES)}, or several joined by +")
        if layers < LAYERS_NEEDED.get(name, 0):
            raise InvalidInput(f"--pooling {name} needs at least one layer; --layers {layers} leaves none")


def prompt_of(facts: CheckpointFacts, given: str | None) -> str:
    prompt = facts.prompt if given is None else given
    if prompt and not facts.whole_pooled:
        raise InvalidInput(
            "this checkpoint excludes the prompt's tokens from its pooling (include_prompt: false), and an export "
            "cannot exclude them; use --prompt '' to export the checkpoint without prompts"
        )
    return prompt


def prompts_of(facts: CheckpointFacts) -> dict[str, str]:
    """Named prompts that callers may use.

    Empty if the checkpoint's pooling excludes the prompt's tokens, because an exported encoder cannot exclude them.
    """
    return facts.prompts if facts.whole_pooled else {}


def load(checkpoint: Checkpoint, spec: EncoderSpec) -> Encoder:
    """Loads the encoder of a spec as a torch module, in float32 and in evaluation mode.

    Raises:
        InvalidInput: the checkpoint lacks weights, or the pooling is `pooler` and the checkpoint has no pooler layer.
    """
    facts = checkpoint_config.read(checkpoint.folder)
    transformer = architectures.load_transformer(facts.transformer, spec.layers, pooler=POOLER in parts(spec.pooling))
    config: Any = transformer.config
    head, _ = build(facts.head, config.hidden_size * len(parts(spec.pooling)))
    return (
        Encoder(
            transformer,
            spec.pooling,
            token_types=getattr(config, "type_vocab_size", 0) > 1,
            positions=architectures.FAMILIES[config.model_type].positions,
            head=head,
        )
        .eval()
        .requires_grad_(False)
    )
