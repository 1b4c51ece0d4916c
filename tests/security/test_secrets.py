"""Keys, passwords and texts: in no log at any level, no metric, no error, also when something fails."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isosim.access.key_file import LOOK_SECONDS
from tests.faults.load import metric
from tests.processes import Process, RedisServer, Serve, Server, command, free_port, wait_until
from tests.security.conftest import bearer, key_file, key_line
from tests.text import sentences

KEYS = {"isk_owner-7f3a9c": "read,calibrate,admin owner", "isk_reader-51be02": "read rate=1000/s"}
PASSWORD = "hunter2-correct-horse"  # noqa: S105 - a test's own
PLAIN = {"content-type": "text/plain"}
WRONG = "isk_guessed-99aa77"
TEXT = "the unspeakable sentence of nobody"
HASHES = [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
SECRETS = [*KEYS, PASSWORD, WRONG, TEXT, "unspeakable", *HASHES, *(digest.upper() for digest in HASHES)]


def check(where: str, text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, f"{where} holds {secret!r}"


def use(server: Server) -> None:
    """What clients do, rightly and wrongly; each answer is looked at."""
    owner = next(iter(KEYS))
    body = {"pairs": [[TEXT, "b"]]}
    asked: list[tuple[str, str, str | None, dict[str, Any]]] = [
        ("POST", "/similarity", owner, {"json": body}),
        ("POST", "/similarity", WRONG, {"json": body}),
        ("POST", "/similarity", None, {"json": body}),
        ("POST", "/similarity", owner, {"content": b"{", "headers": {"content-type": "application/json"}}),
        ("POST", "/calibrate", "isk_reader-51be02", {"json": {"domain": "d", "texts": [TEXT]}}),
        ("POST", "/calibrate", owner, {"json": {"domain": "d", "texts": [TEXT]}}),
        ("POST", "/calibrate?domain=d", owner, {"content": TEXT.encode() + b"\n\xff", "headers": PLAIN}),
        ("GET", "/domains", owner, {}),
        ("GET", f"/nowhere/{WRONG}", owner, {}),
        ("GET", "/metrics", None, {}),
        ("GET", "/console/server.json", None, {}),
        ("GET", "/info", owner, {}),
    ]  # fmt: skip
    for method, path, key, given in asked:
        headers = bearer(key) | given.pop("headers", {})
        response = server.client.request(method, path, headers=headers, **given)
        said = response.text.replace(f"/nowhere/{WRONG}", "")  # a path is told back to who sent it
        check(f"{method} {path}", said + str(response.headers))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return key_file(tmp_path, KEYS)


def test_with_a_redis_that_has_a_password(
    serve: Serve, store: Path, keys: Path, redis_server: RedisServer, worker: Callable[..., Process]
) -> None:
    import redis

    with redis.Redis.from_url(redis_server.url) as admin:
        admin.config_set("requirepass", PASSWORD)
    url = redis_server.url.replace("redis://", f"redis://:{PASSWORD}@")
    process = worker(model_store=store, redis_url=url, log_level="debug")
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys, redis_url=url, log_level="debug")
    server.client.headers.update(bearer(next(iter(KEYS))))
    done = server.calibrate("letters", [TEXT, *sentences(300)], method="identity")
    assert done["status"] == "succeeded"
    check("the job", str(done))
    del server.client.headers["authorization"]
    use(server)
    redis_server.kill()
    use(server)
    assert server.stop() != 0
    process.stop()
    assert len(server.log.read_text()) > 100
    check("the server's log", server.log.read_text())
    check("the worker's log", process.log.read_text())
    assert PASSWORD not in " ".join(str(word) for word in server.popen.args)  # type: ignore[union-attr]


def test_with_a_redis_that_refuses(serve: Serve, store: Path, keys: Path) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"
    given: dict[str, Any] = {
        "model_store": store,
        "encoder": "tiny",
        "api_keys_file": keys,
        "redis_url": url,
        "log_level": "debug",
    }
    server = serve(**given)
    use(server)
    server.stop()
    check("the log", server.log.read_text())
    for words in (["doctor"], ["doctor", "--json"], ["worker", "--burst"]):
        done = command(*words, **given)
        check(" ".join(words), done.stdout + done.stderr)


def test_a_file_of_keys_that_breaks_is_logged_without_its_words_and_a_key_that_is_removed_is_refused(
    serve: Serve, store: Path, keys: Path
) -> None:
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys, log_level="debug")
    owner, reader = map(bearer, KEYS)

    def status(key: dict[str, str]) -> int:
        return server.client.get("/domains", headers=key).status_code

    assert metric(server, "isosim_api_keys ") == 2
    assert metric(server, "isosim_api_keys_file_valid") == 1
    good = keys.read_text()
    keys.write_text(good + f"{WRONG} read\n")
    wait_until(lambda: metric(server, "isosim_api_keys_file_valid") == 0)
    assert [status(owner), status(reader)] == [200, 200]
    assert LOOK_SECONDS <= 1
    keys.write_text(good.splitlines(keepends=True)[0])
    wait_until(lambda: status(reader) == 401, seconds=2)
    keys.write_text(keys.read_text() + key_line("late", "read"))
    wait_until(lambda: status(bearer("late")) == 200, seconds=2)
    log = server.log.read_text()
    assert log.count("stay in force") == 1
    check("the log", log)


def test_a_file_that_is_broken_at_the_start_is_refused_without_its_words(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{WRONG} read\n")
    for words in (["serve"], ["doctor"], ["keys", "list"]):
        done = command(*words, model_store=store, encoder="tiny", api_keys_file=path)
        assert (done.returncode != 0, "line 1" in done.stdout + done.stderr) == (True, True)
        check(" ".join(words), done.stdout + done.stderr)


def test_settings_hide_what_is_secret() -> None:
    from isosim.settings import Settings

    settings = Settings(redis_url=f"redis://:{PASSWORD}@host:6379/0", redis_password="hunter2-other")  # noqa: S106
    for shown in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "hunter2" not in shown
    logging.getLogger(__name__).info("%s", settings)
