"""Trainings of a tiny encoder: objectives, poolings, early stopping, and resuming with the same weights."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from isosim.errors import Conflict, InvalidInput
from isosim.export import checkpoints, encoder
from isosim.training import run
from isosim.training.recipe import Objective, Recipe
from tests.processes import Process, environment, wait_until
from tests.text import sentences

TEXTS = sentences(240)
FAST: dict[str, Any] = {"layers": 2, "batch_size": 16, "steps": 6, "every": 3, "learning_rate": 1e-3}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on a tiny model wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def overlap(a: str, b: str) -> float:
    """A grade of our own: words in common, 0 to 5."""
    return round(5 * len(set(a.split()) & set(b.split())) / len(set(a.split()) | set(b.split())), 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    pairs = [(a, b) for a, b in zip(TEXTS[:120], [*TEXTS[1:60], *TEXTS[:61]], strict=True)]
    (folder / "text.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "graded.tsv").write_text("".join(f"{overlap(a, b)}\t{a}\t{b}\n" for a, b in pairs))
    (folder / "dev.tsv").write_text("".join(f"{overlap(a, b)}\t{a}\t{b}\n" for a, b in pairs[::3]))
    (folder / "nli.tsv").write_text("".join(f"{int(overlap(a, b) > 1)}\t{a}\t{b}\n" for a, b in pairs))
    # Few anchors, as premises in NLI: a batch must not hold one twice.
    rows = zip(TEXTS[:40] * 3, TEXTS[40:160], TEXTS[120:240], strict=True)
    (folder / "triplets.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


DATA: dict[Objective, str] = {
    "simcse": "text.txt",
    "simcse-supervised": "triplets.tsv",
    "classification": "nli.tsv",
    "regression": "graded.tsv",
    "triplet": "triplets.tsv",
}


def trained(
    tiny: Path, files: Path, output: Path, objective: Objective, dev: Path | None = None, **options: Any
) -> dict[str, Any]:
    recipe = Recipe(objective, **(FAST | options))
    return run.train(checkpoints.resolve(str(tiny)), recipe, files / DATA[objective], output, dev=dev)


def stopped(tiny: Path, files: Path, output: Path, objective: Objective, at: int, **options: Any) -> None:
    """Ends a training at a step; its checkpoints stay."""

    class Stopped(Exception):
        pass

    def report(stage: str, _: float | None) -> None:
        if stage.startswith(f"step {at} of"):
            raise Stopped

    with pytest.raises(Stopped):
        recipe = Recipe(objective, **(FAST | options))
        run.train(checkpoints.resolve(str(tiny)), recipe, files / DATA[objective], output, report=report)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("objective", DATA)
def test_each_objective_trains_and_resumes_to_the_same_weights(
    objective: Objective, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """Epochs of 4 to 8 steps; the training stops at step 11 and resumes at step 9."""
    options: dict[str, Any] = {"steps": 12, "every": 3, "batch_size": 32}
    trained(tiny_checkpoint, files, tmp_path / "whole", objective, **options)
    stopped(tiny_checkpoint, files, tmp_path / "out", objective, at=11, **options)
    trained(tiny_checkpoint, files, tmp_path / "out", objective, **options)
    assert same(tmp_path / "out", tmp_path / "whole")
    before, after = load_file(tiny_checkpoint / "model.safetensors"), weights(tmp_path / "out")
    assert not torch.equal(after["encoder.layer.1.output.dense.weight"], before["encoder.layer.1.output.dense.weight"])
    assert not any(name.startswith("encoder.layer.2.") for name in after)
    assert not (tmp_path / "out.training").exists()


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_result_is_exported_as_it_was_trained(
    pooling: str, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """The folder states pooling, layers and maximum length; sentence-transformers and isosim give the same vectors."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "out"
    trained(tiny_checkpoint, files, folder, "regression", pooling=pooling, steps=2)
    exported = encoder.load(checkpoints.resolve(str(folder)))
    spec = exported.spec
    assert (spec.pooling, spec.layers, spec.max_length) == (pooling, 2, 64)
    assert (folder / "tokenizer.json").read_bytes() == (tiny_checkpoint / "tokenizer.json").read_bytes()
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert theirs.max_seq_length == 64
    features = theirs.preprocess(TEXTS[:5])
    ours = exported(features["input_ids"], features["attention_mask"])
    np.testing.assert_allclose(ours.numpy(), theirs.encode(TEXTS[:5]), atol=1e-5)


