"""Calibrations that take a while, and the processes that run them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isosim.fitting.job import STAGES
from isosim.jobs.store import JobStore
from isosim.store.blobs import opened
from tests.processes import Process, Server, wait_until
from tests.stores import domains_of
from tests.text import sentences

TEXTS = sentences(300)
LONG = [f"{text} {n}" for n in range(30) for text in sentences(500)]  # some seconds of fitting


def post(server: Server, domain: str, texts: list[str], **options: Any) -> str:
    response = server.client.post("/calibrate", json={"domain": domain, "texts": texts, "method": "sn", **options})
    assert response.status_code == 202, response.text
    return str(response.json()["job"])


@dataclass
class Held:
    """A job that has begun and goes no further until it is let go, within 30 s: its process is stopped."""

    job: str
    child: int

    def let_go(self) -> None:
        os.kill(self.child, signal.SIGCONT)

    def breathe(self) -> None:
        """Lets it go for a moment, in which it gives a sign of life."""
        self.let_go()
        time.sleep(0.05)
        os.kill(self.child, signal.SIGSTOP)


def held_job(server: Server, process: Process, domain: str, **options: Any) -> Held:
    """`process` runs the job: the server, by its own worker, or another worker."""
    job = post(server, domain, LONG[:8000], **options)  # long enough to be met in one of its stages
    wait_until(lambda: state(server, job)["stage"] in STAGES, 180, every=0.005)
    child = at_work(process)
    os.kill(child, signal.SIGSTOP)
    assert state(server, job)["status"] == "running"
    return Held(job, child)


def state(server: Server, job: str) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get(f"/calibrate/{job}").json()
    return found


def becomes(server: Server, job: str, status: str, seconds: float = 120.0) -> dict[str, Any]:
    found: dict[str, Any] = wait_until(lambda: s if (s := state(server, job))["status"] == status else None, seconds)
    return found


def descendants(pid: int) -> Iterator[int]:
    """Process ids of the children of a process, and of theirs."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
        yield from new


def running(process: Process, module: str) -> int:
    """The descendant of a process that runs a Python module."""

    def find() -> int | None:
        for child in descendants(process.popen.pid):
            with contextlib.suppress(OSError):
                if f"\0{module}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return None

    found: int = wait_until(find, every=0.005)
    return found


def at_work(process: Process) -> int:
    """The child in which a worker, or a server's own worker, runs a job."""
    return running(process, "isosim.worker.calibrating")


def whole_versions(store: Path, domain: str) -> list[int]:
    """A domain's versions, each read back and compared with its hashes."""
    domains = domains_of(store)
    versions = sorted(domains.read(domain).versions)
    for version in versions:
        domains.load(domain, version)
    return versions


def holds(store: Path, text: str) -> bool:
    """Is the text anywhere in the store?"""
    blobs = opened(store)
    return any(
        text.encode() in blobs.read(entry.key)[0]
        for entry in blobs.list("")
        if entry.key.startswith(("input/", "jobs/", "open/"))
    )


def jobs_of(store: Path) -> JobStore:
    return JobStore(opened(store))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def running_job(server: Server, domain: str) -> str:
    """A job that goes on for some seconds."""
    body = {"domain": domain, "texts": LONG, "method": "flow"}
    job: str = server.client.post("/calibrate", json=body).json()["job"]
    wait_until(lambda: server.client.get(f"/calibrate/{job}").json()["stage"] in ("embedding", "fitting"), 180)
    return job
