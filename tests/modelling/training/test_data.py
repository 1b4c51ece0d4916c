"""What examples are read from, and what is said of files that are wrong."""

from pathlib import Path

import pytest

from isosim.errors import EmptyInput, InvalidInput
from isosim.training.data import read_classes, read_graded, read_sentences, read_triplets, without_words


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_sentence_is_its_own_positive_and_counts_once(tmp_path: Path) -> None:
    examples = read_sentences(file(tmp_path, "t.txt", "One.\n\nTwo.\nOne. \n"))
    assert examples.sentences == {"anchor": ["One.", "Two."], "positive": ["One.", "Two."]}
    assert examples.labels is None


def test_views_lose_words_each_on_its_own_and_a_seed_decides_which(tmp_path: Path) -> None:
    texts = [" ".join(f"w{at}" for at in range(20)), *"abc"]
    examples = read_sentences(file(tmp_path, "t.txt", "\n".join(texts)))
    views = without_words(examples, 0.4, seed=0)
    first, second = views.sentences["anchor"][0].split(), views.sentences["positive"][0].split()
    assert first != second
    assert 4 < len(first) < 19
    assert first == sorted(first, key=lambda word: int(word[1:]))  # the order stays
    assert views.sentences["anchor"][1:] == ["a", "b", "c"]  # nothing is left without words
    assert views == without_words(examples, 0.4, seed=0)
    assert views != without_words(examples, 0.4, seed=1)


def test_grades_become_cosines_from_the_files_own_ends(tmp_path: Path) -> None:
    examples = read_graded(file(tmp_path, "s.tsv", '1\t"A\tb\n5\tC\td\n2\tE\tf\n'))
    assert examples.sentences == {"sentence1": ['"A', "C", "E"], "sentence2": ["b", "d", "f"]}  # TSV has no quoting
    assert examples.labels == [0.0, 1.0, 0.25]
    assert examples.grades == (1.0, 5.0)


def test_grades_keep_to_given_bounds(tmp_path: Path) -> None:
    path = file(tmp_path, "s.tsv", "1\ta\tb\n3\tc\td\n")
    assert read_graded(path, (0, 5)).labels == [0.2, 0.6]
    with pytest.raises(InvalidInput, match=r"s\.tsv, line 2: the score 3 is not within 0 to 2"):
        read_graded(path, (0, 2))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("n.tsv", "neutral\tA b.\tC, d.\nentailment\tE.\tF.\n"),
        ("n.csv", 'hypothesis,id,gold_label,premise\n"C, d.",7,neutral,A b.\nF.,8,entailment,E.\n'),
        (
            "n.jsonl",
            '{"label":"neutral","sentence1":"A b.","s2":"C, d."}\n{"label":"Entailment","premise":"E.","s2":"F."}',
        ),
    ],
)
def test_columns_are_found_by_place_or_by_name(tmp_path: Path, name: str, text: str) -> None:
    examples = read_classes(file(tmp_path, name, text))
    assert examples.sentences == {"premise": ["A b.", "E."], "hypothesis": ["C, d.", "F."]}
    assert (examples.labels, examples.classes) == ([1, 0], 3)


def test_classes_may_be_numbers(tmp_path: Path) -> None:
    examples = read_classes(file(tmp_path, "n.jsonl", '{"label":1,"s1":"a","s2":"b"}\n{"label":0,"s1":"c","s2":"d"}\n'))
    assert (examples.labels, examples.classes) == ([1, 0], 2)


def test_a_quoted_cell_over_lines_does_not_move_the_line_numbers(tmp_path: Path) -> None:
    text = 'anchor,positive,negative\n"a\nb",c,d\ne,f,\n'
    with pytest.raises(InvalidInput, match=r"t\.csv, line 4: the negative is empty"):
        read_triplets(file(tmp_path, "t.csv", text))


@pytest.mark.parametrize(
    ("read", "name", "text", "said"),
    [
        (read_graded, "s.tsv", "1\ta\tb\nhigh\tc\td\n", "line 2: the score 'high' is not a number"),
        (read_graded, "s.tsv", "1\ta\tb\nnan\tc\td\n", "line 2: the score 'nan' is not a number"),
        (read_graded, "s.tsv", "1\ta\tb\n\n2\tc\n", "line 3: expected score, sentence1, sentence2, separated by tabs"),
        (read_graded, "s.tsv", "1\ta\tb\n1\tc\td\n", "all scores are 1; training needs"),
        (read_classes, "n.tsv", "neutral\ta\tb\n-\tc\td\n", "line 2: the label '-' is neither one of entailment"),
        (read_classes, "n.tsv", "neutral\ta\tb\n1\tc\td\n", "line 2: the label '1' does not fit the earlier labels"),
        (read_classes, "n.tsv", "0\ta\tb\n2\tc\td\n", "labels go up to 2, but 1 has no example"),
        (read_classes, "n.tsv", "neutral\ta\tb\n", "all labels are the same"),
        (read_triplets, "t.jsonl", '{"anchor":"a","positive":"b"}\n', "line 1: 'negative' is missing; found 'anchor'"),
        (read_triplets, "t.jsonl", '{"anchor":"a"\n', "line 1: not valid JSON"),
        (read_triplets, "t.jsonl", "[1]\n", "line 1: expected an object with anchor, positive, negative"),
        (read_triplets, "t.jsonl", '{"anchor":null,"positive":"b","negative":"c"}\n', "value of 'anchor' is neither"),
        (read_triplets, "t.csv", 'a,b,c\n"a,b,c\n', "line 2: not valid CSV"),
        (
            read_triplets,
            "t.csv",
            "negative,anchor,positive,more\na,b,c\n",
            "line 2: expected 4 columns as in the first",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, read, name, text, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput) as error:
        read(file(tmp_path, name, text))
    assert said in str(error.value)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("read", [read_sentences, read_graded, read_classes, read_triplets])
def test_a_file_without_examples_is_empty(tmp_path: Path, read) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(EmptyInput):
        read(file(tmp_path, "e.tsv", "\n \n"))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_bytes(b"1\ta\tb\n2\t\xff\tb\n")
    with pytest.raises(InvalidInput, match=r"b\.tsv, line 2: not UTF-8"):
        read_graded(tmp_path / "b.tsv")
