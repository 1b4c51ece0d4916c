"""The page on a server with keys."""

import hashlib
from pathlib import Path

import httpx
import pytest

from tests.console.conftest import Site, Visit
from tests.processes import Serve, Server, wait_until
from tests.text import sentences


@pytest.fixture
def locked(serve: Serve, site: Site, tmp_path: Path) -> Server:
    """Another server of the site, whose keys are `reader` and `owner`."""
    granted = {"reader": "read", "owner": "read,calibrate,admin"}
    lines = [f"{hashlib.sha256(key.encode()).hexdigest()} {scopes} domains=*\n" for key, scopes in granted.items()]
    (tmp_path / "keys").write_text("".join(lines))
    return serve(model_store=site.store, encoder="tiny", local_worker=False, api_keys_file=tmp_path / "keys")


def test_a_key_is_asked_for_kept_for_the_session_sent_with_everything_and_forgotten(
    visit: Visit, locked: Server, site: Site
) -> None:
    assert httpx.get(f"{locked.url}/console/server.json").json()["keys"] is True  # the page itself needs no key
    analyst = visit(server=locked)
    analyst.answers("Cancel")
    assert analyst.heading() == "A key is needed"
    analyst.presses("Enter a key")
    assert analyst.focused() == "API key"
    analyst.fills("API key", "guess")
    analyst.page.keyboard.press("Enter")
    analyst.sees("The API key is not known. Enter a key the server knows.")
    analyst.fills("API key", "reader")
    analyst.answers("Use this key")
    analyst.sees("Your matches")
    assert analyst.heading() == "Find matches"
    analyst.go("#/calibrate")
    analyst.fills("Or paste", "\n".join(sentences(300)))
    analyst.fills("Domain", "keyed")
    analyst.understood()  # a key that may read may look at a file
    analyst.presses("Start the calibration")
    assert "the API key lacks the scope 'calibrate'" in analyst.alert()
    analyst.sees("Ask whoever runs the server for a key with that scope, or enter another one")
    analyst.page.get_by_role("button", name="Key", exact=True).click()
    analyst.fills("API key", "owner")
    analyst.answers("Use this key")
    assert analyst.field("Or paste").input_value()  # what was entered outlives the change
    analyst.presses("Start the calibration")
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees("Version 1 of keyed")  # followed by an event stream that carries the key
    analyst.page.reload()
    analyst.sees("Version 1 of keyed")
    assert "owner" not in analyst.page.content()
    assert analyst.page.evaluate("localStorage.length") == 0
    assert analyst.page.context.cookies() == []
    analyst.page.get_by_role("button", name="Key", exact=True).click()
    analyst.answers("Forget the key")
    analyst.sees("A key is needed")
    kept = analyst.page.evaluate("JSON.stringify(sessionStorage)")
    assert "owner" not in kept
    assert "isosim.key" not in kept


def test_a_key_that_lacks_a_scope_is_told_and_one_that_is_revoked_is_asked_for_again(
    visit: Visit, locked: Server, tmp_path: Path
) -> None:
    analyst = visit("#/report/letters/1", locked)
    analyst.fills("API key", "reader")
    analyst.answers("Use this key")
    analyst.sees("For a false-match rate of 1 %")
    analyst.presses("Save this threshold")
    assert "The threshold fmr-0.01 was not saved: the API key lacks the scope 'admin'" in analyst.alert()
    lines = (tmp_path / "keys").read_text().splitlines(keepends=True)
    (tmp_path / "keys").write_text(lines[1])  # the owner's
    known = {"authorization": "Bearer reader"}
    wait_until(lambda: httpx.get(f"{locked.url}/domains", headers=known).status_code == 401, 60)
    analyst.presses("Save this threshold")
    analyst.sees("The API key is not known")
    analyst.fills("API key", "owner")
    analyst.answers("Use this key")
    analyst.sees("For a false-match rate of 1 %")
    analyst.presses("Save this threshold")
    analyst.sees("fmr-0.01")
