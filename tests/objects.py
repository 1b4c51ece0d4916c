"""An object storage of the tests' own: moto's S3 in a process that answers one request after the other.

One after the other, because moto looks at a condition and writes in two steps: with threads two writers both pass.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.processes import Server, free_port, wait_until

SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple(
    sys.argv[1], int(sys.argv[2]), DomainDispatcherApplication(create_backend_app), threaded=False,
    ssl_context=tuple(sys.argv[3:]) or None,
)
"""


@dataclass(eq=False)
class Objects(Server):
    """A bucket, and the process that keeps it in memory."""

    def bucket(self) -> Path:
        """An empty place in a new bucket, as a store's root."""
        name = f"isosim-{uuid.uuid4().hex[:12]}"
        assert httpx.put(f"{self.url}/{name}", verify=False).status_code == 200  # noqa: S501 - the tests' own
        return Path(f"s3://{name}/team")

    def hang(self) -> None:
        os.kill(self.popen.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.popen.pid, signal.SIGCONT)

    @property
    def variables(self) -> dict[str, str]:
        """The SDK reads them, here and in the processes that tests start."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip


def start_objects(folder: Path, host: str = "127.0.0.1", *certificate: Path) -> Objects:
    """`certificate`: files of a certificate of `host` and its key, for TLS."""
    log, port = folder / "log", free_port()
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [sys.executable, "-c", SERVER, host, str(port), *certificate], stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    found = Objects(popen, log, f"http{'s' * bool(certificate)}://{host}:{port}")
    wait_until(lambda: httpx.get(found.url, verify=False).status_code == 200)  # noqa: S501
    return found


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    found = start_objects(tmp_path_factory.mktemp("objects"))
    given = found.variables | {"HOME": str(tmp_path_factory.mktemp("home"))}  # of fetched encoders
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    yield found
    found.kill()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
