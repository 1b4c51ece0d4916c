"""What gives a score its meaning, over HTTP: thresholds, probabilities, out-of-domain flags, drift."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tests.faults.load import metric
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

TEXTS = sentences(1200)
OWN = [[TEXTS[2 * i], TEXTS[2 * i + 1]] for i in range(100)]
ODD = [["0x7f " * 20, "!!! ??? ((( )))"], ["zzzz qqqq xxxx", "ééé ßßß " * 6]]


def labels(count: int, graded: bool = False) -> list[list[Any]]:
    """Distinct pairs; those that share their beginning are matches; grades count the words shared."""
    rng = np.random.default_rng(0)
    made: dict[frozenset[str], list[Any]] = {}
    while len(made) < count:
        a, b = (TEXTS[i] for i in rng.choice(len(TEXTS), 2, replace=False))
        if rng.random() < 0.5:
            b = " ".join(a.split()[:5]) + " " + " ".join(b.split()[-3:])
        shared = len(set(a.split()) & set(b.split())) / len(set(a.split()))
        made.setdefault(frozenset((a, b)), [a, b, round(5 * shared, 2) if graded else int(shared > 0.4)])
    return list(made.values())


@pytest.fixture(scope="module")
def server(module_serve: Serve, module_store: Path) -> Server:
    """A server with the domains `plain`, `labelled` and `graded`."""
    made = module_serve(model_store=module_store, encoder="tiny")
    given = {"plain": [], "guessed": [], "labelled": labels(300), "graded": labels(300, graded=True)}
    for domain, posted in given.items():
        kind = "grades" if domain == "graded" else "matches"
        job = made.calibrate(domain, TEXTS, labels=posted, method="whitening", kind=kind)
        assert job["status"] == "succeeded", job["error"]
        wait_until(lambda domain=domain: score(made, OWN[:1], domain=domain))  # type: ignore[misc]
    return made


def score(server: Server, pairs: list[list[str]], **fields: Any) -> Any:
    response = server.client.post("/similarity", json={"pairs": pairs, **fields})
    return response.json() if response.status_code == 200 else None


def threshold(server: Server, domain: str, **query: Any) -> Any:
    return server.client.get(f"/domains/{domain}/threshold", params=query)


def test_a_search_has_thresholds_of_its_own_and_its_candidates_have_rates(server: Server) -> None:
    found = [threshold(server, "plain", false_hit_rate=0.05, gallery=size).json() for size in (1, 100, 100_000)]
    similarities = [advice["similarity"] for advice in found]
    assert similarities == sorted(similarities)
    assert [advice["extrapolated"] for advice in found] == [False, False, True]
    body = {"query": TEXTS[0], "texts": TEXTS[:20], "domain": "plain", "gallery": 100}
    assert server.client.post("/rerank", json=body | {"domain": "default"}).status_code == 409
    ranks = server.client.post("/rerank", json=body).json()
    rates = [rank["false_hit_rate"] for rank in ranks]
    assert rates == sorted(rates)
    level = found[1]["false_match_rate"]
    assert [rate <= 0.05 for rate in rates] == [1 - rank["score"] <= level for rank in ranks]
    documents = {"query": TEXTS[0], "documents": TEXTS[:20], "model": "isosim/plain", "gallery": 100}
    results = server.client.post("/v2/rerank", json=documents).json()["results"]
    assert [one["false_hit_rate"] for one in results] == rates


@pytest.mark.parametrize(
    ("domain", "query", "status", "words"),
    [
        *(("labelled", query, 422, "") for query in ({}, {"fmr": 0.1, "precision": 0.5}, {"fmr": 1e-8}, {"fmr": 1})),
        ("labelled", {"precision": 0.99}, 422, "precision is 0.99; it must be between 0.50 and 0."),
        ("graded", {"precision": 0.7}, 422, "grades"),
        ("plain", {"precision": 0.7}, 409, "no labels"),
        ("default", {"fmr": 0.01}, 409, "no reference"),
        ("plain", {"fmr": 0.01, "unit": "l2"}, 422, "raw if it holds vectors of isosim/plain:raw"),
    ],
)
def test_a_threshold_that_cannot_be_given_is_refused(
    server: Server, domain: str, query: dict[str, Any], status: int, words: str
) -> None:
    answer = threshold(server, domain, **query)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


def test_labels_for_a_version_make_a_new_one_on_the_same_scale(server: Server) -> None:
    before = score(server, OWN, domain="plain")
    job = judged(server, "plain", labels(100))
    assert (job["status"], job["promoted"], job["labels"]) == ("succeeded", False, 100), job
    after = score(server, OWN, domain=f"plain@{job['version']}")
    assert after["percentile"] == before["percentile"]
    assert after["similarity"] == before["similarity"]
    assert before["probability"] is None
    assert len(after["probability"]) == len(OWN)
    assert job["report"]["base"] == before["version"]


MORE = labels(30)


@pytest.mark.parametrize(
    ("domain", "posted", "status", "in_json", "in_lines"),
    [
        ("plain", labels(19), 422, "at least 20", "at least 20"),
        ("plain", [*MORE, ["a", "b", 2], ["a", "c", 0.5]], 422, "2 of 32 are neither 0 nor 1", "2 in line 31"),
        ("plain", [*MORE, ["", "b", 1]], 400, "labels[30]", "line 31"),
        ("plain", [*MORE, ["a", "b", "yes"]], 422, "labels[30]", "line 31: label"),
        ("nowhere", labels(20), 404, "nowhere", "nowhere"),
        ("default", labels(20), 409, "no reference", "no reference"),
    ],
)  # fmt: skip
def test_labels_that_teach_nothing_are_refused(
    server: Server, domain: str, posted: Any, status: int, in_json: str, in_lines: str
) -> None:
    path = f"/domains/{domain}/labels"
    listed = server.client.post(path, json={"labels": posted})
    assert (listed.status_code, in_json in listed.json()["error"]) == (status, True), listed.text
    lines = server.client.post(path, content=lines_of(posted), headers=LINES)
    assert (lines.status_code, in_lines in lines.json()["error"]) == (status, True), lines.text


def lines_of(posted: Any) -> bytes:
    return b"\n".join(orjson.dumps(dict(zip(("a", "b", "label", "weight"), row, strict=False))) for row in posted)


LINES = {"content-type": "application/x-ndjson"}


def test_labels_may_be_lines_whose_options_are_in_the_query(server: Server) -> None:
    """With the same numbers as JSON, which has at most 2 MB. Matches were drawn five times as often as others."""
    path, drawn = "/domains/plain/labels", [[*pair, 1 if pair[2] else 5] for pair in labels(300)]
    query: dict[str, Any] = {"promote": "never", "seed": 3, "version": 1}
    given = [
        server.client.post(path, json={"labels": drawn, **query}),
        server.client.post(path, params=query, content=lines_of(drawn), headers=LINES),
    ]
    as_json, as_lines = (server.wait_for(response.json()["job"]) for response in given)
    facts = as_json["report"]["labels"]
    assert as_lines["report"]["labels"] == facts
    assert (as_lines["seed"], as_lines["base"], as_lines["promoted"]) == (3, 1, False)
    matches = sum(pair[2] for pair in drawn)
    assert facts["effective_pairs"] < facts["pairs"]
    assert facts["positives"] == pytest.approx(matches / (matches + 5 * (300 - matches)))
    assert all(row["precision"] >= 0.5 and 0 <= row["recall"] <= 1 for row in facts["table"])
    alarms = [row["alarms"] for row in facts["table"]]
    assert alarms == sorted(alarms, reverse=True)
    stale = server.client.post(path, params={"revision": 99}, content=lines_of(drawn), headers=LINES)
    assert stale.status_code == 409
    for answer, words in (
        (server.client.post(path, content=b'"a sentence"', headers=LINES), "expected a labelled pair"),
        (server.client.post(path, params=query, json={"labels": drawn}), "belongs in the JSON body"),
    ):
        assert (answer.status_code, words in answer.json()["error"]) == (422, True)


def test_ndjson_takes_labelled_pairs_between_sentences(server: Server) -> None:
    lines: list[Any] = [*TEXTS[:300], *({"a": a, "b": b, "label": label, "weight": 2} for a, b, label in labels(40))]
    path, body = "/calibrate?domain=mixed&method=identity", b"\n".join(map(orjson.dumps, lines))
    job = server.wait_for(server.client.post(path, content=body, headers=LINES).json()["job"])
    assert (job["sentences"], job["labels"], job["status"]) == (300, 40, "succeeded"), job
    assert "weighted" not in job["report"]["labels"]  # all have the same
    bad = server.client.post(path, content=orjson.dumps({"a": "x", "b": "y", "label": "often"}), headers=LINES)
    assert (bad.status_code, "line 1" in bad.json()["error"]) == (422, True)
    grades = score(server, OWN, domain="graded")
    assert any(notice.startswith("probability_is_mean_grade:0-5") for notice in grades["notices"])


def test_text_of_another_kind_is_flagged_and_own_text_is_not(server: Server) -> None:
    own, odd = (score(server, pairs, domain="plain", detail=True) for pairs in (OWN, ODD))
    flagged = [flag for pair in own["flags"] for side in pair.values() for flag in side]
    assert flagged.count("out_of_domain") <= 8  # of 200; two are expected
    assert all("out_of_domain" in side for pair in odd["flags"] for side in pair.values()), odd["flags"]
    shares = [value for pair in own["detail"]["out_of_domain"] for value in pair.values()]
    assert (len(shares), 0.3 < np.mean(shares) < 0.7) == (2 * len(OWN), True)
    assert own["detail"]["tokens"][0]["a"] > 2
    assert "detail" not in score(server, OWN, domain="plain")


def test_drift_is_seen_in_metrics_and_in_the_domain(server: Server) -> None:
    assert server.calibrate("watched", TEXTS, method="identity")["status"] == "succeeded"
    wait_until(lambda: score(server, OWN, domain="watched"))
    for start in range(0, 500, 100):
        score(server, [[TEXTS[start + i], TEXTS[start + i + 1]] for i in range(0, 100)], domain="watched")
    drift = server.client.get("/domains/watched").json()["drift"]
    assert server.calibrate("watched", TEXTS, method="centring", promote="never")["status"] == "succeeded"
    wait_until(lambda: score(server, OWN, domain="watched@2"))  # pinned: it says nothing about what the domain is asked
    assert server.client.get("/domains/watched").json()["drift"] == drift
    assert drift["out_of_domain"] < 0.05
    rate = 'isosim_domain_out_of_domain_ratio{domain="watched"}'
    assert metric(server, rate) == pytest.approx(drift["out_of_domain"])
    for n in range(30):
        score(server, [[f"0x{n}f{i} " * 10, f"(({i})) {n}!!"] for i in range(20)], domain="watched")
    assert metric(server, rate) > 0.3
    assert server.client.get("/domains/default").json()["drift"] is None


def test_the_same_labels_posted_again_are_the_same_job_also_when_the_champion_has_changed(server: Server) -> None:
    server.calibrate("again", TEXTS, method="sn")
    post: dict[str, Any] = {
        "json": {"labels": labels(60), "promote": "always"},
        "headers": {"idempotency-key": "labels-of-again"},
    }
    first = server.client.post("/domains/again/labels", **post)
    assert first.status_code == 202, first.text
    assert server.wait_for(first.json()["job"])["promoted"]
    wait_until(lambda: score(server, OWN[:1], domain="again")["version"] == 2)
    assert server.client.post("/domains/again/labels", **post).json()["job"] == first.json()["job"]


def judged(server: Server, domain: str, posted: list[list[Any]], **options: Any) -> Any:
    """The job of labels, when it has ended."""
    body = {"labels": posted, "promote": "never"} | options
    response = server.client.post(f"/domains/{domain}/labels", json=body)
    assert response.status_code == 202, response.text
    return server.wait_for(response.json()["job"])


def exchanged(posted: list[list[Any]]) -> list[list[Any]]:
    top = 5 if any(label > 1 for _, _, label in posted) else 1
    return [[a, b, top - label] for a, b, label in posted]


@pytest.mark.parametrize("graded", [False, True])
def test_labels_the_wrong_way_round_fail_and_change_nothing(server: Server, graded: bool) -> None:
    wrong = exchanged(labels(100, graded))
    kind = {"kind": "grades" if graded else "matches"}
    before = server.client.get("/domains/plain").json()
    jobs = [server.calibrate("plain", TEXTS, labels=wrong, method="sn", promote="always", **kind)]
    for job in [*jobs, judged(server, "plain", wrong, promote="always", **kind)]:
        assert (job["status"], job["version"]) == ("failed", None), job
        assert job["error"].startswith("labels_inverted: ")
        assert ("upside down?" if graded else "are 0 and 1 swapped?") in job["error"]
        assert job["stage"] == "failed"
    after = server.client.get("/domains/plain").json()
    assert (after["champion"], len(after["versions"])) == (before["champion"], len(before["versions"]))


def test_labels_that_might_be_chance_are_not_promoted_unless_always(server: Server) -> None:
    rng = np.random.default_rng(1)
    guessed = [[a, b, int(rng.random() < 0.5)] for a, b, _ in labels(60)]
    for promote, promoted in (("if_better", False), ("always", True)):
        job = judged(server, "guessed", guessed, promote=promote)
        assert (job["status"], job["promoted"]) == ("succeeded", promoted), job
        assert any("do not clearly agree" in notice for notice in job["notices"]), job["notices"]
        assert 0.01 <= job["report"]["labels"]["rank_test"]["p_agree"] <= 0.99
    first = server.calibrate("first", TEXTS, labels=guessed, method="sn")
    assert (first["status"], first["promoted"]) == ("succeeded", False)
    assert "do not clearly agree" in first["report"]["promotion"]
