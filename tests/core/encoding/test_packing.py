"""Which of the waiting texts share a batch."""

from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.batching import MIN_FILL, WINDOW, PendingText, pack


def pending_texts(lengths: list[int]) -> list[PendingText]:
    return [PendingText(key=bytes([i % 256]), content=str(i), length=length) for i, length in enumerate(lengths)]


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)
budgets = st.integers(1, 400)
counts = st.integers(1, 12)


@given(lengths, budgets, counts)
def test_the_oldest_text_is_always_in_the_batch(found: list[int], tokens: int, texts: int) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts)
    assert waiting[0] in batch
    assert len({id(pending) for pending in batch}) == len(batch)


@given(lengths, budgets, counts)
def test_a_batch_keeps_within_its_budgets_unless_it_is_one_text(found: list[int], tokens: int, texts: int) -> None:
    batch = pack(pending_texts(found), tokens, texts)
    assert len(batch) <= texts
    padded = len(batch) * max(pending.length for pending in batch)
    assert padded <= tokens or len(batch) == 1


@given(lengths, budgets, counts)
def test_a_batch_is_an_unbroken_run_in_order_of_length(found: list[int], tokens: int, texts: int) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts)
    taken = [pending.length for pending in batch]
    assert taken == sorted(taken)
    left = [pending.length for pending in waiting if pending not in batch]
    assert not any(taken[0] < length < taken[-1] for length in left)


@given(lengths, budgets, counts)
def test_little_of_a_batch_is_padding(found: list[int], tokens: int, texts: int) -> None:
    batch = pack(pending_texts(found), tokens, texts)
    real = sum(pending.length for pending in batch)
    assert real / (len(batch) * max(pending.length for pending in batch)) >= MIN_FILL


@given(lengths, budgets, counts)
def test_a_batch_stops_growing_only_where_a_neighbour_does_not_fit(found: list[int], tokens: int, texts: int) -> None:
    waiting = pending_texts(found)
    batch = pack(waiting, tokens, texts)
    if len(batch) == texts:
        return
    real, longest = sum(pending.length for pending in batch), batch[-1].length
    for pending in waiting:
        if pending not in batch:
            padded = (len(batch) + 1) * max(longest, pending.length)
            assert padded > tokens or (real + pending.length) / padded < MIN_FILL


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


def test_equal_texts_fill_the_batch_to_its_limit() -> None:
    assert len(pack(pending_texts([10] * 50), max_tokens=200, max_texts=64)) == 20
    assert len(pack(pending_texts([10] * 50), max_tokens=10_000, max_texts=16)) == 16


def test_a_text_longer_than_the_budget_makes_a_batch_of_its_own() -> None:
    assert [pending.length for pending in pack(pending_texts([500, 500, 10]), max_tokens=100, max_texts=8)] == [500]


def test_only_the_oldest_of_very_many_texts_are_looked_at() -> None:
    waiting = pending_texts([50] + [10] * (WINDOW - 1) + [50])
    assert pack(waiting, max_tokens=1000, max_texts=8) == [waiting[0]]
