"""docker-compose.bucket.yml on a real engine: two API replicas, two workers and Redis, and a bucket between them."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isosim.store.blobs import address_of
from tests.deploy import stand_ins
from tests.deploy.engine import Container, Engine, answers
from tests.faults.jobs import LONG, becomes, state
from tests.faults.load import Load
from tests.objects import Objects, start_objects
from tests.processes import Server, score, wait_until
from tests.text import sentences

FILES = ("-f", "docker-compose.yml", "-f", "docker-compose.bucket.yml")
REPLICAS = WORKERS = 2
PORTS = "21100-21149"  # one of them is free for each replica
SHORT = sentences(300)
MANY = LONG[:2000]  # a minute of the default encoder and of fitting


@pytest.fixture(scope="module")
def objects(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    """Outside of all containers, on an address that this machine has for them."""
    network = engine.docker("network", "create", f"{engine.name}-objects").strip()
    try:
        (gateway,) = json.loads(engine.docker("network", "inspect", network))[0]["IPAM"]["Config"]
        found = start_objects(tmp_path_factory.mktemp("objects"), gateway["Gateway"])
        yield found
        found.kill()
    finally:
        engine.docker("network", "rm", network)


@pytest.fixture(scope="module")
def stack(
    engine: Engine, tree: Path, cpu: str, worker: str, objects: Objects, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Container]]]:
    """Containers by service; the store was an empty bucket."""
    chosen = objects.variables | {
        "COMPOSE_PROJECT_NAME": f"{engine.name}-bucket",
        "API_IMAGE": cpu,
        "WORKER_IMAGE": worker,
        "REDIS_IMAGE": stand_ins.redis(engine, tmp_path_factory.mktemp("stand-ins")),
        "API_PORT": PORTS,
        "MODEL_STORE": address_of(objects.bucket()),
    }
    project = Engine(engine.name, engine.environment | chosen, engine.compose)
    compose = [*project.compose, *FILES]
    services = {"api": REPLICAS, "worker": WORKERS, "redis": 1}
    scaled = [word for name, number in services.items() for word in ("--scale", f"{name}={number}")]
    try:
        found = {}
        for name in ("redis", "api", "worker"):  # workers depend on APIs that are healthy
            project.run(*compose, "up", "--detach", "--no-recreate", *scaled, name, cwd=tree)
            found[name] = [Container(project, id) for id in project.run(*compose, "ps", "-q", name, cwd=tree).split()]
            assert len(found[name]) == services[name]
            for container in found[name] if name != "worker" else ():
                container.healthy(300)
        for container in found["worker"]:
            container.wait_until(lambda c=container: "worker starting" in c.log(), seconds=120)
        yield found
    finally:
        project.run(*compose, "down", "--volumes", "--timeout", "5", cwd=tree)


@pytest.fixture(scope="module")
def replicas(stack: dict[str, list[Container]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as opened:
        logs = [tmp_path_factory.mktemp("replica") / "log" for _ in stack["api"]]
        pairs = zip(stack["api"], logs, strict=True)
        yield [opened.enter_context(container.server(log)) for container, log in pairs]


def serves(server: Server, domain: str) -> int | None:
    """The version that answers."""
    answer = server.client.post("/similarity", json={"pairs": [SHORT[:2]], "domain": domain})
    version: int | None = answer.json()["version"] if answer.status_code == 200 else None
    return version


def test_every_replica_scores_alike_with_the_encoder_of_the_image_and_its_calibration_in_the_bucket(
    replicas: list[Server], stack: dict[str, list[Container]], objects: Objects
) -> None:
    found = [answers(server.url).json() for server in replicas]
    for answer in found:
        assert answer["cosine"] == [pytest.approx(0.6674459, abs=1e-4)]
        assert answer["percentile"][0] > 0.99
        assert answer["similarity"] == found[0]["similarity"]
    for container in (*stack["api"], *stack["worker"]):
        there = container.python("import os; print(*os.listdir('/model_store'))").split()
        assert not {"domains", "encoders", "jobs"} & set(there)  # nothing that another machine would have to share


def test_text_given_to_one_replica_becomes_a_version_on_a_worker_that_the_other_serves(
    replicas: list[Server], stack: dict[str, list[Container]]
) -> None:
    for giving, other, domain in ((*replicas, "tickets"), (*reversed(replicas), "letters")):
        job = giving.calibrate(domain, SHORT, method="sn")
        ended = time.monotonic()
        assert (job["status"], job["version"], job["promoted"]) == ("succeeded", 1, True), job
        wait_until(lambda: serves(other, domain) == 1, seconds=2)  # noqa: B023
        assert time.monotonic() - ended < 2
        assert state(other, job["job"])["status"] == "succeeded"
        assert sum(job["job"] in worker.log() for worker in stack["worker"]) == 1
    assert score(replicas[0], "tickets").json()["similarity"] == score(replicas[1], "tickets").json()["similarity"]


@pytest.mark.parametrize(("fault", "remedy"), [("kill", "start"), ("pause", "unpause")])
def test_a_job_whose_worker_is_gone_in_mid_work_goes_on_at_the_other_and_publishes_once(
    replicas: list[Server], stack: dict[str, list[Container]], fault: str, remedy: str
) -> None:
    """`pause`: the first worker comes back while the second one is done, and has nothing to publish any more."""
    first, second = replicas
    body = {"domain": fault, "texts": MANY, "method": "sn"}
    job = first.client.post("/calibrate", json=body).raise_for_status().json()["job"]
    wait_until(lambda: state(first, job).get("stage") == "embedding", 300)
    (at_it,) = [worker for worker in stack["worker"] if job in worker.log()]
    (idle,) = [worker for worker in stack["worker"] if worker is not at_it]
    at_it.engine.docker(fault, at_it.id)
    try:
        wait_until(lambda: attempt(state(second, job)) > 1, 180)
        assert becomes(second, job, "succeeded", 600)["attempt"] == 2
        assert job in idle.log()
        wait_until(lambda: serves(first, fault) == 1, seconds=2)
    finally:
        at_it.engine.docker(remedy, at_it.id)
    wait_until(
        lambda: len(at_it.engine.docker("top", at_it.id).splitlines()) == 2, 120
    )  # a heading, and no child at work
    assert [one["version"] for one in first.client.get(f"/domains/{fault}").json()["versions"]] == [1]
    assert state(first, job)["attempt"] == 2


def attempt(job: dict[str, int]) -> int:
    return job["attempt"]


def test_a_bucket_that_hangs_and_comes_back_loses_nothing_and_scoring_goes_on(
    replicas: list[Server], objects: Objects
) -> None:
    first, second = replicas
    before = score(first, "tickets").json()["version"]
    running = first.client.post("/calibrate", json={"domain": "slow", "texts": MANY, "method": "sn"}).json()["job"]
    wait_until(lambda: state(first, running).get("stage") == "embedding", 300)
    with Load(first, "tickets") as load:
        load.answered(10)
        objects.hang()
        try:
            time.sleep(15)  # beyond what a worker's heartbeat may be late
            load.answered(10)
            refused = first.client.post("/calibrate", json={"domain": "late", "texts": SHORT, "method": "sn"})
            assert (refused.status_code, refused.json()["error_type"]) == (503, "Unavailable"), refused.text
            load.answered(10)
        finally:
            objects.go_on()
        load.answered(10)
    load.nothing_was_lost(slowest=10)
    assert becomes(second, running, "succeeded", 600)["version"] == 1
    job = second.calibrate("tickets", SHORT, method="sn", promote="always")
    assert (job["status"], job["version"]) == ("succeeded", before + 1), job
    wait_until(lambda: serves(first, "tickets") == before + 1, seconds=2)
