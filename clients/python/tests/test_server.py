"""Each method of both clients once, against one real server."""

import asyncio
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from isosim_client import (
    AsyncClient,
    Client,
    Conflict,
    Domain,
    InvalidInput,
    Job,
    JobCancelled,
    NotFound,
    TooLarge,
    _answers,
)
from tests.processes import Process, Server, serve_with
from tests.text import sentences

PAIRS = [("A farmer repairs a wooden boat.", "The pilot admires the garden gate."), tuple(sentences(2))]
LABELS = [(text, text.upper(), 1) for text in sentences(40)] + [(*sentences(n + 2)[n:], 0) for n in range(40)]
# Our class -> the schema in the server's OpenAPI document, of those that the server does not share.
SCHEMAS = {
    "Similarity": "SimilarityResponse", "Detail": "SimilarityDetail", "NamedThreshold": "NamedThreshold",
    "Ranked": "Rank", "PairFlags": "PairFlags", "PairNumbers": "PairNumbers",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    running: list[Process] = []
    yield serve_with(folder, running, model_store=folder / "store", encoder="tiny", max_calibration_bytes=1_000_000)
    for process in running:
        process.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def letters(client: Client, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Domain:
    """A domain with three versions, made from the same sentences in three ways; version 1 has labels."""
    texts, path = sentences(600), tmp_path_factory.mktemp("texts") / "letters.csv"
    path.write_text("\n".join(["id;text", *(f'{number};"{text}"' for number, text in enumerate(texts))]))

    first = client.wait(client.calibrate(texts, domain="letters", labels=LABELS, method="whitening"))
    second = client.calibrate(path, column="text", domain="letters", method="sn", promote="never")
    second = client.wait(second)

    async def third() -> Job:
        async with AsyncClient(server.url) as other:
            job = await other.calibrate(iter(texts), domain="letters", method="sn", promote="never")
            done = await other.wait(job)
            assert done == await other.job(job)
            return done

    jobs = [first, second, asyncio.run(third())]
    assert [(job.version, job.promoted) for job in jobs] == [(1, True), (2, False), (3, False)]
    assert len({job.report["text_sha256"] for job in jobs if job.report}) == 1
    return client.domain("letters")


def test_every_field_that_the_server_sends_has_a_place(server: Server) -> None:
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    for ours, theirs in SCHEMAS.items():
        fields = {field.name for field in dataclasses.fields(getattr(_answers, ours))}
        assert fields == schemas[theirs]["properties"].keys(), ours


def test_scores_are_the_servers(server: Server, client: Client, letters: Domain) -> None:
    scores = client.similarity(PAIRS, domain="letters", detail=True)
    body = {"pairs": PAIRS, "domain": "letters", "detail": True}
    answer = server.client.post("/similarity", json=body).json()
    assert (scores.domain, scores.version, scores.method, len(scores)) == ("letters", 1, "whitening", 2)
    for column in ("cosine", "similarity", "percentile", "probability", "extrapolated"):
        assert list(getattr(scores, column)) == answer[column]
    assert scores.detail is not None
    assert scores.detail.pairs == answer["detail"]["pairs"]
    assert [pair.a for pair in scores.detail.tokens] == [pair["a"] for pair in answer["detail"]["tokens"]]
    inputs = {"inputs": sentences(2), "domain": "letters"}
    assert client.embed(sentences(2), domain="letters") == server.client.post("/embed", json=inputs).json()
    assert len(client.embed("one", space="raw", dimensions=4, normalize=False)[0]) == 4
    ranked = client.rerank("A boat.", sentences(3), domain="letters", gallery=100)
    assert [one.false_hit_rate is None for one in ranked] == [False] * 3
    assert client.version("letters", 1).report["text_sha256"]
    assert client.threshold("letters", fmr=0.1, space="raw", unit="l2").unit == "l2"
    searches = [(text.upper(), 0) for text in sentences(1)]
    assert client.check_searches(searches, sentences(9), domain="letters").queries == 1
    assert [one.domain for one in client.domains()] == ["default", "letters"]
    assert client.ready()
    advice = client.threshold("letters", precision=0.9)
    assert (advice.target, advice.space) == ({"precision": 0.9}, "calibrated")
    assert advice.recall is not None
    assert advice.recall_interval is not None
    assert advice.recall_interval[0] <= advice.recall <= advice.recall_interval[1]


def test_a_match_from_files_to_judged_pairs(client: Client, server: Server, tmp_path: Path) -> None:
    new, known = tmp_path / "new.csv", tmp_path / "known.csv"
    for path, texts in ((new, [text.upper() for text in sentences(9)]), (known, sentences(300))):
        path.write_text("\n".join(["id;text", *(f'{number};"{text}"' for number, text in enumerate(texts))]))
    found = client.wait_match(client.start_match(new, known, column="text"))
    assert (found.rows, found.columns, found.distinct) == ((9, 300), (("id",), ("id",)), (9, 300))
    pairs = list(client.match(iter(sentences(300)), [text.upper() for text in sentences(9)], at_most=9))
    assert [pair["text_a"].upper() for pair in pairs] == [pair["text_b"] for pair in pairs]
    drawn = client.pairs_to_judge(found, 30).pairs
    judged = client.judge(found, [(pair.pair, int(pair.a == pair.b.upper())) for pair in drawn])
    answer = client.match_state(found, similarity=0.99).answer
    assert answer is not None
    assert (judged.judged, answer.judged, answer.precision is not None) == (30, 30, True)
    content = b"".join(client.result(found, format="csv", form="best", similarity=0.99)).decode("utf-8-sig")
    assert len(content.splitlines()) == 10

    async def read() -> None:
        async with AsyncClient(server.url) as other:
            assert await other.match_state(found) == client.match_state(found)
            assert [pair async for pair in other.match(sentences(250), at_most=3)]
            await other.delete_match(found)

    asyncio.run(read())
    with pytest.raises(NotFound, match="no match"):
        client.match_state(found)
    assert found.id not in [one.id for one in client.matches()]


def test_a_saved_threshold_decides_until_it_is_deleted(client: Client, letters: Domain) -> None:
    saved = client.save_threshold("letters", "duplicates", fmr=0.1)
    assert (saved.domain, saved.name, saved.target, saved.notice) == ("letters", "duplicates", {"fmr": 0.1}, None)
    seen = client.domain("letters")
    assert (seen.revision, seen.thresholds) == (saved.revision, {"duplicates": {"fmr": 0.1}})
    (listed,) = client.thresholds("letters").thresholds
    scores = client.similarity(PAIRS, domain="letters", threshold="duplicates")
    assert scores.threshold is not None
    assert scores.threshold.similarity == listed.similarity
    assert scores.match == tuple(one >= scores.threshold.similarity for one in scores.similarity)

    client.save_threshold("letters", "search", false_hit_rate=0.1, gallery=100, seen=seen)
    with pytest.raises(Conflict, match="read the domain again, then retry"):
        client.delete_threshold("letters", "duplicates", seen=seen)
    client.delete_threshold("letters", "search")
    client.delete_threshold("letters", "duplicates", seen=client.domain("letters"))
    with pytest.raises(NotFound, match="no saved threshold 'duplicates'"):
        client.similarity(PAIRS, domain="letters", threshold="duplicates")


def test_versions_are_promoted_rolled_back_and_deleted(client: Client, letters: Domain) -> None:
    assert [version.version for version in letters.versions] == [1, 2, 3]
    client.save_threshold("letters", "sure", precision=0.6)
    with pytest.raises(Conflict, match="saved thresholds unreachable: sure"):
        client.promote("letters", 2)
    assert client.promote("letters", 2, without=["sure"]).champion == 2
    assert client.rollback("letters").champion == 1
    with pytest.raises(Conflict):
        client.delete_version("letters", 2)
    client.delete_version("letters", 3)
    with pytest.raises(NotFound):
        client.version("letters", 3)


def test_labels_start_a_job_that_can_be_cancelled(client: Client, letters: Domain) -> None:
    with pytest.raises(InvalidInput, match="1 of 80 is neither 0 nor 1: 2 in line 1;"):
        client.add_labels("letters", [(*LABELS[0][:2], 2), *LABELS[1:]])
    job = client.add_labels("letters", LABELS, version=2, promote="never", idempotency_key="mine")
    assert client.add_labels("letters", LABELS, version=2, promote="never", idempotency_key="mine").id == job.id
    assert client.cancel(job).status == "cancelled"
    with pytest.raises(JobCancelled) as caught:
        client.wait(job)
    assert caught.value.job.base == 2
    assert client.job(job).labels == 80


def test_a_body_beyond_the_limit_is_too_large_and_no_lost_connection(client: Client) -> None:
    with pytest.raises(TooLarge, match="1000000"):
        client.calibrate((text for _ in range(500) for text in sentences(2000)), domain="d", idempotency_key=False)


def test_a_domain_is_deleted(client: Client, letters: Domain) -> None:
    for _ in range(2):
        client.delete_domain("letters")
        with pytest.raises(NotFound, match="letters") as caught:
            client.embed("a", domain="letters")
    assert (caught.value.status, caught.value.error_type) == (404, "NotFound")
    assert len(caught.value.request_id or "") == 32
