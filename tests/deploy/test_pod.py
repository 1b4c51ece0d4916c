"""The script of `helm test`, at servers on this machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import ANYBODY, IMAGE, KEYS, OWN_REDIS, Values, merged, named, render
from tests.processes import Serve
from tests.security.conftest import key_line

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
