"""Where calls meet httpx: settings, requests, and the one place in which its errors become ours."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from ._call import Call
from ._version import __version__
from .errors import ConnectionFailed, ConnectionLost, NoAnswer, TimedOut

CONNECT_SECONDS = 5.0  # httpx's default; a server that listens is there sooner
TIMEOUT = 30.0  # s of silence; unmeasured, above what a full request of 512 pairs takes on two cores

# The lookup walks the error's own bases in order.
TABLE: dict[type[httpx.RequestError], tuple[type[NoAnswer], str]] = {
    httpx.ConnectError: (ConnectionFailed, "no connection"),
    httpx.ConnectTimeout: (ConnectionFailed, "no connection in time"),
    httpx.PoolTimeout: (ConnectionFailed, "no free connection in time"),
    httpx.ProxyError: (ConnectionFailed, "the proxy made no connection"),
    httpx.NetworkError: (ConnectionLost, "the connection broke"),
    httpx.RemoteProtocolError: (ConnectionLost, "the connection broke"),
    httpx.TimeoutException: (TimedOut, "no answer in time"),
    httpx.RequestError: (NoAnswer, "the request could not be made"),
}


@contextmanager
def translated() -> Iterator[None]:
    """Raises ours for every error of httpx's."""
    try:
        yield
    except httpx.RequestError as error:
        kind, what = next(TABLE[base] for base in type(error).__mro__ if base in TABLE)
        raise kind(f"{what}: {error}" if str(error) else what) from error


def settings(base_url: str, api_key: str | None) -> dict[str, Any]:
    """What httpx's clients are made with.

    Raises:
        ValueError: no http address, or a key no header can hold; the message does not repeat the key.
    """
    if not re.match(r"https?://[^/]", base_url):
        raise ValueError(f"base_url {base_url!r}: expected http://host:port or https://host")
    headers = {"user-agent": f"isosim-client/{__version__}", "accept": "application/json"}
    if api_key is not None:
        if not re.fullmatch(r"[\x21-\x7e]+", api_key):
            raise ValueError("api_key: expected printable ASCII without spaces; does it end in a line break?")
        headers["authorization"] = f"Bearer {api_key}"
    return {"base_url": base_url, "headers": headers}


def request(
    http: httpx.Client | httpx.AsyncClient,
    call: Call[Any],
    timeout: float,
    content: Iterator[bytes] | AsyncIterator[bytes] | None,
) -> httpx.Request:
    """The call for httpx; `content` is its upload, if it has one."""
    headers, body = dict(call.headers), content
    if call.upload is not None:
        headers["content-type"] = call.upload.content_type
    elif call.body is not None:
        headers["content-type"] = "application/json"
    return http.build_request(
        call.method,
        call.path,
        params=dict(call.query),
        headers=headers,
        content=json_bytes(call.body) if body is None and call.body is not None else body,
        timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
    )


def json_bytes(value: Any) -> bytes:
    """Raises ValueError for half of a surrogate pair and for numbers that are none."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
