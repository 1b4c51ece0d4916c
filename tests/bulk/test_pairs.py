"""Near-duplicates: the pairs that scoring everything against everything finds."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from isosim.bulk.job import Job
from isosim.bulk.pairs import FoundPairs, PairSearch, begin, find
from isosim.encoders.store import EncoderArtifact
from isosim.errors import Conflict, InvalidInput
from isosim.jobs.offline import open_texts
from isosim.scoring.advice import Target, in_single_precision
from isosim.scoring.calibration import Calibration
from isosim.scoring.similarity import score
from tests.bulk.conftest import RAW, ROWS, TEXTS, make
from tests.core.scoring.references import MAP

FMR = 0.002


class Vectors(NamedTuple):
    folder: str
    job: Job
    calibration: Calibration


@pytest.fixture(scope="module")
def vectors(bulk_store: Path, texts_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    """Raw vectors of the 900 texts, as the command makes them."""
    folder = tmp_path_factory.mktemp("vectors") / "v"
    return Vectors(str(folder), *make(folder, bulk_store, texts_file, rows=200, keep=("id",), **RAW))


@pytest.fixture(scope="module")
def truth(tiny: EncoderArtifact, vectors: Vectors) -> dict[tuple[int, int], tuple[float, float]]:
    """Similarity and percentile of every pair that reaches the rate, as /similarity gives them."""
    pooled = open_texts(tiny)(TEXTS).vectors
    calibration = vectors.calibration
    left, right = np.triu_indices(ROWS, 1)
    bare = replace(calibration, model=replace(calibration.model, domain_test=None))
    scores = score(bare, [], pooled, left, right)
    assert scores.percentile is not None
    reached = np.flatnonzero(1 - scores.percentile <= FMR)
    columns = (left[reached], right[reached], scores.similarity[reached], scores.percentile[reached])
    return {(int(i), int(j)): (s, p) for i, j, s, p in zip(*(c.tolist() for c in columns), strict=True)}


def search(output: Path, vectors: Vectors, **given: Any) -> tuple[FoundPairs, list[dict[str, Any]]]:
    wanted = PairSearch(**{"target": Target(fmr=FMR)} | given)
    advice = begin(str(output), vectors.job, vectors.calibration, wanted)
    found = find(str(output), *vectors, wanted, advice, lambda *_: None)
    files = sorted(output.glob("part-*.parquet"))
    return found, list(itertools.chain.from_iterable(pq.read_table(file).to_pylist() for file in files))


def test_pairs_are_those_of_scoring_everything(
    tmp_path: Path, vectors: Vectors, truth: dict[tuple[int, int], tuple[float, float]]
) -> None:
    assert len(truth) > 100
    found, rows = search(tmp_path / "out", vectors)
    assert found.pairs == len(rows) == len({(row["i"], row["j"]) for row in rows})
    assert all(row["i"] < row["j"] for row in rows)
    # At the threshold itself a pair may fall to either side: the two have other batches.
    odd = {(row["i"], row["j"]) for row in rows} ^ truth.keys()
    assert len(odd) <= 0.01 * len(truth)
    for row in rows:
        if (row["i"], row["j"]) in truth:
            similarity, percentile = truth[row["i"], row["j"]]
            assert row["similarity"] == pytest.approx(similarity, abs=1e-6)
            assert row["percentile"] == pytest.approx(percentile, abs=1e-5)
        assert (row["id_i"], row["id_j"]) == (f"t{row['i']}", f"t{row['j']}")
        assert row["similarity"] >= found.threshold
        assert row["probability"] is None


def test_a_precision_is_searched_by_its_own_threshold_however_rare_that_is(vectors: Vectors, tmp_path: Path) -> None:
    """Labels may teach a similarity that fewer random pairs reach than any rate that can be asked for."""
    rare = 0.99999
    levels = np.array([0.5, 0.9])
    taught = replace(
        MAP, precisions=levels, thresholds=np.full(2, rare), interval_low=np.full(2, rare - 0.01),
        interval_high=np.ones(2), recalls=np.full(2, 0.4), recall_low=np.full(2, 0.3), recall_high=np.full(2, 0.5),
        precision_low=levels - 0.2, precision_high=levels + 0.05,
    )  # fmt: skip
    model = replace(vectors.calibration.model, probability=taught)
    labelled = vectors._replace(calibration=replace(vectors.calibration, model=model))
    found, rows = search(tmp_path / "out", labelled, target=Target(precision=0.9))
    assert found.threshold == in_single_precision(rare)
    assert all(row["similarity"] >= rare and row["probability"] is not None for row in rows)
    with pytest.raises(InvalidInput, match="precision"):
        search(tmp_path / "other", labelled, target=Target(precision=0.99))


def test_a_search_that_was_interrupted_and_lost_a_file_goes_on(tmp_path: Path, vectors: Vectors) -> None:
    wanted = {"block": 250}
    whole = search(tmp_path / "whole", vectors, **wanted)
    search(tmp_path / "out", vectors, **wanted)
    for name in ("part-000000", "part-000003"):
        (tmp_path / "out" / f"{name}.parquet").unlink()
    assert search(tmp_path / "out", vectors, **wanted) == whole
    names = sorted(file.name for file in (tmp_path / "whole").iterdir() if file.is_file())
    assert all((tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    with pytest.raises(Conflict, match="block: 250, now 4096"):
        search(tmp_path / "out", vectors, **wanted | {"block": 4096})


def test_what_a_rate_cannot_mean_is_refused(vectors: Vectors, tmp_path: Path) -> None:
    def threshold(calibration: Calibration, fmr: float) -> Any:
        return begin(str(tmp_path / f"{fmr:g}"), vectors.job, calibration, PairSearch(Target(fmr=fmr)))

    assert not threshold(vectors.calibration, 0.01).extrapolated
    assert threshold(vectors.calibration, 1e-5).extrapolated
    with pytest.raises(InvalidInput, match="at least 1e-07"):
        threshold(vectors.calibration, 1e-8)
    with pytest.raises(Conflict, match="no reference"):
        threshold(Calibration("default", 0, "identity", "x"), 0.01)
    found = search(tmp_path / "whole", vectors, block=250)[0].pairs
    for _ in range(2):  # the pairs of an earlier run count
        with pytest.raises(InvalidInput, match=f"more than {found - 1:,} pairs"):
            search(tmp_path / "out", vectors, block=250, most=found - 1)
