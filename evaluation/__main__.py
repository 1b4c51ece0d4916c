"""Measures what the service promises, on fixed corpora. Exit code 1: a promise is not kept.

    python -m evaluation thresholds --data DATA --encoder minilm --splits 5

DATA has the subfolders text, pairs and sts (`corpora.py` names the files). docs/quality.md shows the results.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from evaluation import (
    elsewhere,
    labels,
    match_search,
    matches,
    pair_features,
    ranking,
    searches,
    thresholds,
    trained_encoders,
)
from evaluation.corpora import Bench, Row
from isosim.commands.terminal import dumped
from isosim.errors import IsosimError
from isosim.sts import markdown

Experiment = Callable[..., Iterator[Row]]
EXPERIMENTS: dict[str, Experiment] = {
    "thresholds": thresholds.one_threshold,
    "moved-thresholds": thresholds.moved_thresholds,
    "text-size": thresholds.text_size,
    "languages": thresholds.languages,
    "repeated-texts": thresholds.repeated_texts,
    "searches": searches.searches,
    "ranking": ranking.ranking,
    "probabilities": labels.probabilities,
    "recall": labels.recall,
    "pair-features": pair_features.learnt,
    "pair-precisions": pair_features.precisions,
    "pair-orders": pair_features.orders,
    "pair-flags": pair_features.flags,
    "matches": matches.matches,
    "match-candidates": matches.match_candidates,
    "match-search": match_search.match_search,
    "match-checks": matches.match_checks,
    "foreign-text": elsewhere.foreign_text,
    "unknown-words": elsewhere.unknown_words,
    "encoders": trained_encoders.trained_encoders,
}


def arguments() -> argparse.ArgumentParser:
    """Every experiment has the common options and one option for each of its parameters."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the corpora")
    common.add_argument("--model-store", default="model_store", help="store with the encoder")
    common.add_argument("--encoder", default="minilm", help="id of an encoder in the store")
    common.add_argument("--cache", type=Path, help="folder that keeps vectors between runs")
    common.add_argument("--json", action="store_true", help="print a JSON object for each row")
    parser = argparse.ArgumentParser(
        "python -m evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    for name, experiment in EXPERIMENTS.items():
        text = inspect.getdoc(experiment) or ""
        own = commands.add_parser(name, parents=[common], help=text.split("\n")[0], description=text)
        for option in [*inspect.signature(experiment).parameters.values()][1:]:
            needed = option.default is inspect.Parameter.empty
            kind = option.annotation
            own.add_argument(
                f"--{option.name.replace('_', '-')}", type=kind, required=needed,
                **({} if needed else {"default": option.default, "help": f"default: {option.default}"}),
            )  # fmt: skip
    return parser


def shown(value: object) -> str:
    """A cell: several numbers as mean (smallest–largest), all with four significant digits."""
    match value:
        case None | []:
            return "–"
        case bool():
            return "yes" if value else "no"
        case list():
            return f"{np.mean(value):.4g} ({min(value):.4g}–{max(value):.4g})"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def main(words: Sequence[str] | None = None) -> int:
    given = vars(arguments().parse_args(words))
    experiment = EXPERIMENTS[given.pop("experiment")]
    as_json = given.pop("json")
    common = {name: given.pop(name) for name in ("data", "model_store", "encoder", "cache")}
    rows = []
    try:
        bench = Bench.of(common["data"], common["model_store"], common["encoder"], common["cache"])
        for row in experiment(bench, **given):
            rows.append(row)
            print(dumped(row).decode(), file=sys.stdout if as_json else sys.stderr, flush=True)
    except (IsosimError, OSError) as error:
        print(f"evaluation: {error}", file=sys.stderr)
        return 1
    if not as_json:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        print(markdown(columns, [[shown(row[name]) if name in row else "" for name in columns] for row in rows]))
    return 0 if all(row.get("kept", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
