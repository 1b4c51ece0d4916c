"""Which distinct sentences a calibration rests on."""

import random

import pytest

from isosim.jobs.requirements import draw, rank

TEXTS = [f"Sentence {number}." for number in range(5000)]


def test_as_many_as_may_be_used_are_all_used_in_the_order_they_came_in() -> None:
    shuffled = random.Random(0).sample(TEXTS, 1000)
    texts, posted, distinct = draw([*shuffled, *shuffled[:300]], seed=0, most=1000)
    assert ([*texts], posted, distinct) == (shuffled, 1300, 1000)


@pytest.mark.parametrize("most", [1, 999, 1000, 4999])
def test_of_more_those_with_the_lowest_ranks_are_used(most: int) -> None:
    texts, posted, distinct = draw(iter([*TEXTS, *TEXTS[:700]]), seed=7, most=most)
    assert [*texts] == sorted(TEXTS, key=lambda text: rank(text, 7))[:most]
    assert (posted, distinct) == (5700, 5000)


def test_the_order_of_the_lines_does_not_matter_and_the_seed_does() -> None:
    shuffled = random.Random(1).sample(TEXTS, len(TEXTS))
    found = [[*draw(texts, seed, most=500)[0]] for texts, seed in ((shuffled, 3), (TEXTS, 3), (TEXTS, 4))]
    assert found[0] == found[1]
    assert len({*found[1]} & {*found[2]}) < 100


def test_each_text_has_the_line_of_its_first_appearance() -> None:
    posted = [*TEXTS[:50], *TEXTS[:20], *TEXTS[50:]]
    for most in (50, len(TEXTS)):
        found = draw(posted, seed=1, most=most)[0]
        assert {text: posted.index(text) + 1 for text in found} == found
