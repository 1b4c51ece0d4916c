"""A domain moves from one encoder to another: servers with both encoders, with the old one, with the new one."""

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from isosim.api.domains.schemas import EquatedThreshold
from isosim.domains.store import Aliases, DomainStore
from isosim.encoders.store import EncoderStore
from isosim.errors import Unavailable
from isosim.jobs.job import JobRequest
from isosim.server.encoders import plans
from isosim.settings import Settings
from tests.commands.conftest import command
from tests.encoders import export, save_bert
from tests.processes import Process, RedisServer, Serve, Server, serve_with, wait_until
from tests.text import sentences

TEXTS = sentences(900)
PAIRS = [list(pair) for pair in zip(TEXTS[600:664], TEXTS[700:764], strict=True)]
WITHIN = 2.0  # s in which every replica follows
AT_LAST = 20.0  # s where it is not the time that is tested
KEYS = [f"customer-{number}" for number in range(60)]
MOVE = "/domains/tickets/migration"
TEI = {"source_sentence": "a", "sentences": ["b"]}
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
    """A store whose domain `tickets` is calibrated for both encoders, a Redis, and servers on them."""

    store: Path
    start: Starts
    old: str  # digests
    new: str
    both: Server  # has both encoders
    replica: Server  # so has this one
    old_alone: Server
    new_alone: Server


def calibrated(store: Path, encoder: str) -> int:
    """The version that `isosim calibrate` would make, and the encoder's champion."""
    from isosim.fitting.job import CalibrationInput, calibrate_job

    artifact = EncoderStore(store).find(encoder)
    wanted = JobRequest("tickets", artifact.digest, artifact.id, method="identity", sentences=400)
    result = calibrate_job(
        wanted, CalibrationInput(TEXTS[:400], []), artifact, DomainStore(store), lambda *_: None, threads=1
    )
    version, promoted, why = result.publish(DomainStore(store))
    assert promoted, why
    return version


