"""A store that an earlier release wrote: the same answers, its jobs can be gone on with, new versions beside the old.

Of a release that was frozen whole (`stores/make.py`) the processes run too, beside this tree's on one store.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import command
from tests.faults.jobs import becomes
from tests.faults.releases import SAME, STORES, Release, ask, code_of, differences, missing
from tests.processes import Process, RedisServer, Serve, Server, accepts_jobs, environment, free_port, wait_until
from tests.text import sentences

CLIENT = Path(__file__).parents[2] / "clients" / "python"
SEEN = 90.0  # s; a promotion by a process that does not announce it is found by the full look at the store


@pytest.fixture(params=["unsealed"])
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


def test_everything_a_frozen_release_answered_is_answered_the_same(
    serve: Serve, redis_server: RedisServer, release: Release
) -> None:
    """Scores with every column, flags, thresholds, reports, migrations and jobs; without a worker none of them runs."""
    server = serve(redis_url=redis_server.url, **release.settings)
    assert differences(server, release.questions()) == []


def test_jobs_a_frozen_release_left_are_run_and_its_idempotency_keys_hold(serve: Serve, release: Release) -> None:
    server = serve(**release.settings)
    assert becomes(server, release.jobs["queued"], "succeeded")["domain"] == "later"
    server.client.post(f"/calibrate/{release.jobs['interrupted']}/retry").raise_for_status()
    done = becomes(server, release.jobs["interrupted"], "succeeded")
    assert (done["domain"], done["attempt"], done["version"]) == ("late", 2, 2)
    (keyed,) = (j for j in server.client.get("/calibrate").json()["jobs"] if j["domain"] == "keyed")
    body = {"domain": "keyed", "texts": sentences(250), "method": "centring"}
    again = server.client.post("/calibrate", json=body, headers={"idempotency-key": "kept"})
    assert (again.status_code, again.json()["job"]) == (202, keyed["job"])
    assert differences(server, release.questions("/similarity")) == []


PendingText = Callable[..., Process]


@pytest.mark.parametrize("old", ["API", "worker"])
def test_an_api_and_a_worker_of_two_releases_share_a_store_and_a_queue(
    serve: Serve, worker: PendingText, redis_server: RedisServer, release: Release, old: str
) -> None:
    settings = release.settings | {"redis_url": redis_server.url}
    code = {"API": {}, "worker": {}, old: {"release": release.code}}
    running = worker(**settings, **code["worker"])
    server = serve(**settings, **code["API"])
    other = serve(**settings, **({} if code["API"] else {"release": release.code}))
    assert code_of(server, release) == (old == "API")
    wait_until(lambda: accepts_jobs(server))
    assert becomes(server, release.jobs["queued"], "succeeded")["attempt"] == 1
    server.client.post(f"/calibrate/{release.jobs['interrupted']}/retry").raise_for_status()
    assert becomes(server, release.jobs["interrupted"], "succeeded")["attempt"] == 2
    body: dict[str, Any] = {"domain": "news", "texts": sentences(300), "method": "whitening", "promote": "always"}
    made = becomes(server, server.client.post("/calibrate", json=body).json()["job"], "succeeded")
    assert (made["version"], made["promoted"]) == (3, True)
    labels = [[text, text.replace("a ", "the "), 1] for text in sentences(60)]
    labels += [[*sentences(n + 2)[n:], 0] for n in range(60)]
    posted = server.client.post("/domains/news/labels", json={"labels": labels, "promote": "always"})
    made = becomes(server, posted.raise_for_status().json()["job"], "succeeded")
    assert (made["version"], made["promoted"], made["base"]) == (4, True, 3)
    assert running.popen.poll() is None
    for one in (server, other):
        wait_until(lambda: one.client.get("/domains/news").json()["champion"] == 4)  # noqa: B023
        question = {"path": "/similarity", "body": {"pairs": [sentences(2)], "domain": "news"}}
        wait_until(lambda: ask(one, question).json()["version"] == 4, SEEN)  # noqa: B023
    # Both are asked the same of all there is now, and the newer one may only have more.
    asked = [*release.questions(), *({"path": f"/domains/news/versions/{n}"} for n in (3, 4))]
    first, second = (server, other) if old == "API" else (other, server)
    told = [(one, ask(first, one)) for one in asked]
    told_now = [one | {"status": r.status_code, "answer": without_drift(r.json())} for one, r in told]
    assert differences(second, iter(told_now)) == []
    # What either promotes, the other answers with.
    for one, another, version in ((server, other, 1), (other, server, 2)):
        one.client.put("/domains/news/champion", json={"version": version}).raise_for_status()
        question = {"path": "/similarity", "body": {"pairs": [sentences(2)], "domain": "news"}}
        wait_until(lambda: ask(another, question).json()["version"] == version, SEEN)  # noqa: B023
    assert differences(second, release.questions("/similarity")) == []


def without_drift(answer: Any) -> Any:
    """What a process has seen itself differs from one to the next."""
    if isinstance(answer, dict):
        return {name: without_drift(value) for name, value in answer.items() if name not in ("drift", "seen")}
    return [without_drift(value) for value in answer] if isinstance(answer, list) else answer


DAY = """
import dataclasses, json, sys, time
import isosim_client
from isosim_client import Client, JobInterrupted


