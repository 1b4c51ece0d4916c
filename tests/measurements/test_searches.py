"""The counting behind `isosim measure searches` and `recall`, and the vectors that are remembered between commands."""

from pathlib import Path

import numpy as np
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.measurements import recall, searches
from isosim.measurements.sources import Encoder
from isosim.scoring.similarity import normalized
from tests.text import sentences


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with question pairs: matches differ in their marks alone."""
    texts = sentences(1200)
    rows = [f"1\t{text}\t{text[:-1]}!" for text in texts[:600]]
    rows += [f"0\t{a}\t{b}" for a, b in zip(texts[:600], texts[600:], strict=True)]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs/quora.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_searches_are_counted_as_the_law_of_independent_entries_has_it() -> None:
    """Where no vector knows of another, 1 − (1 − p)^G of searches among G entries find one above a pair's rate p."""
    rng = np.random.default_rng(0)
    unit = normalized(rng.standard_normal((3000, 16)).astype(np.float32))
    cosines = (unit @ unit.T)[~np.eye(3000, dtype=bool)]
    threshold = float(np.quantile(cosines, 1 - 1e-4))
    for gallery in (100, 1000):
        found = searches.searched(unit, gallery, threshold, np.random.default_rng(1))
        assert found == pytest.approx(1 - (1 - 1e-4) ** gallery, rel=0.15)


def test_no_query_is_among_its_entries() -> None:
    unit = normalized(np.eye(200, dtype=np.float32))
    assert searches.searched(unit, 100, 0.5, np.random.default_rng(0)) == 0


def test_vectors_are_remembered_by_text_whatever_the_list(tiny: EncoderArtifact, tmp_path: Path) -> None:
    texts = sentences(30)
    plain = Encoder(tiny)
    first, again = Encoder(tiny, tmp_path), Encoder(tiny, tmp_path)
    vectors, tokens = first(texts[:20])
    np.testing.assert_allclose(vectors, plain.vectors(texts[:20]), atol=1e-6)
    mixed = [texts[25], texts[3], texts[3], texts[19]]
    np.testing.assert_allclose(first.vectors(mixed), plain.vectors(mixed), atol=1e-6)

    later = Encoder(tiny, tmp_path)
    later._encode = again._encode = None  # type: ignore[assignment] - nothing is left to compute
    kept, kept_tokens = later(texts[:20])
    np.testing.assert_array_equal(kept, vectors)
    np.testing.assert_array_equal(kept_tokens, tokens)
    with pytest.raises(TypeError):
        again(texts)  # of which only some are known


def test_commands_side_by_side_may_keep_a_text_twice(tiny: EncoderArtifact, tmp_path: Path) -> None:
    texts = sentences(30)
    side_by_side = [Encoder(tiny, tmp_path) for _ in range(4)]
    for number, encoder in enumerate(side_by_side):
        encoder(texts[5 * number : 5 * number + 15])
    np.testing.assert_allclose(Encoder(tiny, tmp_path).vectors(texts), Encoder(tiny).vectors(texts), atol=1e-6)


def test_recall_is_measured_at_each_precision_with_and_without_weights(tiny: EncoderArtifact, data: Path) -> None:
    results = recall.measure(data, Encoder(tiny), 2, lambda *_: None)
    assert {(r.labels, r.weighted) for r in results} == {(100, False), (100, True), (1000, False), (1000, True)}
    assert {r.precision for r in results} == set(recall.PRECISIONS)
    assert {r.figure for r in results} == {"recall", "precision"}
    reached = [r for r in results if r.draws]
    assert reached
    assert all(0 <= r.covered <= 1 and 0 < r.width < 1 for r in reached)
