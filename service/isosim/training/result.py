"""Writes the folder of a finished training, which sentence-transformers and `isosim export` can read."""

import json
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from isosim.export.checkpoints import Checkpoint
from isosim.export.packaged import KNOWN
from isosim.store.artifacts import read_json, write_json
from isosim.training.loop import Scores
from isosim.training.objectives import OBJECTIVES
from isosim.training.recipe import Identity

FACTS = "training.json"
LICENCE = re.compile(r"^license:\s*(\S.*)$", re.M)


@dataclass(frozen=True)
class Outcome:
    """Steps, scores and data of a finished training."""

    steps: int  # planned number of optimizer steps
    start_score: float | None  # Spearman correlation on the development pairs before the training
    scores: Scores
    grades: tuple[float, float] | None
    classes: int

    def facts(self) -> dict[str, Any]:
        return {
            "steps_planned": self.steps,
            "steps_kept": self.scores.kept,
            "dev_before": self.start_score,
            "dev_by_step": {str(step): score for step, score in self.scores.by_step.items()},
            "dev_kept": self.scores.by_step.get(self.scores.kept),
            "grades": self.grades,
            "classes": self.classes or None,
        }


def facts_of(folder: Path) -> dict[str, Any] | None:
    """The content of the folder's training.json; None if the file does not exist."""
    return read_json(folder / FACTS) if (folder / FACTS).is_file() else None


def publish(
    model: SentenceTransformer,
    start: Checkpoint,
    identity: Identity,
    outcome: Outcome,
    licence: str | None,
    output: Path,
) -> dict[str, Any]:
    """Writes the folder under a temporary name, then renames it. Returns the content of training.json."""
    temporary = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
    try:
        model.save_pretrained(str(temporary), create_model_card=False)
        # The library may rewrite this file. The original is kept, because its hash is part of an encoder's identity.
        shutil.copyfile(start.folder / "tokenizer.json", temporary / "tokenizer.json")
        readable_elsewhere(temporary, identity)
        stated = licence or licence_of(start)
        facts = {"identity": json.loads(json.dumps(identity.facts())), **outcome.facts(), "licence": stated}
        write_json(temporary / FACTS, facts)
        (temporary / "README.md").write_text(readme(identity, outcome, stated), encoding="utf-8")
        # The library lets only the file's owner read the weights, but another user may export the encoder.
        (temporary / "model.safetensors").chmod(0o644)
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return facts


def readable_elsewhere(folder: Path, identity: Identity) -> None:
    """Adds pooling and maximum length under their old names.

    Other libraries, and versions of sentence-transformers older than 6, read these old names.
    """
    pooling, spec = folder / "1_Pooling" / "config.json", identity.start
    names = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
    old = {name: kind == spec.pooling for kind, name in names.items()}
    write_json(pooling, read_json(pooling) | {"word_embedding_dimension": spec.dim} | old)
    transformer = folder / "sentence_bert_config.json"
    write_json(transformer, read_json(transformer) | {"max_seq_length": spec.max_length, "do_lower_case": False})


def licence_of(start: Checkpoint) -> str | None:
    """The licence of the start encoder; None if it is not known."""
    known = next((one for one in KNOWN.values() if one.upstream == start.source), None)
    if known is not None:
        return known.licence
    if (facts := facts_of(start.folder)) is not None and facts.get("licence"):
        return str(facts["licence"])
    card = start.folder / "README.md"
    if not card.is_file():
        return None
    match = LICENCE.search(card.read_text(encoding="utf-8", errors="replace").split("\n---", 1)[0])
    return match[1].strip().strip("'\"") if match else None


def readme(identity: Identity, outcome: Outcome, licence: str | None) -> str:
    recipe, spec, scores = identity.recipe, identity.start, outcome.scores
    objective = OBJECTIVES[recipe.objective]
    settings = [
        ("objective", f"{recipe.objective}: {objective.source}"),
        ("start", f"{spec.source}, weights SHA-256 {spec.weights}"),
        ("layers, pooling", f"{spec.layers}, {spec.pooling}"),
        ("trained on", f"{identity.data.name}, {identity.data.examples:,} examples, SHA-256 {identity.data.sha256}"),
        ("steps × batch", f"{outcome.steps:,} planned × {recipe.batch_size}; weights of step {scores.kept:,} kept"),
        ("learning rate, warm-up", f"{recipe.learning_rate:g}, {recipe.warmup:g} of the steps, then linear to 0"),
        ("weight decay", f"{recipe.weight_decay:g}"),
        ("dropout", "that of the start encoder" if recipe.dropout is None else f"{recipe.dropout:g}"),
        ("maximum length", f"{recipe.max_length} tokens in training, {spec.max_length} tokens when served"),
        ("precision, seed", f"{recipe.precision}, {recipe.seed}"),
        ("made with", ", ".join(f"{name} {version}" for name, version in identity.versions.items())),
    ]
    if recipe.objective.startswith("simcse"):
        settings.insert(5, ("temperature", f"{recipe.knobs.temperature:g}"))
    if recipe.objective == "simcse":
        settings.insert(6, ("word deletion", f"{recipe.word_deletion:g} of the words of both copies of a sentence"))
    if recipe.objective == "triplet":
        settings.insert(5, ("margin", f"{recipe.knobs.margin:g}"))
    if outcome.grades is not None:
        settings.insert(
            5, ("grades", f"{outcome.grades[0]:g} to {outcome.grades[1]:g} became target cosines of 0 to 1")
        )
    if outcome.classes:
        settings.insert(5, ("classes", str(outcome.classes)))
    if identity.dev is not None and outcome.start_score is not None:
        kept = scores.by_step.get(scores.kept, float("nan"))
        said = f"{identity.dev.name}, {identity.dev.examples:,} pairs, SHA-256 {identity.dev.sha256}; Spearman × 100:"
        settings.append(
            ("chosen by", f"{said} {100 * outcome.start_score:.2f} before, {100 * kept:.2f} after training")
        )
    head = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    head += [f"license: {json.dumps(licence)}"] if licence else []
    head += ["tags: [sentence-transformers, sentence-similarity, feature-extraction]", "---"]
    parts = ["\n".join(head), "# A sentence encoder, trained with `isosim train`"]
    parts.append("| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in settings))
    if scores.by_step:
        rows = "\n".join(f"| {step:,} | {100 * score:.2f} |" for step, score in scores.by_step.items())
        parts.append(f"| step | Spearman × 100 on the development pairs |\n|---:|---:|\n{rows}")
    stated = f"Licence of the start encoder: {licence}." if licence else "The start encoder states no licence."
    parts.append(f"{stated} Check whether the licence of the training text allows your use.")
    parts.append("```sh\nisosim export --encoder FOLDER --id NAME\n```")
    return "\n\n".join(parts) + "\n"
