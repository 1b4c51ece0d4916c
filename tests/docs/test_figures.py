"""A figure that stands on several pages is the same on each, and what `make bench` measured is what its page says.

A figure has a home; other pages may repeat it in fewer digits. `elsewhere` is the sentence or the row that repeats it.
Every page is searched, so that a page written later is compared as well.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from loadtest.figures import TABLES, marks

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "loadtest").glob("*.md"),
    *(ROOT / "evaluation").rglob("*.md"),
    *(ROOT / "clients").rglob("*.md"), *(ROOT / "model_store").glob("*.md"), *(ROOT / "k8s").rglob("*.yaml"),
]  # fmt: skip
OLD = {"CHANGELOG.md"}  # says what was measured at the time of each release
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SEVEN = r"(\d\d\.\d(?:[ |]+\d\d\.\d){6})\b"  # a row of the seven labelled sets, to one digit


class Figure(NamedTuple):
    home: str
    there: str  # one group: the figure, or figures
    elsewhere: tuple[str, ...]  # one group each


RAW = "evaluation/results/minilm-layers3-mean.md"
TUNED = "evaluation/results/minilm.md"
SPEED = "loadtest/README.md"
QUALITY = "docs/quality.md"
FIGURES = {
    "start": Figure(
        SPEED,
        r"\| ready after the start of the process \| ([\d.]+) s",
        (r"ready after a start[^|]*\| ([\d.]+) s", r"(?:ready|starts) (?:after|within|in) ([\d.]+) s(?:econds)? [^w]"),
    ),
    "capacity": Figure(
        SPEED, r"\| fp32, 2 cores \| \d+ \| (\d+) \|", (r"uncached pairs of 16-token texts per second \| (\d+) \|",)
    ),
    "memory": Figure(
        SPEED,
        r"\| resident after mixed load \| (\d+) MiB",
        (r"10 minutes of mixed load \|[^|]* (\d+) MiB", r"(\d+) MiB (?:resident )?after (?:10 minutes of )?mixed load"),
    ),
    "memory of a domain": Figure(
        SPEED, r"\| memory a loaded domain \| ([\d.]+) MB", (r"domains in memory \(([\d.]+) MB each\)",)
    ),
    "ranking of the default encoder": Figure(
        TUNED,
        r"\| identity \| ((?:[\d.]+ \| ){7})",
        (r"default encoder \(all, uncalibrated\) \| " + SEVEN, r"\*\*minilm\*\* \| identity \| " + SEVEN),
    ),
    "mean of the default encoder": Figure(
        TUNED,
        r"\| identity \|(?: [\d.]+ \|){7} ([\d.]+) ",
        (
            r"default encoder[^\n]*mean (\d\d\.\d+)",
            r"\| (?:identity|auto) \| (\d\d\.\d\d) \| \d\d\.\d\d \|\n",
            r"as published \| (\d\d\.\d\d) ",
        ),
    ),
    "ranking of the raw encoder": Figure(
        RAW, r"\| identity \| ((?:[\d.]+ \| ){7})", (r"\*\*minilm-layers3-mean\*\* \| identity \| " + SEVEN,)
    ),
    "false matches of one raw threshold": Figure(
        QUALITY,
        r"\| imdb-reviews \| ([\d.]+) \|",
        (r"1\.0 to (1\d\.\d) %", r"(1[678](?:\.\d)?) % of (?:random pairs of film|another)"),
    ),
    "own sentences flagged": Figure(
        QUALITY, r"\| own, unseen \| \| ([\d.]+) %", (r"flagged as foreign, at a nominal 1 % \| ([\d.]+) %",)
    ),
}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def agrees(said: str, home: str) -> bool:
    """Each number is its home's, rounded to the digits in which it is said."""
    ours, theirs = NUMBER.findall(said), NUMBER.findall(home)
    return len(ours) == len(theirs) and all(
        abs(float(one) - float(other)) <= 0.5001 * 10.0 ** -len(one.partition(".")[2])
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_on_every_page(name: str) -> None:
    figure = FIGURES[name]
    home = re.search(figure.there, text_of(ROOT / figure.home))
    assert home, f"{figure.home} has no such figure any more"
    different = [
        f"{page.relative_to(ROOT)}: {match[0]!r}, but {figure.home} has {home[1]!r}"
        for page in PAGES
        if page.name not in OLD
        for pattern in figure.elsewhere
        for match in re.finditer(pattern, re.sub(r"(?<=[^|\n])\n(?=[^|\n])", " ", text_of(page)))
        if not agrees(match[1], home[1])
    ]
    assert different == []


def test_a_changed_digit_is_noticed_and_a_rounded_one_is_not() -> None:
    assert agrees("1.7", "1.71")
    assert agrees("72.4 | 77.2", "72.37 | 77.15")
    assert not agrees("1.8", "1.71")
    assert not agrees("72.4", "72.37 | 77.15")


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_bench_are_what_its_results_say(name: str) -> None:
    begin, end = marks(name)
    there = text_of(ROOT / SPEED).partition(begin)[2].partition(end)[0].strip()
    assert there == TABLES[name](ROOT / "loadtest" / "results"), "run `python -m loadtest.figures`"
