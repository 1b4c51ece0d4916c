"""A Docker engine as the tests use it: its commands, the images built on it, containers that go when they are left."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.processes import Server, skip_without, wait_until

ROOT = Path(__file__).parents[2]
HARDENED = (
    "--read-only", "--tmpfs=/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
    "-v", "/dev/null:/usr/bin/dash:ro", "-v", "/dev/null:/usr/bin/bash:ro",
)  # fmt: skip
"""As a site would run it, and without a shell."""


@dataclass
class Engine:
    """`environment` names it to every client; what the tests make there is named after `name`."""

    name: str
    environment: dict[str, str]
    compose: list[str]

    def run(self, *command: str, check: bool = True, timeout: float = 900, **options: Any) -> str:
        """Standard output; on failure all of it is in the message."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False, **options
        )
        said = f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == 0 or not check, said
        return done.stdout

    def docker(self, *words: str, check: bool = True, timeout: float = 900) -> str:
        return self.run("docker", *words, check=check, timeout=timeout)

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", name))[0]
        return found

    def size(self, image: str) -> int:
        """Bytes, unpacked, its base included."""
        found: int = self.inspect(image)["Size"]
        return found

    def has(self, image: str) -> bool:
        """There, or to be had."""
        words = ["docker", "image", "inspect", image], ["docker", "pull", "--quiet", image]
        done = (subprocess.run(w, env=self.environment, capture_output=True, check=False) for w in words)
        return any(attempt.returncode == 0 for attempt in done)

    def volume(self, name: str) -> str:
        return self.docker("volume", "create", f"{self.name}-{name}").strip()

    @contextlib.contextmanager
    def container(self, *words: str) -> Iterator["Container"]:
        """`docker run --detach WORDS`; gone afterwards."""
        container = Container(self, self.docker("run", "--detach", "--label", self.name, *words).strip())
        try:
            yield container
        finally:
            self.docker("rm", "--force", "--volumes", container.id)

    def once(self, *words: str, given: str = "") -> str:
        """`docker run --rm WORDS`, given something to read: its output."""
        return self.run("docker", "run", "--rm", "--interactive", "--label", self.name, *words, input=given)

    def clean(self) -> None:
        """Whatever a broken test may have left, and the images."""
        for left in self.docker("ps", "--all", "--quiet", "--filter", f"label={self.name}").split():
            self.docker("rm", "--force", "--volumes", left)
        for volume in self.docker("volume", "ls", "--quiet", "--filter", f"name={self.name}").split():
            self.docker("volume", "rm", volume, check=False)
        for image in self.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split():
            if image.startswith(self.name):
                self.docker("rmi", image, check=False)


@dataclass
class Container:
    engine: Engine
    id: str

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.inspect(self.id)["State"]
        return found

    @property
    def url(self) -> str:
        return "http://" + self.engine.docker("port", self.id, "8000").splitlines()[0]

    def log(self) -> str:
        command = ["docker", "logs", self.id]
        done = subprocess.run(command, env=self.engine.environment, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def python(self, code: str) -> str:
        """What the container's own interpreter prints."""
        return self.engine.docker("exec", self.id, "python", "-c", code)

    def healthy(self, seconds: float = 120) -> None:
        """Waits until docker says so."""

        try:
            self.wait_until(lambda: self.state["Health"]["Status"] == "healthy", seconds, every=0.3)
        except AssertionError:
            raise AssertionError(f"{self.state['Health']}\n{self.log()[-4000:]}") from None

    def wait_until(self, condition: Callable[[], Any], seconds: float = 30.0, every: float = 0.05) -> None:
        """Fails at once, with the end of its log, if the container ends first."""

        def met() -> bool:
            if condition():
                return True
            assert self.state["Running"], self.log()[-4000:]
            return False

        wait_until(met, seconds, every)

    @contextlib.contextmanager
    def server(self, log: Path) -> Iterator[Server]:
        """The API in it, as the tests speak to servers of their own."""
        follow = ["docker", "logs", "--follow", self.id]  # ends when the container does
        with log.open("wb") as file:
            popen = subprocess.Popen(
                follow, env=self.engine.environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        with httpx.Client(base_url=self.url, timeout=60) as client:
            server = Server(popen, log, self.url, client)
            yield server
            server.kill()

    def stop(self, grace: int) -> tuple[int, float]:
        """Exit code, and seconds until it ended."""
        began = time.monotonic()
        self.engine.docker("stop", "--time", str(grace), self.id)
        took = time.monotonic() - began
        return self.state["ExitCode"], took


def start_engine(folder: Path) -> Engine:
    """The engine that runs here, or one of our own in `folder`."""
    started = subprocess.run(
        [ROOT / "docker" / "engine.sh", folder], capture_output=True, text=True, timeout=600, check=False
    )
    if started.returncode:
        skip_without(f"no engine with the base images of the Dockerfile: {started.stderr[-2000:]}")
    environment = dict(os.environ)
    if own := re.search(r"^export DOCKER_HOST=(\S+)", started.stdout, re.M):
        environment["DOCKER_HOST"] = own[1]
    commands = folder / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    (commands / "docker").symlink_to(builder(environment))
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    return Engine(f"isosim-test-{os.getpid()}", environment, compose_of(environment))


def builder(environment: dict[str, str]) -> str:
    """A docker command that can build with BuildKit: newer ones need a plugin that may be missing."""
    found = [Path(folder) / "docker" for folder in environment["PATH"].split(":")]
    for command in [path for path in found if path.is_file()]:
        done = subprocess.run(
            [command, "build", "--quiet", "-"], input="FROM scratch\nLABEL a=b\n", text=True, capture_output=True,
            env=environment | {"DOCKER_BUILDKIT": "1"}, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return str(command)
    return skip_without("no docker command here can build with BuildKit (install docker-buildx)")


def compose_of(environment: dict[str, str]) -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        with contextlib.suppress(FileNotFoundError):
            done = subprocess.run([*command, "version"], env=environment, capture_output=True, check=False)
            if done.returncode == 0:
                return command
    return skip_without("docker compose is missing")


def stop_engine(folder: Path) -> None:
    """Ends an engine of our own, and deletes all that it held; another one is left alone."""
    file = folder / "docker.pid"
    if file.is_file():
        process = int(file.read_text())
        os.kill(process, signal.SIGTERM)
        wait_until(lambda: not file.exists(), seconds=60)
    shutil.rmtree(folder, ignore_errors=True)


def answers(url: str) -> httpx.Response:
    body = {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]]}
    return httpx.post(f"{url}/similarity", json=body, timeout=30)
