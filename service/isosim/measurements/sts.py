"""Measures the Spearman correlation of each method on the STS sets, computed with the exported calibrator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.table import Table
from scipy.stats import spearmanr

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.fitting import gate
from isosim.fitting.methods import FittedMap, fit
from isosim.jobs.labelled_pairs import Pairs
from isosim.measurements.sources import Encoder
from isosim.scoring.similarity import cosine

HELD_OUT = 0.1  # share of the sentences held out from a fit, to decide when the training of a flow stops


@dataclass(frozen=True)
class Grid:
    """A table: title, names of the columns, and rows of cells; a row's first cell is its name."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def rich(self) -> Table:
        table = Table(*self.columns, title=self.title)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [self.columns, ("---", *["---:"] * (len(self.columns) - 1)), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True)
class Row:
    """Spearman × 100 on each set, for one method and seed; `all` and `wmean` combine the subsets of a set."""

    method: str
    seed: int
    all: dict[str, float]  # one correlation over the concatenated subsets
    wmean: dict[str, float]  # mean of the subsets' correlations, weighted by size


def spearman(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> float:
    return 100 * float(spearmanr(a, b).statistic)


class Evaluation:
    """Evaluates methods on the sets for one encoder; texts are embedded once for all methods."""

    def __init__(
        self,
        encode: Encoder,
        sets: dict[str, list[Pairs]],
        *,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.encode, self.sets = encode, sets
        self.calibrator = OnnxCalibrator(encode.artifact.calibrator, ["CPUExecutionProvider"])
        texts = {t for files in sets.values() for pairs in files for t in (*pairs.left, *pairs.right)}
        ordered = sorted(texts)
        self.vectors, _ = self.encode(ordered, progress)
        self.row = {text: index for index, text in enumerate(ordered)}

    def rows(self, texts: Sequence[str]) -> Vectors:
        return self.vectors[[self.row[text] for text in texts]]

    def apply(self, fitted: FittedMap, x: Vectors) -> Vectors:
        """Latents of x (N, D), computed by the exported calibrator, as in the service."""
        return x if fitted.weights is None else self.calibrator.bind(fitted.weights)(x)

    def fit(self, method: str, texts: Sequence[str], x: Vectors, seed: int) -> FittedMap:
        """Fits a method to sentences and their vectors; `auto` stands for the method that `gate.decide` chooses."""
        if method == "auto":
            method = gate.decide(texts, x, self.encode.vectors).method
        order = np.random.default_rng(seed).permutation(len(x))
        held = int(HELD_OUT * len(x))
        return fit(method, x[order[held:]], x[order[:held]], seed)

    def fit_to(self, method: str, texts: Sequence[str] | None, seed: int) -> FittedMap | None:
        """Fits a method to texts, for use on all sets; None if `texts` is None."""
        if texts is None:
            return None
        distinct = list(dict.fromkeys(texts))
        return self.fit(method, distinct, self.encode(distinct)[0], seed)

    def own_sentences(self, name: str) -> tuple[list[str], Vectors]:
        """A set's distinct sentences and their vectors."""
        texts = list(dict.fromkeys(t for pairs in self.sets[name] for t in (*pairs.left, *pairs.right)))
        return texts, self.rows(texts)

    def score(self, name: str, fitted: FittedMap) -> tuple[float, float]:
        """Spearman × 100 on a set: the number for `Row.all`, and the number for `Row.wmean`."""
        scores, sizes, each = [], [], []
        for pairs in self.sets[name]:
            similarities = cosine(self.apply(fitted, self.rows(pairs.left)), self.apply(fitted, self.rows(pairs.right)))
            scores.append(similarities)
            sizes.append(len(similarities))
            each.append(spearman(similarities, pairs.gold))
        gold = np.concatenate([pairs.gold for pairs in self.sets[name]])
        return spearman(np.concatenate(scores), gold), float(np.average(each, weights=sizes))

    def run(self, method: str, seed: int, fit_text: Sequence[str] | None) -> Row:
        """Fits a method to each set's own sentences, or to the given texts, and scores all sets."""
        common = self.fit_to(method, fit_text, seed)
        row = Row(method, seed, {}, {})
        for name in self.sets:
            fitted = common or self.fit(method, *self.own_sentences(name), seed)
            row.all[name], row.wmean[name] = self.score(name, fitted)
        return row


def table(rows: Sequence[Row], aggregation: str, title: str) -> Grid:
    """Table with a row per method and a column per set; with several seeds, a cell has the mean ± half the range."""
    names = list(rows[0].all)
    by_method: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(getattr(row, aggregation))
    made = []
    for method, scores in by_method.items():
        columns = [[values[name] for values in scores] for name in names]
        columns.append([float(np.mean(list(values.values()))) for values in scores])
        made.append((method, *(cell(column) for column in columns)))
    return Grid(title, ("method", *names, "mean"), made)


def cell(values: Sequence[float], digits: int = 2) -> str:
    """The mean of the values, one per seed. Several values also give ± half their range, as in `78.42 ±0.10`."""
    spread = f" ±{(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


WORST_ALLOWED = -1.0  # `auto` may lower Spearman × 100 of a set by at most 1
# If the best rival gains at least 3 points in the mean, the mean gain of `auto` must not be smaller than the rival's.
RAW = 3.0


@dataclass(frozen=True)
class View:
    """Changes of Spearman × 100 compared with identity; methods are fitted to each set's sentences, without labels."""

    encoder: str
    identity: dict[str, float]  # set -> Spearman × 100 of identity
    chosen: dict[str, str]  # set -> method that `auto` chose
    changes: dict[str, dict[str, float]]  # method (including `auto`) -> set -> change of Spearman × 100

    def mean(self, method: str) -> float:
        return float(np.mean(list(self.changes[method].values())))

    def worst(self, method: str) -> float:
        return min(self.changes[method].values())

    @property
    def best_rival(self) -> float:
        return max((self.mean(method) for method in self.changes if method != "auto"), default=0.0)

    @property
    def kept(self) -> bool:
        """Whether `auto` loses at most 1 point on any set, and its mean change is large enough.

        The mean change of `auto` must be at least 0. If the best rival's mean change is 3 points or more, the mean
        change of `auto` must not be lower than the best rival's.
        """
        least = self.best_rival if self.best_rival >= RAW else 0.0
        return self.worst("auto") >= WORST_ALLOWED and self.mean("auto") >= least


def measure_views(
    evaluation: Evaluation, rivals: Sequence[str], progress: Callable[[str, float], None], seed: int = 0
) -> View:
    """Evaluates identity, `auto` without labels, and the rivals for one encoder."""
    identity, chosen = {}, {}
    changes: dict[str, dict[str, float]] = {method: {} for method in ("auto", *rivals)}
    for done, name in enumerate(evaluation.sets):
        identity[name] = evaluation.score(name, FittedMap("identity", None, {}))[0]
        texts, vectors = evaluation.own_sentences(name)
        chosen[name] = gate.decide(texts, vectors, evaluation.encode.vectors).method
        fits = {"auto": fit(chosen[name], vectors, vectors[:0], seed)}
        fits |= {rival: evaluation.fit(rival, texts, vectors, seed) for rival in rivals}
        for method, fitted in fits.items():
            changes[method][name] = evaluation.score(name, fitted)[0] - identity[name]
        progress(name, (done + 1) / len(evaluation.sets))
    return View(evaluation.encode.artifact.id, identity, chosen, changes)
