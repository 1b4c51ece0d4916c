"""Trainings of a tiny encoder: a seed decides every bit, and a killed one ends as if it had not been."""

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
from isosim.training.recipe import Recipe
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


DATA = {
    "simcse": "text.txt",
    "simcse-supervised": "triplets.tsv",
    "classification": "nli.tsv",
    "regression": "graded.tsv",
    "triplet": "triplets.tsv",
}


def trained(tiny: Path, files: Path, output: Path, objective: str, **options: Any) -> run.TrainingResult:
    dev = options.pop("dev", None)
    recipe = Recipe(objective, **(FAST | options))
    return run.train(checkpoints.resolve(str(tiny)), recipe, files / DATA[objective], output, dev=dev)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("objective", DATA)
def test_each_objective_learns_and_its_seed_decides_every_bit(
    objective: str, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    trained(tiny_checkpoint, files, tmp_path / "a", objective)
    trained(tiny_checkpoint, files, tmp_path / "b", objective)
    trained(tiny_checkpoint, files, tmp_path / "c", objective, seed=1)
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "c")
    before = load_file(tiny_checkpoint / "model.safetensors")
    moved = weights(tmp_path / "a")
    assert not torch.equal(moved["encoder.layer.1.output.dense.weight"], before["encoder.layer.1.output.dense.weight"])
    assert not any(name.startswith("encoder.layer.2.") for name in moved)
    assert not (tmp_path / "a.training").exists()


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_result_is_exported_as_it_was_trained(
    pooling: str, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """Pooling, layers and served length out of the folder's own files; sentence-transformers' vectors are ours."""
    from sentence_transformers import SentenceTransformer

    folder = trained(tiny_checkpoint, files, tmp_path / "out", "regression", pooling=pooling, steps=2).folder
    spec = encoder.describe(checkpoints.resolve(str(folder)), pooling=None, layers=None, max_length=None, prompt="")
    assert (spec.pooling, spec.layers, spec.max_length) == (pooling, 2, 64)
    assert (folder / "tokenizer.json").read_bytes() == (tiny_checkpoint / "tokenizer.json").read_bytes()
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert theirs.max_seq_length == 64
    features = theirs.preprocess(TEXTS[:5])
    ours = encoder.load(checkpoints.resolve(str(folder)), spec)(features["input_ids"], features["attention_mask"])
    np.testing.assert_allclose(ours.numpy(), theirs.encode(TEXTS[:5]), atol=1e-5)


def test_the_weights_kept_are_those_the_development_pairs_chose(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """A rate at which later steps are worse: the evaluations go on for `patience`, and the best comes back."""
    done = trained(
        tiny_checkpoint, files, tmp_path / "out", "regression", dev=files / "dev.tsv", learning_rate=0.05,
        steps=40, every=2, patience=2,
    )  # fmt: skip
    scores = {int(step): score for step, score in done.facts["dev_by_step"].items()}
    best = max(scores, key=lambda step: scores[step])
    assert done.facts["steps_kept"] == best
    assert max(scores) == best + 2 * 2 < 40  # two evaluations in vain, then no more

    from sentence_transformers import SentenceTransformer

    from isosim.jobs.labelled_pairs import read_pairs

    pairs = read_pairs(files / "dev.tsv")
    model = SentenceTransformer(str(done.folder), device="cpu", local_files_only=True)
    from scipy.stats import spearmanr

    similarities = model.similarity_pairwise(model.encode(pairs.left), model.encode(pairs.right)).numpy()
    assert spearmanr(similarities, pairs.gold).statistic == pytest.approx(scores[best], abs=1e-6)
    assert f"{100 * scores[best]:.2f} after training" in (done.folder / "README.md").read_text()


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """Over epochs: dropout's random numbers, AdamW's moments and the loss's own weights, a classifier's, go on."""
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
    wait_until(lambda: any(working.glob("checkpoint-*/whole.json")), 180, 0.002)
    assert process.popen.poll() is None, "it was done before it could be killed"
    process.kill()
    assert not output.exists()
    assert list(working.glob("checkpoint-*"))
    again = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert (again.returncode, again.stdout) == (0, f"{output}\n"), again.stderr
    assert not [line for line in again.stderr.splitlines() if not line.startswith(("Spearman", "no evaluation"))]
    assert not working.exists()
    assert not list(home.rglob("*")), "caches of data sets or models"
    dev = files / "dev.tsv"
    whole = trained(
        tiny_checkpoint, files, tmp_path / "whole", "classification", dev=dev, steps=30, every=3, patience=20
    )
    assert same(output, tmp_path / "whole")
    assert json.loads((output / "training.json").read_text()) == whole.facts


def stopped(tiny: Path, files: Path, output: Path, objective: str, at: int, **options: Any) -> None:
    """A training that ends in the middle, with its checkpoints."""

    class Stopped(Exception):
        pass

    def report(stage: str, _: float | None) -> None:
        if stage.startswith(f"step {at} of"):
            raise Stopped

    with pytest.raises(Stopped):
        recipe = Recipe(objective, **(FAST | options))
        run.train(checkpoints.resolve(str(tiny)), recipe, files / DATA[objective], output, report=report)


@pytest.mark.parametrize("objective", ["simcse", "simcse-supervised", "classification"])
def test_going_on_repeats_nothing_where_epochs_are_short(
    objective: str, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    """Epochs of a few steps, with sentences that a batch must not repeat, broken off in the third."""
    options = {"steps": 24, "every": 5}
    trained(tiny_checkpoint, files, tmp_path / "whole", objective, **options)
    stopped(tiny_checkpoint, files, tmp_path / "out", objective, at=18, **options)
    trained(tiny_checkpoint, files, tmp_path / "out", objective, **options)
    assert same(tmp_path / "out", tmp_path / "whole")


def test_a_checkpoint_that_is_not_whole_does_not_count(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    trained(tiny_checkpoint, files, tmp_path / "whole", "regression", steps=9)
    stopped(tiny_checkpoint, files, tmp_path / "out", "regression", at=8, steps=9)
    newest = tmp_path / "out.training" / "checkpoint-6"
    (newest / "optimizer.pt").write_bytes(b"half")
    trained(tiny_checkpoint, files, tmp_path / "out", "regression", steps=9)
    assert same(tmp_path / "out", tmp_path / "whole")


def test_another_training_does_not_go_on_with_this_ones_checkpoints(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    stopped(tiny_checkpoint, files, tmp_path / "out", "regression", at=5)
    with pytest.raises(Conflict, match=r"recipe\.seed was 0, now 1"):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", seed=1)


def test_a_result_that_is_there_is_kept_and_a_foreign_folder_too(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    first = trained(tiny_checkpoint, files, tmp_path / "out", "regression", steps=2)
    written = (first.folder / "model.safetensors").stat().st_mtime_ns
    assert trained(tiny_checkpoint, files, tmp_path / "out", "regression", steps=2).was_there
    assert (first.folder / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(Conflict, match=r"recipe\.steps was 2, now 3"):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", steps=3)
    (tmp_path / "mine").mkdir()
    with pytest.raises(Conflict, match="is not a trained encoder"):
        trained(tiny_checkpoint, files, tmp_path / "mine", "regression", steps=2)


def test_simcse_refuses_an_encoder_that_drops_nothing_out(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no dropout"):
        trained(tiny_checkpoint, files, tmp_path / "out", "simcse", dropout=0.0)


def test_dropout_is_on_in_every_layer_that_is_asked_for_it(tiny_checkpoint: Path) -> None:
    checkpoint = checkpoints.resolve(str(tiny_checkpoint))
    recipe = Recipe("simcse", layers=3, dropout=0.25)
    model = run.load_start(checkpoint, run.describe_start(checkpoint, recipe), recipe.dropout)
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.25}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": 5}, "this encoder has 4 layers"),
        ({"layers": 0}, "at least one layer"),
        ({"pooling": "last2avg"}, "one of cls, mean, max"),
        ({"max_length": 65}, "64 tokens at most"),
        ({"batch_size": 0}, "--batch-size 0: a number above 0"),
        ({"dropout": 1.0}, "--dropout 1"),
        ({"word_deletion": 0.3}, "--word-deletion is an option for simcse"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, Any], said: str, tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=said):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", **options)
    assert not list(tmp_path.iterdir())


def test_half_precision_trains_weights_that_stay_whole(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    trained(tiny_checkpoint, files, tmp_path / "half", "regression", precision="bf16")
    trained(tiny_checkpoint, files, tmp_path / "whole", "regression")
    assert {tensor.dtype for tensor in weights(tmp_path / "half").values()} == {torch.float32}
    assert not same(tmp_path / "half", tmp_path / "whole")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="fp16 needs a GPU"):
            trained(tiny_checkpoint, files, tmp_path / "out", "regression", precision="fp16")


def test_a_loss_that_is_lost_is_said(tiny_checkpoint: Path, files: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="infinite or NaN at step"):
        trained(tiny_checkpoint, files, tmp_path / "out", "regression", learning_rate=1e30)


def test_the_readme_states_the_licence_and_holds_no_training_text(
    tiny_checkpoint: Path, files: Path, tmp_path: Path
) -> None:
    recipe = Recipe("simcse", **(FAST | {"steps": 2}))
    start_from = checkpoints.resolve(str(tiny_checkpoint))
    done = run.train(start_from, recipe, files / "text.txt", tmp_path / "out", licence="CC-BY-4.0")
    text = (done.folder / "README.md").read_text()
    assert 'license: "CC-BY-4.0"' in text
    assert "text.txt, 240 examples" in text
    everything = b"".join(path.read_bytes() for path in done.folder.rglob("*.json")) + text.encode()
    assert not any(sentence.encode() in everything for sentence in TEXTS)
    assert json.loads((done.folder / "training.json").read_text())["identity"]["recipe"]["seed"] == 0
