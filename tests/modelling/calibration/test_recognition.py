"""Finding sentences again that look different."""

import numpy as np

from isosim.arrays import Vectors
from isosim.fitting import recognition
from isosim.fitting.recognition import SENTENCES, disguised, recognition_of


def test_every_disguise_keeps_what_is_said_and_changes_the_looks() -> None:
    for text in ("The cat sleeps.", "서울의 봄은 짧다.", "猫が歩く!"):
        found = disguised([text])
        assert len({*found, text}) == len(recognition.DISGUISES) + 1
        assert all(text.rstrip(".!").lower() in one.lower() for one in found)


def test_recognition_is_the_share_of_sentences_that_are_found_among_others_of_their_looks() -> None:
    rng = np.random.default_rng(0)
    own = rng.standard_normal((80, 1, 16))
    same, other = own + np.zeros((1, 4, 1)), rng.standard_normal((1, 4, 16)) + np.zeros((80, 1, 1))
    assert recognition.recognition(same.astype(np.float32)) == 1
    assert recognition.recognition((other + 0.01 * own).astype(np.float32)) == 0
    half = np.concatenate([same[:40], (other + 0.01 * own)[:40]]).astype(np.float32)
    assert recognition.recognition(half) == 0.5


def test_the_plain_sentences_and_the_domains_own_are_looked_for_and_the_better_found_counts() -> None:
    def knows(familiar: list[str]) -> recognition.Embed:
        def embed(texts: list[str]) -> Vectors:
            count = len(texts) // (1 + len(recognition.DISGUISES))
            assert texts[count:] == disguised(texts[:count])
            rng = np.random.default_rng(0)
            own, looks = rng.standard_normal((count, 16)), 10 * rng.standard_normal((len(recognition.DISGUISES), 16))
            if texts[0] in familiar:
                looks *= 0
            rest = own[:, None] + looks
            return np.concatenate([own, rest.reshape(-1, 16)]).astype(np.float32)

        return embed

    own = [f"sentence {number}" for number in range(100)]
    found = [recognition_of(own, knows(familiar), np.random.default_rng(1)) for familiar in ([], own, SENTENCES)]
    assert found[0] < 0.2
    assert found[1:] == [1, 1]
    assert len(SENTENCES) == len(set(SENTENCES)) == recognition.AMONG


def test_a_domains_long_texts_are_looked_for_by_their_beginnings() -> None:
    """Disguises change a text's ends and its capitals: any encoder finds a long one again."""
    looked_for: list[str] = []

    def embed(texts: list[str]) -> Vectors:
        looked_for.extend(texts[: len(texts) // (1 + len(recognition.DISGUISES))])
        return np.eye(len(texts), 8, dtype=np.float32)

    long = [
        f"Ticket {number} says that " + "the printer on the first floor is jammed again " * 9 for number in range(99)
    ]
    recognition_of([*long, *(f"{text} and more" for text in long)], embed, np.random.default_rng(1))
    own = looked_for[len(SENTENCES) :]
    assert len(own) == len(set(own)) == recognition.AMONG
    assert all(text.startswith("Ticket ") and len(text.split()) == recognition.WORDS for text in own)

    unspaced = recognition.beginning("東京の印刷機は今日も紙が詰まっている" * 20)
    assert len(unspaced) == recognition.CHARACTERS
