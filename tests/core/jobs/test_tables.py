"""Which texts are taken for the rows of a table."""

import csv
import io
import itertools
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isosim.errors import InvalidInput
from isosim.jobs.table import LOOKED_AT, cells, check_sentences_only, table_of
from tests.text import sentences

QUESTIONS = [
    text if number % 3 else f"{text[:-1]}, and why, {WORDS}?"
    for number, (text, WORDS) in enumerate(
        zip(sentences(600), itertools.cycle(("please", "if at all", 'with "care"', "or not; who knows")))
    )
]
STATES = ("open", "closed", "in progress")
NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara")


def day(number: int) -> str:
    return f"2026-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}"


KINDS: dict[str, Any] = {
    "id, date, text, state": lambda n, text: (n, day(n), text, STATES[n % 3]),
    "id, text": lambda n, text: (n, text),
    "text, id": lambda n, text: (text, f"TICKET-{n}"),
    "state, text": lambda n, text: (STATES[n * n % 3], text),
    "text, state": lambda n, text: (text, STATES[n % 3]),
    "date, name, text": lambda n, text: (f"{day(n)} {n % 24:02d}:15:00", NAMES[n % 5], text),
    "uuid, text, score": lambda n, text: (f"{n * 7919:08x}-1f2e", text, f"{n % 100 / 100:.2f}"),
    "label, text, text": lambda n, text: (n % 2, text, QUESTIONS[(n + 7) % 600]),
}


def written(kind: str, separator: str, quoting: Any, *, header: bool) -> list[str]:
    """A table as a csv module writes it; unquoted ones are joined, so that commas in the text are more separators."""
    rows = [KINDS[kind](number, text) for number, text in enumerate(QUESTIONS)]
    if header:
        rows.insert(0, tuple(kind.split(", ")))
    if quoting is None:
        return [separator.join(map(str, row)) for row in rows]
    out = io.StringIO()
    csv.writer(out, delimiter=separator, quoting=quoting, lineterminator="\n").writerows(rows)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("quoting", [None, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_table_are_recognized(kind: str, separator: str, quoting: Any, header: bool) -> None:
    found = table_of(written(kind, separator, quoting, header=header))
    assert found is not None
    assert found.separator == separator


def test_the_refusal_says_what_was_seen_and_what_to_do() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_sentences_only(written("id, date, text, state", "\t", None, header=False))
    for word in ("look like a table", "column 1", "tabs", "column=3", "force=true"):
        assert word in str(refused.value)
    assert not any(text in str(refused.value) for text in QUESTIONS)


def test_indented_json_is_no_text() -> None:
    entries = [{"id": number, "question": text} for number, text in enumerate(sentences(50))]
    with pytest.raises(InvalidInput, match="indented JSON"):
        check_sentences_only(json.dumps(entries, indent=1).splitlines())
    check_sentences_only([f'"{text}" was said.' for text in sentences(50)])


@pytest.mark.parametrize(
    "lines",
    [
        sentences(600),
        QUESTIONS,
        [f"Hello, {text}" for text in QUESTIONS],
        [f"{text[:-1]}, please." for text in sentences(600)],
        [f"{'Dear Sir' if n % 2 else 'Hi'}, {text}" for n, text in enumerate(sentences(600))],
        [f"{name}: {text}" for name, text in zip(itertools.cycle(NAMES), QUESTIONS, strict=False)],
        [f"{n}. {text}" for n, text in enumerate(QUESTIONS)],
        [f"Shares fell {n},{n % 900 + 100} points, to 1,{n % 900 + 100}." for n in range(600)],
        [f"Turing, Alan {n}" for n in range(600)],
        [f"您好,我的打印机{a}坏了,请{b}" for a, b in itertools.product("一二三四五六七八九十", repeat=2)],
        [f"| {text}" if n % 2 else text for n, text in enumerate(sentences(600))],
        ["1,2,a sentence"] * 10,
    ],
    ids="plain commas greeting ending greetings speakers numbered thousands names chinese bullets few".split(),  # noqa: SIM905
)
def test_prose_is_not(lines: list[str]) -> None:
    assert table_of(lines) is None


def test_a_carriage_return_between_quotes_and_commas_is_prose_as_well() -> None:
    """csv refuses it; a text that is posted as JSON may hold it."""
    assert table_of([f'"{text}",\rshe said, and: "{text}"' for text in sentences(600)]) is None
    huge = ['"' + text * 3000 + '", she said.' for text in sentences(20)]  # beyond csv.field_size_limit()
    assert all(len(cells(line, ",")) > 1 for line in huge)


@pytest.mark.parametrize("pattern", ["ab,", '"ab",', "ab;ab,"])
def test_long_lines_of_many_cells_take_little_memory(pattern: str) -> None:
    lines = [pattern * (9990 // len(pattern)) + str(n) for n in range(200)]
    tracemalloc.start()
    try:
        assert table_of(lines) is not None
        assert tracemalloc.get_traced_memory()[1] < 12e6
    finally:
        tracemalloc.stop()


def measured(data: Path) -> Iterator[tuple[str, list[str]]]:
    for file in sorted(data.glob("text/*.txt")):
        yield file.name, file.read_text().splitlines()
    for file in [*sorted(data.glob("sts/*/*.tsv")), data / "pairs" / "quora.tsv"]:
        rows = [line.split("\t") for line in file.read_text().splitlines()]
        yield f"{file.parent.name}/{file.name}", [row[column] for row in rows for column in (1, 2)]


def test_no_text_of_the_measuring_data_is_refused_and_its_tables_are(data: Path) -> None:
    rng = random.Random(0)
    looked_at = 0
    for name, lines in measured(data):
        texts = [line.strip() for line in lines if line.strip()]
        starts = [(rng.randrange(max(1, len(texts) - size)), size) for size in (200, 500, 1000, 2000) for _ in range(5)]
        for start, size in [(0, len(texts)), *starts]:
            assert table_of(texts[start : start + size][:LOOKED_AT]) is None, (name, start, size)
            check_sentences_only(texts[start : start + size])
            looked_at += 1
    assert looked_at > 500
    for file in [*data.glob("sts/*/*.tsv"), data / "pairs" / "quora.tsv"]:
        assert table_of(file.read_text().splitlines()[:LOOKED_AT]) is not None, file


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([json.dumps({"id": n, "headline": text}) for n, text in enumerate(QUESTIONS)], "column=NAME .*id, headline"),
        ([json.dumps(text) for text in QUESTIONS], "each line is a JSON value; .* application/octet-stream; if each"),
        ([f"<p>{text}</p>" for text in QUESTIONS], "begin with a tag, as in HTML or XML; .* force=true"),
        (["headline", *(f'"{text[:-1]}, ""why""?"' for text in sentences(600))], "a CSV with one column"),
    ],
)
def test_other_forms_than_text_are_refused_with_the_way_to_send_them(lines: list[str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_sentences_only(lines)
