"""The page on a server with keys."""

import hashlib
from pathlib import Path

import pytest

from tests.console.conftest import Visit
from tests.processes import Serve, Server
from tests.text import sentences


@pytest.fixture
def locked(serve: Serve, store: Path, tmp_path: Path) -> Server:
    """A server whose keys are `reader` and `owner`."""
    keys = tmp_path / "keys"
    granted = {"reader": "read", "owner": "read,calibrate,admin"}
    keys.write_text(
        "".join(f"{hashlib.sha256(k.encode()).hexdigest()} {scopes} domains=*\n" for k, scopes in granted.items())
    )
    return serve(model_store=store, encoder="tiny", api_keys_file=keys)


def test_it_asks_for_a_key_refuses_a_wrong_one_and_keeps_a_right_one_for_the_session(
    visit: Visit, locked: Server
) -> None:
    analyst = visit(locked)
    analyst.page.get_by_role("dialog").wait_for()
    assert analyst.focused() == "API key"
    analyst.fills("API key", "guess")
    analyst.page.keyboard.press("Enter")
    analyst.sees("The API key is not known. Enter a key the server knows.")
    analyst.fills("API key", "owner")
    analyst.answers("Use this key")
    analyst.sees("default")
    assert analyst.heading() == "Domains"
    analyst.page.reload()
    analyst.sees("raw cosine, no percentiles")
    assert "owner" not in analyst.page.content()
    assert analyst.page.evaluate("localStorage.length") == 0
    assert analyst.page.context.cookies() == []
    analyst.go("#/calibrate")
    analyst.fills("Or paste", "\n".join(sentences(300)))
    analyst.fills("Domain", "letters")
    analyst.page.get_by_text("More options").click()
    analyst.chooses("Method", "sn")
    analyst.presses("Start the calibration")
    analyst.sees("Version 1 of letters", 120)  # followed by an event stream that carries the key
    analyst.page.get_by_role("button", name="Key", exact=True).click()
    analyst.answers("Forget the key")
    analyst.sees("A key is needed")
    kept = analyst.page.evaluate("JSON.stringify(sessionStorage)")
    assert "owner" not in kept
    assert "isosim.key" not in kept


def test_a_read_only_key_is_told_what_it_lacks(visit: Visit, locked: Server) -> None:
    analyst = visit(locked)
    analyst.fills("API key", "reader")
    analyst.answers("Use this key")
    analyst.go("#/calibrate")
    analyst.fills("Or paste", "\n".join(sentences(300)))
    analyst.fills("Domain", "letters")
    analyst.sees("The API key lacks the scope 'calibrate'")  # the server would look at the text for it
    analyst.sees("Ask whoever runs the server for a key with that scope, or enter another one")
    analyst.page.get_by_role("button", name="Key", exact=True).click()
    analyst.fills("API key", "owner")
    analyst.answers("Use this key")


def test_whoever_declines_to_give_a_key_is_told_why_nothing_is_shown(visit: Visit, locked: Server) -> None:
    analyst = visit(locked)
    analyst.answers("Cancel")
    assert analyst.heading() == "A key is needed"
    analyst.presses("Enter a key")
    analyst.fills("API key", "reader")
    analyst.answers("Use this key")
    analyst.sees("raw cosine, no percentiles")
    assert analyst.heading() == "Domains"
