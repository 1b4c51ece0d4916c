"""Trains an encoder, or resumes a training from its newest checkpoint, and writes a folder that can be exported."""

import importlib.metadata
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoConfig, set_seed
from transformers.utils import logging as transformers_logging

from isosim.encoders.spec import EncoderSpec
from isosim.errors import Conflict, InvalidInput
from isosim.export.checkpoints import Checkpoint
from isosim.export.encoder import describe
from isosim.training.data import Examples, read_graded, without_words
from isosim.training.loop import DEV, SCORE, LoopSettings, WorkingFolder, optimize
from isosim.training.objectives import OBJECTIVES
from isosim.training.recipe import POOLINGS, Identity, Recipe, Source, differences
from isosim.training.result import Outcome, facts_of, publish

Report = Callable[[str, float | None], None]
PACKAGES = ("torch", "transformers", "sentence-transformers")


@dataclass(frozen=True)
class TrainingResult:
    """Folder and facts of the result. `was_there`: an earlier run had already written the result."""

    folder: Path
    facts: dict[str, Any]
    was_there: bool = False


def train(
    checkpoint: Checkpoint,
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    dev: Path | None = None,
    licence: str | None = None,
    report: Report = lambda _, __: None,
) -> TrainingResult:
    """Trains the encoder that these arguments describe, or resumes its training.

    Args:
        dev: file of graded pairs (see `read_graded`). The Spearman correlation on these pairs decides which weights are
            kept, and may stop the training early.
        licence: licence of the result; None: the licence of the start encoder, if it is known.

    Raises:
        InvalidInput: an option or a file is not valid.
        Conflict: the output folder contains something other than the result of this training. Or the working folder
            belongs to a different training, or another process is using it.
    """
    recipe.check()
    quiet()
    objective = OBJECTIVES[recipe.objective]
    examples = objective.read(data, recipe.knobs)
    if objective.contrastive and len(examples) < 2:
        raise InvalidInput(f"{data} has only one example; {recipe.objective} needs at least two")
    spec = describe_start(checkpoint, recipe)
    check_precision(recipe)
    pairs = None if dev is None else read_graded(dev)
    chosen_by = None if dev is None or pairs is None else Source.from_file(dev, len(pairs))
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    identity = Identity(recipe, spec, Source.from_file(data, len(examples)), chosen_by, versions)
    if output.exists():
        return load_finished(output, identity)
    working = WorkingFolder(output.with_name(f"{output.name}.training"))
    with working.hold(identity.facts(), differences):
        report("loading the start encoder", None)
        set_seed(recipe.seed)
        model = load_start(checkpoint, spec, recipe.dropout)
        if objective.needs_dropout and not recipe.word_deletion:
            check_dropout(model, examples.sentences["anchor"][0])
        evaluator = None
        if pairs is not None:
            left, right = pairs.sentences.values()
            grades = [float(grade) for grade in pairs.labels or ()]
            evaluator = EmbeddingSimilarityEvaluator(
                left, right, grades, name=DEV, main_similarity="cosine", write_csv=False
            )
        # In a contrastive objective, the other examples of a batch are negatives, so no batch may contain a sentence
        # twice. For simcse (`needs_dropout`), batches need no check, because `read_sentences` has removed duplicates.
        unique = objective.contrastive and not objective.needs_dropout
        setting = LoopSettings(recipe, steps(recipe, examples), working, evaluator, unique, report)
        # Makes the random initial weights of the loss repeatable.
        set_seed(recipe.seed)
        loss = objective.loss(model, examples, recipe.knobs)
        if recipe.word_deletion:
            examples = without_words(examples, recipe.word_deletion, recipe.seed)
        columns = dict(examples.sentences) | ({} if examples.labels is None else {"label": examples.labels})
        begun = before(evaluator, model)
        scores = optimize(model, loss, Dataset.from_dict(columns), setting)
        report("writing the encoder", None)
        outcome = Outcome(setting.steps, begun, scores, examples.grades, examples.classes)
        facts = publish(model, checkpoint, identity, outcome, licence, output)
        working.delete()
    return TrainingResult(output, facts)


def load_finished(output: Path, identity: Identity) -> TrainingResult:
    """The result that an earlier run of the same training has written to `output`.

    Raises:
        Conflict: the folder does not contain a trained encoder, or the encoder was trained with other settings.
    """
    facts = facts_of(output)
    if facts is None:
        raise Conflict(f"{output} exists and is not a trained encoder; give another --output")
    # The result may have been made with other versions of the packages.
    changes = [one for one in differences(facts["identity"], identity.facts()) if not one.startswith("versions.")]
    if changes:
        raise Conflict(f"{output} was trained with other settings ({'; '.join(changes)}); give another --output")
    return TrainingResult(output, facts, was_there=True)


def check_precision(recipe: Recipe) -> None:
    if recipe.precision == "fp16" and not torch.cuda.is_available():
        raise InvalidInput("--precision fp16 needs a GPU, and this machine has none; use bf16 or fp32")


def steps(recipe: Recipe, examples: Examples) -> int:
    """Number of optimizer steps. An incomplete last batch is dropped, unless it is the only batch."""
    if recipe.steps is not None:
        return recipe.steps
    return max(1, math.ceil(recipe.epochs * max(1, len(examples) // recipe.batch_size)))


def before(evaluator: EmbeddingSimilarityEvaluator | None, model: SentenceTransformer) -> float | None:
    """The start encoder's score on the development pairs; None if there are no pairs."""
    if evaluator is None:
        return None
    return float(evaluator(model)[SCORE])


DROPOUTS = (  # dropout settings in the configurations of BERT-like models, of DistilBERT, of ModernBERT and of GPT-2
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop",
)  # fmt: skip


def quiet() -> None:
    """Hides messages of transformers and sentence-transformers, except errors."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


def describe_start(checkpoint: Checkpoint, recipe: Recipe) -> EncoderSpec:
    """Spec of the start encoder: pooling, layers, maximum length when served, hashes of weights and tokenizer.

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


def load_start(checkpoint: Checkpoint, spec: EncoderSpec, dropout: float | None) -> SentenceTransformer:
    """The start encoder as a SentenceTransformer, in float32, on the GPU if there is one.

    The model has only the first `spec.layers` layers.
    """
    config = AutoConfig.from_pretrained(checkpoint.folder)
    changed: dict[str, Any] = {"num_hidden_layers": spec.layers}
    # ModernBERT's config lists the attention type of each layer. The list must contain the kept layers only.
    if isinstance(kinds := getattr(config, "layer_types", None), list):
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
    """Raises InvalidInput if the encoder has no dropout: SimCSE needs two different vectors of the same sentence."""
    was_training = model.training
    model.train()
    features = {k: v.to(model.device) if hasattr(v, "to") else v for k, v in model.preprocess([sentence] * 2).items()}
    with torch.no_grad():
        first, second = model(features)["sentence_embedding"]
    model.train(was_training)
    if torch.equal(first, second):
        raise InvalidInput("this encoder has no dropout, but unsupervised SimCSE needs it; give --dropout 0.1")
