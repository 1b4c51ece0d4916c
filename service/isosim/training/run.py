"""Trains an encoder with the trainer and the losses of sentence-transformers, and writes a folder for `isosim export`.

Objectives: SBERT (Reimers & Gurevych, EMNLP 2019, section 3) and SimCSE (Gao, Yao & Chen, EMNLP 2021, sections 3 and
4). A killed training resumes from its newest checkpoint and ends with the same weights.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import shutil
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from transformers import AutoConfig, EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainerState, set_seed

from isosim.errors import Conflict, InvalidInput
from isosim.export.checkpoints import Checkpoint, licence_of
from isosim.export.encoder import Encoder, load, modules_of
from isosim.store.artifacts import read_json, sha256, write_json
from isosim.training.data import read_classes, read_graded, read_sentences, read_triplets
from isosim.training.recipe import Recipe

Report = Callable[[str, float | None], None]
SCORE = "dev_spearman_cosine"
FACTS = "training.json"
LOSS = "loss.safetensors"  # weights of the loss, which the library's checkpoints do not include
PACKAGES = ("torch", "transformers", "sentence-transformers")
DROPOUTS = (  # dropout rates in the configurations of BERT-like models, of DistilBERT, of ModernBERT and of GPT-2
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop",
)  # fmt: skip


def train(
    checkpoint: Checkpoint,
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    dev: Path | None = None,
    licence: str | None = None,
    report: Report = lambda _, __: None,
) -> dict[str, Any]:
    """Trains an encoder, or resumes its training, and returns the content of the result's `training.json`.

    Args:
        dev: file of graded pairs (see `read_graded`). The Spearman correlation on these pairs decides which weights are
            kept, and may stop the training early.
        licence: licence of the result; None: the licence of the start encoder.

    Raises:
        InvalidInput: an option or a file is not valid.
        Conflict: the output folder contains something other than the result of this training. Or the working folder
            belongs to a different training, or another process is using it.
    """
    report("loading the start encoder", None)
    start = load_start(checkpoint, recipe)
    spec = start.spec
    examples = read_examples(recipe, data)
    evaluator = None if dev is None else evaluator_of(read_graded(dev))
    settings = {
        **dataclasses.asdict(recipe),
        "pooling": spec.pooling,
        "layers": spec.layers,
        "start_weights": spec.weights,
        "start_tokenizer": spec.tokenizer,
        "data_sha256": sha256(data),
        "dev_sha256": None if dev is None else sha256(dev),
    }
    versions = {name: version(name) for name in PACKAGES}
    if output.exists():
        if not (output / FACTS).is_file():
            raise Conflict(f"{output} exists and is not a trained encoder; give another --output")
        written: dict[str, Any] = read_json(output / FACTS)
        refuse_changes(output, written["settings"], settings)
        return written
    with reserved(output.with_name(f"{output.name}.training"), settings | versions) as working:
        model = trainable(start)
        begun = None if evaluator is None else evaluator(model)[SCORE]
        state = optimize(model, examples, evaluator, recipe, working, report)
        report("writing the encoder", None)
        scores = {one["step"]: one[f"eval_{SCORE}"] for one in state.log_history if f"eval_{SCORE}" in one}
        kept = state.best_global_step or state.global_step
        facts = {
            "settings": settings,
            "versions": versions,
            "start": spec.source,
            "data": data.name,
            "examples": len(examples),
            "dev": None if dev is None else dev.name,
            "dev_before": begun,
            "dev_by_step": {str(step): score for step, score in scores.items()},
            "dev_kept": scores.get(kept),
            "steps_kept": kept,
            "licence": licence or checkpoint.licence or licence_of(checkpoint.folder),
        }
        publish(working / f"checkpoint-{kept}", start.tokenizer, facts, output)
        shutil.rmtree(working)
    return facts


def read_examples(recipe: Recipe, path: Path) -> Dataset:
    match recipe.objective:
        case "simcse":
            return read_sentences(path, recipe.word_deletion, recipe.seed)
        case "simcse-supervised" | "triplet":
            return read_triplets(path)
        case "classification":
            return read_classes(path)
        case "regression":
            return read_graded(path, recipe.grades)


def evaluator_of(pairs: Dataset) -> EmbeddingSimilarityEvaluator:
    left, right, grades = (list(pairs[name]) for name in ("sentence1", "sentence2", "label"))
    return EmbeddingSimilarityEvaluator(left, right, grades, name="dev", main_similarity="cosine", write_csv=False)


def load_start(checkpoint: Checkpoint, recipe: Recipe) -> Encoder:
    """The start encoder, with the pooling, the layers and the dropout rates to train.

    Raises:
        InvalidInput: an option does not fit this checkpoint or this machine.
    """
    config = AutoConfig.from_pretrained(modules_of(checkpoint.folder)[0].folder)
    rates = {name: rate for name in DROPOUTS if (rate := getattr(config, name, None)) is not None}
    if recipe.dropout is not None:
        rates = dict.fromkeys(rates, recipe.dropout)
    if recipe.objective == "simcse" and not recipe.word_deletion and not any(rates.values()):
        raise InvalidInput("this encoder has no dropout, but unsupervised SimCSE needs it; give --dropout 0.1")
    start = load(checkpoint, pooling=recipe.pooling, layers=recipe.layers, prompt="", config=rates)
    if start.spec.pooling not in ("cls", "mean", "max"):
        raise InvalidInput(f"this encoder's pooling {start.spec.pooling!r} cannot be trained; give --pooling")
    if recipe.max_length > start.spec.max_length:
        most = start.spec.max_length
        raise InvalidInput(f"--max-length {recipe.max_length}: this encoder takes {most} tokens at most")
    if recipe.precision == "fp16" and not torch.cuda.is_available():
        raise InvalidInput("--precision fp16 needs a GPU, and this machine has none; use bf16 or fp32")
    return start


def trainable(start: Encoder) -> SentenceTransformer:
    """The start encoder's transformer and pooling, on the GPU if there is one."""
    model = SentenceTransformer(modules=list(start.model)[:2], local_files_only=True).requires_grad_(True)
    model.max_seq_length = start.spec.max_length
    return model


