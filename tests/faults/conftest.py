"""What faults are made with: a volume of its own, a line to Redis, domains ready to be broken."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderStore
from tests.faults.volume import Volume, mount
from tests.stores import calibrate

ROOM = 12_000_000  # bytes beside the encoder: some posted texts and versions

root = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("ISOSIM_REQUIRE_ALL") != "1",
    reason="only root may mount file systems and make networks",
)


@pytest.fixture
def volume(tmp_path: Path, tiny_store: Path) -> Iterator[Volume]:
    """A volume with the tiny encoder. Name it before `serve`, so that servers go first."""
    found = Volume(tmp_path / "volume")
    found.path.mkdir()
    needed = sum(file.stat().st_size for file in tiny_store.rglob("*") if file.is_file())
    mount("-t", "tmpfs", "-o", f"size={needed + ROOM}", "isosim-test", str(found.path))
    shutil.copytree(tiny_store / "encoders", found.store / "encoders")
    yield found
    subprocess.run(["umount", "--lazy", str(found.path)], check=True)


@pytest.fixture(scope="session")
def news_store(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder; `news@1` whitening and `news@2` (champion) sn, `films@1` soft; copy it before writing to it."""
    store = tmp_path_factory.mktemp("news") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    artifact = EncoderStore.at(store).find("tiny")
    for domain, method in (("news", "whitening"), ("news", "sn"), ("films", "soft")):
        calibrate(store, artifact, domain, method)
    return store


@pytest.fixture
def news(news_store: Path, tmp_path: Path) -> Path:
    """A copy of the test's own."""
    shutil.copytree(news_store, tmp_path / "news")
    return tmp_path / "news"
