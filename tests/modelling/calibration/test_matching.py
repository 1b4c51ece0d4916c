"""Texts of a match are encoded in parts, and the best pairs so far are shown."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from isosim.arrays import Rows
from isosim.fitting.matching import FIRST_LOOK, SHOWN, embedded
from isosim.jobs.offline import Encodings

TEXTS = [f"text {number}" for number in range(9 * FIRST_LOOK)]


def encode(texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
    """Neighbouring numbers, as 4 and 5, have nearly the same vector; every seventh text is unreadable."""
    numbers = np.array([int(text.split()[1]) for text in texts])
    whole = Encodings.build(len(texts), 16)
    whole.vectors[:] = [np.random.default_rng(number // 2).standard_normal(16) for number in numbers]
    whole.vectors[:, 0] += 1e-3 * (numbers % 2)
    whole.tokens[:], whole.unreadable[:], whole.unknown_hash[:] = numbers, numbers % 7 == 6, numbers
    progress(1.0)
    return whole


@pytest.mark.parametrize("files", [1, 2])
def test_the_best_pairs_are_shown_while_texts_are_embedded(files: int) -> None:
    every = np.arange(len(TEXTS))
    half = len(TEXTS) // 2
    # Two files: even numbers from behind, and odd ones with a repeated row; texts get their numbers in this order.
    rows: list[Rows] = [every] if files == 1 else [np.arange(half), np.concatenate([[half], np.arange(half, 2 * half)])]
    order = every if files == 1 else np.concatenate([np.arange(2 * half - 2, -1, -2), np.arange(1, 2 * half, 2)[::-1]])
    texts = [TEXTS[number] for number in order]
    shown: list[tuple[Rows, Rows]] = []
    shares: list[float] = []
    whole = embedded(texts, rows, encode, shares.append, lambda left, right: shown.append((left, right)))
    for name, column in vars(encode(texts)).items():
        assert np.array_equal(getattr(whole, name), column), name
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shown) == len(shares) - 1 == 2
    for left, right in shown:
        a, b = (order[side[chosen]] for side, chosen in ((rows[0], left), (rows[-1], right)))
        assert len(a) == SHOWN
        assert np.array_equal(a // 2, b // 2)
        assert (a != b).all()
        assert not np.isin(np.concatenate([a, b]) % 7, 6).any()
