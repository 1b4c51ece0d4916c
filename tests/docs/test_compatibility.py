"""docs/reference/compatibility.md names tests that there are, all that run two releases, and this contract."""

import re

import isosim_client

from service import CONTRACT
from tests.docs.pages import ROOT
from tests.docs.test_reliability import names_in

PAGE = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE))
RELEASES = ("test_interfaces.py", "test_rollback.py", "test_upgrade.py")


def test_every_promise_and_every_pair_of_releases_names_tests_that_there_are() -> None:
    tables = re.findall(r"^\|.* tests \|\n\|-.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(tables) == 2
    without = [row for table in tables for row in table.splitlines() if "::" not in row.rstrip(" |").rsplit("|")[-1]]
    assert without == []
    assert [f"{file}::{name}" for file, name in NAMED if name not in names_in(ROOT / file)] == []


def test_every_test_that_runs_two_releases_is_named() -> None:
    of_two = {
        name
        for file in RELEASES
        for name in re.findall(
            r"^def (test_\w+)\([^)]*\brelease: Release", (ROOT / "tests/faults" / file).read_text(), re.MULTILINE
        )
    }
    assert len(of_two) > 5
    assert of_two <= {name for _, name in NAMED}


def test_page_and_client_state_the_servers_contract() -> None:
    assert f"now {CONTRACT}." in PAGE
    assert f"a client of contract {CONTRACT} |" in PAGE
    assert isosim_client.CONTRACT == CONTRACT
