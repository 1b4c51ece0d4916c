"""A served isosim for other people's clients; these tests run in an environment of their own, without our packages.

`tests/api/compatible/test_clients.py` starts the server and this suite; ISOSIM_URL and ISOSIM_KEY are its address
and its key.
"""

import os

import httpx
import pytest

TEXTS = ["A man is playing a guitar.", "Someone plays an instrument.", "Shares fell in London.", "Ein Satz, größer."]


@pytest.fixture(scope="session")
def url() -> str:
    return os.environ["ISOSIM_URL"]


@pytest.fixture(scope="session")
def key() -> str:
    return os.environ["ISOSIM_KEY"]


@pytest.fixture(scope="session")
def http(url: str, key: str) -> httpx.Client:
    """The server without anybody's client between, for what the clients should find."""
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)


@pytest.fixture(scope="session")
def vectors(http: httpx.Client) -> list[list[float]]:
    """TEXTS by our own route: calibrated, unit length."""
    found: list[list[float]] = http.post("/embed", json={"inputs": TEXTS}).raise_for_status().json()
    return found


@pytest.fixture(scope="session")
def similarities(http: httpx.Client) -> list[float]:
    """TEXTS[0] against the others."""
    pairs = [[TEXTS[0], text] for text in TEXTS[1:]]
    found: list[float] = http.post("/similarity", json={"pairs": pairs}).raise_for_status().json()["similarity"]
    return found
