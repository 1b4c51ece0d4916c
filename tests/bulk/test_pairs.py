"""Near-duplicates: the pairs that scoring everything against everything finds."""

import csv
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.bulk.pairs import PairSearch, find, threshold_of
from isosim.bulk.places import Place
from isosim.bulk.plan import plan_for
from isosim.bulk.run import run
from isosim.bulk.search import CellIndex, ExactIndex
from isosim.commands.in_process import InProcess
from isosim.domains.calibrations import load_calibration
from isosim.encoders.store import EncoderStore
from isosim.errors import Conflict, InvalidInput
from isosim.scoring.advice import in_single_precision
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.similarity import score
from isosim.settings import Settings
from tests.bulk.conftest import TEXTS, asked, run_options
from tests.core.scoring.references import MAP

FMR = 0.002


@pytest.fixture(scope="module")
def vectors(bulk_store: Path, texts_file: Path, two_nodes: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Raw vectors of the 900 texts, as the command makes them."""
    place = Place(str(tmp_path_factory.mktemp("vectors") / "v"))
    wanted = asked(texts_file, space="raw", normalize=False, keep=("id",), part_rows=200)
    plan, calibration = plan_for(wanted, bulk_store, "tiny", place)
    run(plan, place, run_options(bulk_store, two_nodes), lambda *_: None)
    return place, plan, calibration


@pytest.fixture(scope="module")
def truth(bulk_store: Path) -> dict[tuple[int, int], tuple[float, float]]:
    """Similarity and percentile of every pair that reaches the rate, as /similarity gives them."""
    texts = TEXTS
    with InProcess(Settings(model_store=bulk_store, encoder="tiny")) as parts:
        calibration = parts.calibration("tickets")
        every = [parts.embed(texts[at : at + 300]) for at in range(0, len(texts), 300)]
        pooled = np.concatenate([one.vectors[one.rows] for one in every])
    left, right = np.triu_indices(len(texts), 1)
    bare = replace(calibration, model=replace(calibration.model, domain_test=None))
    scores = score(bare, [], pooled, left, right)
    assert scores.percentile is not None
    reached = np.flatnonzero(1 - scores.percentile <= FMR)
    columns = (left[reached], right[reached], scores.similarity[reached], scores.percentile[reached])
    return {(int(i), int(j)): (s, p) for i, j, s, p in zip(*(c.tolist() for c in columns), strict=True)}


def search(output: Path, vectors: Any, **given: Any) -> tuple[Any, list[dict[str, Any]]]:
    place, plan, calibration = vectors
    pair_search = PairSearch(**{"fmr": FMR, "write": "parquet"} | given)
    result = find(Place(str(output)), place, plan, calibration, pair_search, 1, lambda *_: None)
    files = sorted(output.glob("part-*"))
    return result, list(itertools.chain.from_iterable(pq.read_table(file).to_pylist() for file in files))


@pytest.mark.parametrize("exact_up_to", [10_000, 0])
def test_pairs_are_those_of_scoring_everything(
    tmp_path: Path, vectors: Any, truth: dict[tuple[int, int], tuple[float, float]], exact_up_to: int
) -> None:
    assert len(truth) > 100
    result, rows = search(tmp_path / "out", vectors, exact_up_to=exact_up_to, recall=1.0)
    assert result.pairs == len(rows) == len({(row["i"], row["j"]) for row in rows})
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
        assert 1 - row["percentile"] <= FMR
    if exact_up_to:
        assert result.recall is None
    else:
        assert result.recall["found"] == 1.0
        assert result.recall["pairs"] > 100


@pytest.mark.parametrize("write", ["parquet", "csv", "jsonl"])
def test_clusters_are_the_connected_rows_and_pairs_by_chance_are_expected(
    tmp_path: Path, vectors: Any, truth: dict[tuple[int, int], tuple[float, float]], write: str
) -> None:
    place, plan, calibration = vectors
    out = Place(str(tmp_path / "out"))
    wanted = PairSearch(FMR, write, clusters=True, block=250)
    result = find(out, place, plan, calibration, wanted, 1, lambda *_: None)
    assert result.expected_false == pytest.approx(FMR * len(TEXTS) * (len(TEXTS) - 1) / 2)
    content = out.read(f"clusters.{write}")
    if write == "parquet":
        rows = pq.read_table(pa.BufferReader(content)).to_pylist()
    elif write == "csv":
        rows = [
            {k: v if k == "id" else int(v) for k, v in row.items()}
            for row in csv.DictReader(content.decode().splitlines())
        ]
    else:
        rows = [json.loads(line) for line in content.splitlines()]
    cluster = {row["row"]: row["cluster"] for row in rows}
    assert cluster.keys() == {row for pair in truth for row in pair} or len(cluster) > 100
    assert all(cluster[i] == cluster[j] for i, j in truth if i in cluster and j in cluster)
    assert all(row["id"] == f"t{row['row']}" for row in rows)  # the kept column
    sizes = Counter(cluster.values())
    assert all(row["size"] == sizes[row["cluster"]] and cluster[row["cluster"]] == row["cluster"] for row in rows)
    assert all(row["cluster"] <= row["row"] for row in rows)
    assert result.clusters == len(sizes)
    assert result.files[f"clusters.{write}"] == hashlib.sha256(content).hexdigest()


def test_a_precision_is_searched_by_its_own_threshold_however_rare_that_is(vectors: Any, tmp_path: Path) -> None:
    """Labels may teach a similarity that fewer random pairs reach than any rate that can be asked for."""
    place, plan, calibration = vectors
    rare = 0.99999
    levels = np.array([0.5, 0.9])
    taught = replace(
        MAP, precisions=levels, similarities=np.full(2, rare), interval_low=np.full(2, rare - 0.01),
        interval_high=np.ones(2), recalls=np.full(2, 0.4), recall_low=np.full(2, 0.3), recall_high=np.full(2, 0.5),
        precision_low=levels - 0.2, precision_high=levels + 0.05,
    )  # fmt: skip
    labelled = replace(calibration, model=replace(calibration.model, probability=taught))
    rate = threshold_of(labelled, 0, 0.9).facts["false_match_rate"]
    assert rate < 1e-7
    wanted = PairSearch(rate, "parquet", precision=0.9)
    result = find(Place(str(tmp_path / "out")), place, plan, labelled, wanted, 1, lambda *_: None)
    assert result.threshold == in_single_precision(rare)
    assert result.expected_false == pytest.approx(0.1 * result.pairs)
    assert result.expected_false_interval == pytest.approx((0.05 * result.pairs, 0.3 * result.pairs))
    rows = pq.read_table(tmp_path / "out" / "part-000000.parquet").to_pylist()
    assert all(row["similarity"] >= rare for row in rows)
    with pytest.raises(InvalidInput, match="precision"):
        threshold_of(labelled, 0, 0.99)


def test_few_cells_miss_pairs_and_the_recall_says_how_many() -> None:
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(4000, 16)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    radius = 0.75
    every = sum(len(i) for i, _ in ExactIndex(unit).pairs(0, 4000, radius))
    recalls = []
    for wanted in (0.0, 0.9, 1.0):
        index = CellIndex(unit, radius, wanted, seed=0)
        share = sum(len(i) for i, _ in index.pairs(0, 4000, radius)) / every
        assert index.recall.found is not None
        assert index.recall.found >= wanted
        assert share == pytest.approx(index.recall.found, abs=0.02)
        recalls.append(share)
    assert recalls[0] < 0.9 <= recalls[1] <= recalls[2] == 1.0


def test_a_search_that_was_interrupted_and_whose_files_were_hurt_goes_on(tmp_path: Path, vectors: Any) -> None:
    result, rows = search(tmp_path / "whole", vectors, block=250)
    place, plan, calibration = vectors

    def stop(stage: str, share: float | None) -> None:
        if stage.endswith("pairs") and share is not None and share > 0.7:
            raise KeyboardInterrupt

    out = Place(str(tmp_path / "out"))
    with pytest.raises(KeyboardInterrupt):
        find(out, place, plan, calibration, PairSearch(FMR, "parquet", block=250), 1, stop)
    done = sorted(out.names("_done"))
    assert done == ["000000.json", "000001.json", "000002.json"]
    (tmp_path / "out" / "part-000000.parquet").unlink()  # marks alone do not count
    torn = tmp_path / "out" / "part-000001.parquet"
    torn.write_bytes(torn.read_bytes()[:-1])
    again, others = search(tmp_path / "out", vectors, block=250)
    assert (again.files, others) == (result.files, rows)


def test_what_a_rate_cannot_mean_is_refused(bulk_store: Path, vectors: Any, tmp_path: Path) -> None:
    calibration = load_calibration(
        bulk_store, EncoderStore.at(bulk_store).find("tiny"), DomainRef("tickets"), ["CPUExecutionProvider"]
    )
    assert not threshold_of(calibration, 0.01).extrapolated
    assert threshold_of(calibration, 1e-5).extrapolated
    with pytest.raises(InvalidInput, match="at least 1e-07"):
        threshold_of(calibration, 1e-8)
    with pytest.raises(Conflict, match="no reference"):
        threshold_of(Calibration("default", 0, "identity", "x"), 0.01)
    with pytest.raises(InvalidInput, match="more than 5 pairs"):
        search(tmp_path / "out", vectors, most=5)


def test_the_command_says_what_it_rests_on(
    run_bulk: Callable[..., Any], tmp_path: Path, texts_file: Path, two_nodes: str
) -> None:
    out = str(tmp_path / "out")
    done = run_bulk("pairs", str(texts_file), out, "--fmr", "1e-4", "--domain", "tickets", "--address", two_nodes)
    assert done.returncode == 0, done.stderr
    assert "extrapolated, as" in done.stdout
    assert "exact search" in done.stdout
    success = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    assert success["extrapolated"] is True
    assert sum(pq.read_metadata(file).num_rows for file in (tmp_path / "out").glob("part-*")) == success["pairs"]
    refused = run_bulk("pairs", str(texts_file), out, "--fmr", "1e-8", "--domain", "tickets")
    assert refused.returncode == 2
