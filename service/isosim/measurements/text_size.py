"""Measures how threshold error and ranking depend on the number of sentences to which a calibration is fitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.fitting import gate, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import fit
from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.measurements.sources import HOME, Encoder, Progress, sample
from isosim.measurements.sts import spearman
from isosim.measurements.thresholds import false_match_rate
from isosim.scoring.similarity import cosine

SIZES = (50, 200, 500, 1000, 2000, 5000, 20_000)
TESTED = 4000
RATE = 0.01
DRAWS = 10


@dataclass(frozen=True)
class Result:
    """Results of several draws of the same number of sentences."""

    sentences: int
    methods: list[str]  # methods that `auto` chose in at least one draw
    rates: list[float]  # measured false-match rate of each draw
    resolution: float  # smallest false-match rate that the first draw's reference supports
    # For each draw, the gain in Spearman × 100 on STS-B's test pairs by a fit to STS-B's training text. Empty if the
    # training text has fewer than `sentences` sentences.
    gains: list[float]

    @property
    def within(self) -> float:
        """Share of the draws with a rate of 0.7 to 1.4 times the nominal rate."""
        return float(np.mean([0.7 <= rate / RATE <= 1.4 for rate in self.rates]))


def measure(data: Path, encode: Encoder, progress: Progress) -> list[Result]:
    """Measures threshold error and gain in rank correlation, for calibrations from 50 to 20,000 sentences.

    The threshold error is measured on Wikipedia. The gain is measured on STS-B's test pairs, after a fit to STS-B's
    training text.
    """
    texts = sample(data, HOME, max(SIZES) + TESTED, least=max(SIZES) + TESTED)
    vectors, _ = encode(texts, lambda done: progress(HOME, done))
    test = read_pairs(data / "sts/stsb/test.tsv")
    train = list(dict.fromkeys(t for p in [read_pairs(data / "sts/stsb/train.tsv")] for t in (*p.left, *p.right)))
    train_vectors, _ = encode(train, lambda done: progress("STS-B", done))
    left, right = encode(test.left)[0], encode(test.right)[0]
    results = []
    for done, size in enumerate(SIZES):
        methods, rates, gains, resolution = [], [], [], 0.0
        for draw in range(DRAWS if size < max(SIZES) else 4):
            rng = np.random.default_rng(draw)
            order = rng.permutation(len(texts))
            mine, others = order[:size], order[size : size + TESTED]
            method = gate.decide([texts[row] for row in mine], vectors[mine], encode.vectors).method
            fitted = fit(method, vectors[mine], vectors[:0], draw)
            latents = cross_fitted(fitted, vectors[mine], rng, lambda _: None)
            scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=draw == 0)
            resolution = scale.resolution if draw == 0 else resolution
            methods.append(method.partition(":")[0])
            rates.append(false_match_rate(fitted(vectors[others]), scale.threshold(RATE)))
            if size <= len(train):
                drawn = rng.permutation(len(train))[:size]
                some = [train[row] for row in drawn]
                method_of_some = gate.decide(some, train_vectors[drawn], encode.vectors).method
                gains.append(gain(method_of_some, train_vectors[drawn], left, right, test))
        results.append(Result(size, sorted(set(methods)), rates, resolution, gains))
        progress(f"{size} sentences", (done + 1) / len(SIZES))
    return results


def gain(method: str, vectors: Vectors, left: Vectors, right: Vectors, test: Pairs) -> float:
    """Spearman × 100 on the test pairs with the method, fitted to `vectors`, minus Spearman × 100 with raw cosines."""
    fitted = fit(method, vectors, vectors[:0], 0)
    return spearman(cosine(fitted(left), fitted(right)), test.gold) - spearman(cosine(left, right), test.gold)


def figure(results: Sequence[Result], encoder: str, path: Path) -> None:
    """Plots threshold error and gain against the number of sentences."""
    import matplotlib as mpl  # noqa: PLC0415 - only for figures

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
    sizes = [result.sentences for result in results]
    rates = [[100 * rate for rate in result.rates] for result in results]
    above.fill_between(sizes, 0.7, 1.4, color="#ddf4ff", label="0.7–1.4 %")
    above.errorbar(
        sizes,
        [float(np.mean(values)) for values in rates],
        [float(np.std(values)) for values in rates],
        color="#1f6feb",
        marker="o",
        capsize=3,
        label="measured: mean and standard deviation over draws",
    )
    above.axhline(1, color="#d1242f", linewidth=1, linestyle="--", label="asked for: 1 %")
    above.set_ylabel("false matches, %")
    above.set_title(f"Quality of a calibration by number of sentences ({encoder})", fontsize=10, loc="left")
    above.legend(fontsize=8, frameon=False)
    gains = [(result.sentences, result.gains) for result in results if result.gains]
    below.errorbar(
        [size for size, _ in gains],
        [float(np.mean(values)) for _, values in gains],
        [float(np.std(values)) for _, values in gains],
        color="#1a7f37",
        marker="o",
        capsize=3,
    )
    below.axhline(0, color="#57606a", linewidth=1)
    highest = max((max(values) for _, values in gains), default=0.0)
    below.set_ylim(min([-1.0, *(min(values) - 1 for _, values in gains)]), max(1.0, highest + 1))
    below.set_xscale("log")
    below.set_xticks(sizes, [f"{size:,}" for size in sizes])
    below.set_xlabel("sentences")
    below.set_ylabel("Spearman × 100 gained, STS-B")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
