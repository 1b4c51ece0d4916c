"""One training from its start, or from its newest whole checkpoint, to a folder that can be exported."""

import importlib.metadata
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from transformers import set_seed

from service.core.errors import Conflict, InvalidInput
from service.modelling.checkpoints import Checkpoint
from service.modelling.training import start
from service.modelling.training.data import Examples, read_graded, without_words
from service.modelling.training.loop import DEV, SCORE, Setting, optimize
from service.modelling.training.objectives import OBJECTIVES
from service.modelling.training.recipe import Identity, Recipe, Source, differences
from service.modelling.training.result import Outcome, facts_of, publish
from service.modelling.training.working import Working

Report = Callable[[str, float | None], None]
PACKAGES = ("torch", "transformers", "sentence-transformers")


@dataclass(frozen=True)
class Trained:
    """Where the result is, its facts, and whether it was there before."""

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
) -> Trained:
    """Trains, or goes on with, the encoder that these arguments describe.

    Args:
        dev: score-TAB-sentence-TAB-sentence; its Spearman correlation chooses the weights, and may stop early.
        licence: of the result, for its README; the start's own where it states one.

    Raises:
        InvalidInput: an option or a file is wrong. Conflict: the output holds something else, or another process
            trains there.
    """
    recipe.check()
    start.quiet()
    objective = OBJECTIVES[recipe.objective]
    examples = objective.read(data, recipe.knobs)
    if objective.contrastive and len(examples) < 2:
        raise InvalidInput(f"{data}: one example has no others to be told from; at least 2 are needed")
    spec = start.described(checkpoint, recipe)
    check_precision(recipe)
    pairs = None if dev is None else read_graded(dev)
    chosen_by = None if dev is None or pairs is None else Source.of(dev, len(pairs))
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    identity = Identity(recipe, spec, Source.of(data, len(examples)), chosen_by, versions)
    if output.exists():
        return finished(output, identity)
    working = Working(output.with_name(f"{output.name}.training"))
    with working.of(identity.facts(), differences):
        report("loading the start", None)
        set_seed(recipe.seed)
        model = start.load(checkpoint, spec, recipe.dropout)
        if objective.needs_dropout and not recipe.word_deletion:
            start.check_dropout(model, examples.sentences["anchor"][0])
        evaluator = None
        if pairs is not None:
            left, right = pairs.sentences.values()
            grades = [float(grade) for grade in pairs.labels or ()]
            evaluator = EmbeddingSimilarityEvaluator(
                left, right, grades, name=DEV, main_similarity="cosine", write_csv=False
            )
        unique = objective.contrastive and not objective.needs_dropout  # there, sentences are distinct as they are read
        setting = Setting(recipe, steps(recipe, examples), working, evaluator, unique, report)
        set_seed(recipe.seed)  # the classifier of a loss is drawn here; the order of examples has the seed of its own
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
    return Trained(output, facts)


def finished(output: Path, identity: Identity) -> Trained:
    """The result of the same training, made before.

    Raises:
        Conflict: the folder is something else.
    """
    facts = facts_of(output)
    if facts is None:
        raise Conflict(f"{output} exists and is no trained encoder; give another --output")
    found = [one for one in differences(facts["identity"], identity.facts()) if not one.startswith("versions.")]
    if found:  # other packages would give other bits; the result that is there is still the one that was asked for
        raise Conflict(f"{output} was trained otherwise ({'; '.join(found)}); give another --output")
    return Trained(output, facts, was_there=True)


def check_precision(recipe: Recipe) -> None:
    if recipe.precision == "fp16" and not torch.cuda.is_available():
        raise InvalidInput("--precision fp16 needs a GPU, and there is none here; bf16 and fp32 do not")


def steps(recipe: Recipe, examples: Examples) -> int:
    """Optimizer steps; a batch that is not full is left out, where there is a full one."""
    if recipe.steps is not None:
        return recipe.steps
    return max(1, math.ceil(recipe.epochs * max(1, len(examples) // recipe.batch_size)))


def before(evaluator: EmbeddingSimilarityEvaluator | None, model: SentenceTransformer) -> float | None:
    """The start's score on the development pairs."""
    if evaluator is None:
        return None
    return float(evaluator(model)[SCORE])
