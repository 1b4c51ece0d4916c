"""The paper's effect over HTTP, on the measuring data: a raw encoder is corrected, a tuned one is left alone."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from isosim.jobs.labelled_pairs import Pairs, read_pairs
from isosim.jobs.text_lines import read_text
from tests.faults.load import Load, metric
from tests.processes import Serve, Server, wait_until


def spearman(server: Server, pairs: Pairs, domain: str) -> float:
    scores: list[float] = []
    both = list(zip(pairs.left, pairs.right, strict=True))
    for start in range(0, len(both), 256):
        answer = server.client.post("/similarity", json={"pairs": both[start : start + 256], "domain": domain})
        assert answer.status_code == 200, answer.text
        scores += answer.json()["similarity"]
    return 100 * float(spearmanr(scores, pairs.gold).statistic)


def post(server: Server, texts: list[str], domain: str = "captions", method: str = "auto") -> str:
    url = f"/calibrate?domain={domain}&method={method}"
    response = server.client.post(url, content="\n".join(texts), headers={"content-type": "text/plain"})
    assert response.status_code == 202, response.text
    job: str = response.json()["job"]
    return job


def test_a_raw_encoder_is_corrected_while_it_serves(serve: Serve, layer3_store: Path, data: Path) -> None:
    server = serve(model_store=layer3_store, encoder="minilm-layers3-mean")
    test, texts = read_pairs(data / "sts/stsb/test.tsv"), list(dict.fromkeys(read_text(data / "sts/stsb/train.tsv")))
    assert len(texts) == 10_518
    raw = spearman(server, test, "default")
    assert raw == pytest.approx(55.9, abs=0.1)
    with Load(server, pause=0.2) as load:  # the fit, at low priority, has to share two cores with it
        job = server.wait_for(post(server, texts))
    assert set(load.statuses) == {200}
    assert (job["status"], job["promoted"]) == ("succeeded", True), job
    assert job["report"]["method"].startswith("soft")
    assert job["report"]["evidence"]["rawness"] > 0.17
    assert job["report"]["sentences"] == 10_518
    hits = metric(server, 'isosim_cache_lookups_total{cache="memory",result="hit"}')
    calibrated = spearman(server, test, "captions")
    assert calibrated >= 66.0
    gained = metric(server, 'isosim_cache_lookups_total{cache="memory",result="hit"}') - hits
    assert gained >= 2 * len(test.gold) * 0.8  # a new calibration keeps the cache; within a request texts count once


def test_a_tuned_encoder_is_left_alone(serve: Serve, minilm_store: Path, data: Path) -> None:
    server = serve(model_store=minilm_store, encoder="minilm")
    test, texts = read_pairs(data / "sts/stsb/test.tsv"), list(dict.fromkeys(read_text(data / "sts/stsb/train.tsv")))
    texts = texts[:3000]
    before = spearman(server, test, "default")
    assert before == pytest.approx(82.0, abs=0.1)
    job = server.wait_for(post(server, texts))
    assert (job["status"], job["promoted"], job["report"]["method"]) == ("succeeded", True, "identity"), job
    wait_until(lambda: server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": "captions"}).is_success)
    assert spearman(server, test, "captions") == before
    answer = server.client.post("/similarity", json={"pairs": [["a boy", "a girl"]], "domain": "captions"}).json()
    assert np.all((np.array(answer["percentile"]) > 0) & (np.array(answer["percentile"]) < 1))
