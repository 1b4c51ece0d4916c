"""Samples of a corpus, and the calibration they give."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from isosim.bulk.calibrating import SPACE, Corpus, SampleWorker, fit_sample, rank, sample
from isosim.bulk.cluster import cluster
from isosim.bulk.inputs import Part, Source, cut, sources_of
from isosim.bulk.readers import reader_of
from isosim.encoders.store import EncoderStore
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from tests.bulk.conftest import TEXTS, run_options
from tests.stores import domains_of


def corpus_of(tmp_path: Path, texts: list[str]) -> tuple[list[Source], list[Part]]:
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    place, sources = sources_of(str(file))
    return sources, cut(reader_of("jsonl", ","), place, sources, 50)


def draw(address: str, corpus: tuple[list[Source], list[Part]], store: Path, seed: int, count: int) -> list[str]:
    with cluster(address, 2) as ray:
        return sample(
            ray, *corpus, form="jsonl", delimiter=",", column="text", longest=1000, seed=seed, count=count,
            options=run_options(store, address), report=lambda *_: None,
        )[0]  # fmt: skip


def test_ranks_are_uniform_and_another_seed_gives_others() -> None:
    shares = [rank(text, 0) / SPACE for text in TEXTS]
    assert stats.kstest(shares, "uniform").pvalue > 0.01
    assert abs(stats.spearmanr(shares, [rank(text, 1) for text in TEXTS]).statistic) < 0.1


def test_a_sample_has_the_lowest_ranks_and_copies_count_once(tmp_path: Path, bulk_store: Path, two_nodes: str) -> None:
    """Of 400 rows most are copies: what the first limit lets through is too little, and it is looked at again."""
    many = [*TEXTS[:40], *TEXTS[:1] * 340, *TEXTS[40:60], ""]
    lowest = sorted(TEXTS[:60], key=lambda text: rank(text, 7))[:30]
    assert draw(two_nodes, corpus_of(tmp_path, many), bulk_store, 7, 30) == lowest


def test_a_worker_says_which_rows_it_cannot_use(tmp_path: Path) -> None:
    sources, parts = corpus_of(tmp_path, [TEXTS[0], "", " \t", "x" * 2000])
    worker = SampleWorker(sources, parts, "jsonl", ",", "text", 1000, 0, SPACE, 10)
    (facts,) = worker({"item": ["0"]})["found"]
    assert json.loads(facts) == {"rows": 4, "unusable": 3, "texts": [[rank(TEXTS[0], 0), TEXTS[0]]]}


@pytest.mark.parametrize("method", ["soft"])
def test_a_calibration_of_a_sample_is_the_one_that_one_process_fits(
    tmp_path: Path, store: Path, two_nodes: str, method: str
) -> None:
    corpus_of(tmp_path, TEXTS * 2)
    corpus = Corpus(str(tmp_path / "corpus.jsonl"), "text", None, None, 1000)
    asked = {"method": method, "promote": "always", "seed": 3}
    facts = fit_sample(
        corpus, 300, "bulk", asked, "tiny", "cpu", run_options(store, two_nodes), 1, lambda *_: None, print
    )
    assert facts["promoted"]
    assert facts["report"]["sample"] == {"rows": 1800, "unusable": 0, "texts": 300, "asked": 300}
    artifact, domains = EncoderStore.at(store).find("tiny"), domains_of(store)
    texts = sorted(TEXTS, key=lambda text: rank(text, 3))[:300]
    request = JobRequest("alone", artifact.digest, artifact.id, sentences=300, **asked)
    version = calibrate_job(request, CalibrationInput(texts), artifact, domains, lambda *_: None, threads=1).publish(
        domains
    )[0]
    mine, alone = domains.load("bulk", facts["version"]), domains.load("alone", version)
    assert mine.weights is not None
    assert alone.weights is not None
    for name, array in alone.weights.items():
        np.testing.assert_array_equal(mine.weights[name], array)
    for kind, arrays in alone.model.arrays().items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(mine.model.arrays()[kind][name], array)
