"""Releases as they were frozen (`stores/make.py`), and how answers of two of them are compared."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import Server

STORES = Path(__file__).with_name("stores")
FROZEN = sorted(path.name.removesuffix(".tar.xz") for path in STORES.glob("[0-9]*.tar.xz"))
SAME = 1e-5


@dataclass(frozen=True)
class Release:
    """A release as it was frozen, unpacked."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def code(self) -> Path:
        return self.folder / "release"

    @property
    def settings(self) -> dict[str, Any]:
        return {"model_store": self.store, "encoder": "small", "next_encoder": "next"}

    def _told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "answers.json").read_bytes())
        return found

    @property
    def jobs(self) -> dict[str, str]:
        """Ids of the jobs it left, by their states."""
        found: dict[str, str] = self._told()["jobs"]
        return found

    def questions(self, beginning: str = "/") -> Iterator[dict[str, Any]]:
        """What its server was asked, with what it answered."""
        return (one for one in self._told()["questions"] if one["path"].startswith(beginning))


def alive_until_now(record: Path) -> None:
    """Its worker's last sign of life becomes recent: 0.1.0 deletes what was interrupted a day ago, by the clock."""
    record.write_text(json.dumps(json.loads(record.read_text()) | {"heartbeat": time.time()}))


def missing(before: Any, now: Any, place: str) -> list[str]:
    """Where an answer lacks something the earlier one had, or says something else; new fields are no difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        lost = [f"{place}.{name} is gone" for name in before if name not in now]
        return lost + [one for n, v in before.items() if n in now for one in missing(v, now[n], f"{place}.{n}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [one for n, pair in enumerate(zip(before, now, strict=True)) for one in missing(*pair, f"{place}.{n}")]
    if type(before) is type(now) is float:
        return [] if now == pytest.approx(before, rel=SAME, abs=SAME) else [f"{place}: {before}, now {now}"]
    return [] if before == now and type(before) is type(now) else [f"{place}: {before!r:.200}, now {now!r:.200}"]


def ask(server: Server, question: dict[str, Any]) -> httpx.Response:
    body = question.get("body")
    return server.client.request("GET" if body is None else "POST", question["path"], json=body)


def differences(server: Server, questions: Iterator[dict[str, Any]]) -> list[str]:
    found = []
    for question in questions:
        response, what = ask(server, question), f"{question['path']} {question.get('body', {}).get('domain', '')}"
        if response.status_code != question["status"]:
            found.append(f"{what}: {response.status_code} {response.text[:200]}")
        elif response.status_code == 200:
            found += missing(question["answer"], response.json(), what)
    return found


def code_of(server: Server, release: Release) -> bool:
    """Whether a server runs the frozen code."""
    return Path(f"/proc/{server.popen.pid}/cwd").resolve() == release.code.resolve()
