"""The blocks of code in the documents, and how they are run."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.clients.environment import LOCAL_ONLY, PYTHON

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"(?P<before>[^\n]*)\n```(?P<kind>sh|python|console)\n(?P<code>.*?)\n```", re.S)
# Begins of lines after `$ ` that run: the others need a cluster or an engine for containers.
ANYWHERE = re.compile(r"^\$ ((?:\.venv/bin/)?isosim .+)$", re.M)
DEPLOY = "<!-- run by tests/deploy -->"
BUCKET = "<!-- run with a bucket -->"  # by test_object_storage_page.py
ELSEWHERE = (DEPLOY, BUCKET)
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
ON_PURPOSE = "<!-- an error, on purpose -->"
ERROR = re.compile(r'"error(_type)?":\s*["{]')
# Calls the other methods that the recipe's object has: some classes have a second client for their async methods.
EVERY_WAY = """
import asyncio

TEXT = "A man is playing a guitar."
ONE = ("embed_query", "get_query_embedding", "get_text_embedding")
SEVERAL = ("embed_documents", "get_text_embedding_batch")
CALLS = [(name, TEXT) for name in ONE] + [(name, [TEXT]) for name in SEVERAL]


async def call_all(client):
    for name, text in CALLS:
        if hasattr(client, name):
            getattr(client, name)(text)
            await getattr(client, f"a{name}")(text)


if "embeddings" in globals():
    asyncio.run(call_all(embeddings))
"""
ADDRESS = "http://127.0.0.1:8000"


class Block(NamedTuple):
    kind: str
    code: str
    fails: bool


def blocks(page: str, marked: str = "") -> Iterator[Block]:
    """In order: those below the line `marked`, or those that need the page's server alone."""
    for match in FENCE.finditer((ROOT / page).read_text(encoding="utf-8")):
        before = match["before"] if match["before"] in ELSEWHERE else ""
        if before == marked and not NOT_RUN.fullmatch(match["before"]):
            kind, code = match["kind"], match["code"]
            if kind == "console":
                kind, code = "sh", "\n".join(ANYWHERE.findall(code))
            if code:
                yield Block(kind, code, match["before"] == ON_PURPOSE)


def run(
    page: str,
    folder: Path,
    settings: dict[str, str],
    places: dict[str, str],
    marked: str = "",
) -> None:
    """A page's blocks in order (`marked`: those below that line), with the test's `places` instead of the page's."""
    python_path = os.pathsep.join(filter(None, [str(LOCAL_ONLY), settings.get("PYTHONPATH")]))
    for kind, code, fails in blocks(page, marked):
        local = code.replace(".venv/bin/", "")
        for named, ours in places.items():
            local = local.replace(named, ours)
        command = ["bash", "-euo", "pipefail", "-c", local] if kind == "sh" else [str(PYTHON), "-c", local + EVERY_WAY]
        done = subprocess.run(
            command, cwd=folder, env=settings | {"PYTHONPATH": python_path},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert "asked for another machine" not in done.stderr, f"{code}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, f"{code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert bool(ERROR.search(done.stdout)) is fails, f"{code}\n{done.stdout[-3000:]}"
