"""The figure of docs/quality.md, from the rows of its experiment."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from evaluation.corpora import Row

mpl.use("Agg")
import matplotlib.pyplot as plt


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
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
