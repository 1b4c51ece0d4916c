"""Extends the trainer of sentence-transformers: complete checkpoints, resumable early stopping, progress reports.

A killed training resumes from its newest complete checkpoint. It stops early at the same step as a training that was
not killed.
"""

import contextlib
import fcntl
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from isosim.errors import Conflict, InvalidInput
from isosim.store.artifacts import read_json, write_json
from isosim.training.recipe import Recipe

DEV = "dev"
SCORE = f"{DEV}_spearman_cosine"
LOSS = "loss.safetensors"  # weights of the loss, which the trainer's checkpoints do not include


class WorkingFolder:
    """Checkpoints of one training. Incomplete checkpoints, left by a killed process, are ignored and deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def hold(self, identity: dict[str, Any], differences: Any) -> Iterator[None]:
        """Locks the folder for this process, and reserves it for the training with this `identity`.

        Raises:
            Conflict: another process is training in the folder, or the folder belongs to a different training.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another process is training in {self.folder}") from None
            place = self.folder / "identity.json"
            if not place.is_file():
                write_json(place, identity)
            elif changes := differences(read_json(place), json.loads(json.dumps(identity))):
                raise Conflict(
                    f"{self.folder} holds a training with other settings ({'; '.join(changes)}); delete this folder, "
                    "or give another --output"
                )
            yield

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}"

    def seal(self, step: int) -> None:
        """Marks a checkpoint as complete."""
        write_json(self.checkpoint(step) / WHOLE, sizes(self.checkpoint(step)))

    def newest(self) -> Path | None:
        """The newest complete checkpoint; deletes incomplete ones."""
        whole: dict[int, Path] = {}
        for place in self.folder.iterdir():
            if (match := CHECKPOINT.fullmatch(place.name)) is None:
                continue
            if (place / WHOLE).is_file() and read_json(place / WHOLE) == sizes(place):
                whole[int(match[1])] = place
            else:
                shutil.rmtree(place)
        return whole[max(whole)] if whole else None

    def delete(self) -> None:
        shutil.rmtree(self.folder)


@dataclass(frozen=True)
class LoopSettings:
    """Settings of a training loop, its folder and its callbacks."""

    recipe: Recipe
    steps: int
    working: WorkingFolder
    evaluator: EmbeddingSimilarityEvaluator | None
    no_duplicates: bool  # True: no batch contains a sentence twice
    report: Callable[[str, float | None], None]


@dataclass(frozen=True)
class Scores:
    """Spearman correlation on the development pairs, by step. `kept` is the step whose weights were kept."""

    by_step: dict[int, float]
    kept: int

    @property
    def best(self) -> int | None:
        """The first step with the highest score."""
        finite = {step: score for step, score in self.by_step.items() if math.isfinite(score)}
        return max(finite, key=lambda step: (finite[step], -step)) if finite else None


def scores_of(state: TrainerState) -> Scores:
    by_step = {int(entry["step"]): entry[f"eval_{SCORE}"] for entry in state.log_history if f"eval_{SCORE}" in entry}
    return Scores(by_step, state.global_step)


def out_of_patience(scores: Scores, patience: int | None) -> bool:
    """Whether to stop early. A resumed training has the same scores, so it stops at the same step."""
    if patience is None or scores.best is None:
        return False
    return sum(step > scores.best for step in scores.by_step) >= patience


class TrainingMonitor(TrainerCallback):
    """Reports progress, marks checkpoints as complete, and stops the training early if scores no longer improve.

    Makes the trainer also evaluate and save after the last step.

    Raises:
        InvalidInput: the loss became infinite or NaN.
    """

    def __init__(self, setting: LoopSettings, loss: torch.nn.Module) -> None:
        self.setting, self.loss = setting, loss

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        said = f"step {state.global_step:,} of {self.setting.steps:,}"
        if scores := scores_of(state).by_step:
            said += f", dev {100 * max(scores.values()):.2f}"
        self.setting.report(said, state.global_step / self.setting.steps)
        if state.global_step >= self.setting.steps:
            control.should_save = True
            control.should_log = True
            control.should_evaluate = self.setting.evaluator is not None

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not math.isfinite(state.log_history[-1].get("loss", 0.0)):
            raise InvalidInput(f"the loss is infinite or NaN at step {state.global_step}; lower --learning-rate")

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if out_of_patience(scores_of(state), self.setting.recipe.patience):
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        own = own_weights(self.loss)
        if own:
            save_file(own, self.setting.working.checkpoint(state.global_step) / LOSS)
        self.setting.working.seal(state.global_step)


