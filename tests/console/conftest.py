"""A browser, servers for it to look at, and an analyst who notices whatever the page should not do."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.processes import Process, Server, serve_with, skip_without
from tests.text import sentences


@pytest.fixture(scope="package")  # not the session: Playwright's loop would stop other tests from running one
def browser() -> Iterator[Any]:
    """Headless Chromium: the system's, or the one in ISOSIM_CHROMIUM."""
    from playwright import sync_api

    binary = os.environ.get("ISOSIM_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not binary:
        skip_without("no chromium (Debian: apt-get install chromium), nor ISOSIM_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield launched
        launched.close()


Visit = Callable[..., Analyst]


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """Opens the console of a server for an analyst. At the end nothing unseemly may have happened."""
    met: list[Analyst] = []

    def open_console(server: Server, place: str = "", **options: Any) -> Analyst:
        context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        met.append(Analyst.at(context, server))
        met[-1].go(place)
        return met[-1]

    yield open_console
    for analyst in met:
        complaints = analyst.complaints()
        analyst.page.context.close()
        assert complaints == []


def labelled(count: int) -> list[tuple[str, str, int]]:
    """Pairs of test sentences, labelled as matches where both speak of the same person."""
    some = sentences(count)
    pairs = zip(some, [*some[count // 3 :], *some[: count // 3]], strict=True)
    return [(a, b, int(a.split()[:2] == b.split()[:2])) for a, b in pairs]


@pytest.fixture(scope="package")
def shown(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose domains the tests look at and do not change: letters with two versions, tickets with labels."""
    folder = tmp_path_factory.mktemp("shown")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    running: list[Process] = []
    server = serve_with(folder, running, model_store=folder / "store", encoder="tiny")
    server.calibrate("letters", sentences(600))
    server.calibrate("letters", sentences(900), method="whitening", promote="always")
    # The tiny encoder tells these matches hardly better than chance, so that only `always` promotes their map.
    server.calibrate("tickets", sentences(700), labels=labelled(300), promote="always")
    yield server
    for process in running:
        process.kill()
