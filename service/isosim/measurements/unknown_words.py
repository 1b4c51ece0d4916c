"""Measures what scores are worth if a share of the words is unknown to the encoder, as in text of another script."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from isosim.fitting.evidence import pairwise
from isosim.jobs.labelled_pairs import read_pairs
from isosim.measurements.sources import HOME, Encoder, Progress, sample

SHARES = (0.0, 0.1, 0.2, 0.3, 1 / 3, 0.4, 0.5, 0.7, 1.0)
TEXTS = 1000  # number of sentences of each source
NOMINAL = 0.01
SOURCES = ("STS-B", "quora", HOME)
WORD = re.compile(r"[^\W\d_]+")
LETTERS = [chr(number) for number in range(0x0C05, 0x0C3A) if chr(number).isalpha()]  # Telugu


@dataclass(frozen=True)
class Result:
    """Scores of texts of which a share of the words was replaced by unknown words."""

    share: float
    false_matches: dict[str, float]  # source -> share of random pairs above the threshold for 1 % of unchanged text
    spearman: float  # correlation with the grades of STS-B's test pairs


def replaced(text: str, share: float, rng: np.random.Generator) -> str:
    """The text with a share of its words, chosen at random, replaced by random words of two to eight Telugu letters."""
    count = len(WORD.findall(text))
    chosen = iter(rng.permutation(count) < round(share * count))
    return WORD.sub(
        lambda word: "".join(rng.choice(LETTERS, rng.integers(2, 9))) if next(chosen) else word.group(), text
    )


def measure(data: Path, encode: Encoder, progress: Progress, seed: int = 0) -> list[Result]:
    """One result for each share."""
    rng = np.random.default_rng(seed)
    texts = {source: sample(data, source, TEXTS, least=TEXTS, seed=seed) for source in SOURCES}
    pairs = read_pairs(data / "sts/stsb/test.tsv")
    graded = [*pairs.left[:TEXTS], *pairs.right[:TEXTS]]
    thresholds: dict[str, float] = {}
    results = []
    for share in SHARES:
        rates = {}
        for source, own in texts.items():
            vectors = encode.vectors([replaced(text, share, rng) for text in own])
            cosines = pairwise(vectors)[np.triu_indices(len(own), 1)]
            rates[source] = float(
                np.mean(cosines >= thresholds.setdefault(source, float(np.quantile(cosines, 1 - NOMINAL))))
            )
            progress(f"{share:.2f} {source}", 1.0)
        vectors = encode.vectors([replaced(text, share, rng) for text in graded])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        left, right = np.split(vectors, 2)
        order = spearmanr(np.vecdot(left, right), pairs.gold[:TEXTS]).statistic
        results.append(Result(share, rates, float(order)))
    return results