@pytest.fixture(scope="module")
def site(tiny_store: Path, other_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    store = folder / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    export(store, "other", str(other_checkpoint), max_length=32, prompt="say: ")
    running: list[Process] = []
    redis = RedisServer(folder)
    redis.start()
    try:
        assert [calibrated(store, name) for name in ("tiny", "other")] == [1, 2]

        def start(**settings: Any) -> Server:
            return serve_with(folder, running, model_store=store, redis_url=redis.url, **settings)

        two = {"encoder": "tiny", "next_encoder": "other"}
        digests = [EncoderStore(store).find(name).digest for name in ("tiny", "other")]
        alone = start(encoder="tiny"), start(encoder="other")
        yield Site(store, start, *digests, start(**two), start(**two), *alone)
    finally:
        for process in running:
            process.kill()
        redis.kill()


@pytest.fixture(autouse=True)
def no_migration_is_left(site: Site) -> Iterator[None]:
    yield
    site.both.client.delete(MOVE)
    for server in (site.both, site.replica, site.old_alone, site.new_alone):  # each looks in its own time
        wait_until(lambda server=server: server.client.get(MOVE).status_code == 404)


def begin(server: Server, **body: Any) -> dict[str, Any]:
    response = server.client.post(MOVE, json=body)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


def scored(server: Server, key: str | None = None, domain: str = "tickets", **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"x-isosim-split-key": key}
    response = server.client.post("/similarity", json={"pairs": PAIRS[:2], "domain": domain, **fields}, headers=headers)
    assert response.status_code == 200, response.text
    return response


def chosen(server: Server, site: Site) -> set[str]:
    """The keys that the new encoder answers."""
    found = {key: scored(server, key).headers["x-isosim-encoder"] for key in KEYS}
    assert set(found.values()) <= {site.old, site.new}
    return {key for key, encoder in found.items() if encoder == site.new}


def refused(response: httpx.Response, *words: str) -> None:
    body = response.json()
    assert (response.status_code, body["error_type"]) == (409, "Conflict"), body
    for word in words:
        assert word in body["error"]


def test_versions_of_both_encoders_answer_side_by_side(site: Site) -> None:
    client = site.both.client
    assert [v["servable"] for v in client.get("/domains/tickets").json()["versions"]] == [True, True]
    assert client.get("/domains/tickets").json()["champion"] == 1
    for version, digest, dim in ((1, site.old, 32), (2, site.new, 48)):
        answer = scored(site.both, domain=f"tickets@{version}")
        assert answer.json()["encoder"] == answer.headers["x-isosim-encoder"] == digest
        assert answer.headers["x-isosim-version"] == str(version)
        vectors = client.post("/embed", json={"inputs": ["a boat", "a gate"], "domain": f"tickets@{version}"}).json()
        assert np.shape(vectors) == (2, dim)
    assert scored(site.both).json() == scored(site.both, domain="tickets@1").json()


def test_the_second_encoder_changes_no_answer_of_the_first_and_is_its_own_server_s(site: Site) -> None:
    assert scored(site.old_alone).content == scored(site.both, domain="tickets@1").content
    own, second = (scored(server, domain="tickets@2").json() for server in (site.new_alone, site.both))
    np.testing.assert_allclose(own["similarity"], second["similarity"], atol=1e-6)


def test_shadow_scores_are_those_of_the_new_version_and_no_answer_changes(site: Site) -> None:
    before = site.both.client.post("/similarity", json={"pairs": PAIRS[:30], "domain": "tickets"})
    begun = begin(site.both, shadow=1.0)
    assert (begun["state"], begun["share"], begun["old"]["version"], begun["new"]["version"]) == ("shadow", 0, 1, 2)
    during = site.both.client.post("/similarity", json={"pairs": PAIRS[:30], "domain": "tickets"})
    assert during.content == before.content
    assert during.headers["x-isosim-encoder"] == site.old
    seen = wait_until(lambda: site.both.client.get(MOVE).json()["seen"])
    other = site.both.client.post("/similarity", json={"pairs": PAIRS[:30], "domain": "tickets@2"}).json()
    old, new = np.array(before.json()["percentile"]), np.array(other["percentile"])
    assert seen["pairs"] == seen["window"] == 30
    assert seen["mean_difference"] == pytest.approx(np.abs(old - new).mean(), abs=1e-6)
    assert seen["difference_95"] == pytest.approx(np.quantile(np.abs(old - new), 0.95), abs=1e-6)
    assert seen["changed_sides"]["0.01"] == pytest.approx(np.mean((old >= 0.99) != (new >= 0.99)))
    assert -1 <= seen["spearman"] <= 1
    metrics = site.both.client.get("/metrics").text
    assert 'isosim_shadow_percentile_difference_count{domain="tickets"} 30.0' in metrics
    assert 'isosim_shadow_changed_sides_total{domain="tickets",rate="0.001"}' in metrics
    scored(site.both, domain="tickets@2")  # neither a version that is not the old champion
    site.both.client.post("/embed", json={"inputs": "a boat", "domain": "tickets"})  # nor vectors are compared
    assert site.both.client.get(MOVE).json()["seen"]["pairs"] == 30


def test_a_large_request_is_shadowed_in_part(site: Site) -> None:
    begin(site.replica, shadow=1.0)
    wait_until(lambda: site.replica.client.get(MOVE).status_code == 200)
    response = site.replica.client.post("/similarity", json={"pairs": PAIRS, "domain": "tickets"})
    assert len(response.json()["similarity"]) == 64
    assert wait_until(lambda: site.replica.client.get(MOVE).json()["seen"])["pairs"] == 32


def test_a_split_goes_by_key_alike_on_every_replica_and_only_grows(site: Site) -> None:
    begin(site.both, share=0.2, shadow=0)
    few = chosen(site.both, site)
    assert 2 <= len(few) <= 25
    wait_until(lambda: chosen(site.replica, site) == few, AT_LAST)
    changed = site.both.client.put(MOVE, json={"share": 0.6}).json()
    assert (changed["state"], changed["share"], changed["shadow"], changed["revision"]) == ("split", 0.6, 0, 2)
    many = chosen(site.both, site)
    assert few < many
    assert len(many) < len(KEYS)
    site.both.client.put(MOVE, json={"share": 0.0})
    assert chosen(site.both, site) == set()


def test_a_split_answers_with_one_encoder_whole_and_says_which(site: Site) -> None:
    begin(site.both, share=0.5, shadow=0)
    for key in KEYS[:12]:
        headers = {"x-isosim-split-key": key}
        answer = scored(site.both, key)
        digest = answer.headers["x-isosim-encoder"]
        version = {site.old: 1, site.new: 2}[digest]
        pinned = scored(site.both, domain=f"tickets@{version}")
        assert answer.json() == pinned.json()
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/rerank", {"query": "a boat", "texts": TEXTS[:4], "domain": "tickets"}),
            ("/score", {"model": "isosim/tickets", "text_1": "a boat", "text_2": TEXTS[:4]}),
            ("/v1/rerank", {"model": "isosim/tickets:raw", "query": "a boat", "documents": TEXTS[:4]}),
            ("/similarity", {"inputs": TEI, "parameters": {"domain": "tickets"}}),
        ]
        for path, body in bodies:
            response = site.both.client.post(path, json=body, headers=headers)
            assert response.status_code == 200, response.text
            assert response.headers["x-isosim-encoder"] == digest, path
            assert response.headers["x-isosim-version"] == str(version)