def loss_of(recipe: Recipe, model: SentenceTransformer, examples: Dataset) -> torch.nn.Module:
    """The objective's loss. In SimCSE the other examples of a batch, and all hard negatives, are negatives."""
    match recipe.objective:
        case "simcse" | "simcse-supervised":
            return losses.MultipleNegativesRankingLoss(model, scale=1 / recipe.temperature)
        case "classification":
            dim: Any = model.get_embedding_dimension()
            return losses.SoftmaxLoss(model, dim, num_labels=max(examples["label"]) + 1)
        case "regression":
            return losses.CosineSimilarityLoss(model)
        case "triplet":
            return losses.TripletLoss(model, triplet_margin=recipe.margin)


class Trainer(SentenceTransformerTrainer):
    """Saves the loss's own weights, such as those of a classifier, with each checkpoint."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        loss: Any = self.loss
        own = {name: weight for name, weight in loss.state_dict().items() if not name.startswith("model.")}
        save_file(own, f"{output_dir or self.args.output_dir}/{LOSS}")

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Does nothing: the library's model card would quote training sentences."""


class Progress(TrainerCallback):
    """Reports each step, and ends the training before it saves weights of an infinite loss.

    Raises:
        InvalidInput: the loss became infinite or NaN.
    """

    def __init__(self, report: Report) -> None:
        self.report = report

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        best = "" if state.best_metric is None else f", dev {100 * state.best_metric:.2f}"
        self.report(f"step {state.global_step:,} of {state.max_steps:,}{best}", state.global_step / state.max_steps)
        control.should_log = control.should_save

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if not math.isfinite(state.log_history[-1].get("loss", 0.0)):
            raise InvalidInput(f"the loss is infinite or NaN at step {state.global_step}; lower --learning-rate")


def optimize(
    model: SentenceTransformer,
    examples: Dataset,
    evaluator: EmbeddingSimilarityEvaluator | None,
    recipe: Recipe,
    working: Path,
    report: Report,
) -> TrainerState:
    """Trains until the last step, or until the scores no longer improve, and returns the state of the last checkpoint.

    Raises:
        InvalidInput: the examples have too few distinct sentences for the batch size.
    """
    set_seed(recipe.seed)  # decides the random initial weights of the loss
    loss = loss_of(recipe, model, examples)
    last = newest_checkpoint(working)
    if last is not None:
        loss.load_state_dict(load_file(last / LOSS), strict=False)
    if last is None or not is_over(state_of(last)):
        callbacks: list[TrainerCallback] = [Progress(report)]
        if recipe.patience is not None:
            callbacks.append(EarlyStoppingCallback(recipe.patience))
        trainer = Trainer(
            model=model,
            args=arguments(recipe, len(examples), working, evaluated=evaluator is not None),
            train_dataset=examples,
            loss=loss,
            evaluator=evaluator,
            data_collator=SentenceTransformerDataCollator(preprocess_fn=model.preprocess, max_length=recipe.max_length),
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)  # it prints progress to stdout, which is for results only
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        last = newest_checkpoint(working)
    if last is None or not is_over(state := state_of(last)):
        raise InvalidInput(f"too few distinct sentences to fill batches of {recipe.batch_size}; lower --batch-size")
    return state