def done(job):
    try:
        return client.wait(job, progress=False)
    except JobInterrupted:  # 0.1.0 says so of a child that takes more than 30 s to load its libraries; it goes on
        while (job := client.job(job)).status in ("running", "interrupted"):
            time.sleep(0.5)
        return job


url, pairs, texts, labels = json.load(sys.stdin)
with Client(url) as client:
    read = {
        "similarity": client.similarity(pairs, domain="news", detail=True),
        "version": client.version("news", 2),
        "threshold": client.threshold("news", fmr=0.1),
        "domain": client.domain("films"),
        "job": client.jobs()[-1],
    }
    found = {name: dataclasses.asdict(value) for name, value in read.items()}
    found["embed"] = client.embed(pairs[0], domain="news")
    found["rerank"] = [one.index for one in client.rerank(pairs[0][0], pairs[1], domain="news")]
    job = done(client.calibrate(texts, domain="day", method="whitening"))
    labelled = done(client.add_labels("day", labels))
    done(client.calibrate(texts, domain="day", method="sn", promote="never"))
    found["promoted"] = [job.promoted, labelled.promoted]
    found["champions"] = [client.domain("day").champion, client.promote("day", 3).champion]
    found["champions"].append(client.rollback("day").champion)
    client.delete_version("day", 1)
    found["left"] = [one.version for one in client.domain("day").versions]
    found["code"] = isosim_client.__file__
json.dump(found, sys.stdout, default=lambda value: [float(one) for one in value])
"""


@pytest.mark.parametrize("old", ["client", "server"])
def test_a_client_and_a_server_of_two_releases_understand_each_other(serve: Serve, release: Release, old: str) -> None:
    server = serve(**release.settings, **({"release": release.code} if old == "server" else {}))
    assert code_of(server, release) == (old == "server")
    (scored,) = (one for one in release.questions("/similarity") if one["body"].get("domain") == "news")
    labels = [(text, text.replace("a ", "the "), 1) for text in sentences(60)]
    labels += [(*sentences(n + 2)[n:], 0) for n in range(60)]
    given = [server.url, scored["body"]["pairs"], sentences(300), labels]
    code = release.code if old == "client" else CLIENT
    variables = environment() | {"PYTHONPATH": str(code)}
    done = subprocess.run(
        [sys.executable, "-c", DAY], input=json.dumps(given), env=variables, cwd=release.folder,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["code"].startswith(str(code) + os.sep)
    counted = scored["answer"]["detail"]["tokens"]
    scored["answer"]["detail"]["tokens"] = [{side: float(n) for side, n in one.items()} for one in counted]  # as read
    assert missing(scored["answer"], found["similarity"], "similarity") == []
    (version,) = (one for one in release.questions("/domains/news/versions/2"))
    assert missing(version["answer"], found["version"], "version") == []
    assert found["promoted"] == [True, True]
    assert found["champions"] == [2, 3, 2]
    assert found["left"] == [2, 3]
