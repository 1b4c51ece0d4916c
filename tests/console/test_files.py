"""What the browser is given: files from this host alone, under a policy without exceptions, open to all."""

import hashlib
import re
import time
from pathlib import Path

import pytest

import isosim
from isosim.api.pages import CONSOLE
from tests.console.conftest import Site, Visit
from tests.processes import Server

FOLDER = Path(isosim.__file__).parent / "console"
CHART = FOLDER / "vendor" / "chart.umd.min.js"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
OWN = sorted(path for path in FOLDER.iterdir() if path.suffix in TYPES)


@pytest.mark.parametrize("page", ["console", "docs"])
def test_a_page_names_no_other_host_and_all_that_it_names_is_there(tiny_server: Server, page: str) -> None:
    content = tiny_server.client.get(f"/{page}").raise_for_status().text
    names = re.findall(r'(?:href|src)="([^#"][^"]*)"', content)
    assert len(names) > 3
    for name in names:
        assert not re.match("https?:|//", name)
        assert tiny_server.client.get(f"/{name}").status_code == 200, name


def test_the_policy_of_the_page_knows_no_exception(tiny_server: Server) -> None:
    headers = tiny_server.client.get("/console/", follow_redirects=True).headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_files_have_their_types_and_are_sent_once(tiny_server: Server) -> None:
    for path in [*OWN, CHART]:
        place = f"/console/{path.relative_to(FOLDER)}"
        first = tiny_server.client.get(place)
        assert (first.headers["content-type"].split(";")[0], first.content) == (TYPES[path.suffix], path.read_bytes())
        again = tiny_server.client.get(place, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])


@pytest.mark.parametrize("name", ["nothing.js", "%2e%2e/cli.py", "..%5ccli.py", "%2fetc%2fpasswd", "%00", "vendor/"])
def test_nothing_else_is_served(tiny_server: Server, name: str) -> None:
    response = tiny_server.client.get(f"/console/{name}")
    assert (response.status_code, response.json()["error_type"]) == (404, "NotFound")


def test_a_path_of_very_many_parts_is_not_looked_for() -> None:
    """The file system would be asked for each part, which took 3 s."""
    begun = time.process_time()
    assert CONSOLE.lookup_path("a/" * 200_000) == ("", None)
    assert time.process_time() - begun < 0.1


def test_chart_js_is_the_file_whose_hash_is_written_down() -> None:
    line = next(li for li in (FOLDER / "vendor" / "README.md").read_text().splitlines() if CHART.name in li)
    assert hashlib.sha256(CHART.read_bytes()).hexdigest() in line


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_files_write_text_as_text_and_name_no_other_host(path: Path) -> None:
    content = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", content)
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", content)
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=", content)


def test_the_document_of_the_api_is_shown_without_the_internet(visit: Visit, site: Site) -> None:
    analyst = visit()
    analyst.page.goto(f"{site.server.url}/docs")
    analyst.page.locator("#operations-scoring-similarity").get_by_role("button").first.click()
    analyst.sees("Try it out")
