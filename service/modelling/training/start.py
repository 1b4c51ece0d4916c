"""The encoder that training starts from: its first layers, a pooling, and dropout."""

import logging
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from service.core.encoders import EncoderSpec
from service.core.errors import InvalidInput
from service.modelling.checkpoints import Checkpoint
from service.modelling.encoder import describe
from service.modelling.training.recipe import POOLINGS, Recipe

DROPOUTS = (  # as the configurations of BERT and its kin, DistilBERT, ModernBERT and GPT-2 call them
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop",
)  # fmt: skip


def quiet() -> None:
    """What the libraries say of their own business; what matters is an error, or checked here."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


def described(checkpoint: Checkpoint, recipe: Recipe) -> EncoderSpec:
    """The start's own spec: pooling, kept layers and served length decided, weights and tokenizer hashed.

    Raises:
        InvalidInput: an option does not fit this checkpoint.
    """
    spec = describe(checkpoint, pooling=recipe.pooling, layers=recipe.layers, max_length=None, prompt="")
    if spec.pooling not in POOLINGS:
        raise InvalidInput(f"this encoder's pooling {spec.pooling!r} cannot be trained; give --pooling")
    if spec.layers < 1:
        raise InvalidInput(f"--layers {spec.layers}: at least one layer is needed")
    if recipe.max_length > spec.max_length:
        raise InvalidInput(f"--max-length {recipe.max_length}: this encoder takes {spec.max_length} tokens at most")
    return spec


def load(checkpoint: Checkpoint, spec: EncoderSpec, dropout: float | None) -> SentenceTransformer:
    """The start as a SentenceTransformer, in float32, on the GPU where there is one.

    The layers beyond `spec.layers` are left out of the configuration, so the result's folder has none of them.
    """
    config = AutoConfig.from_pretrained(checkpoint.folder)
    changed: dict[str, Any] = {"num_hidden_layers": spec.layers}
    if isinstance(kinds := getattr(config, "layer_types", None), list):  # ModernBERT: one entry a layer
        changed["layer_types"] = kinds[: spec.layers]
    if dropout is not None:
        changed |= {name: dropout for name in DROPOUTS if getattr(config, name, None) is not None}
    transformer = Transformer(
        str(checkpoint.folder),
        config_kwargs=changed,
        model_kwargs={"use_safetensors": True, "dtype": torch.float32},
        max_seq_length=spec.max_length,
    )
    model = SentenceTransformer(modules=[transformer, Pooling(spec.dim, spec.pooling)])
    model.model_card_data.local_files_only = True
    model.model_card_data.generate_widget_examples = False
    return model


def check_dropout(model: SentenceTransformer, sentence: str) -> None:
    """Raises InvalidInput where dropout does not make one sentence two vectors: nothing could be learnt."""
    was_training = model.training
    model.train()
    features = {k: v.to(model.device) if hasattr(v, "to") else v for k, v in model.preprocess([sentence] * 2).items()}
    with torch.no_grad():
        first, second = model(features)["sentence_embedding"]
    model.train(was_training)
    if torch.equal(first, second):
        raise InvalidInput("this encoder has no dropout, which unsupervised SimCSE learns from; give --dropout 0.1")
