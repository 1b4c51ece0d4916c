"""`python -m loadtest.figures`: draws figures and writes the tables of README.md from the JSON results."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

INK, FAINT = "#222222", "#bbbbbb"
COLOURS = {
    "isosim reduced": "#c2410c", "isosim fp32": "#f59e0b", "infinity onnx": "#64748b", "infinity torch": "#cbd5e1",
    "reduced": "#c2410c", "fp32": "#f59e0b",
}  # fmt: skip


def plain(axes: Axes, title: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.tick_params(labelsize=8)


def throughput(result: dict[str, Any], target: Path) -> None:
    """Plots uncached pairs/s by connections, with the bare sessions as lines."""
    figure, axes = plt.subplots(figsize=(7, 3.4))
    names = sorted(result["loads"], key=list(COLOURS).index)
    for row, name in enumerate(names):
        by = result["loads"][name]
        places = [column + (row - len(names) / 2 + 0.5) * 0.2 for column in range(len(by))]
        bars = axes.bar(places, [load["per_second"] for load in by.values()], 0.18, color=COLOURS[name], label=name)
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=1)
    for name, bare in result["bare"].items():
        height = bare["best_sentences_per_second"] / 2
        axes.axhline(height, color=COLOURS[name], linewidth=1, linestyle="--")
        axes.text(2.56, height, f"bare session,\n{name}", fontsize=7, va="center", color=INK)
    axes.set_xticks(range(3), [f"{count} connections" if count != "1" else "1 connection" for count in by])
    axes.set_ylabel("pairs/s", fontsize=8)
    axes.set_xlim(-0.5, 2.5)
    plain(axes, "STS-B pairs, one in each request, nothing cached")
    axes.legend(frameon=False, fontsize=7, ncol=4, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    figure.savefig(target, dpi=130, bbox_inches="tight")
    plt.close(figure)


def growth(result: dict[str, Any], target: Path) -> None:
    """Plots throughput by pairs per request, and by texts in the cache."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3))
    for name, by in result["pairs"].items():
        left.plot([int(n) for n in by], list(by.values()), marker="o", color=COLOURS[name], label=name)
    cached = result["cached"]
    right.plot([int(n) for n in cached], [one["requests_per_second"] for one in cached.values()], marker="o", color=INK)
    for axes, title, below in (
        (left, "pairs/s, uncached STS-B", "pairs in each request"),
        (right, "requests/s, cached pairs", "texts in the cache"),
    ):
        plain(axes, title)
        axes.set_xscale("log", base=2 if axes is not right else 10)
        axes.set_xlabel(below, fontsize=8)
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    left.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=130)
    plt.close(figure)


def memory(result: dict[str, Any], target: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 2.6))
    minutes = [at / 60 for at, _ in result["resident"]]
    axes.plot(minutes, [size / 2**20 for _, size in result["resident"]], color=INK)
    axes.axhline(450, color=FAINT, linestyle="--", linewidth=1)
    axes.set_ylim(0, 500)
    axes.set_xlabel("minutes of mixed load", fontsize=8)
    plain(axes, "resident memory, MiB (450 is the bar)")
    figure.savefig(target, dpi=130, bbox_inches="tight")
    plt.close(figure)


