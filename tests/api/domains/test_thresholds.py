"""Saved thresholds on running servers: saved by one, used by all, the same target with every version."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.jobs.job import LabelledPair
from tests.processes import RedisServer, Serve, Server, wait_until
from tests.stores import calibrate
from tests.text import sentences

TEXTS = sentences(400)
LABELS = [LabelledPair(TEXTS[i], TEXTS[i].replace(".", ""), 1.0) for i in range(40)] + [
    LabelledPair(TEXTS[i], TEXTS[i + 50], 0.0) for i in range(40)
]
PAIRS = [[TEXTS[i], TEXTS[i + 1]] for i in range(0, 200, 2)] + [[TEXTS[0], TEXTS[0]], ["🙂", "🙂"]]
WITHIN = 2.0  # s in which every replica follows
NEWS = "/domains/news/thresholds"


@pytest.fixture(scope="module")
def store(module_store: Path, tiny: EncoderArtifact) -> Path:
    """`news@1` with labels, `news@2` (champion) without; `other` with labels; `default` built in."""
    calibrate(module_store, tiny, "news", labels=LABELS)
    calibrate(module_store, tiny, "news", "whitening")
    calibrate(module_store, tiny, "other", labels=LABELS)
    return module_store


@pytest.fixture(scope="module")
def servers(store: Path, module_serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    given = {"model_store": store, "encoder": "tiny", "redis_url": redis.url, "local_worker": False}
    yield [module_serve(**given) for _ in range(2)]
    redis.kill()


@pytest.fixture
def server(servers: list[Server]) -> Iterator[Server]:
    """The first one; version 2 of `news` answers again after the test, and nothing is saved."""
    yield servers[0]
    client = servers[0].client
    for domain in ("news", "other"):
        for one in client.get(f"/domains/{domain}/thresholds").json()["thresholds"]:
            client.delete(f"/domains/{domain}/thresholds/{one['name']}").raise_for_status()
    client.put("/domains/news/champion", json={"version": 2}).raise_for_status()


def save(server: Server, name: str = "duplicates", domain: str = "news", **body: Any) -> dict[str, Any]:
    response = server.client.put(f"/domains/{domain}/thresholds/{name}", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ask(server: Server, threshold: str | None = "duplicates", domain: str = "news") -> httpx.Response:
    named = {} if threshold is None else {"threshold": threshold}
    return server.client.post("/similarity", json={"pairs": PAIRS, "domain": domain, **named})


def scored(server: Server, threshold: str | None = "duplicates", domain: str = "news") -> dict[str, Any]:
    response = ask(server, threshold, domain)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(response: httpx.Response, status: int, said: str) -> None:
    assert (response.status_code, said in response.text) == (status, True), response.text


# What is saved, listed and answered is recorded in tests/answers.
def test_a_saved_target_decides_which_pairs_match_and_changes_no_score(server: Server) -> None:
    plain = scored(server, None)
    save(server, fmr=0.1)
    answer = scored(server)
    threshold, matches = answer.pop("threshold"), answer.pop("match")
    assert answer == plain
    reached = [similarity >= threshold["similarity"] for similarity in answer["similarity"]]
    assert matches == [*reached[:-1], False]  # no token of the last pair's texts is known
    assert 0 < sum(matches) < len(matches)
    texts = [text for pair in PAIRS[:20] for text in pair]
    raw = {"inputs": texts, "domain": "news", "space": "raw", "normalize": False}
    embedded = server.client.post("/embed", json=raw).json()
    body = {"vectors": [*zip(embedded[::2], embedded[1::2], strict=True)], "domain": "news", "threshold": "duplicates"}
    assert server.client.post("/similarity", json=body).json()["match"] == matches[:20]


def test_a_target_that_cannot_be_reached_is_listed_with_the_reason(server: Server) -> None:
    save(server, "search", false_hit_rate=0.1, gallery=100)
    revision = save(server, "sure", precision=0.9)["revision"]
    listed = server.client.get(NEWS).json()
    assert (listed["domain"], listed["version"], listed["revision"]) == ("news", 2, revision)
    search, sure = listed["thresholds"]
    assert search["target"] == {"false_hit_rate": 0.1, "gallery": 100}
    assert sure.pop("notice").startswith("domain 'news' was given no labels")
    assert sure == {
        "name": "sure", "target": {"precision": 0.9}, "similarity": None, "probability": None, "interval": None,
        "extrapolated": None,
    }  # fmt: skip
    state = server.client.get("/domains/news").json()
    assert state["thresholds"] == {one["name"]: one["target"] for one in listed["thresholds"]}


def test_every_version_has_a_similarity_of_its_own_through_promotion_and_rollback(server: Server) -> None:
    save(server, fmr=0.1)
    second, first = scored(server)["threshold"], scored(server, domain="news@1")["threshold"]
    assert (second["version"], first["version"]) == (2, 1)
    assert second["similarity"] != first["similarity"]
    server.client.put("/domains/news/champion", json={"version": 1}).raise_for_status()
    assert scored(server)["threshold"] == first
    server.client.post("/domains/news/rollback").raise_for_status()
    assert scored(server)["threshold"] == second
    save(server, fmr=0.2)
    assert scored(server, domain="news@previous")["threshold"]["similarity"] < first["similarity"]


def test_a_version_that_loses_a_saved_target_is_promoted_only_if_the_target_is_named(
    server: Server, store: Path, tiny: EncoderArtifact
) -> None:
    client = server.client
    save(server, fmr=0.1)
    save(server, "sure", precision=0.9)  # version 2, the champion, does not reach it
    client.put("/domains/news/champion", json={"version": 1}).raise_for_status()
    lost = "version 2 makes saved thresholds unreachable: sure (domain 'news' was given no labels"
    for without in ([], ["duplicates"]):
        refused(client.put("/domains/news/champion", json={"version": 2, "without": without}), 409, lost)
        refused(client.post("/domains/news/rollback", json={"without": without}), 409, lost)
    calibrate(store, tiny, "news")
    report = client.get("/domains/news/versions/3").json()["report"]
    assert list(report["unreachable"]) == ["sure"]
    assert report["promotion"].startswith("it would make saved thresholds unreachable: sure (domain 'news'")
    assert client.get("/domains/news").json()["champion"] == 1
    client.delete("/domains/news/versions/3").raise_for_status()
    named = {"without": ["sure"]}
    assert client.post("/domains/news/rollback", json=named).json()["champion"] == 2
    client.put("/domains/news/champion", json={"version": 1}).raise_for_status()
    assert client.put("/domains/news/champion", json={"version": 2} | named).json()["champion"] == 2


def test_every_server_follows_within_two_seconds(servers: list[Server], server: Server) -> None:
    other = servers[1]
    scored(other, None)
    for rate in (0.1, 0.2):
        save(server, fmr=rate)
        began = time.monotonic()
        assert scored(server)["threshold"]["target"] == {"fmr": rate}  # at once where it was saved
        wait_until(
            lambda rate=rate: ask(other).status_code == 200 and scored(other)["threshold"]["target"] == {"fmr": rate},  # type: ignore[misc]
            WITHIN,
        )
        assert time.monotonic() - began < WITHIN
        pinned = scored(other, domain="news@1")["threshold"]
        assert (pinned["target"], pinned["version"]) == ({"fmr": rate}, 1)
    assert other.client.delete(f"{NEWS}/duplicates").status_code == 204
    wait_until(lambda: ask(server).status_code == 404, WITHIN)
    assert ask(server, domain="news@1").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("PUT", "news/thresholds/a", {}, 422, "give one of them, for example fmr=0.01; none is given"),
        ("PUT", "news/thresholds/a", {"fmr": 0.1, "precision": 0.9}, 422, "several are given"),
        ("PUT", "news/thresholds/a", {"precision": 1}, 422, "precision: 1; it must be more than 0 and less than 1"),
        ("PUT", "news/thresholds/a", {"false_hit_rate": 0.1}, 422, "give both"),
        ("PUT", "news/thresholds/a", {"similarity": 0.4}, 422, "similarity: unknown field"),
        ("PUT", "news/thresholds/A", {"fmr": 0.1}, 422, "name"),
        ("PUT", "nowhere/thresholds/a", {"fmr": 0.1}, 404, "no domain 'nowhere'"),
        ("PUT", "default/thresholds/a", {"fmr": 0.1}, 404, "'default' has no version"),
        ("GET", "nowhere/thresholds", None, 404, "no domain 'nowhere'"),
        ("DELETE", "news/thresholds/duplicats", None, 404, "has no saved threshold 'duplicats'"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_or_found_is_refused_with_what_is_wanted(
    server: Server, method: str, path: str, body: Any, status: int, said: str
) -> None:
    refused(ask(server), 404, "GET /domains/news/thresholds lists those that are saved")
    save(server, fmr=0.1)
    refused(server.client.request(method, f"/domains/{path}", json=body), status, said)
    assert [one["name"] for one in server.client.get(NEWS).json()["thresholds"]] == ["duplicates"]
    refused(ask(server, domain="default"), 404, "domain 'default' has no saved threshold 'duplicates'")


def test_a_late_change_is_refused_and_a_repeated_one_answered_as_the_first(server: Server) -> None:
    seen = server.client.get("/domains/news").json()["revision"]
    first = save(server, fmr=0.1, revision=seen)
    assert save(server, fmr=0.1, revision=seen) == save(server, fmr=0.1) == first
    late = f"is at revision {seen + 1}, not {seen}; read the domain again, then retry"
    for method, path, body in (
        ("PUT", f"{NEWS}/duplicates", {"fmr": 0.2, "revision": seen}),
        ("DELETE", f"{NEWS}/duplicates?revision={seen}", None),
        ("PUT", "/domains/news/champion", {"version": 1, "revision": seen}),
    ):  # fmt: skip
        refused(server.client.request(method, path, json=body), 409, late)
    for _ in range(2):
        assert server.client.delete(f"{NEWS}/duplicates?revision={seen + 1}").status_code == 204


def test_a_domain_has_fifty_at_most(server: Server) -> None:
    for number in range(50):
        save(server, f"t{number}", fmr=0.1)
    more = server.client.put(f"{NEWS}/more", json={"fmr": 0.1})
    refused(more, 422, "delete one first: DELETE /domains/news/thresholds/NAME")
    assert len(server.client.get(NEWS).json()["thresholds"]) == 50
