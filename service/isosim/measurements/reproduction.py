"""Reproduces what the papers report besides the STS sets: question pairs, lexical similarity, the singular spectrum.

Li et al., 2020, report the AUC on question pairs, and how much scores depend on the words of the two sentences. They
compute the Spearman correlation of scores with the edit distance, for the scores of an encoder and for the gold scores.
Here, the edit distance counts words. The pairs are STS-B's development set: on this set, the correlation (× 100) of the
gold scores is -24.6, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from isosim.errors import InvalidInput
from isosim.fitting.evidence import space
from isosim.fitting.methods import FittedMap
from isosim.jobs.labelled_pairs import read_pairs
from isosim.measurements.sources import PairVectors
from isosim.measurements.sts import Evaluation, Grid, Row, cell, spearman, table
from isosim.scoring.similarity import cosine


@dataclass(frozen=True)
class MethodDiagnostics:
    """Statistics of one method and seed.

    The method is fitted without labels, either to the sentences of the tested pairs or to a given text.
    """

    method: str
    seed: int
    edit_distance: float  # Spearman correlation × 100 of the scores with the edit distance
    effective_rank: float
    spectrum: list[float]  # singular values of the unit vectors, relative to the largest
    auc: float | None  # AUC × 100 on the question pairs; None without question pairs


class Reproduction:
    """Computes the statistics of methods for one encoder; texts are embedded once for all methods."""

    def __init__(self, evaluation: Evaluation, sts: Path, questions: Path | None) -> None:
        self.evaluation = evaluation
        dev = sts / "stsb/dev.tsv"
        if not dev.is_file():
            raise InvalidInput(f"{sts} has no stsb/dev.tsv")
        self.dev = PairVectors.from_pairs(read_pairs(dev), evaluation.encode)
        self.questions = None if questions is None else PairVectors.from_pairs(read_pairs(questions), evaluation.encode)
        if self.questions is not None and set(np.unique(self.questions.pairs.gold)) != {0.0, 1.0}:
            raise InvalidInput(f"{questions}: the labels must be 0 and 1, and both must occur")
        sides = zip(self.dev.pairs.left, self.dev.pairs.right, strict=True)
        self.distances = np.array([edit_distance(a.split(), b.split()) for a, b in sides])

    @property
    def gold_edit_distance(self) -> float:
        return spearman(self.dev.pairs.gold, self.distances)

    def run(self, method: str, seed: int, fit_text: Sequence[str] | None) -> MethodDiagnostics:
        common = self.evaluation.fit_to(method, fit_text, seed)
        scores, fitted = self._scores(self.dev, method, seed, common)
        shape = space(self.evaluation.apply(fitted, self.dev.vectors), np.random.default_rng(seed))
        auc = None
        if self.questions is not None:
            asked, _ = self._scores(self.questions, method, seed, common)
            auc = 100 * float(roc_auc_score(self.questions.pairs.gold, asked))
        distance = spearman(scores, self.distances)
        return MethodDiagnostics(method, seed, distance, shape["effective_rank"], shape["singular_spectrum"], auc)

    def _scores(
        self, pairs: PairVectors, method: str, seed: int, common: FittedMap | None
    ) -> tuple[npt.NDArray[np.floating], FittedMap]:
        fitted = common or self.evaluation.fit(method, pairs.texts, pairs.vectors, seed)
        return cosine(self.evaluation.apply(fitted, pairs.left), self.evaluation.apply(fitted, pairs.right)), fitted


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Smallest number of insertions, deletions and replacements that turn a into b (Levenshtein, 1966)."""
    row = np.arange(len(b) + 1)
    place = np.arange(len(b) + 1)
    other = np.array(b, object)
    for done, item in enumerate(a, 1):
        kept = np.minimum(row[1:] + 1, row[:-1] + (other != item))
        row = np.minimum.accumulate(np.concatenate([[done], kept]) - place) + place
    return int(row[-1])


def diagnostics_table(diagnostics: Sequence[MethodDiagnostics], gold: float, title: str) -> Grid:
    """Table with a row per method, and the gold scores in the last row."""
    questions = any(one.auc is not None for one in diagnostics)
    columns = ("method", "edit distance", "effective rank", *(["AUC"] if questions else []))
    by_method: dict[str, list[MethodDiagnostics]] = {}
    for one in diagnostics:
        by_method.setdefault(one.method, []).append(one)
    rows = []
    for method, seeds in by_method.items():
        row = [method, cell([s.edit_distance for s in seeds]), cell([s.effective_rank for s in seeds], 1)]
        rows.append((*row, *([cell([s.auc for s in seeds if s.auc is not None])] if questions else [])))
    rows.append(("gold", f"{gold:.2f}", "", *([""] if questions else [])))
    return Grid(title, columns, rows)


def write_report(
    folder: Path, encoder: str, command: str, grids: Sequence[Grid], diagnostics: Sequence[MethodDiagnostics]
) -> Path:
    """Writes `<encoder>.md` with all tables, and `<encoder>-spectrum.png`; returns the path of the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = f"{encoder}-spectrum.png"
    spectrum_figure(diagnostics, encoder, folder / picture)
    parts = [f"# {encoder}", f"```\n{command}\n```"]
    parts += [f"{grid.title}\n\n{grid.markdown()}" for grid in grids]
    parts.append(f"![Singular values of the sentence vectors, by method]({picture})")
    path = folder / f"{encoder}.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def grids(rows: Sequence[Row], diagnostics: Sequence[MethodDiagnostics], gold: float, encoder: str) -> list[Grid]:
    """All tables of an evaluation."""
    subsets = {
        "all": "one correlation over the joined subsets of a set",
        "wmean": "mean of the subsets, weighted by their size",
    }
    made = [table(rows, kind, f"{encoder} · Spearman × 100, {kind}: {meaning}") for kind, meaning in subsets.items()]
    title = (
        f"{encoder} · Spearman × 100 with the edit distance (STS-B dev), effective rank, AUC × 100 on question pairs"
    )
    return [*made, diagnostics_table(diagnostics, gold, title)]


def spectrum_figure(diagnostics: Sequence[MethodDiagnostics], encoder: str, path: Path) -> None:
    """Plots the singular spectrum of each method for its first seed."""
    import matplotlib as mpl  # noqa: PLC0415 - only for figures

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    first = {one.method: one for one in reversed(diagnostics)}
    for place, one in enumerate(reversed(first.values())):
        line = {"color": "#24292f", "linewidth": 2.5} if one.method == "identity" else {"color": f"C{place}"}
        values = np.array(one.spectrum)
        axes.plot(np.arange(1, len(values) + 1), values, label=one.method, linestyle="--" if place > 9 else "-", **line)
    axes.set_yscale("log")
    axes.set_xlabel("singular value")
    axes.set_ylabel("relative to the largest")
    axes.set_title(
        f"Singular spectrum of unit vectors, STS-B development sentences ({encoder})", fontsize=10, loc="left"
    )
    figure.legend(fontsize=8, frameon=False, loc="outside right center")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
