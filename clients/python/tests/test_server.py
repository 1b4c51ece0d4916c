"""Both clients against a real server: what they read, what they calibrate, and what happens when it goes away."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isosim_client import (
    AsyncClient,
    Client,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    InvalidInput,
    Job,
    JobCancelled,
    NotFound,
    Retries,
    TooLarge,
)
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

PAIRS = [("A farmer repairs a wooden boat.", "The pilot admires the garden gate."), tuple(sentences(2))]
LONG = [f"{text} {n}" for n in range(30) for text in sentences(500)]  # some seconds of fitting
ONCE = Retries(times=0)
Made = Callable[..., tuple[Client, str]]


@pytest.fixture(scope="module")
def letters(server: Server) -> Job:
    """A domain with labels that the tests below only read."""
    labels = [(text, text.upper(), 1) for text in sentences(40)] + [(*sentences(n + 2)[n:], 0) for n in range(40)]
    with Client(server.url) as client:
        return client.wait(client.calibrate(sentences(600), domain="letters", labels=labels, method="whitening"))


READS: dict[str, Callable[[Any], Any]] = {
    "similarity": lambda client: client.similarity(PAIRS, domain="letters", detail=True),
    "embed": lambda client: client.embed(sentences(3), domain="letters"),
    "embed one, raw, cut": lambda client: client.embed("one", space="raw", dimensions=4, normalize=False),
    "job": lambda client: client.job(client.letters),
    "jobs": lambda client: client.jobs(),
    "domains": lambda client: client.domains(),
    "domain": lambda client: client.domain("letters"),
    "version": lambda client: client.version("letters", 1),
    "threshold": lambda client: client.threshold("letters", fmr=0.1),
    "threshold by precision": lambda client: client.threshold("letters@1", precision=0.6),
    "raw threshold": lambda client: client.threshold("letters", fmr=0.1, space="raw"),
    "threshold of searches": lambda client: client.threshold("letters", false_hit_rate=0.1, gallery=100),
    "rerank": lambda client: client.rerank("A boat.", sentences(3), domain="letters", gallery=100),
    "wait": lambda client: client.wait(client.letters),
    "ready": lambda client: client.ready(),
}


@pytest.mark.parametrize("name", READS)
def test_both_clients_read_the_same(server: Server, letters: Job, name: str) -> None:
    async def awaited() -> Any:
        async with AsyncClient(server.url) as client:
            vars(client)["letters"] = letters.id
            return await READS[name](client)

    with Client(server.url) as client:
        vars(client)["letters"] = letters.id
        assert READS[name](client) == asyncio.run(awaited())


def test_every_field_the_server_sends_has_a_place(server: Server, client: Client, letters: Job) -> None:
    """Read from the server's own description, so that a field it gains is not forgotten here."""
    import dataclasses

    from isosim_client import _answers

    names = {
        "Similarity": "SimilarityResponse", "Detail": "SimilarityDetail", "Job": "JobState", "Domain": "DomainState",
        "Drift": "DriftState", "Version": "VersionState", "VersionSummary": "VersionSummary", "Threshold": "Threshold",
        "NamedThreshold": "NamedThreshold", "SavedThreshold": "SavedThreshold", "Thresholds": "Thresholds",
        "SavedTarget": "SavedTarget", "Ranked": "Rank", "PairFlags": "PairFlags", "PairNumbers": "PairNumbers",
    }  # fmt: skip
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    for ours, theirs in names.items():
        fields = {f.metadata.get("wire", f.name) for f in dataclasses.fields(getattr(_answers, ours))}
        assert fields == schemas[theirs]["properties"].keys(), ours


def test_columns_are_the_servers(server: Server, client: Client, letters: Job) -> None:
    scores = client.similarity(PAIRS, domain="letters", detail=True)
    body = {"pairs": PAIRS, "domain": "letters", "detail": True}
    answer = server.client.post("/similarity", json=body).json()
    assert (scores.domain, scores.version, scores.method, len(scores)) == ("letters", 1, "whitening", 2)
    for column in ("cosine", "similarity", "percentile", "probability", "extrapolated"):
        assert list(getattr(scores, column)) == answer[column]
    assert scores.detail is not None
    assert scores.detail.pairs == answer["detail"]["pairs"]
    assert [pair.a for pair in scores.detail.tokens] == [pair["a"] for pair in answer["detail"]["tokens"]]
    assert (
        client.embed(sentences(2), domain="letters")
        == server.client.post("/embed", json={"inputs": sentences(2), "domain": "letters"}).json()
    )


def test_the_advised_threshold_is_told_with_its_basis(client: Client, letters: Job) -> None:
    advice = client.threshold("letters", fmr=0.1)
    assert (advice.target, advice.space, advice.extrapolated) == ({"fmr": 0.1}, "calibrated", False)
    assert advice.interval is not None
    assert advice.interval[0] <= advice.similarity <= advice.interval[1]


