"""Calibrations that take a while, and the processes that run them."""

import contextlib
import fcntl
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

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
    """A job that has begun and goes no further until it is let go: its process is stopped."""

    job: str
    child: int

    def let_go(self) -> None:
        os.kill(self.child, signal.SIGCONT)


def held_job(
    server: Server, process: Process, store: Path, domain: str, stage: str = "embedding", **options: Any
) -> Held:
    """`process` runs the job in a child of its own: the server, or an RQ worker."""
    job = post(server, domain, LONG[:3000], **options)  # long enough to be met in each of its stages
    wait_until(lambda: record(store, job)["stage"] == stage, 60, every=0.0005)
    child = at_work(process, job)
    suspend(child, store, job)
    assert record(store, job)["status"] == "running"
    return Held(job, child)


def suspend(child: int, store: Path, job: str) -> None:
    """Stops a job's process while it does not hold the lock of the job's record, as nobody else could change the record
    until the process goes on."""
    with (store / "jobs" / job / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(child, signal.SIGSTOP)
        while "T" not in Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]:
            time.sleep(0.001)  # the signal is on its way, and the process must not take the lock before it arrives


def state(server: Server, job: str) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get(f"/calibrate/{job}").json()
    return found


def becomes(server: Server, job: str, status: str, seconds: float = 120.0) -> dict[str, Any]:
    found: dict[str, Any] = wait_until(lambda: s if (s := state(server, job))["status"] == status else None, seconds)
    return found


def ended(server: Server, job: str) -> dict[str, Any]:
    """The job, once it neither waits nor runs."""
    return server.wait_for(job, 120)


def retry(server: Server, job: str) -> None:
    response = server.client.post(f"/calibrate/{job}/retry")
    assert response.status_code == 202, response.text


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def at_work(process: Process, job: str) -> int:
    """The child in which a job runs: of the server, whose command names it, or of an RQ worker, which has but one."""

    def find() -> int | None:
        for child in children(process.popen.pid):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if job.encode() in command or b"\0worker" in command:
                    return child
        return None

    found: int = wait_until(find, every=0.002)
    return found


def record(store: Path, job: str) -> dict[str, Any]:
    """A job's record as it is stored."""
    found: dict[str, Any] = orjson.loads((store / "jobs" / job / "job.json").read_bytes())
    return found


def whole_versions(store: Path, domain: str) -> list[int]:
    """A domain's versions, each read back and compared with its hashes."""
    domains = domains_of(store)
    versions = sorted(domains.read(domain).versions)
    for version in versions:
        domains.load(domain, version)
    return versions


def holds(store: Path, text: str) -> bool:
    """Is the text anywhere among the jobs?"""
    files = [path for path in (store / "jobs").rglob("*") if path.is_file()]
    return any(text.encode() in path.read_bytes() for path in files)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def running_job(server: Server, domain: str) -> str:
    """A job that goes on for some seconds."""
    body = {"domain": domain, "texts": LONG, "method": "flow"}
    job: str = server.client.post("/calibrate", json=body).json()["job"]
    wait_until(lambda: server.client.get(f"/calibrate/{job}").json()["stage"] in ("embedding", "fitting"))
    return job


def child_of(process: Process, words: str) -> int:
    """The process id of a descendant whose command line holds the words."""

    def find() -> int | None:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if words in command and parent == process.popen.pid:
                return int(entry.name)
        return None

    found: int = wait_until(find)
    return found
