"""Numbers and negations that the flags of a pair see, and what they do not see."""

import pytest

from isosim.scoring.pair_features import PairFeatures, pair_features, words

NUMBERS = [
    # seen
    ("Windows 10", "Windows 11", True),
    ("3.5 kg", "35 kg", True),
    ("from 9 to 5", "from 9 to 6", True),
    ("on 31.10.2024", "on 30.10.2024", True),
    ("غرفة ٢٥", "غرفة ٢٦", True),
    ("कमरा १२", "कमरा 21", True),
    ("１２号室", "13号室", True),
    ("12개월", "24개월", True),
    ("9" * 5000 + "1", "9" * 5000 + "2", True),
    # equal
    ("1,000 users", "1000 users", False),
    ("1.000 Euro", "1000 Euro", False),
    ("3.50", "3,5", False),
    ("007", "7", False),
    ("غرفة ٢٥", "room 25", False),
    ("١٬٠٠٠٫٥", "1000.5", False),
    # one text says more than the other
    ("Windows 10", "Windows", False),
    ("iPhone 6 or 7", "iPhone 7", False),
    # not seen: number words, and numbers with a unit of their size
    ("two men", "three men", False),
    ("first", "second", False),
    ("10k", "10,000", True),
]
NEGATIONS = [
    # seen
    ("It is safe.", "It is not safe.", True),
    ("It is safe.", "It isn't safe.", True),
    ("It is safe.", "It ISN’T safe.", True),
    ("it is safe", "it isnt safe", True),
    ("You can go", "You cannot go", True),
    ("mit Strom", "ohne Strom", True),
    ("Es gibt Kuchen", "Es gibt keinen Kuchen", True),
    ("Это правда", "Это не правда", True),
    ("هو هنا", "هو ليس هنا", True),
    ("यह सही है", "यह सही नहीं है", True),
    ("학교에 갔다", "학교에 안 갔다", True),
    ("물이 있다", "물이 있다 없다", True),
    # both negated, or none
    ("It is not safe.", "It isn't safe.", False),
    ("No way", "No way at all", False),
    # other words: a paraphrase
    ("Why is he still here?", "Why has he not left yet?", False),
    # not seen: parts of words, inflected words, and other languages
    ("It is safe.", "It is unsafe.", False),
    ("He likes it.", "He does not like it.", False),
    ("C'est sûr", "Ce n'est pas sûr", False),
    ("我去", "我不去", False),
    # nothing but a negation
    ("no", "yes", False),
    ("not", "", False),
]


@pytest.mark.parametrize(("a", "b", "differ"), NUMBERS)
def test_numbers_differ_if_each_text_has_one_that_the_other_lacks(a: str, b: str, *, differ: bool) -> None:
    assert PairFeatures.of(a, b).numbers_differ == PairFeatures.of(b, a).numbers_differ == differ


@pytest.mark.parametrize(("a", "b", "differs"), NEGATIONS)
def test_negation_differs_if_one_of_two_nearly_equal_texts_is_negated(a: str, b: str, *, differs: bool) -> None:
    assert PairFeatures.of(a, b).negation_differs == PairFeatures.of(b, a).negation_differs == differs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A red-brick house, 5 m.", ["a", "red", "brick", "house", "5", "m"]),
        ("Ein Café «neu»", ["ein", "café", "neu"]),
        ("Cafe\u0301", ["café"]),  # composed and decomposed letters are equal
        ("मैं नहीं", ["मैं", "नहीं"]),  # vowel signs belong to their letters
        ("赤い car。", ["赤", "い", "car"]),
        ("", []),
    ],
)
def test_words(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_shared_words_and_their_order() -> None:
    table = pair_features([("the dog bit the man", "the man bit the dog"), ("a b", "c d"), ("a", "a"), ("!", "?")])
    assert table.tolist() == [[1, 3 / 5, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
