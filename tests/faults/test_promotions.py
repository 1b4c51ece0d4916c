"""Promotions, rollbacks and deletions at the same time: one wins, the others are told, and scoring never notices."""

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
    return EncoderStore.at(store).find("tiny").digest


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


def test_a_swap_under_load_fails_no_request(serve: Serve, news: Path) -> None:
    server = serve(model_store=news, encoder="tiny")
    digest = EncoderStore.at(news).find("tiny").digest
    with Load(server, "news") as load:
        load.may_change = True
        for version in (1, 2, 1, 2):
            load.answered(20)
            domains_of(news).promote("news", digest, version)  # as a worker does
            wait_until(lambda: score(server, "news").json()["version"] == version, seconds=5)  # noqa: B023
    assert set(load.statuses) == {200}
