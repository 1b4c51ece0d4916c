"""Redis behind TLS, a user and a password: cache, limits and queue work with the rights of SECURITY.md alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.jobs import running_job
from tests.faults.load import metric
from tests.processes import Process, Serve, command, wait_until
from tests.security.conftest import bearer, key_file
from tests.security.redis_guarded import PASSWORD, USER, GuardedRedis, authority
from tests.text import sentences

BODY = {"pairs": [["a guarded boat", "a guarded gate"]]}
HITS = 'isosim_cache_lookups_total{cache="redis",result="hit"}'
ERRORS = 'isosim_cache_lookups_total{cache="redis",result="error"}'


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedRedis]:
    server = GuardedRedis(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


def settings(guarded: GuardedRedis, **more: Any) -> dict[str, Any]:
    return {"redis_url": url(guarded, guarded.ca), "redis_password": PASSWORD} | more


def url(guarded: GuardedRedis, authority: Path) -> str:
    return f"{guarded.url}?ssl_ca_certs={authority}&socket_timeout=1"


def test_cache_queue_and_limits_work_with_the_least_rights(
    guarded: GuardedRedis, serve: Serve, store: Path, worker: Callable[..., Process]
) -> None:
    keys = key_file(store.parent, {"k": "read,calibrate,admin", "few": "read rate=4/h"})
    given = settings(guarded, model_store=store, encoder="tiny", api_keys_file=keys, local_worker=False)
    worker(**settings(guarded, model_store=store))
    first, second = serve(**given), serve(**given, memory_cache_bytes=0)
    for server in (first, second):
        server.client.headers.update(bearer("k"))
    assert first.client.post("/similarity", json=BODY).status_code == 200
    hits = wait_until(lambda: second.client.post("/similarity", json=BODY) and metric(second, HITS))
    assert hits > 0
    assert metric(first, ERRORS) == metric(second, ERRORS) == 0
    statuses = [
        s.client.post("/similarity", json=BODY, headers=bearer("few")).status_code for s in (first, second, first)
    ]
    assert statuses == [200, 200, 429]
    assert metric(first, "isosim_key_limit_fallbacks_total") == 0
    assert first.calibrate("letters", sentences(300), method="identity")["status"] == "succeeded"
    job = running_job(first, "gone")
    assert first.client.delete(f"/calibrate/{job}").json()["status"] == "cancelled"
    assert first.calibrate("after", sentences(300), method="identity")["status"] == "succeeded"
    doctor = command("doctor", **given)
    assert "FAULT" not in doctor.stdout, doctor.stdout
    assert guarded.denied() == []


def test_the_user_may_do_nothing_else(guarded: GuardedRedis) -> None:
    with redis.Redis(
        host="localhost", port=guarded.port, ssl=True, ssl_ca_certs=str(guarded.ca), username=USER, password=PASSWORD
    ) as client:
        client.set("isosim:v1:k", b"1")
        for forbidden in (
            ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SCAN", "0"), ("ACL", "LIST"),
            ("SHUTDOWN",), ("DEBUG", "SLEEP", "0"), ("SET", "other", "1"), ("GET", "other"), ("MONITOR",),
            ("EVAL", "return redis.call('GET','other')", "0"), ("SUBSCRIBE", "other"), ("REPLICAOF", "h", "1"),
        ):  # fmt: skip
            with pytest.raises(redis.RedisError):
                client.execute_command(*forbidden)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("authority", "TLS fails: "),
        ("name", "TLS fails: "),
        ("password", "it refuses the user or password"),
        ("plain", ""),
    ],
)
def test_a_redis_that_is_not_the_right_one_is_not_used_and_no_request_fails(
    guarded: GuardedRedis, serve: Serve, store: Path, tmp_path: Path, wrong: str, reason: str
) -> None:
    given = settings(guarded, model_store=store, encoder="tiny")
    if wrong == "authority":
        given["redis_url"] = url(guarded, authority(tmp_path / "other", "other"))
    elif wrong == "name":
        given["redis_url"] = given["redis_url"].replace("localhost", "127.0.0.1")  # the certificate says localhost
    elif wrong == "password":
        given["redis_password"] = "guess"  # noqa: S105
    else:
        given["redis_url"] = guarded.url.replace("rediss", "redis")
    server = serve(**given)
    assert server.client.post("/similarity", json=BODY).status_code == 200
    assert metric(server, ERRORS) > 0
    answer = server.client.post("/calibrate", json={"domain": "d", "texts": sentences(250)})
    assert answer.status_code == 202  # no job needs Redis
    wait_until(lambda: reason in server.log.read_text())
    assert PASSWORD not in answer.text + server.log.read_text()
    with guarded.as_admin() as admin:
        assert admin.dbsize() == 0


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("redis://:se/cret@host:6379/0", "ISOSIM_REDIS_URL"),
        ("redis://u:se#cret@host:6379/0", "ISOSIM_REDIS_URL"),
        ("redis://u:secret@host:port/0", "ISOSIM_REDIS_URL"),
        ("http://u:secret@host/0", "ISOSIM_REDIS_URL"),
        ("redis://u:secret@host/0?socket_timeout=-1", "REDIS_URL: Value error, socket_timeout"),
        ("rediss://u:secret@host/0?ssl_ca_certs=/nowhere", "REDIS_URL: Value error, ssl_ca_certs"),
        (f"redis://u:secret@host/0?ssl_ca_certs={__file__}", "REDIS_URL: Value error, ssl_ca_certs"),
    ],
)
def test_an_address_that_is_wrong_is_named_and_not_shown(tmp_path: Path, url: str, names: str) -> None:
    done = command("doctor", model_store=tmp_path, redis_url=url)
    said = done.stdout + done.stderr
    assert (done.returncode != 0, names in said, "cret" in said) == (True, True, False), said
