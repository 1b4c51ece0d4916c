"""Promotions, rollbacks and deletions at the same time: one wins, the others are told, and scoring never notices."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from isosim.encoders.store import EncoderStore
from tests.faults.load import Load
from tests.processes import Serve, score, wait_until
from tests.stores import copy_version, domains_of

VERSIONS = 6
CALLERS = 6


def more_versions(store: Path) -> str:
    """`news` gets versions up to VERSIONS; the encoder's digest."""
    while copy_version(domains_of(store), "news", 2) < VERSIONS:
        pass
    return EncoderStore(store).find("tiny").digest


def test_of_promotions_at_the_same_moment_one_wins_and_the_others_are_409(serve: Serve, news: Path) -> None:
    digest = more_versions(news)
    server = serve(model_store=news, encoder="tiny")
    for _ in range(5):
        start = threading.Barrier(CALLERS)
        before = domains_of(news).read("news")

        def promote(number: int) -> int:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                start.wait()  # noqa: B023 - used up within the round
                return client.put("/domains/news/champion", json={"version": number + 1}).status_code

        with ThreadPoolExecutor(CALLERS) as pool:
            found = Counter(pool.map(promote, range(CALLERS)))
        assert found.keys() <= {200, 409}
        after = domains_of(news).read("news")
        assert 1 <= after.revision - before.revision <= found[200]  # to promote the champion changes nothing
        assert score(server, "news").json()["version"] == after.served(digest).champion


def test_promoting_rolling_back_deleting_and_scoring_at_once_ends_in_whole_versions(serve: Serve, news: Path) -> None:
    digest = more_versions(news)
    server = serve(model_store=news, encoder="tiny")

    def meddle(seed: int) -> Counter[int]:
        rng = random.Random(seed)
        statuses: Counter[int] = Counter()
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for _ in range(25):
                version = rng.randint(1, VERSIONS)
                match rng.randint(0, 4):
                    case 0 | 1:
                        answer = client.put("/domains/news/champion", json={"version": version})
                    case 2:
                        answer = client.post("/domains/news/rollback")
                    case 3:
                        answer = client.delete(f"/domains/news/versions/{version}")
                    case _:
                        answer = client.get("/domains")
                        assert answer.status_code == 200, answer.text
                statuses[answer.status_code] += 1
        return statuses

    with Load(server, "news") as load, ThreadPoolExecutor(CALLERS) as pool:
        load.may_change = True
        statuses = sum(pool.map(meddle, range(CALLERS)), Counter())
    assert set(load.statuses) == {200}
    assert statuses.keys() <= {200, 204, 404, 409}, statuses
    domains = domains_of(news)
    left = domains.read("news")
    assert left.named() <= left.versions.keys()
    for version in left.versions:
        domains.load("news", version)
    assert score(server, "news").json()["version"] == left.served(digest).champion


def test_a_swap_under_load_fails_no_request(serve: Serve, news: Path) -> None:
    server = serve(model_store=news, encoder="tiny")
    digest = EncoderStore(news).find("tiny").digest
    with Load(server, "news") as load:
        load.may_change = True
        for version in (1, 2, 1, 2):
            load.answered(20)
            domains_of(news).promote("news", digest, version)  # as a worker does
            wait_until(lambda: score(server, "news").json()["version"] == version, seconds=5)  # noqa: B023
    assert set(load.statuses) == {200}
