"""Compares false-match rates with raw cosines, a calibration for all languages, and a calibration for each language."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.errors import InvalidInput
from isosim.fitting import gate, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import FittedMap, fit
from isosim.fitting.recognition import Embed
from isosim.jobs.text_lines import read_lines
from isosim.measurements.sources import Encoder, Progress
from isosim.measurements.thresholds import BARS, false_match_rate

NOMINAL = 0.01
# Smallest number of sentences per language. Half of them, 400, make the language's reference; a reference made from
# fewer than 400 sentences is less stable (docs/quality.md, "Little text").
FEWEST = 800
ALL = "all, mixed"


@dataclass(frozen=True)
class Result:
    """False-match rates among pairs of held-out sentences of one language; one rate per split.

    For the language `ALL`, the sentences come in equal parts from all languages.
    """

    language: str
    sentences: int  # number of sentences to which the language's own calibration is fitted
    raw: list[float] = field(default_factory=list)  # rates with raw cosines; the threshold is set on the first language
    # rates with one calibration for all languages, fitted to equally many sentences of each language
    mixed: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)  # rates with the language's own calibration
    methods: list[str] = field(default_factory=list)  # methods of the language's own calibrations

    @property
    def kept(self) -> bool:
        """Whether the language's own calibration keeps the nominal rate.

        Always True for `ALL`, which has no calibration of its own.
        """
        low, high = BARS[NOMINAL][0]
        return not self.own or low <= float(np.mean(self.own)) / NOMINAL <= high


@dataclass(frozen=True)
class Language:
    texts: list[str]
    vectors: Vectors  # (N, D)


def read(folder: Path, names: Sequence[str] | None, most: int) -> dict[str, list[str]]:
    """At most `most` distinct sentences of each `NAME.txt`, in random order.

    If `names` is None, reads all files, `en` first.

    Raises:
        InvalidInput: a file is missing or has too few sentences, or there are fewer than two files.
    """
    names = names or sorted((path.stem for path in folder.glob("*.txt")), key=lambda name: (name != "en", name))
    if len(names) < 2:
        raise InvalidInput(f"{folder}: at least two languages are needed (files NAME.txt), found {len(names)}")
    texts = {}
    for name in names:
        path = folder / f"{name}.txt"
        if not path.is_file():
            raise InvalidInput(f"{folder} has no {path.name}")
        distinct = list(dict.fromkeys(line.strip() for line in read_lines(path) if line.strip()))
        if len(distinct) < FEWEST:
            raise InvalidInput(f"{path} has {len(distinct)} distinct sentences, at least {FEWEST} are needed")
        order = np.random.default_rng(0).permutation(len(distinct))[:most]
        texts[name] = [distinct[row] for row in order]
    return texts


def calibration(texts: Sequence[str], x: Vectors, embed: Embed, seed: int) -> tuple[FittedMap, float]:
    """The map that `auto` fits to sentences with the vectors x (N, D), and the threshold for the nominal rate."""
    rng = np.random.default_rng(seed)
    fitted = fit(gate.decide(texts, x, embed).method, x, x[:0], seed)
    latents = cross_fitted(fitted, x, rng, lambda _: None)
    scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=False)
    return fitted, scale.threshold(NOMINAL)


def measure(languages: dict[str, Language], embed: Embed, splits: int, progress: Progress) -> list[Result]:
    """Calibrates from a random half of each language's sentences, and scores all pairs of the other half.

    The threshold for raw cosines is set on the first language, and used for all languages.
    """
    results = {name: Result(name, len(language.texts) // 2) for name, language in languages.items()}
    least = min(result.sentences for result in results.values())
    mix = Result(ALL, least * len(languages))
    for split in range(splits):
        rng = np.random.default_rng(split)
        orders = {name: rng.permutation(len(language.texts)) for name, language in languages.items()}
        halves = {name: np.split(order, [results[name].sentences]) for name, order in orders.items()}
        home, first = next(iter(languages.items()))
        raw = raw_threshold(first.vectors[halves[home][0]], split)
        texts = [languages[name].texts[row] for name, (mine, _) in halves.items() for row in mine[:least]]
        together = np.concatenate([languages[name].vectors[mine[:least]] for name, (mine, _) in halves.items()])
        shared, threshold = calibration(texts, together, embed, split)
        for name, (mine, others) in halves.items():
            result, language = results[name], languages[name]
            unseen = language.vectors[others]
            texts = [language.texts[row] for row in mine]
            own, own_threshold = calibration(texts, language.vectors[mine], embed, split)
            result.raw.append(false_match_rate(unseen, raw))
            result.mixed.append(false_match_rate(shared(unseen), threshold))
            result.own.append(false_match_rate(own(unseen), own_threshold))
            result.methods.append(own.method.partition(":")[0])
        every = np.concatenate([languages[name].vectors[others[:least]] for name, (_, others) in halves.items()])
        mix.raw.append(false_match_rate(every, raw))
        mix.mixed.append(false_match_rate(shared(every), threshold))
        mix.methods.append(shared.method.partition(":")[0])
        progress("splits", (split + 1) / splits)
    return [*results.values(), mix]


def raw_threshold(x: Vectors, seed: int) -> float:
    """The 1 − NOMINAL quantile of the cosines of pairs of rows of x (N, D)."""
    pairs = reference.sample_pairs([(x, np.arange(len(x)))], np.random.default_rng(seed))
    return float(np.quantile(pairs.similarities, 1 - NOMINAL))


def embedded(texts: dict[str, list[str]], encode: Encoder, progress: Progress) -> dict[str, Language]:
    return {
        name: Language(own, encode(own, lambda done, name=name: progress(name, done))[0])  # type: ignore[misc]
        for name, own in texts.items()
    }