def soak(result: dict[str, Any], target: Path) -> None:
    """Plots latency, memory, and numbers of held resources over time."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3))
    looks = result["looks"]
    minutes = [one["at"] / 60 for one in looks]
    for place, name, colour in ((1, "p50", "#f59e0b"), (2, "p99", "#c2410c")):
        left.plot(
            [row[0] / 60 for row in result["latency"]],
            [row[place] for row in result["latency"]],
            color=colour,
            label=name,
        )
    plain(left, "/similarity, ms")
    middle.plot(minutes, [one["resident"] / 2**20 for one in looks], color=INK)
    plain(middle, "resident memory, MiB")
    for name, colour in zip(("descriptors", "threads", "tasks", "redis_connections"), COLOURS.values(), strict=False):
        right.plot(minutes, [one[name] for one in looks], color=colour, label=name.replace("_", " "))
    plain(right, "held")
    for axes in (left, middle, right):
        axes.set_xlabel("minutes", fontsize=8)
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(target, dpi=130)
    plt.close(figure)


def figure_text(value: float, unit: str, digits: int = 3) -> str:
    return (f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}g}") + unit


def table(folder: Path) -> str:
    """Markdown table of all measured values, with limits and machines."""
    rows = ["| | measured | bar | | 2 cores |", "|---|---|---|---|---|"]
    for file in sorted(folder.glob("*.json")):
        part = json.loads(file.read_text(encoding="utf-8"))
        machine = part["hardware"]["processor"].removesuffix(" Processor").replace("(R)", "")
        for line in part.get("lines", ()):
            bar = f"{'≤' if line['at_most'] else '≥'} {figure_text(line['bar'], line['unit'], 6)}"
            cells = [line["name"], figure_text(line["value"], line["unit"])]
            cells += ["", line["note"]] if line["note"] == "no bar" else [bar, "" if line["holds"] else "**short**"]
            rows.append("| " + " | ".join([*cells, machine]) + " |")
    return "\n".join(rows)


def capacity(folder: Path) -> str:
    """Markdown table of pairs/s by cores and length, and of calibrations an hour."""
    part = json.loads((folder / "capacity.json").read_text(encoding="utf-8"))
    pairs, seconds = part["result"]["pairs"], part["result"]["calibration_seconds"]
    lengths = list(next(iter(pairs["fp32"].values())))
    sizes = list(next(iter(seconds.values())))
    names = [*(f"{tokens} tokens" for tokens in lengths), *(f"{int(size):,} sentences" for size in sizes)]
    rows = ["| " + " | ".join(["", *names]) + " |", "|---" * (len(names) + 1) + "|"]
    for name, by_cores in pairs.items():
        for cores, speeds in by_cores.items():
            cells = [
                f"{name}, {cores} core{'s' if int(cores) > 1 else ''}",
                *(f"{speed:.0f}" for speed in speeds.values()),
            ]
            cells += [f"{3600 / one:.0f}" for one in seconds[cores].values()] if name == "fp32" else [""] * len(sizes)
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def gpu(folder: Path) -> str:
    """Markdown table of a run of gpu.py: one column for each encoder."""
    part = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    encoders = part["encoders"]
    rows = [[part["hardware"]["gpu"], *(f"`{name}`" for name in encoders)]]
    for length in next(iter(encoders.values()))["tokens_per_second"]:
        rows.append([f"tokens/s, texts of {length} tokens"])
        rows[-1] += [f"{one['tokens_per_second'][length]:,}" for one in encoders.values()]
    for size in next(iter(encoders.values()))["of_16_by_batch"]:
        rows.append([f"texts of 16 tokens, {int(size):,} tokens in a batch"])
        rows[-1] += [f"{one['of_16_by_batch'][size]:,}" for one in encoders.values()]
    ways = {
        "largest": "largest difference between a cosine here and at fp32 on the CPU",
        "mean": "mean of these differences",
        "by_batch": "largest change of a cosine by the other 63 texts of a batch",
    }
    for key, name in ways.items():
        rows.append([name])
        rows[-1] += [f"{one['cosines'][key]:.1e}" for one in encoders.values()]
    rows.append(["a run of one text of 16 tokens, p50 / p99"])
    rows[-1] += ["{p50_ms:.2f} / {p99_ms:.2f} ms".format(**one["latency_of_one"]) for one in encoders.values()]
    for number, name in (("first", "first run"), ("second", "second run")):
        rows.append([f"{name} of a new shape, p50 / p99"])
        rows[-1] += ["{p50_ms:.1f} / {p99_ms:.1f} ms".format(**one["new_shapes"][number]) for one in encoders.values()]
    for texts in next(iter(encoders.values()))["calibrator_ms"]["cpu"]:
        rows.append([f"calibration of {texts} vectors, CPU / GPU"])
        rows[-1] += [
            f"{one['calibrator_ms']['cpu'][texts]:.2f} / {one['calibrator_ms']['gpu'][texts]:.2f} ms"
            for one in encoders.values()
        ]
    for count in next(iter(encoders.values()))["http"]:
        for pairs in ("1", "32"):
            rows.append([f"HTTP, servers: {count}, pairs in a request: {pairs}; pairs/s (p50 / p99 ms)"])
            for one in encoders.values():
                load = one["http"][count][f"requests_of_{pairs}"]
                rows[-1].append(f"{load['pairs_per_second']:,} ({load['p50_ms']:.0f} / {load['p99_ms']:.0f})")
    for key, name in (
        ("resident_mib", "resident memory of a server"),
        ("gpu_mib_per_server", "GPU memory of a server"),
    ):
        rows.append([name])
        rows[-1] += [f"{max(load[key] for load in one['http'].values()):,} MiB" for one in encoders.values()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


# Name of a table in README.md -> function that makes the table. Two comments with the name enclose the table (`marks`).
TABLES = {"measured": table, "capacity": capacity, "gpu": gpu}


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_tables(folder: Path, page: Path) -> None:
    """Replaces each table in the page, between the two comments with the table's name."""
    text = page.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = marks(name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{make(folder)}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def draw(folder: Path) -> None:
    """Draws the figures for which there are results."""
    for name, make in (("throughput", throughput), ("growth", growth), ("memory", memory), ("soak", soak)):
        file = folder / f"{name}.json"
        if file.is_file():
            make(json.loads(file.read_text())["result"], folder / f"{name}.png")


if __name__ == "__main__":
    results = Path(__file__).parent / "results"
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else results)
    write_tables(results, Path(__file__).parent / "README.md")
