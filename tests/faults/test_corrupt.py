"""Files of the model store are damaged, swapped or gone: what is loaded serves on, what cannot be read says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isosim.encoders.store import EncoderStore
from tests.faults.damage import GARBAGE, ask, refused
from tests.faults.load import metric
from tests.processes import Serve, command, score, wait_until
from tests.stores import copy_version, domains_of, files_of, record_of
from tests.text import sentences

FILES = ("weights.safetensors", "reference.npz", "raw_reference.npz", "report.json")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    """The same file of the version before."""
    store, domain = path.parents[3], path.parents[1].name
    shutil.copy(files_of(store, domain, 1) / path.name, path)


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "cut": cut, "empty": empty, "swapped": swap}


def copied(store: Path, domain: str) -> None:
    """A domain with the versions of `news`, as if calibrated under this name."""
    for version in (1, 2):
        copy_version(domains_of(store), "news", version, domain, promote=True)


def test_a_damaged_champion_serves_on_where_it_is_loaded_and_at_a_start_fails_its_domain_alone(
    serve: Serve, news: Path
) -> None:
    cases = {f"{damage}-{name.partition('.')[0]}": (damage, name) for damage in DAMAGE for name in FILES}
    del cases["swapped-raw_reference"]  # the same text gave both
    for domain in cases:
        copied(news, domain)
    server = serve(model_store=news, encoder="tiny")
    before = {domain: score(server, domain).json()["similarity"] for domain in (*cases, "films")}
    for domain, (damage, name) in cases.items():
        DAMAGE[damage](files_of(news, domain, 2) / name)
    for domain in (*cases, "films"):
        assert score(server, domain).json()["similarity"] == before[domain]
    server.stop()

    back = serve(model_store=news, encoder="tiny")
    assert score(back, "films").json()["similarity"] == before["films"]
    listed = {found["domain"]: found for found in back.client.get("/domains").json()["domains"]}
    for domain, (_, name) in cases.items():
        answer = ask(back, domain)
        refused(answer, name)
        assert f"version 2 of '{domain}'" in answer.json()["error"]
        assert "promote another version, or restore this one from a backup" in answer.json()["error"]
        assert str(news) not in answer.text
        assert score(back, f"{domain}@1").json()["version"] == 1  # a rollback would do
        assert listed[domain]["unreadable"] == []  # no file is read for a listing
    assert len(back.client.get("/v1/models").json()["data"]) == 2 * (len(cases) + 3) + 1
    domain = "flipped-weights"
    assert back.client.post(f"/domains/{domain}/rollback").json()["champion"] == 1
    assert score(back, domain).json()["version"] == 1


def test_a_default_domain_that_cannot_be_read_is_no_identity_in_disguise(serve: Serve, news: Path) -> None:
    copied(news, "default")
    flip(files_of(news, "default", 2) / "weights.safetensors")
    server = serve(model_store=news, encoder="tiny")
    refused(ask(server, "default"), "weights.safetensors")
    assert score(server, "news").json()["version"] == 2
    assert server.client.get("/readyz").status_code == 200


def test_a_version_that_could_not_be_loaded_is_listed_as_damaged_until_it_can(serve: Serve, news: Path) -> None:
    weights = files_of(news, "news", 2) / "weights.safetensors"
    whole = weights.read_bytes()
    server = serve(model_store=news, encoder="tiny")

    def listed() -> list[tuple[bool, bool]]:
        versions = server.client.get("/domains/news").json()["versions"]
        return [(version["servable"], version["damaged"]) for version in versions]

    flip(weights)
    assert listed() == [(True, False), (True, False)]  # no file is read for a listing
    refused(ask(server, "news"), "weights.safetensors")
    assert listed() == [(True, False), (False, True)]
    one = server.client.get("/domains/news/versions/2").json()
    assert (one["servable"], one["damaged"]) == (False, True)
    assert server.client.post("/domains/news/rollback").json()["champion"] == 1
    refused(server.client.put("/domains/news/champion", json={"version": 2}), "weights.safetensors")
    weights.write_bytes(whole)
    assert server.client.put("/domains/news/champion", json={"version": 2}).json()["champion"] == 2
    assert listed() == [(True, False), (True, False)]


def test_garbage_for_a_record_stops_neither_the_champion_nor_other_domains_and_can_be_set_right(
    serve: Serve, news: Path
) -> None:
    domains = domains_of(news)
    digest = EncoderStore.at(news).find("tiny").digest
    hurt = [f"hurt-{number}" for number in range(len(GARBAGE))]
    for domain in hurt:
        copied(news, domain)
    server = serve(model_store=news, encoder="tiny")
    before = {domain: score(server, domain).json()["similarity"] for domain in (*hurt, "news")}
    assert server.client.put("/domains/news/champion", json={"version": 1}).status_code == 200
    for domain, garbage in zip(hurt, GARBAGE, strict=True):
        record_of(news, domain).write_text(garbage.replace("DIGEST", digest))
        assert server.client.put(f"/domains/{domain}/champion", json={"version": 1}).status_code == 503
    domains.promote("news", digest, 2)
    wait_until(lambda: score(server, "news").json()["version"] == 2)
    for domain in (*hurt, "news"):
        assert score(server, domain).json()["similarity"] == before[domain]
    listed = {found["domain"]: found for found in server.client.get("/domains").json()["domains"]}
    assert listed.keys() == {"default", "films", "news", *hurt}
    assert [name for name, found in listed.items() if found["unreadable"]] == hurt
    for domain in hurt:
        remedy = f"isosim store repair {domain}"
        refused(server.client.put(f"/domains/{domain}/champion", json={"version": 1}), remedy)
        refused(server.client.post(f"/domains/{domain}/rollback"), remedy)
        refused(server.client.put(f"/domains/{domain}/thresholds/same", json={"fmr": 0.1}), remedy)
        assert server.client.get(f"/domains/{domain}").json() == listed[domain]
        assert remedy in listed[domain]["unreadable"][0]
        assert (listed[domain]["champion"], listed[domain]["versions"]) == (None, [])
        assert str(news) not in str(listed[domain])
    server.stop()

    back = serve(model_store=news, encoder="tiny")
    assert score(back, "news").json()["similarity"] == before["news"]
    for domain in hurt:
        refused(ask(back, domain), f"domains/{domain}.json")
    for domain in hurt[1:]:
        repaired = command("store", "repair", domain, "--json", model_store=news)
        assert json.loads(repaired.stdout)["versions"] == [1, 2], repaired.stderr
        assert score(back, f"{domain}@2").json()["similarity"] == before[domain]
        assert back.client.put(f"/domains/{domain}/champion", json={"version": 2}).json()["champion"] == 2
        assert score(back, domain).json()["similarity"] == before[domain]
    assert back.client.delete(f"/domains/{hurt[0]}").status_code == 204
    assert back.client.get(f"/domains/{hurt[0]}").status_code == 404


def test_a_repair_brings_a_running_server_the_champion_that_the_record_still_names(serve: Serve, news: Path) -> None:
    server = serve(model_store=news, encoder="tiny")
    before = score(server, "news").content
    record = record_of(news, "news")
    record.write_text(record.read_text().replace('"thresholds": {}', '"thresholds": 1'))
    refused(server.client.post("/domains/news/rollback"), "thresholds: Input should be an object")
    repaired = json.loads(command("store", "repair", "news", "--json", model_store=news).stdout)
    assert [one["champion"] for one in repaired["served"].values()] == [2]
    state = server.client.get("/domains/news").json()
    assert (state["champion"], state["previous"], state["revision"]) == (2, 1, repaired["revision"])
    assert score(server, "news").content == before
    assert server.client.post("/domains/news/rollback").json()["champion"] == 1
    assert score(server, "news").json()["version"] == 1


@pytest.mark.parametrize("name", ["encoder.onnx", "calibrator.onnx", "tokenizer.json", "manifest.json"])
def test_a_server_refuses_a_corrupt_encoder_in_one_sentence(store: Path, name: str) -> None:
    flip(next((store / "encoders" / "tiny").iterdir()) / name)
    refused = command("serve", model_store=store, encoder="tiny", port=0)
    assert refused.returncode == 1
    last = json.loads(refused.stderr.splitlines()[-1])
    assert last["level"] == "critical"
    assert name in last["message"]


def test_a_server_that_runs_is_not_touched_by_what_happens_to_its_encoders_files(serve: Serve, news: Path) -> None:
    """And a calibration, which has to read them, fails by name and leaves nothing."""
    server = serve(model_store=news, encoder="tiny")
    before = server.client.post("/embed", json={"inputs": sentences(3)}).json()
    for file in next((news / "encoders" / "tiny").iterdir()).iterdir():
        flip(file)
    again = server.client.post("/embed", json={"inputs": [text.upper() for text in sentences(3)]}).json()
    np.testing.assert_allclose(again, before, atol=1e-5)  # computed anew: the tokenizer makes small letters of them
    failed = server.calibrate("news", sentences(300), method="sn")
    assert failed["status"] == "failed"
    assert "manifest.json" in failed["error"]
    assert server.client.get("/domains/news").json()["champion"] == 2


def test_a_store_that_is_lost_while_it_is_served_is_no_store_of_deleted_domains(serve: Serve, news: Path) -> None:
    """As when a volume is no longer mounted: what is loaded serves on, nothing is written in its place."""
    copied(news, "films")
    server = serve(model_store=news, encoder="tiny")
    before = score(server, "news").json()["similarity"]
    away = news.with_name("away")
    news.rename(away)
    wait_until(lambda: "the model store could not be read" in server.log.read_text())
    wait_until(lambda: metric(server, "isosim_champions_age_seconds ") > 1)
    assert score(server, "news").json()["similarity"] == before
    for name in ("films", "films@1", "nowhere"):
        answer = ask(server, name)
        assert (answer.status_code, answer.json()["error_type"]) == (503, "Unavailable"), name
    posted = server.client.post("/calibrate", json={"domain": "new", "texts": sentences(300)})
    assert posted.status_code == 503
    assert "model store is not there any more" in posted.json()["error"]
    assert not news.exists()
    away.rename(news)
    wait_until(lambda: "the model store is read again" in server.log.read_text())
    assert score(server, "films").status_code == 200
    assert server.log.read_text().count("the model store could not be read") == 1
