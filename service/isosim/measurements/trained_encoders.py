"""`isosim measure encoders`: trains encoders and evaluates them on the STS sets with each post-processing method."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isosim.encoders.store import EncoderArtifact
from isosim.export import checkpoints, encoder
from isosim.export import model_store as store
from isosim.fitting import gate
from isosim.jobs.labelled_pairs import read_sets
from isosim.jobs.text_lines import read_lines
from isosim.measurements import sts
from isosim.measurements.sources import Encoder
from isosim.measurements.sts import Grid
from isosim.store.artifacts import read_json, write_atomically, write_json
from isosim.training import run
from isosim.training.recipe import Recipe

Report = Callable[[str, float | None], None]
METHODS = ("identity", "whitening", "flow", "auto")
LAYERS = 3
RAW, WHOLE, UNSUPERVISED, GRADES, BOTH = "minilm-layers3-mean", "minilm", "simcse", "sbert", "simcse-sbert"
LIFT = 8.0  # smallest gain that SimCSE must reach over the raw encoder, in mean Spearman × 100
FLOW_SEED = 0
TEXT = "text/wikipedia-en.txt"
GRADED, DEV = "sts/stsb/train.tsv", "sts/stsb/dev.tsv"

LONGEST = 16  # maximum number of words in SimCSE's sentences, so that the training takes only minutes
# These settings were chosen only on STS-B dev; docs/encoders.md lists all settings that were tried.
SIMCSE = Recipe(
    "simcse",
    layers=LAYERS,
    pooling="mean",
    word_deletion=0.8,
    batch_size=1024,
    learning_rate=1e-3,
    warmup=0.1,
    steps=30,
    every=5,
)
SBERT = Recipe(
    "regression", pooling="mean", batch_size=32, learning_rate=1e-4, warmup=0.1, steps=180, every=30, max_length=64
)


@dataclass(frozen=True)
class Training:
    """An encoder to train."""

    name: str
    # Encoder from which the training starts: name of another training, or a name that `checkpoints.resolve` accepts.
    start: str
    recipe: Recipe
    data: str


@dataclass(frozen=True)
class Row:
    """Results of one encoder and method on each set. A set's result is one correlation over all its pairs."""

    encoder: str
    method: str
    all: dict[str, float]  # set -> Spearman × 100
    chosen: dict[str, str] | None  # set -> method that `auto` chose; None for other methods

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.all.values())))


@dataclass(frozen=True)
class Promise:
    """A result that a training must reach: `value` must be at least `bar`."""

    said: str
    value: float
    bar: float

    @property
    def kept(self) -> bool:
        return self.value >= self.bar


class Bench:
    """Trains, exports and evaluates encoders in a working folder; reuses the files that are already there."""

    def __init__(self, data: Path, work: Path, report: Report, say: Callable[[str], None]) -> None:
        self.data, self.work, self.report, self.say = data, work, report, say
        self.sets = read_sets(data / "sts")

    def short_sentences(self) -> Path:
        """File with the distinct sentences of at most `LONGEST` words, sorted."""
        place = self.work / f"wikipedia-en-{LONGEST}-words.txt"
        if not place.is_file():
            kept = sorted({line for line in read_lines(self.data / TEXT) if 0 < len(line.split()) <= LONGEST})
            write_atomically(place, ("\n".join(kept) + "\n").encode())
        return place

    def trained(self, training: Training) -> tuple[Path, dict[str, Any]]:
        """Folder and facts of a trained encoder; trains it if necessary."""
        folder = self.work / "trained" / training.name
        start = self.work / "trained" / training.start
        folder.parent.mkdir(parents=True, exist_ok=True)
        data = self.short_sentences() if training.data == TEXT else self.data / training.data

        def report(stage: str, done: float | None) -> None:
            self.report(f"{training.name}: {stage}", done)

        checkpoint = checkpoints.resolve(str(start) if start.is_dir() else training.start)
        facts = run.train(checkpoint, training.recipe, data, folder, dev=self.data / DEV, report=report)
        before, kept = facts["dev_before"], facts["dev_kept"]
        self.say(f"{training.name}: STS-B dev {100 * before:.2f}, trained {100 * kept:.2f}")
        return folder, facts

    def exported(self, name: str, source: str, layers: int | None = None) -> EncoderArtifact:
        checkpoint = checkpoints.resolve(source)
        pooling = "mean" if layers is not None else None
        spec = encoder.describe(checkpoint, pooling=pooling, layers=layers, max_length=None, prompt="")
        return store.export(
            self.work / "store", name, checkpoint, spec, lambda said: self.report(f"{name}: {said}", None)
        )

    def rows(self, artifact: EncoderArtifact) -> list[Row]:
        """Results of an encoder with all methods. Methods are fitted to each set's own sentences without labels."""
        ready: sts.Evaluation | None = None
        rows = []
        for done, method in enumerate(METHODS):
            self.report(f"{artifact.id}: {method}", done / len(METHODS))
            place = self.work / "rows" / f"{artifact.digest}-{method}.json"
            if not place.is_file():
                ready = ready or sts.Evaluation(Encoder(artifact, self.work / "vectors"), self.sets)
                row = ready.run(method, FLOW_SEED, None)
                place.parent.mkdir(parents=True, exist_ok=True)
                write_json(place, {"all": row.all, "chosen": chosen(ready) if method == "auto" else None})
            kept = read_json(place)
            rows.append(Row(artifact.id, method, kept["all"], kept["chosen"]))
        return rows


