"""A server with domains and keys."""

from pathlib import Path

import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.scoring.calibration import DomainModel
from tests.core.scoring.references import MAP, REFERENCE
from tests.processes import Serve, Server
from tests.security.conftest import key_line
from tests.stores import domains_of, publish

OPEN, NARROW = "open", "narrow"


@pytest.fixture(scope="module")
def stocked(module_serve: Serve, module_store: Path, tiny: EncoderArtifact) -> Server:
    """Domains, one with labels, a key for all of them, and one for `invoices` alone."""
    for name in ("invoices", "tickets"):
        publish(domains_of(module_store), name, tiny, DomainModel(REFERENCE, probability=MAP), sentences=300)
    keys = module_store.parent / "keys"
    keys.write_text(key_line(OPEN, "read,calibrate,admin") + key_line(NARROW, "read domains=invoices,nothing*,tick"))
    return module_serve(model_store=module_store, encoder="tiny", api_keys_file=keys)