def test_vectors_pinned_versions_and_other_protocols_are_not_split(site: Site) -> None:
    begin(site.both, share=1.0, shadow=0)
    assert chosen(site.both, site) == set(KEYS)
    client, headers = site.both.client, {"x-isosim-split-key": KEYS[0]}
    infer = {"inputs": [{"name": n, "shape": [1], "datatype": "BYTES", "data": ["a"]} for n in ("text_1", "text_2")]}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/embed", {"inputs": "a boat", "domain": "tickets"}),
        ("/v1/embeddings", {"input": "a boat", "model": "isosim/tickets"}),
        ("/similarity", {"pairs": PAIRS[:1], "domain": "tickets@1"}),
        ("/v2/models/isosim%2Ftickets/infer", infer),
    ]
    for path, body in bodies:
        response = client.post(path, json=body, headers=headers)
        assert response.status_code == 200, response.text
        assert response.headers["x-isosim-encoder"] == site.old, path


def test_without_a_key_the_request_s_id_decides(site: Site) -> None:
    begin(site.both, share=0.5, shadow=0)
    keyed = {key: scored(site.both, key).headers["x-isosim-encoder"] for key in KEYS[:10]}
    named = {
        key: site.both.client.post(
            "/similarity", json={"pairs": PAIRS[:1], "domain": "tickets"}, headers={"x-request-id": key}
        ).headers["x-isosim-encoder"]
        for key in KEYS[:10]
    }
    assert named == keyed
    found = {scored(site.both).headers["x-isosim-encoder"] for _ in range(40)}
    assert found == {site.old, site.new}
    metrics = site.both.client.get("/metrics").text
    assert 'isosim_split_requests_total{domain="tickets",side="new"}' in metrics


def test_a_finish_is_everywhere_in_two_seconds_and_can_be_taken_back(site: Site) -> None:
    begin(site.both)
    finished = site.both.client.post(MOVE + "/finish")
    began = time.monotonic()
    assert finished.json()["state"] == "finished", finished.text

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
    refused(site.both.client.put(MOVE, json={"share": 0.5}), "finished")
    refused(site.both.client.post(MOVE + "/finish"), "finished already")
    assert answers(site.start(encoder="tiny", next_encoder="other"), site.new, 48)
    assert site.both.client.delete(MOVE).status_code == 204
    assert answers(site.both, site.old, 32)
    wait_until(lambda: answers(site.replica, site.old, 32), AT_LAST)


def test_a_saved_threshold_is_resolved_by_the_encoder_that_answers_through_the_whole_move(site: Site) -> None:
    def threshold(server: Server, key: str | None = None, domain: str = "tickets") -> dict[str, Any]:
        answer = scored(server, key, domain, threshold="duplicates")
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
        begin(site.both, share=0.5, shadow=0)
        assert {threshold(site.both, key)["version"] for key in KEYS} == {1, 2}
        client.post(MOVE + "/finish").raise_for_status()
        assert threshold(site.both) == new
        wait_until(lambda: scored(site.replica, threshold="duplicates").json()["threshold"] == new)
        assert client.get("/domains/tickets/thresholds").json()["version"] == 2
        client.delete(MOVE).raise_for_status()
        assert threshold(site.both) == old
    finally:
        client.delete("/domains/tickets/thresholds/duplicates")


def test_a_server_with_the_old_encoder_alone_never_answers_in_the_new_one_s_place(site: Site) -> None:
    old, new = site.old_alone, site.new_alone
    begin(site.both, share=0.5)
    assert scored(old, KEYS[0]).headers["x-isosim-encoder"] == site.old  # until then it is the domain's own
    site.both.client.post(MOVE + "/finish").raise_for_status()

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
        assert server.client.get(MOVE).json()["state"] == "finished"
    assert scored(new).headers["x-isosim-encoder"] == site.new


def test_what_cannot_move_is_refused_with_the_remedy(site: Site) -> None:
    client = site.both.client
    refused(client.post("/domains/default/migration", json={}), "no reference", "calibrate")
    refused(client.post("/domains/nowhere/migration", json={}), "no champion", "encoder: next")
    old = site.old_alone
    refused(old.client.post(MOVE, json={}), "ISOSIM_NEXT_ENCODER")
    for method, path in (("GET", MOVE), ("PUT", MOVE), ("DELETE", MOVE), ("POST", MOVE + "/finish")):
        response = client.request(method, path, **({"json": {"share": 0.1}} if method == "PUT" else {}))
        assert (response.status_code, response.json()["error_type"]) == (404, "NotFound"), response.text
    begin(site.both)
    refused(client.post(MOVE, json={}), "finish or abandon")
    assert client.put(MOVE, json={}).status_code == 422
    for body in ({"share": 1.1}, {"share": -0.1}, {"shadow": 2}, {"share": "all"}, {"shares": 0.1}):
        assert client.put(MOVE, json=body).status_code == 422
    refused(old.client.post(MOVE + "/finish"), "other", "ISOSIM_NEXT_ENCODER")


