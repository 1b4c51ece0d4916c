"""What the rendered pods run, on this machine: Redis' arguments and its probe, and the script of `helm test`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import ANYBODY, IMAGE, KEYS, OWN_REDIS, Values, merged, named, render
from tests.processes import Process, Serve, free_port, wait_until
from tests.security.conftest import key_line


@pytest.mark.parametrize("password", ["plain", 'a "quoted" \\ one\'s', "spaces $HOME `x`\\t"])
def test_redis_takes_its_arguments_and_its_password_from_a_file(password: str, tmp_path: Path) -> None:
    """Neither arguments nor environment hold it; the probe asks with it."""
    template = named(render(IMAGE, KEYS, OWN_REDIS), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = template["containers"]
    assert "env" not in container
    port, file = str(free_port()), tmp_path / "password"
    file.write_text(password)

    def here(words: list[str]) -> list[str]:
        return [word.replace("/etc/redis/password", str(file)) for word in words]

    words = here([*container["command"], *container["args"]])
    words[words.index("--port") + 1], words[words.index("--dir") + 1] = port, str(tmp_path)
    log = tmp_path / "log"
    with log.open("wb") as output:
        redis = Process(subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True), log)
    probe = here(container["readinessProbe"]["exec"]["command"])
    probe[-1] = probe[-1].replace("redis-cli", f"redis-cli -p {port}")

    def said(*command: str, **given: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | given, check=False)
        return done.stdout

    try:
        wait_until(lambda: said(*probe).strip() == "PONG")
        assert Path(f"/proc/{redis.popen.pid}/comm").read_text().strip() == "redis-server"  # it gets the signals
        assert password.encode() not in Path(f"/proc/{redis.popen.pid}/cmdline").read_bytes()
        asked = said("redis-cli", "-p", port, "config", "get", "maxmemory*", REDISCLI_AUTH=password)
        assert {"volatile-lru", str(512 * 2**20)} <= set(asked.split())
        file.write_text("another")
        assert "PONG" not in said(*probe)
    finally:
        redis.kill()


TESTED = merged(KEYS, {"access": {"testKeySecret": {"name": "test"}}})


@pytest.mark.parametrize(
    ("chosen", "passes"), [(KEYS, "refused"), (TESTED, "similarity"), (ANYBODY, "similarity")],
    ids=["keys", "with a key", "anybody"],
)  # fmt: skip
def test_helm_test_passes_at_a_server_of_its_values_and_at_no_other(
    serve: Serve, store: Path, chosen: Values, passes: str
) -> None:
    keys = store.parent / "keys"
    keys.write_text(key_line("k", "read"))
    locked: dict[str, Any] = {"api_keys_file": keys}
    given = ({}, locked) if chosen is ANYBODY else (locked, {})
    for settings, code in zip(given, (0, 1), strict=True):
        server = serve(model_store=store, encoder="tiny", **settings)
        values = {"fullnameOverride": "localhost", "service": {"port": server.port}}
        (container,) = named(render(IMAGE, chosen, OWN_REDIS, values), "Pod", "-test")["spec"]["containers"]
        words = [sys.executable, *container["command"][1:], *container["args"]]
        given_key = {"KEY": "k\n"} if chosen is TESTED else {}  # of the Secret
        assert [one["valueFrom"]["secretKeyRef"]["name"] for one in container.get("env", ())] == ["test"] * len(
            given_key
        )
        environment = os.environ | given_key
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == code, done.stdout + done.stderr
        assert code or passes in done.stdout
