"""Client of OpenAI's `POST /v1/embeddings` that does not trust the server.

It limits the size and duration of every answer, checks the whole answer, follows no redirect, and connects to no
link-local address.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpcore2
import httpx2
import numpy as np
import orjson

from isosim.arrays import Vectors
from isosim.encoders.brought import faults, vector_of
from isosim.encoders.store import Endpoint
from isosim.errors import InvalidInput

CONNECT_SECONDS = 5.0
KEY_BYTES = 8192
ANSWER_BYTES = 200_000  # maximum bytes of an answer, in addition to the bytes of its vectors
BYTES_A_NUMBER = 32  # maximum bytes of one number of a vector in JSON
RETRIED = {408, 429, 500, 502, 503, 504}
WHATEVER_IS_SENT = {401, 403, 404, 405, 408, 429}  # statuses below 500 that do not depend on the texts sent
SAID = 200  # maximum characters quoted from a server's error message
METADATA = {ipaddress.ip_address("fd00:ec2::254")}  # address of a cloud's metadata service; it is not link-local


def checked_url(url: str) -> str:
    """Checks a server's address, for example http://127.0.0.1:8080/v1. Returns the address without slashes and
    `/embeddings` at the end.

    Raises:
        InvalidInput: the address is not http or https, contains a password or a query, or is link-local.
    """
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        wrong = wrong or not (parts.hostname or "").encode("idna").isascii() or " " in url
    except ValueError:  # includes UnicodeError: the host is not a valid name
        wrong = True
    if wrong:
        raise InvalidInput(f"{url!r} is not an address like http://127.0.0.1:8080/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInput(
            "the address contains a password or a query: remove it, and pass a key in a file (--key-file)"
        )
    refuse_link_local(str(parts.hostname))
    return url.rstrip("/").removesuffix("/embeddings")


def refuse_link_local(host: str) -> None:
    """Raises InvalidInput if `host` is a link-local address or in METADATA. At these addresses, clouds serve secrets of
    the machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a host name; it is checked after it is resolved
        return
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_link_local or address in METADATA:
        raise InvalidInput(
            f"{host} is a link-local address, where clouds keep their machines' secrets; no request is sent there"
        )


