"""A store of many domains: a start loads none of them, each is loaded once asked for, and no more than fit stay."""

import re
from pathlib import Path

import pytest

from isosim.domains.registry import OVERHEAD
from isosim.encoders.store import EncoderArtifact
from loadtest.servers import multiply
from tests.commands.conftest import calibrate
from tests.faults.load import metric
from tests.processes import Serve, Server
from tests.stores import domains_of

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


def test_pages_hold_every_domain_once_and_in_order(crowded: Server) -> None:
    everything = crowded.client.get("/domains").json()
    assert everything["next"] is None
    names = [found["domain"] for found in everything["domains"]]
    assert names == sorted(["default", *(f"d{number}" for number in range(COUNT))])
    for limit in (70, (COUNT + 1) // 7):  # the second fills its last page to the brim
        seen, after = [], ""
        while after is not None:
            page = crowded.client.get("/domains", params={"limit": limit, "after": after}).json()
            assert 0 < len(page["domains"]) <= limit
            seen += page["domains"]
            after = page["next"]
        assert seen == everything["domains"]


@pytest.mark.parametrize(
    ("query", "found", "after"),
    [
        ("contains=99", ["d199", "d299", "d99"], None),
        ("contains=99&limit=2", ["d199", "d299"], "d299"),
        ("contains=99&limit=2&after=d299", ["d99"], None),
        ("contains=efau", ["default"], None),
        ("contains=efau&after=default", [], None),
    ],
)
def test_a_page_of_a_search_holds_what_has_the_word_in_its_name(
    crowded: Server, query: str, found: list[str], after: str | None
) -> None:
    page = crowded.client.get(f"/domains?{query}").json()
    assert ([one["domain"] for one in page["domains"]], page["next"]) == (found, after)
