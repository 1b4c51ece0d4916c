"""A server with domains and keys."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.scoring.calibration import DomainModel
from tests.core.scoring.references import MAP, REFERENCE
from tests.processes import Process, Server, serve_with
from tests.security.conftest import key_line
from tests.stores import domains_of, publish

OPEN, NARROW = "open", "narrow"


@pytest.fixture(scope="module")
def stocked(tiny_store: Path, tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Domains, one with labels, a key for all of them, and one for `invoices` alone."""
    folder = tmp_path_factory.mktemp("stocked")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    for name in ("invoices", "tickets"):
        publish(domains_of(folder / "store"), name, tiny, DomainModel(REFERENCE, probability=MAP), sentences=300)
    keys = folder / "keys"
    keys.write_text(key_line(OPEN, "read,calibrate,admin") + key_line(NARROW, "read domains=invoices,nothing*,tick"))
    running: list[Process] = []
    yield serve_with(folder, running, model_store=folder / "store", encoder="tiny", api_keys_file=keys)
    for process in running:
        process.kill()
