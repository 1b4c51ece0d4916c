"""Measures whether a threshold has the same false-match rate in every domain, on held-out text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.fitting import gate, reference
from isosim.fitting.job import cross_fitted
from isosim.fitting.methods import fit
from isosim.fitting.recognition import Embed
from isosim.measurements.sources import HOME, SOURCES, Encoder, Progress, sample
from isosim.scoring.similarity import normalized

TESTED = 2000  # smallest number of held-out sentences
MOST_TESTED = 4000  # largest number of held-out sentences
# Nominal rate -> (bounds of the mean rate, bounds of one split's rate). All bounds are multiples of the nominal rate.
BARS = {
    0.01: ((0.9, 1.1), (0.7, 1.4)),
    0.001: ((0.5, 2.0), (0.5, 2.0)),
}
SPLITS_NEEDED = 0.9  # promised minimum of `SourceResult.share_within`


@dataclass(frozen=True)
class SourceResult:
    """False-match rates of one source, one per split.

    `rates` are measured with the source's calibration, `raw_rates` with raw cosines and one threshold for all sources.
    """

    source: str
    method: str
    nominal: float
    sentences: int
    rates: list[float]
    raw_rates: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.rates))

    @property
    def share_within(self) -> float:
        low, high = BARS[self.nominal][1]
        return float(np.mean([low <= rate / self.nominal <= high for rate in self.rates]))

    @property
    def kept(self) -> bool:
        """Whether the mean rate and the rates of enough splits lie within the bounds in `BARS`."""
        low, high = BARS[self.nominal][0]
        return low <= self.mean / self.nominal <= high and self.share_within >= SPLITS_NEEDED


def embed_sources(
    folder: Path, encode: Encoder, sentences: int, progress: Progress
) -> dict[str, tuple[list[str], Vectors]]:
    """Texts and vectors of each source: at most `sentences` + `MOST_TESTED` distinct texts."""
    by_source = {}
    for source in SOURCES:
        texts = sample(folder, source, sentences + MOST_TESTED, least=2 * TESTED)
        by_source[source] = texts, encode(texts, lambda done, source=source: progress(source, done))[0]  # type: ignore[misc]
    return by_source


def false_match_rate(latents: Vectors, threshold: float) -> float:
    """Share of the pairs of different rows whose cosine is at least the threshold."""
    unit, count = normalized(latents), len(latents)
    reaching = sum(int((unit[i : i + 1000] @ unit.T >= threshold).sum()) for i in range(0, count, 1000))
    return (reaching - count) / (count * (count - 1))  # `- count` leaves out each row's pair with itself


def measure(
    sources: dict[str, tuple[list[str], Vectors]],
    embed: Embed,
    method: str,
    *,
    sentences: int,
    nominal: float,
    splits: int,
    progress: Progress,
) -> list[SourceResult]:
    """In random splits, calibrates each source from some sentences, and scores all pairs of its other sentences."""
    rng = np.random.default_rng(0)
    home = sources[HOME][1]
    raw = reference.sample_pairs([(home, np.arange(len(home)))], rng)
    raw_threshold = float(np.quantile(raw.similarities, 1 - nominal))
    results = []
    for done, (source, (texts, every)) in enumerate(sources.items()):
        used = min(sentences, len(every) - TESTED)
        rates, raw_rates, chosen = [], [], method
        for split in range(splits):
            rng = np.random.default_rng(split)
            order = rng.permutation(len(every))
            mine, others = every[order[:used]], every[order[used:]]
            if method == "auto":
                chosen = gate.decide([texts[row] for row in order[:used]], mine, embed).method
            fitted = fit(chosen, mine, mine[:0], split)
            latents = cross_fitted(fitted, mine, rng, lambda _: None)
            scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=False)
            rates.append(false_match_rate(fitted(others), scale.threshold(nominal)))
            raw_rates.append(false_match_rate(others, raw_threshold))
            progress(source, (done + (split + 1) / splits) / len(sources))
        results.append(SourceResult(source, chosen.partition(":")[0], nominal, used, rates, raw_rates))
    return results


def figure(results: Sequence[SourceResult], encoder: str, path: Path) -> None:
    """Plots each domain's false-match rate: at one raw cosine for all domains, and at the domain's own threshold."""
    import matplotlib as mpl  # noqa: PLC0415 - only for figures

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    rows = np.arange(len(results))[::-1]
    nominal = results[0].nominal
    raw = [100 * float(np.mean(result.raw_rates)) for result in results]
    axes.barh(rows + 0.2, raw, 0.38, color="#b9bec7", label="raw cosine, one threshold for all")
    axes.barh(
        rows - 0.2, [100 * r.mean for r in results], 0.38, color="#1f6feb", label=f"isosim, percentile {1 - nominal:g}"
    )
    for row, before, result in zip(rows, raw, results, strict=True):
        axes.text(before + 0.15, row + 0.2, f"{before:.1f} %", va="center", fontsize=8, color="#57606a")
        axes.text(100 * result.mean + 0.15, row - 0.2, f"{100 * result.mean:.2f} %", va="center", fontsize=8)
    axes.axvline(100 * nominal, color="#d1242f", linewidth=1, linestyle="--", label=f"asked for: {100 * nominal:g} %")
    axes.set_yticks(rows, [result.source for result in results])
    axes.set_xlabel("false matches among random sentence pairs, %")
    axes.set_title(
        f"What a threshold for {100 * nominal:g} % false matches really gives ({encoder})", fontsize=10, loc="left"
    )
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
