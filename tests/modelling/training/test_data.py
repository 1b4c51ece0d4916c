"""Reading examples: columns, scores and labels, and the errors of invalid files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from isosim.errors import EmptyInput, InvalidInput
from isosim.training.data import read_classes, read_graded, read_sentences, read_triplets


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_sentence_is_its_own_positive_and_counts_once(tmp_path: Path) -> None:
    examples = read_sentences(file(tmp_path, "t.txt", "One.\n\nTwo.\nOne. \n"))
    assert examples[:] == {"anchor": ["One.", "Two."], "positive": ["One.", "Two."]}


def test_views_lose_words_independently_and_a_seed_decides_which(tmp_path: Path) -> None:
    path = file(tmp_path, "t.txt", "\n".join([" ".join(f"w{at}" for at in range(20)), *"abc"]))
    views = read_sentences(path, 0.4, seed=0)
    first, second = views["anchor"][0].split(), views["positive"][0].split()
    assert first != second
    assert 4 < len(first) < 19
    assert first == sorted(first, key=lambda word: int(word[1:]))  # the order stays
    assert views["anchor"][1:] == ["a", "b", "c"]  # no sentence loses all words
    assert views[:] == read_sentences(path, 0.4, seed=0)[:]
    assert views[:] != read_sentences(path, 0.4, seed=1)[:]


def test_scores_are_scaled_to_0_and_1(tmp_path: Path) -> None:
    path = file(tmp_path, "s.tsv", '\ufeff1\t"A\tNA\n5\tC\td\n\n2\tE\t7\n')
    examples = read_graded(path)
    assert examples["sentence1"][:] == ['"A', "C", "E"]  # TSV has no quoting
    assert examples["sentence2"][:] == ["NA", "d", "7"]
    assert examples["label"][:] == [0.0, 1.0, 0.25]
    assert read_graded(path, (0, 5))["label"][:] == [0.2, 1.0, 0.4]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("n.tsv", "neutral\tA b.\tC, d.\nentailment\tE.\tF.\n"),
        ("n.csv", 'hypothesis,id,label,premise\n"C, d.",7,neutral,A b.\nF.,8,entailment,E.\n'),
        (
            "n.jsonl",
            '{"label":"neutral","premise":"A b.","hypothesis":"C, d."}\n'
            '{"label":"Entailment","id":1,"premise":"E.","hypothesis":"F."}',
        ),
        (
            "numbers.jsonl",
            '{"label":1,"premise":"A b.","hypothesis":"C, d."}\n{"label":0,"premise":"E.","hypothesis":"F."}',
        ),
    ],
)
def test_columns_are_found_by_place_or_by_name(tmp_path: Path, name: str, text: str) -> None:
    assert read_classes(file(tmp_path, name, text))[:] == {
        "premise": ["A b.", "E."],
        "hypothesis": ["C, d.", "F."],
        "label": [1, 0],
    }


@pytest.mark.parametrize(
    ("read", "name", "text", "said"),
    [
        (read_graded, "s.tsv", "1\ta\tb\nhigh\tc\td\n", "example 2: the score must be a number"),
        (
            read_graded,
            "s.tsv",
            "1\ta\tb\n\n2\tc\n",
            "Expected 3 columns, got 2: 2\tc; expected the columns score, sent",
        ),
        (read_graded, "s.tsv", "1\ta\tb\n1\tc\td\n", "all scores are 1; training needs"),
        (
            lambda path: read_graded(path, (0, 2)),
            "s.tsv",
            "1\ta\tb\n3\tc\td\n",
            "example 2: the score must be a number w",
        ),
        (read_classes, "n.tsv", "neutral\ta\tb\n-\tc\td\n", "example 2: the label '-' is unknown"),
        (read_classes, "n.tsv", "0\ta\tb\n2\tc\td\n", "example 2: the label '2' is unknown"),
        (read_classes, "n.tsv", "neutral\ta\tb\n", "all labels are the same"),
        (read_triplets, "t.jsonl", '{"anchor":"a","positive":"b"}\n', 'Field "negative" does not exist'),
        (read_triplets, "t.jsonl", '{"anchor":"a"\n', "JSON parse error"),
        (read_triplets, "t.jsonl", '{"anchor":["a"],"positive":"b","negative":"c"}\n', "Unsupported cast"),
        (read_triplets, "t.jsonl", '{"anchor":null,"positive":"b","negative":"c"}\n', "example 1: the anchor is empty"),
        (read_triplets, "t.csv", 'anchor,positive,negative\n"a\nb",c,d\ne,f, \n', "example 2: the negative is empty"),
    ],
)
def test_an_error_names_the_file_and_the_fault(
    tmp_path: Path, read: Callable[[Path], object], name: str, text: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        read(file(tmp_path, name, text))
    assert said in str(error.value)
    assert str(tmp_path / name) in str(error.value)


def test_a_file_without_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyInput):
        read_sentences(file(tmp_path, "e.txt", "\n \n"))
    with pytest.raises(EmptyInput):
        read_triplets(file(tmp_path, "e.csv", "anchor,positive,negative\n"))
    with pytest.raises(InvalidInput, match="Empty CSV file"):
        read_triplets(file(tmp_path, "e.tsv", ""))


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_bytes(b"1\ta\tb\n2\t\xff\tb\n")
    with pytest.raises(InvalidInput, match=r"b\.tsv: .*invalid UTF8"):
        read_graded(tmp_path / "b.tsv")
