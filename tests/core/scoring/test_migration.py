"""Which requests of a split go to the new encoder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.scoring.moves import Migration, is_chosen

KEYS = [f"customer-{number}" for number in range(20_000)]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_as_many_keys_are_chosen_as_were_asked_for(share: float) -> None:
    found = sum(is_chosen("news", key, share) for key in KEYS) / len(KEYS)
    assert found == pytest.approx(share, abs=4 * (share * (1 - share) / len(KEYS)) ** 0.5)


def test_nobody_is_chosen_at_0_and_everybody_at_1() -> None:
    assert not any(is_chosen("news", key, 0.0) for key in KEYS)
    assert all(is_chosen("news", key, 1.0) for key in KEYS)


@given(st.text(st.characters(codec="utf-8")), st.floats(0, 1), st.floats(0, 1))
def test_a_chosen_key_stays_chosen_when_the_share_rises(key: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert is_chosen("news", key, high) or not is_chosen("news", key, low)


def test_a_choice_is_the_same_in_every_process_and_release() -> None:
    """Written down: who was chosen before an upgrade is chosen after it."""
    assert [key for key in KEYS[:40] if is_chosen("news", key, 0.1)] == ["customer-12", "customer-15"]


def test_domains_choose_independently() -> None:
    both = sum(is_chosen("news", key, 0.5) and is_chosen("tickets", key, 0.5) for key in KEYS) / len(KEYS)
    assert both == pytest.approx(0.25, abs=0.015)


@pytest.mark.parametrize(
    ("share", "finished", "state"), [(0.0, False, "shadow"), (0.1, False, "split"), (0.1, True, "finished")]
)
def test_a_state_says_who_answers(share: float, finished: bool, state: str) -> None:
    assert Migration("a", "a", "b", "b", share=share, finished=finished).state == state
