"""Many texts at once: which share a batch, and that it changes nothing but the last bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.store import EncoderArtifact
from isosim.jobs.offline import OfflineEncoder, batches, find_unreadable
from tests.text import sentences

TEXTS = [*sentences(120), "🙂", " ".join(sentences(40))]  # one without a known token, one that is cut


@given(lengths=st.lists(st.integers(1, 300), max_size=60), most=st.integers(1, 600))
def test_batches_hold_every_row_once_and_rise_in_length_within_the_budget(lengths: list[int], most: int) -> None:
    packed = list(batches(lengths, most))
    rows = [row for batch in packed for row in batch]
    assert sorted(rows) == list(range(len(lengths)))
    assert rows == sorted(rows, key=lambda row: (lengths[row], row))
    assert all(len(batch) == 1 or len(batch) * lengths[batch[-1]] <= most for batch in packed)


@given(lengths=st.lists(st.integers(1, 60), max_size=60), most=st.integers(1, 200), unit=st.integers(1, 8))
def test_rows_of_other_rounded_lengths_do_not_share_a_batch(lengths: list[int], most: int, unit: int) -> None:
    packed = list(batches(lengths, most, unit))
    assert sorted(row for batch in packed for row in batch) == list(range(len(lengths)))
    for batch in packed:
        (rounded,) = {-(-lengths[row] // unit) * unit for row in batch}
        assert len(batch) == 1 or len(batch) * rounded <= most


@pytest.mark.parametrize(("batch_tokens", "window"), [(64, 4096), (0, 7), (2048, None), (1, 50)])
def test_neither_batches_nor_windows_change_what_a_text_is(
    tiny: EncoderArtifact, batch_tokens: int, window: int | None
) -> None:
    progress: list[float] = []
    expected = OfflineEncoder(tiny, 1, engine="onnxruntime")(TEXTS)
    encode = OfflineEncoder(tiny, 1, engine="onnxruntime", batch_tokens=batch_tokens, window=window)
    encodings = encode(TEXTS, progress.append)
    scale = float(np.abs(expected.vectors).max())
    np.testing.assert_allclose(encodings.vectors / scale, expected.vectors / scale, rtol=0, atol=1e-6)
    for name in ("tokens", "truncated", "unreadable"):
        np.testing.assert_array_equal(getattr(encodings, name), getattr(expected, name))
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_flags_are_the_tokenizers(tiny: EncoderArtifact) -> None:
    exact = OfflineEncoder(tiny, 1, engine="onnxruntime")
    texts = exact(TEXTS).texts()
    tokens = exact.tokenize([tiny.spec.prompt + text for text in TEXTS], "right")
    assert [(one.tokens, one.truncated, one.unreadable) for one in texts] == [
        (len(one.ids), one.truncated, one.unreadable) for one in tokens
    ]
    assert texts[-1].truncated
    assert find_unreadable(TEXTS, tiny) == {text for text, one in zip(TEXTS, texts, strict=True) if one.unreadable}


def test_no_texts_are_no_vectors(tiny: EncoderArtifact) -> None:
    assert OfflineEncoder(tiny, 1, window=None)([]).vectors.shape == (0, tiny.spec.dim)