def chosen(ready: sts.Evaluation) -> dict[str, str]:
    return {name: gate.decide(*ready.own_sentences(name), ready.encode.vectors).method for name in ready.sets}


def measure(
    data: Path, work: Path, seeds: Sequence[int], report: Report, say: Callable[[str], None]
) -> tuple[list[Row], Grid]:
    """Results of all encoders, and a table of the trainings.

    The encoders are MiniLM with all its layers, its first 3 layers without further training ("raw"), and these 3 layers
    trained in three ways: by SimCSE, by SBERT, and first by SimCSE and then by SBERT.
    """
    bench = Bench(data, work, report, say)
    rows, trained = bench.rows(bench.exported(RAW, "minilm", LAYERS)), []
    for training in trainings(seeds):
        folder, facts = bench.trained(training)
        trained.append((training, facts))
        rows += bench.rows(bench.exported(training.name, str(folder)))
    rows += bench.rows(bench.exported(WHOLE, "minilm"))
    return rows, summary(trained)


def summary(trained: Sequence[tuple[Training, dict[str, Any]]]) -> Grid:
    """Table of the trainings and their scores on the development pairs."""
    cells: list[tuple[str, ...]] = []
    for training, facts in trained:
        recipe = training.recipe
        shape = f"{recipe.batch_size}, {recipe.learning_rate:g}, {recipe.seed}"
        steps = f"{facts['steps_kept']:,} of {max(int(step) for step in facts['dev_by_step']):,}"
        dev = f"{100 * facts['dev_before']:.2f} → {100 * facts['dev_kept']:.2f}"
        start = training.start if recipe.layers is None else f"{training.start}, {recipe.layers} layers"
        cells.append((training.name, start, training.data, shape, steps, dev))
    columns = ("encoder", "start", "trained on", "batch, rate, seed", "steps kept", "STS-B dev")
    return Grid("Trainings; of each, the weights with the best score on STS-B dev are kept", columns, cells)


def trainings(seeds: Sequence[int]) -> list[Training]:
    raw_sbert = dataclasses.replace(SBERT, layers=LAYERS)
    made = [
        Training(simcse_name(seed, seeds), "minilm", dataclasses.replace(SIMCSE, seed=seed), TEXT) for seed in seeds
    ]
    return [*made, Training(GRADES, "minilm", raw_sbert, GRADED), Training(BOTH, made[0].name, SBERT, GRADED)]


def simcse_name(seed: int, seeds: Sequence[int]) -> str:
    return UNSUPERVISED if seed == seeds[0] else f"{UNSUPERVISED}-seed{seed}"


def promises(rows: Sequence[Row]) -> list[Promise]:
    """Results that the trainings must reach on the STS sets, which were not used to choose settings or weights."""
    mean = {(row.encoder, row.method): row.mean for row in rows}
    raw, raw_auto = mean[RAW, "identity"], mean[RAW, "auto"]
    lifts = [
        Promise(f"{name}: gain over the raw encoder, both without post-processing", value - raw, LIFT)
        for (name, method), value in mean.items()
        if name.startswith(UNSUPERVISED) and name != BOTH and method == "identity"
    ]
    simcse, both = mean[UNSUPERVISED, "identity"], mean[UNSUPERVISED, "auto"]
    return [
        *lifts,
        Promise("SimCSE and auto, against SimCSE alone", both, simcse),
        Promise("SimCSE and auto, against auto alone on the raw encoder", both, raw_auto),
    ]


def grid(rows: Sequence[Row]) -> Grid:
    names = list(rows[0].all)
    cells = [
        (f"{row.encoder}, {row.method}", *(f"{row.all[name]:.2f}" for name in names), f"{row.mean:.2f}") for row in rows
    ]
    return Grid("Spearman × 100, subsets joined (all)", ("encoder, post-processing", *names, "mean"), cells)


def choices(rows: Sequence[Row]) -> Grid:
    """Table of the methods that `auto` chose on each set."""
    picked = [row for row in rows if row.chosen is not None]
    cells = [(row.encoder, *(row.chosen or {}).values()) for row in picked]
    return Grid("What `auto` chose", ("encoder", *picked[0].all), cells)


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write_report(folder: Path, command: str, rows: Sequence[Row], facts: Grid) -> Path:
    """Writes the tables into `encoders.md` between the marks BEGIN and END; keeps the text outside the marks."""
    kept = "\n".join(
        f"- {one.said}: {one.value:.2f}, bar {one.bar:.2f}: {'kept' if one.kept else 'NOT KEPT'}"
        for one in promises(rows)
    )
    tables = "\n\n".join(f"{one.title}:\n\n{one.markdown()}" for one in (facts, grid(rows), choices(rows)))
    block = f"{BEGIN}\n`{command}`\n\n{tables}\n\n{kept}\n{END}"
    place = folder / "encoders.md"
    text = place.read_text(encoding="utf-8") if place.is_file() else f"# Encoders, trained here\n\n{BEGIN}{END}\n"
    before, _, rest = text.partition(BEGIN)
    write_atomically(place, (before + block + rest.partition(END)[2]).encode())
    return place