def arguments(recipe: Recipe, examples: int, working: Path, *, evaluated: bool) -> SentenceTransformerTrainingArguments:
    # The other examples of a batch are negatives, so that no batch may contain a sentence twice. For simcse,
    # `read_sentences` has removed duplicates.
    unique = recipe.objective == "simcse-supervised"
    return SentenceTransformerTrainingArguments(
        output_dir=str(working),
        num_train_epochs=recipe.epochs,
        max_steps=recipe.steps or -1,
        per_device_train_batch_size=recipe.batch_size,
        batch_sampler=BatchSamplers.NO_DUPLICATES if unique else BatchSamplers.BATCH_SAMPLER,
        dataloader_drop_last=examples >= recipe.batch_size,
        dataloader_pin_memory=torch.cuda.is_available(),
        learning_rate=recipe.learning_rate,
        warmup_steps=recipe.warmup,
        weight_decay=recipe.weight_decay,
        use_cpu=not torch.cuda.is_available(),  # without it the library refuses bf16 on a CPU
        bf16=recipe.precision == "bf16",
        fp16=recipe.precision == "fp16",
        save_steps=recipe.every,
        eval_steps=recipe.every,
        eval_strategy="steps" if evaluated else "no",
        metric_for_best_model=SCORE if evaluated else None,
        greater_is_better=True if evaluated else None,
        save_total_limit=2,  # the best and the newest
        restore_callback_states_from_checkpoint=True,  # early stopping counts on
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        seed=recipe.seed,
    )


def newest_checkpoint(working: Path) -> Path | None:
    """The newest checkpoint that is complete; deletes newer ones, which a killed process left.

    A checkpoint is complete if its state is, because the trainer writes the state last.
    """
    for step in sorted((int(place.name.rpartition("-")[2]) for place in working.glob("checkpoint-*")), reverse=True):
        place = working / f"checkpoint-{step}"
        try:
            state_of(place)
        except (FileNotFoundError, json.JSONDecodeError):
            shutil.rmtree(place)
        else:
            return place
    return None


def state_of(checkpoint: Path) -> TrainerState:
    state: TrainerState = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    return state


def is_over(state: TrainerState) -> bool:
    """Whether the training ended with this checkpoint: by its last step, or early."""
    callbacks: Any = state.stateful_callbacks
    return bool(callbacks["TrainerControl"]["args"]["should_training_stop"])


@contextlib.contextmanager
def reserved(working: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """Locks the working folder for this process, and reserves it for trainings with these settings.

    Raises:
        Conflict: another process is training in the folder, or it belongs to a training with other settings.
    """
    working.mkdir(parents=True, exist_ok=True)
    with (working / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process is training in {working}") from None
        place = working / "settings.json"
        if place.is_file():
            refuse_changes(working, read_json(place), settings)
        else:
            write_json(place, settings)
        yield working


def refuse_changes(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    now = json.loads(json.dumps(now))  # tuples become lists, as in `before`
    changes = [f"{name} was {before[name]}, now {now[name]}" for name in now if before[name] != now[name]]
    if changes:
        raise Conflict(f"{folder} holds a training with other settings ({'; '.join(changes)}); give another --output")


def publish(trained: Path, tokenizer: bytes, facts: dict[str, Any], output: Path) -> None:
    """Writes the trained encoder under a temporary name, then renames the folder."""
    temporary = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
    try:
        model = SentenceTransformer(str(trained), device="cpu", local_files_only=True)
        model.save_pretrained(str(temporary), create_model_card=False)
        # The library may rewrite this file. The original is kept, because its hash is part of an encoder's identity.
        (temporary / "tokenizer.json").write_bytes(tokenizer)
        write_json(temporary / FACTS, facts)
        (temporary / "README.md").write_text(
            f"---\nlibrary_name: sentence-transformers\nlicense: {json.dumps(facts['licence'])}\n---\n\n"
            f"A sentence encoder, trained with `isosim train` from {facts['start']} on {facts['data']}; {FACTS} lists "
            "the settings and scores. The licence is that of the start encoder unless another one was given; check "
            "whether the licence of the training text allows your use.\n",
            encoding="utf-8",
        )
        # The library lets only the file's owner read the weights, but another user may export the encoder.
        (temporary / "model.safetensors").chmod(0o644)
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
