"""Damaged files of a store, and what a server says about them."""

import httpx

from tests.processes import Server
from tests.text import sentences

GARBAGE = (  # for a domain's record
    "",
    "{",
    "[]",
    '{"revision": 3, "aliases": {"DIGEST": 5}}',
    '{"revision": 3, "aliases": {"DIGEST": {"champion": [2]}}}',
)


def ask(server: Server, domain: str) -> httpx.Response:
    return server.client.post("/similarity", json={"pairs": [sentences(2)], "domain": domain})


def refused(response: httpx.Response, word: str) -> None:
    assert (response.status_code, response.json()["error_type"]) == (503, "Unavailable"), response.text
    assert word in response.text
