"""A store that an earlier release wrote: the same scores, its jobs can be gone on with, new versions beside the old."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import command
from tests.conftest import Serve, Server, free_port
from tests.text import sentences

STORES = Path(__file__).with_name("stores")
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in STORES.glob("*.tar.xz"))
SAME = 1e-5


@pytest.fixture(params=RELEASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(STORES / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def known(store: Path) -> dict[str, Any]:
    """What the release that wrote it served, and the job it left."""
    found: dict[str, Any] = json.loads((store / "scores.json").read_text())
    return found


def same_scores(server: Server, store: Path) -> None:
    before = known(store)
    for domain, scores in before["similarity"].items():
        body = {"pairs": before["pairs"], "domain": domain}
        answer = server.client.post("/similarity", json=body).raise_for_status().json()
        assert answer["similarity"] == pytest.approx(scores, abs=SAME), domain


def test_an_earlier_releases_store_gives_the_scores_it_gave(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="small")
    same_scores(server, store)
    domains = {found["domain"]: found for found in server.client.get("/domains").json()["domains"]}
    assert (domains["news"]["champion"], domains["films"]["champion"]) == (2, 1)
    assert server.client.get("/domains/news/threshold?fmr=0.1").status_code == 200
    body = {"pairs": known(store)["pairs"], "domain": "news"}
    assert None not in server.client.post("/similarity", json=body).json()["probability"]
    doctor = command("doctor", "--json", model_store=store, encoder="small", port=free_port())
    found = {check["check"]: check["state"] for check in json.loads(doctor.stdout)["checks"]}
    assert (found["store"], found["encoder"], found["domains"]) == ("ok", "ok", "ok"), doctor.stdout


def test_an_earlier_releases_job_is_gone_on_with_and_new_versions_stand_beside_the_old(
    serve: Serve, store: Path
) -> None:
    server = serve(model_store=store, encoder="small")
    job = known(store)["job"]
    assert server.wait_for(job)["status"] == "interrupted"
    server.client.post(f"/calibrate/{job}/retry").raise_for_status()
    done = server.wait_for(job)
    assert (done["status"], done["domain"]) == ("succeeded", "late")
    body = {"domain": "news", "texts": sentences(300), "method": "whitening", "promote": "always"}
    posted = server.client.post("/calibrate", json=body).raise_for_status().json()
    done = server.wait_for(posted["job"])
    assert (done["version"], done["promoted"]) == (3, True)
    assert server.client.post("/domains/news/rollback").raise_for_status().json()["champion"] == 2
    same_scores(server, store)
