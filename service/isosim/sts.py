"""Evaluates methods that are fitted without labels, as in the papers: seven STS sets, words in common, question pairs.

Li et al. (2020) report the Spearman correlation with the gold scores of the STS sets, the AUC on question pairs, and
how much scores depend on the words of the two sentences: the Spearman correlation of scores with the edit distance.
Here the edit distance counts words, on STS-B's development pairs. The gold scores of these pairs correlate with it by
-24.6 (× 100), as in the paper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from isosim.arrays import Vectors
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting import gate
from isosim.fitting.evidence import spread
from isosim.fitting.methods import FittedMap, fit
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.scoring.method import Method
from isosim.scoring.similarity import cosine

SETS = {
    "STS12": "sts12/*.tsv",
    "STS13": "sts13/*.tsv",
    "STS14": "sts14/*.tsv",
    "STS15": "sts15/*.tsv",
    "STS16": "sts16/*.tsv",
    "STS-B": "stsb/test.tsv",
    "SICK-R": "sick/test.tsv",
}
DEV = "stsb/dev.tsv"
HELD_OUT = 0.1  # share of the sentences held out from a fit, to decide when the training of a flow stops

Embed = Callable[[Sequence[str]], Vectors]  # N texts -> (N, D)
Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Result:
    """Scores of one method with one seed. Correlations and AUC are multiplied by 100."""

    method: str
    seed: int
    all: dict[str, float]  # set -> Spearman over its joined subsets
    wmean: dict[str, float]  # set -> mean of the Spearman of its subsets, weighted by size
    fitted: dict[str, str]  # set -> method with its parameters; for `auto` the one that was chosen
    edit_distance: float  # Spearman of the scores with the edit distance
    effective_rank: float
    auc: float | None  # None without question pairs


def read_sets(folder: Path) -> dict[str, list[Pairs]]:
    """The STS sets in a folder: name of a set -> pairs of each subset. Raises InvalidInput if a set is missing."""
    sets = {}
    for name, pattern in SETS.items():
        files = sorted(folder.glob(pattern))
        if not files:
            raise InvalidInput(f"{folder} has no {pattern}")
        sets[name] = [read_pairs(file) for file in files]
    return sets


def read_questions(file: Path) -> Pairs:
    """Reads question pairs. Raises InvalidInput unless their labels are 0 and 1, and both occur."""
    pairs = read_pairs(file)
    if set(np.unique(pairs.gold)) != {0.0, 1.0}:
        raise InvalidInput(f"{file}: the labels must be 0 and 1, and both must occur")
    return pairs


class Evaluation:
    """Evaluates methods for one encoder. Each text is embedded once for all methods."""

    def __init__(self, artifact: EncoderArtifact, folder: Path, embed: Embed, questions: Path | None = None) -> None:
        """Reads `folder`, with a subfolder for each set, and embeds its texts.

        Raises:
            InvalidInput: a set or STS-B's development pairs are missing, or the labels of `questions` are not 0 and 1.
        """
        self.artifact, self.embed = artifact, embed
        self.sets = read_sets(folder)
        if not (folder / DEV).is_file():
            raise InvalidInput(f"{folder} has no {DEV}")
        self.dev = read_pairs(folder / DEV)
        self.questions = None if questions is None else read_questions(questions)
        self.calibrator = OnnxCalibrator(artifact.calibrator)
        sides = zip(self.dev.left, self.dev.right, strict=True)
        self.distances = np.array([edit_distance(a.split(), b.split()) for a, b in sides])
        every = [*(pairs for files in self.sets.values() for pairs in files), self.dev]
        if self.questions is not None:
            every.append(self.questions)
        texts = sorted(set(sentences(every)))
        self.vectors = embed(texts)
        self.row = {text: index for index, text in enumerate(texts)}

    @property
    def gold_edit_distance(self) -> float:
        return spearman(self.dev.gold, self.distances)

    def rows(self, texts: Sequence[str]) -> Vectors:
        return self.vectors[[self.row[text] for text in texts]]

    def apply(self, fitted: FittedMap, x: Vectors) -> Vectors:
        """Latents of x (N, D), computed by the exported calibrator, as in the service."""
        return x if fitted.weights is None else self.calibrator.bind(fitted.weights)(x)

    def choose(self, texts: Sequence[str]) -> Method:
        """The method that the gate chooses for the sentences, without labels."""
        return gate.decide(texts, self.rows(texts), self.embed).method

    def fit(self, method: Method, texts: Sequence[str], x: Vectors, seed: int) -> FittedMap:
        """Fits a method to sentences and their vectors; `auto` stands for the method that the gate chooses."""
        if method.name == "auto":
            method = gate.decide(texts, x, self.embed).method
        order = np.random.default_rng(seed).permutation(len(x))
        held = int(HELD_OUT * len(x))
        return fit(method, x[order[held:]], x[order[:held]], seed)

    def similarities(self, fitted: FittedMap, pairs: Pairs) -> Floats:
        return cosine(self.apply(fitted, self.rows(pairs.left)), self.apply(fitted, self.rows(pairs.right)))

    def score(self, name: str, fitted: FittedMap) -> tuple[float, float]:
        """Spearman × 100 on a set: over the joined subsets (all), and the mean of the subsets (wmean)."""
        files = self.sets[name]
        scores = [self.similarities(fitted, pairs) for pairs in files]
        each = [spearman(own, pairs.gold) for own, pairs in zip(scores, files, strict=True)]
        whole = spearman(np.concatenate(scores), np.concatenate([pairs.gold for pairs in files]))
        return whole, float(np.average(each, weights=[len(own) for own in scores]))

    def run(self, method: Method, seed: int, text: Sequence[str] | None = None) -> Result:
        """Fits a method to the given text, or to the sentences of the pairs that it scores, and scores all pairs."""
        distinct = list(dict.fromkeys(text or ()))
        common = self.fit(method, distinct, self.embed(distinct), seed) if distinct else None

        def fitted_to(pairs: Sequence[Pairs]) -> FittedMap:
            own = list(dict.fromkeys(sentences(pairs)))
            return common or self.fit(method, own, self.rows(own), seed)

        maps = {name: fitted_to(files) for name, files in self.sets.items()}
        scored = {name: self.score(name, own) for name, own in maps.items()}
        fitted = fitted_to([self.dev])
        own = list(dict.fromkeys(sentences([self.dev])))
        space = spread(self.apply(fitted, self.rows(own)), np.random.default_rng(seed))
        auc = None
        if self.questions is not None:
            asked = self.similarities(fitted_to([self.questions]), self.questions)
            auc = 100 * float(roc_auc_score(self.questions.gold, asked))
        return Result(
            str(method),
            seed,
            {name: whole for name, (whole, _) in scored.items()},
            {name: mean for name, (_, mean) in scored.items()},
            {name: str(own.method) for name, own in maps.items()},
            spearman(self.similarities(fitted, self.dev), self.distances),
            space["effective_rank"],
            auc,
        )


def sentences(pairs: Sequence[Pairs]) -> list[str]:
    return [text for one in pairs for text in (*one.left, *one.right)]


def spearman(a: Floats, b: Floats) -> float:
    return 100 * float(spearmanr(a, b).statistic)


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Smallest number of insertions, deletions and replacements that turn a into b (Levenshtein, 1966)."""
    row = np.arange(len(b) + 1)
    place = np.arange(len(b) + 1)
    other = np.array(b, object)
    for done, item in enumerate(a, 1):
        kept = np.minimum(row[1:] + 1, row[:-1] + (other != item))
        row = np.minimum.accumulate(np.concatenate([[done], kept]) - place) + place
    return int(row[-1])


