"""isosim sends nothing to machines that its user did not name, and writes only to the store and its output."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderStore
from tests.faults.conftest import root
from tests.security.isolated import NAMESPACES
from tests.stores import domains_of, publish
from tests.text import sentences

pytestmark = root
ROOT = Path(__file__).parents[2]
WATCHED = ("home", "tmp", "cwd")
USES = [
    "serve",
    "openvino",
    "worker",
    "similarity ../pairs.tsv",
    "embed ../texts.txt",
    "calibrate ../texts.txt --domain tickets",
    "bulk score ../pairs.csv ../scores --device cpu",
    "export --encoder ../checkpoint --id again",
    "bundle default --output ../bundle.onnx",
    "train simcse ../texts.txt --output ../trained --encoder ../checkpoint --steps 2",
    "doctor",
]
Use = Callable[[str], str]


@pytest.fixture
def folder(tiny_store: Path, tiny_checkpoint: Path) -> Iterator[Path]:
    """Its path is short, because Ray makes sockets in the temporary folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
        shutil.copytree(tiny_checkpoint, folder / "checkpoint")
        publish(domains_of(folder / "store"), "default", EncoderStore.at(folder / "store").find("tiny"))
        texts = [text.replace(",", "") for text in sentences(400)]
        pairs = list(pairwise(texts))
        (folder / "texts.txt").write_text("\n".join(texts))
        (folder / "pairs.tsv").write_text("\n".join(f"{a}\t{b}" for a, b in pairs))
        (folder / "pairs.csv").write_text("\n".join(["a,b", *(f"{a},{b}" for a, b in pairs)]))
        for name in WATCHED:
            (folder / name).mkdir()
        yield folder


@pytest.fixture
def use(folder: Path) -> Use:
    """Uses isosim in namespaces of its own. Returns what it would have sent to other machines."""

    def used(words: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ISOSIM_", "ORT_", "XDG_"))}
        given = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
        inside = ["unshare", "--net", "--mount", "sh", "-c", NAMESPACES, "sh", str(folder)]
        done = subprocess.run(
            [*inside, sys.executable, "-m", "tests.security.isolated", *words.split()],
            env=kept | given, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return "\n".join(line for line in done.stdout.splitlines() if line.startswith("sent: "))

    return used


@pytest.mark.parametrize("words", USES)
def test_nothing_is_sent_elsewhere_and_nothing_is_left_elsewhere(words: str, use: Use, folder: Path) -> None:
    assert use(words) == ""
    assert [str(path) for name in WATCHED for path in (folder / name).rglob("*")] == []


def test_a_look_up_would_be_noticed(use: Use) -> None:
    assert "example" in use("look_up")