class CheckedBackend(httpcore2.AnyIOBackend):
    """Opens connections, but none to a link-local address, even if a host name resolves to one."""

    async def connect_tcp(self, host: str, *arguments: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        for address in addresses:
            refuse_link_local(address)
        # The checked addresses are used, not the name: resolved again, it may give another address.
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await super().connect_tcp(address, *arguments, **options)
        return await super().connect_tcp(addresses[-1], *arguments, **options)


@dataclass(eq=False)
class Refusal(Exception):
    """Raised if a request gives no vectors. `why` is the reason, `status` the HTTP status (0: no answer)."""

    why: str
    status: int = 0
    retry_after: int = 1  # s
    of_texts: bool = False  # True if these texts are the reason; the server may accept other texts

    @property
    def again(self) -> bool:
        """Whether another attempt may succeed."""
        return self.status == 0 or self.status in RETRIED


class OtherDimension(Refusal):
    """The vectors have another dimension than the registered model."""


class EmbeddingsClient:
    """Converts texts to vectors with one HTTP request per call. An async context manager; lives on one event loop.

    It uses no proxy and follows no redirect. It does not check that the vectors come from the registered model;
    `RemoteEncoder` checks this with probes.
    """

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        self.endpoint = endpoint
        url = httpx2.URL(f"{endpoint.url.rstrip('/')}/embeddings")
        self.host = url.netloc
        self.url = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        self.pool = httpcore2.AsyncConnectionPool(max_connections=connections, network_backend=CheckedBackend())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.aclose()

    async def __call__(self, texts: Sequence[str], dim: int | None, seconds: float) -> Vectors:
        """Vectors (N, D) in the order of the texts, within `seconds`. If `dim` is None, any dimension is accepted.

        Raises:
            Refusal: the server does not answer, its answer has no usable vectors, its address is link-local, or the
                key file cannot be read.
        """
        key = self._key()
        most = ANSWER_BYTES + len(texts) * BYTES_A_NUMBER * (dim or 16_384)
        try:
            async with asyncio.timeout(seconds):
                status, body, retry_after = await self._post(self._body(texts), most, key)
        except InvalidInput as error:  # the host name resolves to a link-local address
            raise Refusal(str(error), 403) from error
        except (TimeoutError, httpcore2.TimeoutException) as error:
            raise Refusal("it does not answer in time") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
            raise Refusal(reason(error)) from error
        if status != 200:
            why = said(status, body)
            of_texts = 400 <= status < 500 and status not in WHATEVER_IS_SENT
            raise Refusal(why.replace(key, "…") if key else why, status, retry_after, of_texts)
        return vectors_in(body, len(texts), dim)

    def _body(self, texts: Sequence[str]) -> bytes:
        body: dict[str, Any] = {"model": self.endpoint.model, "input": list(texts)}
        if self.endpoint.encoding == "base64":
            body["encoding_format"] = "base64"
        return orjson.dumps(body)

    async def _post(self, body: bytes, most: int, key: str | None) -> tuple[int, bytes, int]:
        """The status, body (at most `most` bytes) and Retry-After of the answer."""
        headers: dict[bytes | str, bytes | str] = {"host": self.host, "user-agent": "isosim"}
        headers |= {"content-type": "application/json", "accept-encoding": "identity"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        extensions = {"timeout": {"connect": CONNECT_SECONDS}}
        async with self.pool.stream("POST", self.url, headers=headers, content=body, extensions=extensions) as response:
            content = bytearray()
            async for piece in response.aiter_stream():
                content += piece
                if len(content) > most:
                    raise Refusal(f"its answer has more than {most:,} bytes", 200)
        after = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
        return response.status, bytes(content), int(after) if after.isdigit() and len(after) < 4 else 1

    def _key(self) -> str | None:
        """The key in the key file; None if there is no key file. Raises Refusal if the file cannot be read or has no
        key."""
        if self.endpoint.key_file is None:
            return None
        try:
            with Path(self.endpoint.key_file).open("rb") as file:
                key = file.read(KEY_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Refusal(f"its key cannot be read from {self.endpoint.key_file}", 401) from error
        if not key or any(sign <= " " or sign == "\x7f" for sign in key):
            raise Refusal(f"{self.endpoint.key_file} holds no key, or more than one line", 401)
        return key


def reason(error: BaseException) -> str:
    """The cause of an error, without the names of the libraries that passed it on."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):
        return os.strerror(error.errno)
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(words.split())[:SAID]


def said(status: int, body: bytes) -> str:
    """Describes an answer whose status is not 200, and quotes the server's message if it sent one."""
    if status in (401, 403):  # the message is not quoted: some servers repeat the key in it
        return f"it answers {status}: it refuses the key, or needs one"
    if 300 <= status < 400:
        return f"it answers {status}, a redirect, which is not followed; give the address that it leads to"
    try:
        parsed = orjson.loads(body)
        found = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
        words = found.get("message", found.get("detail", found)) if isinstance(found, dict) else found
    except orjson.JSONDecodeError:
        words = ""  # nothing to quote: the body is an HTML page, for example
    hint = "; does the address end with /v1?" if status == 404 else ""
    return f"it answers {status}: {' '.join(str(words).split())[:SAID]}".rstrip(": ") + hint


def vectors_in(body: bytes, count: int, dim: int | None) -> Vectors:
    """The vectors (N, D) of an answer, ordered by `index`. Raises Refusal if the body is not a valid answer."""
    try:
        entries = orjson.loads(body)["data"]
        rows = {entry["index"]: vector_of(entry["embedding"]) for entry in entries}
    except orjson.JSONDecodeError:
        raise Refusal("its answer is no JSON", 200) from None
    except (KeyError, TypeError, InvalidInput):
        raise Refusal("its answer is not a valid answer of /v1/embeddings", 200) from None
    if len(entries) != count:
        raise Refusal(f"it answers with {len(entries)} vectors for {count} texts", 200)
    if any(type(row) is not int for row in rows) or sorted(rows) != list(range(count)):
        raise Refusal("the values of `index` in its answer must be 0, 1, 2, …, one for each text", 200)
    dims = sorted({len(vector) for vector in rows.values()})
    if len(dims) != 1:
        raise Refusal(f"its vectors have {', '.join(map(str, dims))} dimensions; all must have the same number", 200)
    if dim is not None and dims != [dim]:
        raise OtherDimension(f"its vectors have {dims[0]} dimensions, not {dim}", 200)
    matrix: Vectors = np.stack([rows[row] for row in range(count)])
    for fault in faults(matrix, unit=False).values():
        raise Refusal(f"a vector {fault}", 200, of_texts=True)
    return matrix