class Trainer(SentenceTransformerTrainer):
    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Does nothing: the library's model card would quote training sentences. `result.py` writes the README."""


def own_weights(loss: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in loss.state_dict().items() if not name.startswith("model.")}


def optimize(model: SentenceTransformer, loss: torch.nn.Module, data: Dataset, setting: LoopSettings) -> Scores:
    """Trains the model in place, then loads its best weights. Resumes from the newest complete checkpoint, if any."""
    newest = setting.working.newest()
    scores = None
    if newest is not None:
        scores = scores_of(TrainerState.load_from_json(str(newest / "trainer_state.json")))
        if (newest / LOSS).is_file():
            loss.load_state_dict(load_file(newest / LOSS), strict=False)
    if scores is None or not ended(scores, setting):
        collator = SentenceTransformerDataCollator(preprocess_fn=model.preprocess, max_length=setting.recipe.max_length)
        trainer = Trainer(
            model=model,
            args=arguments(setting, len(data)),
            train_dataset=data,
            loss=loss,
            evaluator=setting.evaluator,
            data_collator=collator,
            callbacks=[TrainingMonitor(setting, loss)],
        )
        trainer.remove_callback(PrinterCallback)  # it prints progress to stdout, which is for results only
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
        scores = scores_of(trainer.state)
    kept = scores.kept if scores.best is None else scores.best
    restore(model, setting.working.checkpoint(kept))
    return Scores(scores.by_step, kept)


def ended(scores: Scores, setting: LoopSettings) -> bool:
    return scores.kept >= setting.steps or out_of_patience(scores, setting.recipe.patience)


def restore(model: SentenceTransformer, checkpoint: Path) -> None:
    """Loads a checkpoint's weights into the model; raises an error if a tensor is missing."""
    stored = SentenceTransformer(str(checkpoint), device="cpu", local_files_only=True)
    model.load_state_dict(stored.state_dict())
    model.eval()


def arguments(setting: LoopSettings, examples: int) -> SentenceTransformerTrainingArguments:
    recipe = setting.recipe
    evaluated = setting.evaluator is not None
    return SentenceTransformerTrainingArguments(
        output_dir=str(setting.working.folder),
        max_steps=setting.steps,
        per_device_train_batch_size=recipe.batch_size,
        dataloader_drop_last=examples >= recipe.batch_size,
        dataloader_pin_memory=torch.cuda.is_available(),
        batch_sampler=BatchSamplers.NO_DUPLICATES if setting.no_duplicates else BatchSamplers.BATCH_SAMPLER,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        warmup_steps=math.ceil(recipe.warmup * setting.steps),
        max_grad_norm=1.0,
        # Without this flag the library refuses bf16 on a CPU.
        use_cpu=recipe.precision == "bf16" and not torch.cuda.is_available(),
        bf16=recipe.precision == "bf16",
        fp16=recipe.precision == "fp16",
        eval_strategy="steps" if evaluated else "no",
        eval_steps=recipe.every,
        metric_for_best_model=SCORE if evaluated else None,  # the trainer then keeps the best and the newest checkpoint
        greater_is_better=True if evaluated else None,
        save_strategy="steps",
        save_steps=recipe.every,
        save_total_limit=2,
        logging_strategy="steps",
        logging_steps=recipe.every,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        seed=recipe.seed,
        data_seed=recipe.seed,
    )


WHOLE = "whole.json"  # lists the sizes of a checkpoint's files; written last, it marks the checkpoint as complete
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != WHOLE)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}
