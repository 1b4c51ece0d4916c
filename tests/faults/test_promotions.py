"""Promotions, rollbacks and deletions at the same time: one wins, the others are told, and scoring never notices."""

from pathlib import Path

from isosim.encoders.store import EncoderStore
from tests.faults.load import Load
from tests.processes import Serve, score, wait_until
from tests.stores import domains_of


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
