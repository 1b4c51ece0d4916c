"""A browser, a server whose calibrations the tests run, and an analyst who notices what a page must not do."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isosim.encoders.store import EncoderStore
from isosim.jobs.job import Status
from isosim.jobs.matches import MatchStore
from isosim.jobs.posted import Posted, posted_rows
from isosim.store.blobs import opened
from tests.console.analyst import Analyst
from tests.processes import Process, Serve, Server, serve_with, skip_without
from tests.stores import copy_version, domains_of, jobs_of
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


def labelled(count: int) -> list[tuple[str, str, int]]:
    """Pairs of test sentences, labelled as matches where both speak of the same person."""
    some = sentences(count)
    pairs = zip(some, [*some[count // 3 :], *some[: count // 3]], strict=True)
    return [(a, b, int(a.split()[:2] == b.split()[:2])) for a, b in pairs]


@dataclass
class Site:
    """A server without a worker, and its store. The tests do a worker's part: a worker's processes load torch anew."""

    server: Server
    store: Path

    def get(self, path: str) -> Any:
        return self.server.client.get(path).raise_for_status().json()

    def post(self, path: str, **body: Any) -> Any:
        return self.server.client.post(path, json=body).raise_for_status().json()

    def work(self) -> None:
        """Runs the jobs that are queued."""
        from isosim.fitting.job import calibrate_job
        from isosim.fitting.matching import match_job

        jobs, domains, encoders = jobs_of(self.store), domains_of(self.store), EncoderStore.at(self.store)
        while attempt := jobs.claim("tests", lambda asked: domains.read(asked.domain).served(asked.encoder).champion):
            request = attempt.job.request
            with jobs.posted(attempt.job) as folder:
                encoder = encoders.find(request.encoder_id)
                if request.match is not None:
                    files = posted_rows(folder)
                    match = match_job(request, files, encoder, domains, lambda *_: None, threads=1)
                    attempt.publish()
                    results = MatchStore(opened(self.store), 86_400)
                    results.publish(attempt.job, files, match.found, match.scale.model, match.vectors)
                    attempt.end(Status.SUCCEEDED, version=None, promoted=False, report=match.report | {"notices": []})
                    continue
                given = Posted.from_folder(folder)
                made = calibrate_job(request, given, encoder, domains, lambda *_: None, threads=1)
            attempt.publish()
            end = made.publish(domains, attempt.job)
            report = made.report_with(end)
            attempt.end(Status.SUCCEEDED, version=end.version, promoted=end.promoted, report=report)

    def calibrate(self, domain: str, texts: list[str], **options: Any) -> str:
        """A version by a job, whose id is returned."""
        job: str = self.post("/calibrate", domain=domain, texts=texts, **options)["job"]
        self.work()
        return job

    def copies(self, domain: str, *versions: tuple[str, int], promote: bool = True) -> None:
        """A domain whose versions are copies of others, by default of one; the last is champion, unless none is."""
        for source, number in versions or [("letters", 2)]:
            copy_version(domains_of(self.store), source, number, domain, promote=promote)


@pytest.fixture(scope="package")
def site(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Letters with two versions, the second champion, and tickets with labels. No test changes these."""
    folder = tmp_path_factory.mktemp("site")
    store, running = folder / "store", list[Process]()
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    server = serve_with(folder, running, model_store=store, encoder="tiny", local_worker=False, max_queued_jobs=2)
    made = Site(server, store)
    made.calibrate("letters", sentences(600))
    made.calibrate("letters", sentences(900), method="whitening", promote="always")
    # The tiny encoder tells these matches hardly better than chance, so that only `always` promotes their map.
    made.calibrate("tickets", sentences(700), labels=labelled(300), promote="always")
    yield made
    for process in running:
        process.kill()


Visit = Callable[..., Analyst]


@pytest.fixture
def visit(browser: Any, site: Site, serve: Serve) -> Iterator[Visit]:
    """Opens the console of the site, or of another server. At the end an analyst may have no complaint.

    It asks for `serve` so that the pages are closed before the servers that they look at."""
    met: list[Analyst] = []

    def open_console(place: str = "", server: Server = site.server, **options: Any) -> Analyst:
        context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        met.append(Analyst.at(context, server.url))
        met[-1].go(place)
        return met[-1]

    yield open_console
    for analyst in met:
        analyst.page.context.close()
    assert [complaint for analyst in met for complaint in analyst.complaints()] == []