def test_the_weights_with_the_best_score_are_kept_and_patience_ends_the_training(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """The learning rate is so high that later steps are worse."""
    facts = trained(
        tiny_checkpoint, files, tmp_path / "out", "regression", dev=files / "dev.tsv", learning_rate=0.05,
        steps=40, every=2, patience=2,
    )  # fmt: skip
    scores = {int(step): score for step, score in facts["dev_by_step"].items()}
    best = max(scores, key=lambda step: scores[step])
    assert (facts["steps_kept"], facts["dev_kept"]) == (best, scores[best])
    assert max(scores) == best + 2 * 2 < 40  # two evaluations without improvement

    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    from isosim.jobs.labelled_pairs import read_pairs

    pairs = read_pairs(files / "dev.tsv")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    similarities = model.similarity_pairwise(model.encode(pairs.left), model.encode(pairs.right)).numpy()
    assert spearmanr(similarities, pairs.gold).statistic == pytest.approx(scores[best], abs=1e-6)


def test_a_killed_training_resumes_to_the_same_weights_and_scores(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """Restores the random numbers of dropout, AdamW's moments, the classifier's weights and the count of patience."""
    output, working = tmp_path / "out", tmp_path / "out.training"
    options = {"layers": 2, "batch-size": 16, "steps": 30, "every": 3, "learning-rate": 1e-3, "patience": 20}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    files_given = [str(files / DATA["classification"]), "--dev", str(files / "dev.tsv"), "-o", str(output)]
    command = [sys.executable, "-m", "isosim.cli", "train", "classification", *files_given, *given]
    command += ["--encoder", str(tiny_checkpoint)]
    home = tmp_path / "home"
    settings = environment() | {"OMP_NUM_THREADS": "1", "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    settings = {name: value for name, value in settings.items() if not name.startswith("HF_")}
    log = tmp_path / "first.log"
    with log.open("wb") as file:
        process = Process(subprocess.Popen(command, env=settings, stderr=file, start_new_session=True), log)
    wait_until(lambda: any(working.glob("checkpoint-*/trainer_state.json")), 180, 0.002)
    assert process.popen.poll() is None, "it ended before it could be killed"
    process.kill()
    assert not output.exists()
    assert list(working.glob("checkpoint-*"))
    again = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert (again.returncode, again.stdout) == (0, f"{output}\n"), again.stderr
    assert not [line for line in again.stderr.splitlines() if not line.startswith(("Spearman", "no evaluation"))]
    assert not working.exists()
    assert not list(home.rglob("*")), "caches of data sets or models"
    dev = files / "dev.tsv"
    facts = trained(
        tiny_checkpoint, files, tmp_path / "whole", "classification", dev=dev, steps=30, every=3, patience=20
    )
    assert same(output, tmp_path / "whole")
    assert json.loads((output / "training.json").read_text()) == json.loads(json.dumps(facts))


def test_an_incomplete_checkpoint_is_ignored(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    trained(tiny_checkpoint, files, tmp_path / "whole", "regression", steps=9)
    stopped(tiny_checkpoint, files, tmp_path / "out", "regression", at=8, steps=9)
    newest = tmp_path / "out.training" / "checkpoint-6"
    state = newest / "trainer_state.json"
    state.write_bytes(state.read_bytes()[:-9])
    (newest / "optimizer.pt").write_bytes(b"half")
    trained(tiny_checkpoint, files, tmp_path / "out", "regression", steps=9)
    assert same(tmp_path / "out", tmp_path / "whole")


def test_a_training_that_ended_early_does_not_train_on_when_it_resumes(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """The process is killed after the last checkpoint, before the result is written."""

    class Stopped(Exception):
        pass

    def report(stage: str, _: float | None) -> None:
        if stage == "writing the encoder":
            raise Stopped

    recipe = Recipe("regression", **(FAST | {"learning_rate": 0.05, "steps": 40, "every": 2, "patience": 2}))
    start, data, dev = checkpoints.resolve(str(tiny_checkpoint)), files / DATA["regression"], files / "dev.tsv"
    with pytest.raises(Stopped):
        run.train(start, recipe, data, tmp_path / "out", dev=dev, report=report)
    steps: list[str] = []
    facts = run.train(start, recipe, data, tmp_path / "out", dev=dev, report=lambda stage, _: steps.append(stage))
    assert not any(stage.startswith("step") for stage in steps)
    assert max(map(int, facts["dev_by_step"])) == facts["steps_kept"] + 4


def test_a_training_with_other_settings_is_refused(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    """Before and after the result is written. The same training returns the result that is there."""
    stopped(tiny_checkpoint, files, tmp_path / "out", "regression", at=5)
    with pytest.raises(Conflict, match="seed was 0, now 1"):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", seed=1)
    facts = trained(tiny_checkpoint, files, tmp_path / "out", "regression")
    written = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert trained(tiny_checkpoint, files, tmp_path / "out", "regression") == facts
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(Conflict, match=r"grades was None, now \[0, 5\]"):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", grades=(0, 5))
    (tmp_path / "mine").mkdir()
    with pytest.raises(Conflict, match="is not a trained encoder"):
        trained(tiny_checkpoint, files, tmp_path / "mine", "regression")


def test_simcse_refuses_an_encoder_without_dropout(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no dropout"):
        trained(tiny_checkpoint, files, tmp_path / "out", "simcse", dropout=0.0)


def test_the_dropout_rate_applies_to_every_layer(tiny_checkpoint: Path) -> None:
    checkpoint = checkpoints.resolve(str(tiny_checkpoint))
    recipe = Recipe("simcse", layers=3, dropout=0.25)
    model = run.trainable(run.load_start(checkpoint, recipe))
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_length": 65}, "64 tokens at most"),
        ({"learning_rate": 1e30}, "infinite or NaN at step"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, Any], said: str, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=said):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", **options)
    assert not (tmp_path / "out").exists()


def test_too_few_distinct_sentences_are_refused(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("".join(f"{TEXTS[0]}\t{text}\t{text}\n" for text in TEXTS[1:20]))
    with pytest.raises(InvalidInput, match="too few distinct sentences"):
        run.train(
            checkpoints.resolve(str(tiny_checkpoint)), Recipe("simcse-supervised", **FAST), tmp_path / "one.tsv",
            tmp_path / "out",
        )  # fmt: skip


def test_seed_and_precision_decide_weights_that_stay_float32(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    trained(tiny_checkpoint, files, tmp_path / "whole", "regression", steps=2)
    trained(tiny_checkpoint, files, tmp_path / "half", "regression", steps=2, precision="bf16")
    trained(tiny_checkpoint, files, tmp_path / "seed", "regression", steps=2, seed=1)
    assert {tensor.dtype for tensor in weights(tmp_path / "half").values()} == {torch.float32}
    assert not same(tmp_path / "half", tmp_path / "whole")
    assert not same(tmp_path / "seed", tmp_path / "whole")


def test_the_folder_states_the_licence_and_holds_no_training_text(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    recipe = Recipe("simcse", **(FAST | {"steps": 2}))
    folder = tmp_path / "out"
    run.train(checkpoints.resolve(str(tiny_checkpoint)), recipe, files / "text.txt", folder, licence="CC-BY-4.0")
    assert checkpoints.licence_of(folder) == "CC-BY-4.0"
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.suffix in (".json", ".md"))
    assert not any(sentence.encode() in everything for sentence in TEXTS)
