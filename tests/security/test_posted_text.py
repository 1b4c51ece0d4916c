"""Posted text is nobody's after its calibration: no byte of it is left in the store, in Redis, in /tmp or in a log."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.faults.jobs import at_work, kill
from tests.processes import Process, RedisServer, Serve, Server, wait_until
from tests.text import sentences

MARK = "quetzalcoatlus"  # in every sentence, in no other text
TEXTS = [f"{MARK} {text} {number}" for number, text in enumerate(sentences(600))]
LONG = [f"{text} {number}" for number in range(25) for text in TEXTS]


class Traces:
    """Everything a server and a worker could have written to."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder, self.redis_url = folder, redis_url
        (folder / "tmp").mkdir()

    @property
    def settings(self) -> dict[str, Any]:
        return {"model_store": self.folder / "store", "log_level": "debug", "redis_url": self.redis_url}

    def found(self) -> list[str]:
        """Files and Redis keys that hold the mark."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert any(path.name == "manifest.json" for path in files)
        held = [str(path.relative_to(self.folder)) for path in files if MARK.encode() in contents(path)]
        return held + [name for name, value in self.entries() if MARK.encode() in value]

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """All that Redis holds, which are strings alone: it raises at any other kind."""
        with redis.Redis.from_url(self.redis_url) as client:
            for name in client.scan_iter():
                yield name.decode(errors="replace"), client.get(name) or b""


def contents(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


@pytest.fixture
def traces(store: Path, redis_server: RedisServer) -> Traces:
    return Traces(store.parent, redis_server.url)


@pytest.fixture
def calibrating(
    traces: Traces, serve: Serve, worker: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Server, Process]]:
    """Starts a worker and a server; gives both."""
    monkeypatch.setenv("TMPDIR", str(traces.folder / "tmp"))

    def begin(**more: Any) -> tuple[Server, Process]:
        runner = worker(**traces.settings, **more)
        return serve(encoder="tiny", **traces.settings, local_worker=False, **more), runner

    return begin


Begin = Callable[..., tuple[Server, Process]]


def running(server: Server, domain: str = "secret", texts: list[str] = LONG) -> str:
    job: str = server.client.post("/calibrate", json={"domain": domain, "texts": texts, "method": "flow"}).json()["job"]
    wait_until(lambda: server.client.get(f"/calibrate/{job}").json()["stage"] in ("embedding", "fitting"), 120)
    return job


def status(server: Server, job: str) -> str:
    return str(server.client.get(f"/calibrate/{job}").json()["status"])


def test_after_a_refusal_a_success_a_cancel_and_a_killed_process(traces: Traces, calibrating: Begin) -> None:
    server, runner = calibrating()
    text = "\n".join(TEXTS[:150]).encode()
    for url, content in (
        ("/calibrate?domain=secret", text),
        ("/calibrate?domain=secret", text + b"\n\xff"),
        ("/calibrate?domain=secret", text + b"\n" + b"x" * 20_000),
        ("/calibrate?domain=.", text),
    ):
        refused = server.client.post(url, content=content, headers={"content-type": "text/plain"})
        assert refused.status_code == 422
        assert MARK not in refused.text
    assert traces.found() == []

    labels = [[TEXTS[n], TEXTS[n + 1], n % 2] for n in range(200)]
    options = {"method": "flow", "labels": labels, "promote": "always"}
    assert server.calibrate("secret", TEXTS, **options)["status"] == "succeeded"
    posted = server.client.post("/domains/secret/labels", json={"labels": labels})
    assert server.wait_for(posted.json()["job"])["status"] == "succeeded"
    body = {"pairs": [[TEXTS[0], TEXTS[1]]], "domain": "secret"}
    assert server.client.post("/similarity", json=body).status_code == 200
    assert server.client.post("/similarity", json={**body, "x": TEXTS[0]}).status_code == 422
    assert traces.found() == []

    job = running(server)
    (found,) = traces.found()  # where it has to be, and nowhere else
    assert re.fullmatch("store/input/[0-9a-f]{32}/lines", found)
    assert server.client.delete(f"/calibrate/{job}").json()["status"] == "cancelled"
    wait_until(lambda: traces.found() == [])

    job = running(server)
    kill(at_work(runner))  # the text stays for further attempts; a cancel ends that
    wait_until(lambda: server.client.get(f"/calibrate/{job}").json()["attempt"] == 2, 60)
    assert len(traces.found()) == 1
    server.client.delete(f"/calibrate/{job}")
    wait_until(lambda: traces.found() == [])


def test_after_a_failure(traces: Traces, calibrating: Begin) -> None:
    server, _ = calibrating()
    for tokenizer in (traces.folder / "store").rglob("tokenizer.json"):
        tokenizer.write_text("{}")
    done = server.calibrate("secret", TEXTS)
    assert done["status"] == "failed"
    assert MARK not in str(done)
    assert traces.found() == []


def test_after_a_time_out_and_a_restart(traces: Traces, calibrating: Begin) -> None:
    server, _ = calibrating(job_timeout=2)
    posted = server.client.post("/calibrate", json={"domain": "secret", "texts": LONG, "method": "flow"})
    job = posted.json()["job"]
    wait_until(lambda: status(server, job) == "failed", 240)
    assert "stopped after 2 s, the time limit" in server.client.get(f"/calibrate/{job}").json()["error"]
    server.kill()
    server, _ = calibrating(job_timeout=2)
    wait_until(lambda: status(server, job) == "failed", 240)
    wait_until(lambda: traces.found() == [])


def test_text_that_was_arriving_when_the_server_was_killed_is_gone_with_it(traces: Traces, calibrating: Begin) -> None:
    server, _ = calibrating()

    def endless() -> Iterator[bytes]:
        for number in range(200):
            yield ("\n".join(TEXTS) + "\n").encode()
            if number == 20:
                server.kill()

    with pytest.raises(httpx.TransportError):
        httpx.post(f"{server.url}/calibrate?domain=d", content=endless(), headers={"content-type": "text/plain"})
    assert traces.found() == []
