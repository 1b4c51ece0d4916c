"""A store of many domains: a start loads none of them, each is loaded once asked for, and no more than fit stay."""

import re
from pathlib import Path

import pytest

from isosim.domains.registry import OVERHEAD
from isosim.encoders.store import EncoderArtifact
from loadtest.servers import multiply
from tests.faults.load import metric
from tests.processes import Serve, Server
from tests.stores import calibrate, domains_of

COUNT = 300
ROOM = 20  # domains


@pytest.fixture(scope="module")
def crowded(module_serve: Serve, module_store: Path, tiny: EncoderArtifact) -> Server:
    """A server with room for few of its domains: d0 … d299, and `default` without a version."""
    calibrate(module_store, tiny, "d0", "whitening")
    multiply(module_store, COUNT)
    size = domains_of(module_store).load("d0", 1).size + OVERHEAD
    return module_serve(model_store=module_store, encoder="tiny", resident_bytes=ROOM * size)


def ask(server: Server, domain: str) -> dict[str, object]:
    response = server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": domain})
    assert response.status_code == 200, response.text
    answer: dict[str, object] = response.json()
    return answer


def series(server: Server) -> set[str]:
    """Domains with a champion's series."""
    return set(re.findall(r'^isosim_domain_champion_info{domain="(\w+)"', server.client.get("/metrics").text, re.M))


def test_a_start_loads_nothing_and_what_is_asked_for_stays_within_its_room(crowded: Server) -> None:
    assert metric(crowded, "isosim_resident_calibration_bytes") == 0
    for number in range(2 * ROOM):
        assert (ask(crowded, f"d{number}")["version"], ask(crowded, "d0")["domain"]) == (1, "d0")
    held = series(crowded)
    assert len(held) == ROOM
    assert {"d0", f"d{2 * ROOM - 1}"} <= held  # asked for last
    assert "d1" not in held
    size = metric(crowded, "isosim_resident_calibration_bytes")
    assert size > 0
    ask(crowded, "d1")
    assert metric(crowded, "isosim_resident_calibration_bytes") == size
    assert "d1" in series(crowded)


def test_pages_hold_every_domain_once_and_in_order_or_those_with_a_word_in_their_names(crowded: Server) -> None:
    everything = crowded.client.get("/domains").json()
    assert everything["next"] is None
    names = [found["domain"] for found in everything["domains"]]
    assert names == sorted(["default", *(f"d{number}" for number in range(COUNT))])
    for limit, word in ((70, ""), ((COUNT + 1) // 7, ""), (2, "99"), (1, "efau")):  # the second fills its last page
        seen, after = [], ""
        while after is not None:
            query: dict[str, str | int] = {"limit": limit, "after": after, "contains": word}
            page = crowded.client.get("/domains", params=query).json()
            assert len(page["domains"]) <= limit
            seen += page["domains"]
            after = page["next"]
        assert seen == [found for found in everything["domains"] if word in found["domain"]]