def test_a_saved_threshold_decides_until_it_is_deleted(client: Client, letters: Job) -> None:
    saved = client.save_threshold("letters", "duplicates", fmr=0.1)
    assert (saved.domain, saved.name, saved.target, saved.notice) == ("letters", "duplicates", {"fmr": 0.1}, None)
    seen = client.domain("letters")
    assert (seen.revision, seen.thresholds) == (saved.revision, {"duplicates": {"fmr": 0.1}})
    listed = client.thresholds("letters")
    assert (listed.revision, [one.name for one in listed.thresholds]) == (saved.revision, ["duplicates"])

    scores = client.similarity(PAIRS, domain="letters", threshold="duplicates")
    assert scores.threshold is not None
    assert scores.threshold.similarity == listed.thresholds[0].similarity
    assert scores.match == tuple(one >= scores.threshold.similarity for one in scores.similarity)
    assert client.similarity(PAIRS, domain="letters").match is None

    client.save_threshold("letters", "search", false_hit_rate=0.1, gallery=100, seen=seen)
    with pytest.raises(Conflict, match="read the domain again, then retry"):
        client.delete_threshold("letters", "duplicates", seen=seen)
    client.delete_threshold("letters", "search")
    client.delete_threshold("letters", "duplicates", seen=client.domain("letters"))
    with pytest.raises(NotFound, match="no saved threshold 'duplicates'"):
        client.similarity(PAIRS, domain="letters", threshold="duplicates")


def test_a_threshold_of_searches_and_one_with_its_recall(client: Client, letters: Job) -> None:
    pairs = client.threshold("letters", fmr=0.1)
    searches = client.threshold("letters", false_hit_rate=0.1, gallery=100)
    assert searches.target == {"false_hit_rate": 0.1, "gallery": 100}
    assert searches.similarity > pairs.similarity
    assert searches.false_match_rate is not None
    assert 0 < searches.false_match_rate < 0.1

    labelled = client.threshold("letters", precision=0.9)
    assert labelled.recall is not None
    assert labelled.recall_interval is not None
    assert labelled.precision_interval is not None
    assert labelled.recall_interval[0] <= labelled.recall <= labelled.recall_interval[1]

    alike, other = client.rerank("A farmer.", ["A farmer.", "Shares fell."], domain="letters", gallery=100)
    assert alike.false_hit_rate is not None
    assert other.false_hit_rate is not None
    assert alike.false_hit_rate < other.false_hit_rate


def test_text_is_the_same_whichever_way_it_is_given(client: Client, tmp_path: Path) -> None:
    texts = sentences(250)
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    sources: list[Any] = [texts, iter(texts), tmp_path / "lines.txt", tmp_path / "lines.jsonl"]
    table = "\r\n".join(["id;text", *(f'{number};"{text}"' for number, text in enumerate(texts))])
    (tmp_path / "table.csv").write_bytes(table.encode("cp1252"))
    ways = {"domain": "ways", "promote": "never", "method": "sn"}
    with (tmp_path / "lines.txt").open() as lines:
        jobs = [client.calibrate(source, **ways) for source in [*sources, lines]]
        jobs.append(client.calibrate(tmp_path / "table.csv", column="text", **ways))
        reports = [client.wait(job).report for job in jobs]
    assert len({report["text_sha256"] for report in reports if report}) == 1


def test_the_async_client_calibrates_too(server: Server) -> None:
    async def use() -> tuple[Job, list[str]]:
        async with AsyncClient(server.url) as client:
            accepted = await client.calibrate(iter(sentences(250)), domain="awaited", method="sn")
            told = [state.status async for state in client.events(accepted)]
            return await client.wait(accepted), told

    done, told = asyncio.run(use())
    assert (done.version, done.promoted, done.progress) == (1, True, 1.0)
    assert told[-1] == "succeeded"


def test_an_idempotency_key_makes_one_job(client: Client) -> None:
    first = client.calibrate(sentences(250), domain="once", method="sn", idempotency_key="mine")
    assert client.calibrate(sentences(250), domain="once", method="sn", idempotency_key="mine").id == first.id
    with pytest.raises(Conflict, match="Idempotency-Key"):
        client.calibrate(sentences(250), domain="once", method="sn", seed=1, idempotency_key="mine")
    assert client.wait(first).report  # and after the end the accepted job is told by id alone
    assert client.calibrate(sentences(250), domain="once", method="sn", idempotency_key="mine").succeeded


def test_versions_are_promoted_rolled_back_and_deleted(client: Client) -> None:
    for method in ("whitening", "sn", "centring"):
        client.wait(client.calibrate(sentences(300), domain="moved", method=method, promote="always"))
    assert [v.version for v in client.domain("moved").versions] == [1, 2, 3]
    assert (client.promote("moved", 1).champion, client.rollback("moved").champion) == (1, 3)
    with pytest.raises(Conflict):
        client.delete_version("moved", 1)
    client.delete_version("moved", 2)
    with pytest.raises(NotFound):
        client.version("moved", 2)


