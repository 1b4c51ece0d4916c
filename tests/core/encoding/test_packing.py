"""Which of the waiting texts share a batch."""

from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.batching import MIN_FILL, PendingText, pack


def pending_texts(lengths: list[int]) -> list[PendingText]:
    return [PendingText(key=bytes([i % 256]), content=str(i), length=length) for i, length in enumerate(lengths)]


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)
budgets = st.integers(1, 400)
counts = st.integers(1, 12)


@given(lengths, budgets, counts)
def test_a_batch_is_an_unbroken_run_of_lengths_around_the_oldest_text_within_its_budgets(
    found: list[int], tokens: int, texts: int
) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts)
    assert waiting[0] in batch
    assert len({id(pending) for pending in batch}) == len(batch) <= texts
    taken = [pending.length for pending in batch]
    assert taken == sorted(taken)
    left = [pending.length for pending in waiting if pending not in batch]
    assert not any(taken[0] < length < taken[-1] for length in left)
    padded = len(batch) * taken[-1]
    assert padded <= tokens or len(batch) == 1
    assert sum(taken) / padded >= MIN_FILL
    for length in left if len(batch) < texts else ():  # it stops growing only where a neighbour does not fit
        padded = (len(batch) + 1) * max(taken[-1], length)
        assert padded > tokens or (sum(taken) + length) / padded < MIN_FILL


@given(lengths, budgets, counts, st.integers(1, 8))
def test_texts_of_one_rounded_length_share_a_batch_with_the_oldest(
    found: list[int], tokens: int, texts: int, unit: int
) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts, same_length=unit)
    rounded = -(-waiting[0].length // unit)
    alike = [pending for pending in waiting if -(-pending.length // unit) == rounded]
    assert batch == alike[: len(batch)]  # in order of arrival, so the oldest is the first
    most = max(1, min(texts, tokens // (rounded * unit)))
    assert len(batch) == min(len(alike), most)
