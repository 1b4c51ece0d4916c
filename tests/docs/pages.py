"""The blocks of code in the documents, and how they are run."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.clients.environment import PYTHON

OBJECTS = "docs/how-to/object-storage.md"  # test_object_storage_page.py has a bucket
ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"(?P<before>[^\n]*)\n```(?P<kind>sh|python)\n(?P<code>.*?)\n```", re.S)
DEPLOY = "<!-- run by tests/deploy -->"
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
ON_PURPOSE = "<!-- an error, on purpose -->"
ERROR = re.compile(r'"error(_type)?":\s*["{]')
ADDRESS = "http://127.0.0.1:8000"


class Block(NamedTuple):
    kind: str
    code: str
    fails: bool


def blocks(page: str, *, deploy: bool = False) -> Iterator[Block]:
    """In order: those that need the page's server alone, or those that need an engine for containers."""
    for match in FENCE.finditer((ROOT / page).read_text(encoding="utf-8")):
        if (match["before"] == DEPLOY) is deploy and not NOT_RUN.fullmatch(match["before"]):
            yield Block(match["kind"], match["code"], match["before"] == ON_PURPOSE)


def run(
    page: str,
    folder: Path,
    settings: dict[str, str],
    places: dict[str, str],
    by_hand: Callable[[Path], object] = lambda folder: None,
) -> None:
    """A page's blocks in order, with the test's own `places` instead of the page's.

    `by_hand` does before each block what the page asks its reader to do in the folder.
    """
    for kind, code, fails in blocks(page):
        by_hand(folder)
        local = code.replace(".venv/bin/", "")
        for named, ours in places.items():
            local = local.replace(named, ours)
        command = ["bash", "-euo", "pipefail", "-c", local] if kind == "sh" else [str(PYTHON), "-c", local]
        done = subprocess.run(
            command, cwd=folder, env=settings, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert bool(ERROR.search(done.stdout)) is fails, f"{code}\n{done.stdout[-3000:]}"