def test_a_domain_is_deleted_and_deleting_it_again_does_no_harm(client: Client) -> None:
    client.wait(client.calibrate(sentences(300), domain="passing", method="sn"))
    for _ in range(2):
        client.delete_domain("passing")
        with pytest.raises(NotFound):
            client.domain("passing")
    with pytest.raises(Conflict, match="cannot be deleted"):
        client.delete_domain("default")
    assert client.wait(client.calibrate(sentences(300), domain="passing", method="sn")).version == 2


def test_labels_make_a_version_with_probabilities(client: Client) -> None:
    client.wait(client.calibrate(sentences(300), domain="labelled", method="sn"))
    with pytest.raises(Conflict, match=r"'labelled' was given no labels; .*method for that is add_labels$"):
        client.threshold("labelled", precision=0.8)
    labels = [(text, text.upper(), 1) for text in sentences(40)] + [(*sentences(n + 2)[n:], 0) for n in range(40)]
    done = client.wait(client.add_labels("labelled", labels))
    assert (done.version, done.base, done.labels) == (2, 1, 80)
    assert client.similarity(PAIRS, domain="labelled@2").probability is not None
    with pytest.raises(InvalidInput, match=r"1 of 80 is neither 0 nor 1: 2 in line 1;"):
        client.add_labels("labelled", [(*labels[0][:2], 2), *labels[1:]])
    client.save_threshold("labelled", "sure", precision=0.8)
    with pytest.raises(Conflict, match="saved thresholds unreachable: sure"):
        client.rollback("labelled")
    assert client.promote("labelled", 1, without=["sure"]).champion == 1


def test_an_error_of_the_servers_is_read_whole(client: Client) -> None:
    """One is enough: tests/api/test_errors.py has every error of the server, test_errors.py here how each is read."""
    with pytest.raises(NotFound, match="nowhere") as caught:
        client.embed("a", domain="nowhere")
    assert (caught.value.status, caught.value.error_type) == (404, "NotFound")
    assert len(caught.value.request_id or "") == 32


def test_an_address_with_https_of_a_server_without_tls_says_so(server: Server) -> None:
    told = f"the server there answers without TLS: is base_url {server.url}[?]$"
    secure = server.url.replace("http:", "https:")
    with Client(secure, retries=ONCE) as client, pytest.raises(ConnectionFailed, match=told):
        client.embed("a")

    async def ask() -> None:
        async with AsyncClient(secure, retries=ONCE) as client:
            await client.embed("a")

    with pytest.raises(ConnectionFailed, match=told):
        asyncio.run(ask())


def test_a_body_beyond_the_limit_is_too_large_and_no_lost_connection(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", max_calibration_bytes=1_000_000)
    with Client(server.url, retries=ONCE) as client, pytest.raises(TooLarge, match="1000000"):
        client.calibrate((text for _ in range(500) for text in sentences(2000)), domain="d")


def running(client: Client, domain: str) -> Job:
    job = client.calibrate(LONG, domain=domain, method="flow")
    wait_until(lambda: client.job(job).stage in ("embedding", "fitting"), seconds=120)
    return job


def test_a_cancelled_job_ends_the_wait_for_it(client: Client) -> None:
    job = running(client, "cancelled")
    caught: list[Exception] = []

    def wait() -> None:
        try:
            client.wait(job)
        except JobCancelled as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert client.cancel(job).status == "cancelled"
    waiting.join(timeout=30)
    assert isinstance(caught[0], JobCancelled)
    assert caught[0].job.id == job.id
    with pytest.raises(Conflict):
        client.cancel(job)


def test_a_job_torn_by_its_server_goes_on_when_it_is_back(serve: Serve, store: Path) -> None:
    first = serve(model_store=store, encoder="tiny")
    with Client(first.url, retries=ONCE) as client:
        job = running(client, "torn")
        states = client.events(job)
        next(states)
        first.kill()
        with pytest.raises((ConnectionLost, ConnectionFailed)):
            list(states)
    second = serve(model_store=store, encoder="tiny")
    with Client(second.url) as client:
        assert client.job(job).status in ("queued", "running")
        client.cancel(job)


def test_a_server_killed_in_mid_request_is_a_lost_connection(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", memory_cache_bytes=0, max_batch_tokens=1, max_wait=60)
    caught: list[Exception] = []

    def ask(retries: Retries) -> None:
        with Client(server.url, retries=retries) as client:
            try:
                client.embed([f"{number} {text * 5}" for number, text in enumerate(sentences(1000))])
            except (ConnectionLost, ConnectionFailed) as error:
                caught.append(error)

    patient = Retries(times=2, first=0.01)
    threads = [threading.Thread(target=ask, args=(retries,)) for retries in (ONCE, patient)]
    for thread in threads:
        thread.start()
    both_and_this = "isosim_requests_in_flight 3.0"
    wait_until(lambda: both_and_this in server.client.get("/metrics").text, every=0.001)
    server.kill()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(type(error).__name__ for error in caught) == ["ConnectionFailed", "ConnectionLost"]
    with Client(server.url) as client:
        assert not client.ready()
