"""The page's files: complete, unchanged, from this host alone, and open to whoever has no key yet."""

import hashlib
import re
import time
from pathlib import Path

import httpx
import pytest

import isosim
from isosim.api.pages import CONSOLE
from tests.processes import Serve, Server

FOLDER = Path(isosim.__file__).parent / "console"
OWN = sorted(path for path in FOLDER.iterdir() if path.suffix in {".js", ".css", ".html", ".svg"})


def test_the_page_comes_with_a_policy_that_knows_no_exception(tiny_server: Server) -> None:
    response = tiny_server.client.get("/console")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    for name in re.findall(r'(?:href|src)="(console/[^"]+)"', response.text):
        assert tiny_server.client.get("/" + name).status_code == 200, name


TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def test_files_have_their_types_and_are_sent_once(tiny_server: Server) -> None:
    for path in [*OWN, FOLDER / "vendor" / "chart.umd.min.js"]:
        name = path.relative_to(FOLDER)
        first = tiny_server.client.get(f"/console/{name}")
        assert first.status_code == 200
        assert first.headers["content-type"].split(";")[0] == TYPES[path.suffix]
        assert first.content == path.read_bytes()
        again = tiny_server.client.get(f"/console/{name}", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]


@pytest.mark.parametrize(
    "name", ["nothing.js", "%2e%2e/cli.py", "..%2fcli.py", "..%5ccli.py", "%2fetc%2fpasswd", "%00", "vendor", "vendor/"]
)
def test_nothing_else_is_served(tiny_server: Server, name: str) -> None:
    response = tiny_server.client.get(f"/console/{name}")
    assert (response.status_code, response.json()["error_type"]) == (404, "NotFound")


def test_a_path_of_very_many_parts_is_not_looked_for() -> None:
    """The file system would be asked for each part, which took 3 s."""
    begun = time.process_time()
    assert CONSOLE.lookup_path("a/" * 200_000) == ("", None)
    assert time.process_time() - begun < 0.1


def test_a_slash_too_many_leads_to_the_page(tiny_server: Server) -> None:
    response = tiny_server.client.get("/console/", follow_redirects=True)
    assert (response.status_code, str(response.url)) == (200, f"{tiny_server.url}/console")


def test_chart_js_is_the_file_whose_hash_is_written_down() -> None:
    line = next(li for li in (FOLDER / "vendor" / "README.md").read_text().splitlines() if "chart.umd.min.js" in li)
    written = re.search(r"\b[0-9a-f]{64}\b", line)
    assert written
    assert hashlib.sha256((FOLDER / "vendor" / "chart.umd.min.js").read_bytes()).hexdigest() == written.group()
    assert "4.6.1" in line
    assert (FOLDER / "vendor" / "chart.umd.min.js").read_text()[:60].count("Chart.js v4.6.1") == 1
    assert "MIT License" in (FOLDER / "vendor" / "chart.js-LICENSE.md").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_files_write_text_as_text_and_name_no_other_host(path: Path) -> None:
    content = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", content)
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", content)
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=", content)


def test_the_page_needs_no_key_and_what_it_shows_does(serve: Serve, store: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'secret').hexdigest()} read domains=*\n")
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    assert httpx.get(f"{server.url}/console").status_code == 200
    facts = httpx.get(f"{server.url}/console/server.json").json()
    assert facts["keys"] is True
    assert (facts["encoder"]["id"], facts["encoder"]["dim"]) == ("tiny", 32)
    assert facts["fewest"]["auto"] == 200
    assert facts["limits"]["characters"] == 10_000
    for path in ("/domains", "/calibrate"):
        assert httpx.get(server.url + path).status_code == 401
