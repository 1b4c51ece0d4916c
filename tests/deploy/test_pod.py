"""What the rendered pods run, on this machine: Redis' arguments and its probe, and the script of `helm test`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import ANYBODY, IMAGE, KEYS, OWN_REDIS, Values, named, render
from tests.processes import Process, Serve, free_port, wait_until
from tests.security.conftest import key_line

PASSWORD = "apasswordforredis"  # noqa: S105 - a test's own


def test_redis_takes_its_arguments_and_its_probe_asks_with_the_password(tmp_path: Path) -> None:
    template = named(render(IMAGE, KEYS, OWN_REDIS), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = template["containers"]
    port = str(free_port())
    words = [word.replace("$(REDIS_PASSWORD)", PASSWORD) for word in (*container["command"], *container["args"])]
    words[words.index("--port") + 1], words[words.index("--dir") + 1] = port, str(tmp_path)
    log = tmp_path / "log"
    with log.open("wb") as file:
        redis = Process(subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True), log)

    def said(*asked: str, password: str = PASSWORD) -> str:
        (name,) = {one["name"] for one in container["env"]} - {"REDIS_PASSWORD"}
        command = [asked[0], "-p", port, *asked[1:]]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {name: password}, check=False)
        return done.stdout

    probe = container["readinessProbe"]["exec"]["command"]
    try:
        wait_until(lambda: said(*probe).strip() == "PONG")
        assert {"volatile-lru", str(512 * 2**20)} <= set(said("redis-cli", "config", "get", "maxmemory*").split())
        assert "PONG" not in said(*probe, password="")
    finally:
        redis.kill()


@pytest.mark.parametrize(("chosen", "passes"), [(KEYS, "refused"), (ANYBODY, "similarity")], ids=["keys", "anybody"])
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
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert code or passes in done.stdout
