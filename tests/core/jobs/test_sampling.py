"""Which distinct sentences a calibration rests on."""

import random

import pytest

from isosim.jobs.requirements import draw, rank

TEXTS = [f"Sentence {number}." for number in range(5000)]


def test_as_many_as_may_be_used_are_all_used_in_the_order_they_came_in() -> None:
    shuffled = random.Random(0).sample(TEXTS, 1000)
    found = draw([*shuffled, *shuffled[:300]], seed=0, most=1000)
    assert (found.texts, found.posted, found.distinct) == (shuffled, 1300, 1000)


@pytest.mark.parametrize("most", [1, 999, 1000, 4999])
def test_of_more_those_with_the_lowest_ranks_are_used(most: int) -> None:
    found = draw(iter([*TEXTS, *TEXTS[:700]]), seed=7, most=most)
    assert found.texts == sorted(TEXTS, key=lambda text: rank(text, 7))[:most]
    assert (found.posted, found.distinct) == (5700, 5000)


def test_the_order_of_the_lines_does_not_matter_and_the_seed_does() -> None:
    shuffled = random.Random(1).sample(TEXTS, len(TEXTS))
    assert draw(shuffled, seed=3, most=500) == draw(TEXTS, seed=3, most=500)
    assert len(set(draw(TEXTS, seed=4, most=500).texts) & set(draw(TEXTS, seed=3, most=500).texts)) < 100


def test_each_text_has_the_line_of_its_first_appearance() -> None:
    posted = [*TEXTS[:50], *TEXTS[:20], *TEXTS[50:]]
    for most in (50, len(TEXTS)):
        found = draw(posted, seed=1, most=most)
        assert [posted[line - 1] for line in found.lines] == found.texts
        assert [posted.index(text) + 1 for text in found.texts] == found.lines