def table(rows: Sequence[tuple[str, dict[str, float]]]) -> str:
    """A Markdown table with a line per name. Several rows of a name, one per seed, give their mean ± half the range."""
    columns = list(rows[0][1])
    by_name: dict[str, list[dict[str, float]]] = {}
    for name, values in rows:
        by_name.setdefault(name, []).append(values)
    cells = [
        (name, *(cell([values[column] for values in seeds]) for column in columns)) for name, seeds in by_name.items()
    ]
    return markdown(["method", *columns], cells)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ("---", *["---:"] * (len(columns) - 1)), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(values: Sequence[float]) -> str:
    spread = f" ±{(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def with_mean(scores: dict[str, float]) -> dict[str, float]:
    return scores | {"mean": float(np.mean(list(scores.values())))}


def tables(results: Sequence[Result], gold_edit_distance: float, encoder: str) -> str:
    """The tables of an evaluation, in Markdown."""
    beside = [
        {"edit distance": one.edit_distance, "effective rank": one.effective_rank}
        | ({} if one.auc is None else {"AUC": one.auc})
        for one in results
    ]
    return "\n\n".join([
        f"{encoder} · Spearman × 100, all: one correlation over the joined subsets of a set",
        table([(one.method, with_mean(one.all)) for one in results]),
        f"{encoder} · Spearman × 100, wmean: mean of the subsets, weighted by their size",
        table([(one.method, with_mean(one.wmean)) for one in results]),
        f"{encoder} · Spearman × 100 with the edit distance on STS-B dev (gold scores: {gold_edit_distance:.2f}), "
        "effective rank, AUC × 100 on question pairs",
        table([(one.method, values) for one, values in zip(results, beside, strict=True)]),
    ])  # fmt: skip
