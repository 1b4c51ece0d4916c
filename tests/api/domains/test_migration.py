"""A domain moves from one encoder to another: servers with both encoders, with the old one, with the new one."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from isosim.encoders.store import EncoderStore
from isosim.errors import Unavailable
from isosim.server.encoders import plans
from isosim.settings import Settings
from tests.encoders import export, save_bert
from tests.processes import RedisServer, Serve, Server, command, wait_until
from tests.stores import calibrate
from tests.text import sentences

TEXTS = sentences(900)
PAIRS = [list(pair) for pair in zip(TEXTS[600:664], TEXTS[700:764], strict=True)]
WITHIN = 2.0  # s in which every replica follows
AT_LAST = 20.0  # s where it is not the time that is tested
MOVE = "/domains/tickets/migration"
Starts = Callable[..., Server]


@pytest.fixture(scope="module")
def other_checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another BERT: other weights, three layers, 48 dimensions, the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    shutil.copy(tiny_checkpoint / "tokenizer.json", folder)
    save_bert(folder, seed=1, dim=48, layers=3)
    return folder


@dataclass
class Site:
    """A store whose domain `tickets` is calibrated for both encoders and `single` for the old one; its servers."""

    store: Path
    start: Starts
    old: str  # digests
    new: str
    both: Server  # has both encoders
    replica: Server  # so has this one
    old_alone: Server
    new_alone: Server


@pytest.fixture(scope="module")
def site(
    module_store: Path, other_checkpoint: Path, module_serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    export(module_store, "other", str(other_checkpoint), max_length=32, prompt="say: ")
    encoders = [EncoderStore.at(module_store).find(name) for name in ("tiny", "other")]
    assert [calibrate(module_store, encoder, "tickets", "identity") for encoder in encoders] == [1, 2]
    calibrate(module_store, encoders[0], "single", "identity")
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()

    def start(**settings: Any) -> Server:
        return module_serve(model_store=module_store, redis_url=redis.url, **settings)

    two = {"encoder": "tiny", "next_encoder": "other"}
    alone = start(encoder="tiny"), start(encoder="other")
    yield Site(module_store, start, *[one.digest for one in encoders][:2], start(**two), start(**two), *alone)  # type: ignore[arg-type, call-arg]
    redis.kill()


@pytest.fixture(autouse=True)
def no_migration_is_left(site: Site) -> Iterator[None]:
    yield
    site.both.client.delete(MOVE)
    for server in (site.both, site.replica, site.old_alone, site.new_alone):  # each looks in its own time
        wait_until(lambda server=server: not server.client.get(MOVE).json().get("moved"))  # type: ignore[misc]


def begin(server: Server, **body: Any) -> dict[str, Any]:
    response = server.client.post(MOVE, json=body)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


def scored(server: Server, domain: str = "tickets", **fields: Any) -> httpx.Response:
    response = server.client.post("/similarity", json={"pairs": PAIRS[:2], "domain": domain, **fields})
    assert response.status_code == 200, response.text
    return response


def refused(response: httpx.Response, *words: str) -> None:
    body = response.json()
    assert (response.status_code, body["error_type"]) == (409, "Conflict"), body
    for word in words:
        assert word in body["error"]


def test_a_move_is_everywhere_in_two_seconds_and_can_be_taken_back(site: Site) -> None:
    for server, version in ((site.old_alone, 1), (site.new_alone, 2)):  # beside another encoder, each answers as alone
        alone, beside = (scored(one, domain=f"tickets@{version}").json() for one in (server, site.both))
        np.testing.assert_allclose(alone["similarity"], beside["similarity"], atol=1e-6)
    for version in (2, 1):  # each encoder has a champion of its own; the old one's answers
        site.both.client.put("/domains/tickets/champion", json={"version": version}).raise_for_status()
        assert site.both.client.get("/domains/tickets").json()["champion"] == 1
    assert site.both.client.delete("/domains/tickets/versions/2").status_code == 409
    before = site.both.client.get(MOVE).json()
    assert (before["moved"], before["since"], before["old"]["version"], before["new"]["version"]) == (False, None, 1, 2)
    moved = begin(site.both)
    began = time.monotonic()
    assert moved | {"moved": False, "since": None} == before

    def answers(server: Server, digest: str, dim: int) -> bool:
        embedded = server.client.post("/embed", json={"inputs": "a boat", "domain": "tickets"})
        return scored(server).headers["x-isosim-encoder"] == digest and np.shape(embedded.json()) == (1, dim)

    assert answers(site.both, site.new, 48)
    wait_until(lambda: answers(site.replica, site.new, 48), WITHIN, every=0.02)
    assert time.monotonic() - began < WITHIN
    assert site.both.client.get("/domains/tickets").json()["champion"] == 2
    assert site.both.client.get("/domains/tickets/threshold?fmr=0.01").json()["version"] == 2
    assert 'isosim_domain_champion_info{domain="tickets",method="identity",version="2"} 1.0' in (
        site.both.client.get("/metrics").text
    )
    refused(
        site.both.client.post("/domains/tickets/rollback"), "no previous version"
    )  # the new encoder's, which answers
    revision = site.both.client.get("/domains/tickets").json()["revision"]
    assert site.both.client.post(MOVE, json={"revision": revision - 1}).json() == moved  # a retry
    refused(site.both.client.post(MOVE, json={"revision": revision}), "moved already")
    assert answers(site.start(encoder="tiny", next_encoder="other"), site.new, 48)
    for _ in range(2):
        assert site.both.client.delete(f"{MOVE}?revision={revision}").status_code == 204
    assert site.both.client.delete(f"{MOVE}?revision={revision + 1}").status_code == 404
    assert answers(site.both, site.old, 32)
    wait_until(lambda: answers(site.replica, site.old, 32), AT_LAST)


def test_a_saved_threshold_is_resolved_by_the_encoder_that_answers_through_the_whole_move(site: Site) -> None:
    def threshold(server: Server, domain: str = "tickets") -> dict[str, Any]:
        answer = scored(server, domain, threshold="duplicates")
        found: dict[str, Any] = answer.json()["threshold"]
        assert answer.headers["x-isosim-version"] == str(found["version"])
        assert found["target"] == {"fmr": 0.1}
        return found

    client = site.both.client
    client.put("/domains/tickets/thresholds/duplicates", json={"fmr": 0.1}).raise_for_status()
    try:
        wait_until(lambda: "duplicates" in site.replica.client.get("/domains/tickets").json()["thresholds"])
        advised = [client.get(f"/domains/tickets@{n}/threshold?fmr=0.1").json()["similarity"] for n in (1, 2)]
        old, new = (threshold(site.both, domain=f"tickets@{n}") for n in (1, 2))
        assert [old["similarity"], new["similarity"]] == pytest.approx(advised, abs=1e-6)
        assert threshold(site.both) == old
        begin(site.both)
        assert threshold(site.both) == new
        wait_until(lambda: scored(site.replica, threshold="duplicates").json()["threshold"] == new)
        assert client.get("/domains/tickets/thresholds").json()["version"] == 2
        client.delete(MOVE).raise_for_status()
        assert threshold(site.both) == old
    finally:
        client.delete("/domains/tickets/thresholds/duplicates")


def test_a_server_with_the_old_encoder_alone_never_answers_in_the_new_one_s_place(site: Site) -> None:
    old, new = site.old_alone, site.new_alone
    assert scored(old).headers["x-isosim-encoder"] == site.old  # until then it is the domain's own
    begin(site.both)

    def says() -> httpx.Response:
        return old.client.post("/similarity", json={"pairs": PAIRS[:1], "domain": "tickets"})

    wait_until(lambda: says().status_code == 409, AT_LAST)
    for server in (old, site.start(encoder="tiny")):  # also after a start
        for path, body in (
            ("/similarity", {"pairs": PAIRS[:1], "domain": "tickets"}),
            ("/embed", {"inputs": "a boat", "domain": "tickets"}),
            ("/rerank", {"query": "a", "texts": ["b"], "domain": "tickets"}),
        ):
            refused(server.client.post(path, json=body), "encoder_mismatch", "other", "ISOSIM_NEXT_ENCODER")
        assert scored(server, domain="tickets@1").headers["x-isosim-encoder"] == site.old
        assert scored(server, domain="default").headers["x-isosim-encoder"] == site.old
        assert server.client.get("/domains").status_code == 200
        assert server.client.get(MOVE).json()["moved"] is True
    assert scored(new).headers["x-isosim-encoder"] == site.new


def test_what_cannot_move_is_refused_with_the_remedy(site: Site) -> None:
    client = site.both.client
    refused(client.post("/domains/default/migration", json={}), "no reference", "calibrate")
    refused(client.post("/domains/nowhere/migration", json={}), "no champion", "encoder: next")
    state = client.get("/domains/single/migration").json()
    assert (state["old"]["version"], state["new"]["version"], state["thresholds"]) == (1, None, None)
    refused(client.post("/domains/single/migration", json={}), "no champion")
    old = site.old_alone
    for answer in (old.client.post(MOVE, json={}), old.client.get(MOVE)):
        refused(answer, "ISOSIM_NEXT_ENCODER")
    assert client.delete(MOVE).status_code == 404
    refused(client.post(MOVE, json={"revision": 0}), "revision")
    assert client.post(MOVE, json={"share": 0.1}).status_code == 422


def test_a_move_that_loses_a_saved_threshold_has_to_name_it(site: Site, tmp_path: Path) -> None:
    """The old version has labels, the new one has none, so that it reaches no precision."""
    client = site.both.client
    labels = tmp_path / "labels.tsv"
    pairs = list(combinations(TEXTS[:30], 2))
    similarity = client.post("/similarity", json={"pairs": pairs, "domain": "tickets"}).json()["similarity"]
    alike = np.argsort(similarity)[-100:]
    labels.write_text("".join(f"{int(n in alike)}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairs)))
    words = ("label", str(labels), "--domain", "tickets", "--promote", "always")
    assert command(*words, model_store=site.store, encoder="tiny").returncode == 0
    try:
        wait_until(lambda: client.get("/domains/tickets").json()["champion"] == 3)
        client.put("/domains/tickets/thresholds/sure", json={"precision": 0.6}).raise_for_status()
        refused(client.post(MOVE, json={}), "sure (", "without=sure")
        assert client.get(MOVE).json()["moved"] is False
        assert begin(site.both, without=["sure"])["moved"] is True
    finally:
        client.delete(MOVE)
        client.delete("/domains/tickets/thresholds/sure")
        client.put("/domains/tickets/champion", json={"version": 1}).raise_for_status()


def test_a_threshold_is_carried_over_by_its_false_match_rate(site: Site) -> None:
    client = site.both.client
    asked = {"similarity": client.get("/domains/tickets@1/threshold?fmr=0.01").json()["similarity"]}
    found = client.get(MOVE + "/threshold", params=asked).json()  # no migration is needed to plan one
    advised = client.get("/domains/tickets@2/threshold?fmr=0.01").json()
    assert found["fmr"] <= 0.01  # a threshold is rounded up to what answers can hold: single precision
    assert found["fmr"] == pytest.approx(0.01, rel=1e-4)
    assert found["equivalent"] == pytest.approx(advised["similarity"], abs=1e-7)
    low, high = found["interval"]
    assert low <= advised["interval"][0] <= found["equivalent"] <= advised["interval"][1] <= high
    assert (found["old"]["version"], found["new"]["version"], found["space"]) == (1, 2, "calibrated")
    raw = client.get(MOVE + "/threshold", params=asked | {"space": "raw"}).json()
    assert raw["equivalent"] == pytest.approx(found["equivalent"])  # identity
    begun = begin(site.both)
    row = next(row for row in begun["thresholds"] if row["fmr"] == pytest.approx(0.01))
    assert row["equivalent"] == pytest.approx(found["equivalent"])
    assert client.get(MOVE + "/threshold?similarity=2").status_code == 422


def test_a_calibration_is_for_the_encoder_that_was_asked_for(
    site: Site, serve: Serve, tiny_server: Server, tmp_path: Path
) -> None:
    """What becomes of it runs in docs/how-to/encoders.md."""
    body = {"domain": "tickets", "texts": TEXTS[:300], "method": "identity"}
    refused(tiny_server.client.post("/calibrate", json=body | {"encoder": "next"}), "ISOSIM_NEXT_ENCODER")
    shutil.copytree(site.store / "encoders", tmp_path / "store" / "encoders")
    client = serve(model_store=tmp_path / "store", encoder="tiny", next_encoder="other").client
    query, text = {"domain": "tickets", "method": "identity", "encoder": "next"}, "\n".join(TEXTS[:300])
    lines = client.post("/calibrate", params=query, content=text, headers={"content-type": "text/plain"})
    for digest, posted in ((site.old, client.post("/calibrate", json=body)), (site.new, lines)):
        assert client.get(posted.headers["location"]).json()["encoder"] == digest


def test_a_server_does_not_start_with_one_encoder_twice(site: Site) -> None:
    settings = Settings(model_store=site.store, encoder="tiny", next_encoder=f"tiny@{site.old[:12]}")
    with pytest.raises(Unavailable, match="ISOSIM_NEXT_ENCODER names the same encoder as ISOSIM_ENCODER"):
        asyncio.run(plans(settings))
