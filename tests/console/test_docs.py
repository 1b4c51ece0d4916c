"""/docs: Swagger UI without the internet."""

import re

import pytest

from tests.console.conftest import Visit
from tests.processes import Server


def test_the_page_names_no_other_host(tiny_server: Server) -> None:
    response = tiny_server.client.get("/docs")
    assert response.status_code == 200
    names = re.findall(r'(?:href|src)="([^"]+)"', response.text)
    assert len(names) == 4
    for text in (response.text, tiny_server.client.get("/console/docs.js").text):
        assert not re.search(r"https?:|(href|src)=\"//", text)
    for name in names:
        assert tiny_server.client.get(f"/{name}").status_code == 200, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_routes_are_shown_and_nothing_is_fetched_from_elsewhere(
    visit: Visit, tiny_server: Server, scheme: str
) -> None:
    analyst = visit(tiny_server, color_scheme=scheme)
    analyst.page.goto(f"{tiny_server.url}/docs")
    analyst.page.get_by_text("/similarity").first.wait_for()
    analyst.page.locator("#operations-scoring-similarity").get_by_role("button").first.click()
    analyst.sees("Try it out")
    assert analyst.complaints() == []
