"""The service answers as it did: every request of `asked.py` against the answers that `answers.json` holds.

After a deliberate change of the contract, `ISOSIM_RECORD=1 pytest tests/answers` writes the file again, and its diff
shows what changed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.answers.asked import Asked, requests
from tests.processes import Process, Server, serve_with, wait_until
from tests.security.conftest import key_line

RECORDED = Path(__file__).with_name("answers.json")
KEYS = {"reader": "read", "fitter": "read,calibrate", "narrow": "read domains=mine", "owner": "read,calibrate,admin"}
HEADERS = (
    "allow",
    "content-type",
    "location",
    "retry-after",
    "x-isosim-domain",
    "x-isosim-ignored",
    "x-isosim-version",
)
# Values that differ from run to run, or between machines; their presence is compared.
VARYING = {
    "created",
    "created_at",
    "duration_seconds",
    "ended",
    "expires",
    "heartbeat",
    "job",
    "request_id",
    "revision",
    "started",
    "updated",
    "since",
}
VARYING_TEXT = re.compile(
    r"\b[0-9a-f]{32,64}\b|\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)?|http://127\.0\.0\.1:\d+|\b\d+(\.\d+)? (s|ms|seconds?)\b"
)
BASE64 = re.compile(r"[0-9A-Za-z+/]{80,}=*")  # rounding errors change the last digits of a vector
LONG = 12  # numbers; a longer list is recorded by its length and its first four
# Largest difference of a number between machines: a fit adds up rounding errors that depend on the processor.
SAME = 2e-3


def plain(value: Any) -> Any:
    """An answer without what differs from run to run."""
    if isinstance(value, dict):
        return {k: "…" if k in VARYING and v is not None else plain(v) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) > LONG and all(isinstance(one, int | float) for one in value):
            return {"numbers": len(value), "first": [round(one, 6) for one in value[:4]]}
        return [plain(one) for one in value]
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str) and BASE64.fullmatch(value):
        return f"{len(value)} characters of base64"
    return VARYING_TEXT.sub("…", value) if isinstance(value, str) else value


def answer_of(response: httpx.Response) -> dict[str, Any]:
    kind = response.headers.get("content-type", "")
    if kind.startswith("application/json"):
        body = plain(response.json())
    elif kind.startswith("text/event-stream"):
        body = sorted(set(re.findall(r"^event: (\w+)|\"status\": ?\"(\w+)\"", response.text, re.MULTILINE)))
        passing = ("", "queued", "running", "publishing")  # whether these are seen depends on the machine
        body = sorted({name for names in body for name in names if name not in passing})
    elif kind.startswith("text/") and "html" not in kind:
        body = plain(response.text)
    else:
        body = f"{'some' if response.content else 'no'} bytes"
    headers = {name: plain(response.headers[name]) for name in HEADERS if name in response.headers}
    return {"status": response.status_code, "headers": headers, "body": body}


def differences(before: Any, now: Any, place: str = "") -> list[str]:
    """Every place at which two answers differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        lost = [f"{place}.{name} is gone (was {before[name]!r:.80})" for name in before.keys() - now.keys()]
        new = [f"{place}.{name} is new: {now[name]!r:.80}" for name in now.keys() - before.keys()]
        return (
            lost
            + new
            + [one for n in before.keys() & now.keys() for one in differences(before[n], now[n], f"{place}.{n}")]
        )
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            one for n, (a, b) in enumerate(zip(before, now, strict=True)) for one in differences(a, b, f"{place}[{n}]")
        ]
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, now))
    if before == now or (numbers and now == pytest.approx(before, rel=SAME, abs=SAME)):
        return []
    return [f"{place}: {before!r:.300}, now {now!r:.300}"]


def ask(server: Server, asked: Asked, job: str) -> httpx.Response:
    sent: dict[str, Any] = {"headers": dict(asked.headers)}
    if isinstance(asked.body, bytes):
        sent["content"], sent["headers"]["content-type"] = asked.body, asked.kind
    elif asked.body is not None:
        sent["json"] = asked.body

    def answered() -> httpx.Response | None:
        response = server.client.request(asked.method, asked.path.replace("{job}", job), **sent)
        return None if asked.waits and response.json()["status"] in ("queued", "running", "publishing") else response

    found: httpx.Response = wait_until(answered, 300)
    if asked.waits and found.json()["promoted"]:
        wait_until(lambda: serves(server, found.json()), 30)
    return found


def serves(server: Server, job: dict[str, Any]) -> bool:
    """Whether a job's version answers: a server notices a promotion within a second or two."""
    body = {"pairs": [["a", "b"]], "domain": job["domain"]}
    return server.client.post("/similarity", json=body).headers.get("x-isosim-version") == str(job["version"])


def label_of(asked: Asked) -> str:
    """A name that no other request of the table has: the request, and a hash of what it sends."""
    body = asked.body if isinstance(asked.body, bytes) else json.dumps(asked.body).encode()
    sent = hashlib.sha256(body + json.dumps(asked.headers).encode()).hexdigest()[:8]
    return f"{asked.name} {sent}"


def check(folder: Path, servers: Mapping[str, tuple[Path, dict[str, Any]]]) -> None:
    """The answers of servers, each with a copy of a store and settings, against the recorded ones."""
    running: list[Process] = []
    try:
        started = {}
        for name, (source, settings) in servers.items():
            shutil.copytree(source, folder / name)
            started[name] = serve_with(folder, running, model_store=folder / name, **settings)
        answered = answers(started)
    finally:
        for process in running:
            process.kill()
    recorded: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    before = {name: one for name, one in recorded.items() if name.partition(" ")[0] in servers}
    if os.environ.get("ISOSIM_RECORD") == "1":
        now = {name: one for name, one in recorded.items() if name not in before} | answered
        RECORDED.write_text(json.dumps(now, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        return
    assert set(answered) == set(before)
    found = [f"{name}{one}" for name in answered for one in differences(before[name], answered[name])]
    assert not found, "\n".join(found)


def answers(servers: Mapping[str, Server]) -> dict[str, Any]:
    answered: dict[str, Any] = {}
    job = ""
    for asked in requests():
        if asked.server not in servers:
            continue
        response = ask(servers[asked.server], asked, job)
        if response.status_code == 202:
            job = response.json()["job"]
        label = label_of(asked)
        while label in answered:
            label += " again"
        answered[label] = answer_of(response)
    return answered


def test_a_server_with_and_without_keys_answers_as_it_did(tiny_store: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(key_line(key, rights) for key, rights in KEYS.items()))
    tiny = {"encoder": "tiny"}
    check(tmp_path, {"small": (tiny_store, tiny), "keyed": (tiny_store, tiny | {"api_keys_file": keys})})


def test_the_default_encoder_answers_as_it_did(minilm_store: Path, tmp_path: Path) -> None:
    check(tmp_path, {"default": (minilm_store, {})})
