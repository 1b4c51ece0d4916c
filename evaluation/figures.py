"""The figures of docs/quality.md, from the rows of their experiments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from evaluation.corpora import Row

mpl.use("Agg")
import matplotlib.pyplot as plt


def save(figure: Any, path: Path, *axes: Any) -> None:
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def thresholds(rows: Sequence[Row], rate: float, encoder: str, path: Path) -> None:
    """False matches of each source: at one raw cosine for all sources, and at the source's own threshold."""
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    place = np.arange(len(rows))[::-1]
    raw, own = [row["raw, %"] for row in rows], [float(np.mean(row["calibrated, %"])) for row in rows]
    axes.barh(place + 0.2, raw, 0.38, color="#b9bec7", label="raw cosine, one threshold for all")
    axes.barh(place - 0.2, own, 0.38, color="#1f6feb", label=f"isosim, percentile {1 - rate:g}")
    for at, before, after in zip(place, raw, own, strict=True):
        axes.text(before + 0.15, at + 0.2, f"{before:.1f} %", va="center", fontsize=8, color="#57606a")
        axes.text(after + 0.15, at - 0.2, f"{after:.2f} %", va="center", fontsize=8)
    axes.axvline(100 * rate, color="#d1242f", linewidth=1, linestyle="--", label=f"asked for: {100 * rate:g} %")
    axes.set_yticks(place, [row["source"] for row in rows])
    axes.set_xlabel("false matches among random sentence pairs, %")
    title = f"What a threshold for {100 * rate:g} % false matches really gives ({encoder})"
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, path, axes)


def text_size(rows: Sequence[Row], encoder: str, path: Path) -> None:
    """Threshold error and gain of ranking against the number of sentences: means and standard deviations over draws."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
    sizes = [row["sentences"] for row in rows]
    bars: dict[str, Any] = {"marker": "o", "capsize": 3}
    above.fill_between(sizes, 0.7, 1.4, color="#ddf4ff", label="0.7–1.4 %")
    rates = [row["false matches at 1 %"] for row in rows]
    above.errorbar(
        sizes, [np.mean(one) for one in rates], [np.std(one) for one in rates], color="#1f6feb",
        label="measured: mean and standard deviation over draws", **bars,
    )  # fmt: skip
    above.axhline(1, color="#d1242f", linewidth=1, linestyle="--", label="asked for: 1 %")
    above.set_ylabel("false matches, %")
    above.set_title(f"Quality of a calibration by number of sentences ({encoder})", fontsize=10, loc="left")
    above.legend(fontsize=8, frameon=False)
    gains = [(row["sentences"], row["gain on STS-B"]) for row in rows if row["gain on STS-B"]]
    below.errorbar(
        [size for size, _ in gains], [np.mean(one) for _, one in gains], [np.std(one) for _, one in gains],
        color="#1a7f37", **bars,
    )  # fmt: skip
    below.axhline(0, color="#57606a", linewidth=1)
    every = [gain for _, one in gains for gain in one]
    below.set_ylim(min([-1.0, *(gain - 1 for gain in every)]), max([1.0, *(gain + 1 for gain in every)]))
    below.set_xscale("log")
    below.set_xticks(sizes, [f"{size:,}" for size in sizes])
    below.set_xlabel("sentences")
    below.set_ylabel("Spearman × 100 gained, STS-B")
    save(figure, path, above, below)