def test_of_two_operators_at_once_one_is_refused(site: Site) -> None:
    answers: list[int] = []
    gate = threading.Barrier(2)

    def begin_here(server: Server) -> None:
        gate.wait()
        answers.append(httpx.post(server.url + MOVE, json={}, timeout=30).status_code)

    threads = [threading.Thread(target=begin_here, args=(server,)) for server in (site.both, site.replica)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201, 409]


def test_a_new_champion_that_cannot_answer_leaves_a_split_to_the_old_one_and_a_finish_in_the_open(site: Site) -> None:
    store = DomainStore(site.store)
    begin(site.both, share=1.0, shadow=0)
    aliases = site.store / "domains" / "tickets" / "aliases.json"
    good = aliases.read_bytes()
    try:
        expected = store.aliases("tickets", site.new)
        store._set("tickets", site.new, Aliases(None, None, expected.revision))  # no command does it
        server = site.start(encoder="tiny", next_encoder="other")
        assert scored(server, KEYS[0]).headers["x-isosim-encoder"] == site.old
        state = server.client.get(MOVE).json()
        assert (state["new"]["version"], state["thresholds"]) == (None, None)
        refused(server.client.post(MOVE + "/finish"), "no champion")
    finally:
        aliases.write_bytes(good)


def test_champions_of_both_encoders_are_promoted_by_number(site: Site) -> None:
    client = site.both.client
    for version in (2, 1):
        assert client.put("/domains/tickets/champion", json={"version": version}).status_code == 200
        assert client.get("/domains/tickets").json()["champion"] == 1  # the old encoder's, which answers
    begin(site.both)
    assert client.delete("/domains/tickets/versions/2").status_code == 409
    client.post(MOVE + "/finish").raise_for_status()
    refused(client.post("/domains/tickets/rollback"), "no previous version")  # the new encoder's, which answers now


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
    words = ("threshold", "tickets", "--to", "other", "--json", "--similarity", str(asked["similarity"]))
    offline = json.loads(command(*words, model_store=site.store, encoder="tiny").stdout)
    assert (offline["old"], offline["new"]) == ("tickets@1", "tickets@2")
    assert offline["thresholds"] == [{name: found[name] for name in EquatedThreshold.model_fields}]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--to", "nope"), 1, "no encoder 'nope'"),
        (("--to", "other", "--fmr", "0.01"), 2, "--to"),
        (("--similarity", "0.4"), 2, "--similarity"),
        (("--to", "other", "--similarity", "4"), 2, "--similarity"),
    ],
)
def test_a_wrong_wish_for_a_threshold_is_one_line(site: Site, words: tuple[str, ...], code: int, said: str) -> None:
    done = command("threshold", "tickets", *words, model_store=site.store, encoder="tiny")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_calibration_is_for_the_encoder_that_was_asked_for(
    site: Site, serve: Serve, tiny_server: Server, tmp_path: Path
) -> None:
    """What becomes of it runs in docs/how-to/migrate-encoder.md."""
    body = {"domain": "tickets", "texts": TEXTS[:300], "method": "identity"}
    refused(tiny_server.client.post("/calibrate", json=body | {"encoder": "next"}), "ISOSIM_NEXT_ENCODER")
    assert tiny_server.client.post("/calibrate", json=body | {"encoder": "other"}).status_code == 422
    shutil.copytree(site.store / "encoders", tmp_path / "store" / "encoders")
    client = serve(model_store=tmp_path / "store", encoder="tiny", next_encoder="other").client
    query = {"domain": "tickets", "method": "identity", "encoder": "next"}
    lines, plain = "\n".join(TEXTS[:300]), {"content-type": "text/plain"}
    asked = [
        (site.old, client.post("/calibrate", json=body)),
        (site.new, client.post("/calibrate", json=body | {"encoder": "next"})),
        (site.new, client.post("/calibrate", params=query, content=lines, headers=plain)),
    ]
    for digest, response in asked:
        assert response.status_code == 202, response.text
        assert client.get(f"/calibrate/{response.json()['job']}").json()["encoder"] == digest
    for _, response in asked[::-1]:
        client.delete(f"/calibrate/{response.json()['job']}").raise_for_status()


def test_a_server_does_not_start_with_one_encoder_twice(site: Site) -> None:
    settings = Settings(model_store=site.store, encoder="tiny", next_encoder=f"tiny@{site.old[:12]}")
    with pytest.raises(Unavailable, match="ISOSIM_NEXT_ENCODER names the same encoder as ISOSIM_ENCODER"):
        asyncio.run(plans(settings))
