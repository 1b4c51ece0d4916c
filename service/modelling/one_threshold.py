"""Does one threshold mean the same in every domain? False-match rates on text that no fit has seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.core.errors import InvalidInput
from service.core.similarity import normalized
from service.modelling import gate, reference
from service.modelling.embed import OfflineEncoder
from service.modelling.evaluate import read_pairs
from service.modelling.job import cross_fitted
from service.modelling.methods import Vectors, fit

SENTENCES = 2000  # a domain is made from, and at least as many others measured on
MOST_TESTED = 4000
RATE = 0.01
MEAN_WITHIN = (0.009, 0.011)  # the bars of the promise
SPLIT_WITHIN, SPLITS_NEEDED = (0.007, 0.014), 0.9
HOME = "wikipedia-en"  # where the raw threshold for all is taken from

Texts = Callable[[Path], list[str]]


def lines(name: str) -> Texts:
    return lambda folder: (folder / name).read_text(encoding="utf-8").split("\n")


def sides(pattern: str) -> Texts:
    def read(folder: Path) -> list[str]:
        found = [read_pairs(path) for path in sorted(folder.glob(pattern))]
        return [text for pairs in found for text in (*pairs.left, *pairs.right)]

    return read


SOURCES: dict[str, Texts] = {
    HOME: lines("text/wikipedia-en.txt"),
    "reuters-news": lines("text/reuters-news.txt"),
    "imdb-reviews": lines("text/imdb-reviews.txt"),
    "quora": sides("pairs/quora.tsv"),
    "STS-B": sides("sts/stsb/*.tsv"),
    "SICK": sides("sts/sick/*.tsv"),
}


@dataclass(frozen=True)
class SourceResult:
    """One source's measured false-match rates at a nominal 1 %, a number a split, and the raw threshold's."""

    source: str
    method: str
    rates: list[float]
    raw_rates: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.rates))

    @property
    def share_within(self) -> float:
        return float(np.mean([SPLIT_WITHIN[0] <= rate <= SPLIT_WITHIN[1] for rate in self.rates]))

    @property
    def kept(self) -> bool:
        """The promise, for this source."""
        return MEAN_WITHIN[0] <= self.mean <= MEAN_WITHIN[1] and self.share_within >= SPLITS_NEEDED


def sample(folder: Path, source: str, count: int, seed: int) -> list[str]:
    """Distinct sentences of a source, drawn at random: neighbours in a file are often related."""
    distinct = list(dict.fromkeys(text.strip() for text in SOURCES[source](folder) if text.strip()))
    if len(distinct) < 2 * SENTENCES:
        raise InvalidInput(f"{source} has {len(distinct)} distinct sentences, at least {2 * SENTENCES} are needed")
    order = np.random.default_rng(seed).permutation(len(distinct))[:count]
    return [distinct[index] for index in order]


def embed_sources(folder: Path, encode: OfflineEncoder, progress: Callable[[str, float], None]) -> dict[str, Vectors]:
    found = {}
    for source in SOURCES:
        texts = sample(folder, source, SENTENCES + MOST_TESTED, seed=0)
        found[source] = encode(texts, lambda done, source=source: progress(source, done))  # type: ignore[misc]
    return found


def false_match_rate(latents: Vectors, threshold: float) -> float:
    """Share of all pairs of rows whose cosine reaches the threshold."""
    unit, count = normalized(latents), len(latents)
    reaching = sum(int((unit[i : i + 1000] @ unit.T >= threshold).sum()) for i in range(0, count, 1000))
    return (reaching - count) / (count * (count - 1))  # every row is like itself


def measure(
    vectors: dict[str, Vectors], method: str, splits: int, progress: Callable[[str, float], None]
) -> list[SourceResult]:
    """Fits each source from 2,000 sentences and measures on others, over random splits."""
    rng = np.random.default_rng(0)
    home = reference.sample_pairs([(vectors[HOME], np.arange(len(vectors[HOME])))], rng)
    raw_threshold = float(np.quantile(home.similarities, 1 - RATE))
    results = []
    for done, (source, every) in enumerate(vectors.items()):
        rates, raw_rates, chosen = [], [], method
        for split in range(splits):
            rng = np.random.default_rng(split)
            order = rng.permutation(len(every))
            mine, others = every[order[:SENTENCES]], every[order[SENTENCES:]]
            chosen = gate.choose(mine).method if method == "auto" else method
            fitted = fit(chosen, mine, mine[:0], split)
            latents = cross_fitted(fitted, mine, rng, lambda _: None)
            scale = reference.build(reference.sample_pairs(latents, rng), rng, intervals=False)
            rates.append(false_match_rate(fitted(others), scale.threshold(RATE)))
            raw_rates.append(false_match_rate(others, raw_threshold))
            progress(source, (done + (split + 1) / splits) / len(vectors))
        results.append(SourceResult(source, chosen, rates, raw_rates))
    return results


def figure(results: Sequence[SourceResult], encoder: str, path: Path) -> None:
    """The same threshold across domains, before and after."""
    import matplotlib as mpl  # noqa: PLC0415 - nothing else here draws

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    rows = np.arange(len(results))[::-1]
    raw = [100 * float(np.mean(result.raw_rates)) for result in results]
    axes.barh(rows + 0.2, raw, 0.38, color="#b9bec7", label="raw cosine, one threshold for all")
    axes.barh(rows - 0.2, [100 * r.mean for r in results], 0.38, color="#1f6feb", label="isosim, percentile 0.99")
    for row, before, result in zip(rows, raw, results, strict=True):
        axes.text(before + 0.15, row + 0.2, f"{before:.1f} %", va="center", fontsize=8, color="#57606a")
        axes.text(100 * result.mean + 0.15, row - 0.2, f"{100 * result.mean:.2f} %", va="center", fontsize=8)
    axes.axvline(100 * RATE, color="#d1242f", linewidth=1, linestyle="--", label="asked for: 1 %")
    axes.set_yticks(rows, [result.source for result in results])
    axes.set_xlabel("false matches among random sentence pairs, %")
    axes.set_title(f"What a threshold for 1 % false matches really gives ({encoder})", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
