"""Client of OpenAI's `POST /v1/embeddings` that does not trust the server.

It limits the size and duration of every answer, checks the whole answer, follows no redirect, and connects to no
link-local address.
"""

import binascii
import contextlib
import ipaddress
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from isosim.arrays import Vectors
from isosim.encoders.store import Endpoint
from isosim.errors import InvalidInput

CONNECT_SECONDS = 5.0
KEY_BYTES = 8192
CHUNK = 65_536  # bytes
ANSWER_BYTES = 200_000  # maximum bytes of an answer, in addition to the bytes of its vectors
BYTES_A_NUMBER = 32  # maximum bytes of one number of a vector in JSON
RETRIED = {408, 429, 500, 502, 503, 504}
WHATEVER_IS_SENT = {401, 403, 404, 405, 408, 429}  # statuses below 500 that do not depend on the texts sent
SAID = 200  # maximum characters quoted from a server's error message
TOO_LATE = "it does not answer in time"
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


class Watchdog:
    """Ends requests that exceed their time limit. One thread watches all requests.

    A socket's own timeout is not enough: it restarts with every byte, so a server that sends its answer byte by byte
    never exceeds it.
    """

    def __init__(self) -> None:
        self._some = threading.Condition()
        # By thread id: deadline of its request (s, monotonic clock), the request's owner, and its socket.
        self._under_way: dict[int, tuple[float, object, socket.socket | None]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, until: float, owner: object) -> Iterator[None]:
        """Watches the one request that the calling thread makes inside this context."""
        with self._some:
            if self._thread is None or not self._thread.is_alive():  # a forked process does not inherit threads
                self._thread = threading.Thread(target=self._watch, name="remote-watchdog", daemon=True)
                self._thread.start()
            self._under_way[threading.get_ident()] = until, owner, None
            self._some.notify()
        try:
            yield
        finally:
            with self._some:
                del self._under_way[threading.get_ident()]

    def attach(self, connected: socket.socket) -> None:
        """Registers the socket of the calling thread's request, so that the request can be ended."""
        with self._some:
            found = self._under_way.get(threading.get_ident())
            if found is not None:
                self._under_way[threading.get_ident()] = *found[:2], connected

    def end(self, owner: object) -> None:
        """Ends all requests of an owner at the next check, within `WATCH_SECONDS`."""
        with self._some:
            for thread, (_, whose, connected) in self._under_way.items():
                if whose is owner:
                    self._under_way[thread] = -math.inf, owner, connected

    def _watch(self) -> None:
        while True:
            with self._some:
                self._some.wait_for(lambda: self._under_way)
                now = time.monotonic()
                late = [connected for until, _, connected in self._under_way.values() if connected and until < now]
            for connected in late:
                with contextlib.suppress(OSError):
                    # Shuts the TCP socket down. `SSLSocket.shutdown` would also drop the TLS state, which the thread of
                    # the request is still using.
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)
            time.sleep(WATCH_SECONDS)


WATCHDOG, WATCH_SECONDS = Watchdog(), 0.25


class CheckedConnection(HTTPConnection):
    """Refuses to connect to a link-local address, even if the URL contains a host name that resolves to it."""

    def _new_conn(self) -> socket.socket:
        for *_, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            refuse_link_local(str(address[0]))
        connected = super()._new_conn()
        try:
            # `super()._new_conn` has resolved the name again, and may have got an address that was not checked above.
            refuse_link_local(str(connected.getpeername()[0]))
        except BaseException:
            connected.close()
            raise
        return connected

    def request(self, *arguments: Any, **options: Any) -> None:
        super().request(*arguments, **options)
        if isinstance(self.sock, socket.socket):
            WATCHDOG.attach(self.sock)


class CheckedTlsConnection(CheckedConnection, HTTPSConnection):
    """A `CheckedConnection` with TLS. Certificates are verified against the system's certificate authorities."""


class HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = CheckedConnection


class HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = CheckedTlsConnection


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


class Conversation:
    """Converts texts to vectors over HTTP, with one request per call. Thread-safe.

    Does not check that the vectors come from the registered model; `RemoteEncoder` checks this with probes.
    """

    def __init__(self, endpoint: Endpoint, requests: int) -> None:
        self.endpoint = endpoint
        parts = urlsplit(endpoint.url)
        pool = HTTPSPool if parts.scheme == "https" else HTTPPool
        self.pool = pool(str(parts.hostname), parts.port, maxsize=requests, block=False)
        self.path = f"{parts.path.rstrip('/')}/embeddings"

    def __call__(self, texts: Sequence[str], dim: int | None, seconds: float) -> Vectors:
        """Vectors (N, D) in the order of the texts, within `seconds`. If `dim` is None, any dimension is accepted.

        Raises:
            Refusal: the server does not answer, its answer has no usable vectors, its address is link-local, or the
                key file cannot be read.
        """
        until = time.monotonic() + seconds
        key = self._key()
        try:
            with WATCHDOG.watching(until, self):
                status, body, retry_after = self._post(self._body(texts), len(texts), dim, until, key)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            late = time.monotonic() >= until
            raise Refusal(TOO_LATE if late else reason(error)) from error
        # The watchdog may have shut the socket down before all headers arrived. http.client then raises no error and
        # treats the headers as complete, so the time is checked here too.
        if time.monotonic() >= until:
            raise Refusal(TOO_LATE)
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

    def _post(self, body: bytes, texts: int, dim: int | None, until: float, key: str | None) -> tuple[int, bytes, int]:
        """The status, body and Retry-After of the answer."""
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        left = max(until - time.monotonic(), 0.001)
        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, left), read=left)
        try:
            response = self.pool.urlopen(
                "POST", self.path, body, headers, retries=False, redirect=False, timeout=timeout, preload_content=False
            )
        except InvalidInput as error:  # the host name resolves to a link-local address
            raise Refusal(str(error), 403) from error
        whole = False
        try:
            most = ANSWER_BYTES + texts * BYTES_A_NUMBER * (dim or 16_384)
            content = b"".join(pieces(response, most, until))
            whole = True
        finally:
            if whole:
                response.release_conn()
            else:
                response.close()
        after = response.headers.get("retry-after", "")
        return response.status, content, int(after) if after.isdigit() and len(after) < 4 else 1

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

    def close(self) -> None:
        """Closes the connections and ends requests in progress."""
        WATCHDOG.end(self)
        self.pool.close()


def pieces(response: urllib3.BaseHTTPResponse, most: int, until: float) -> Iterator[bytes]:
    """Yields the body piece by piece. Raises Refusal if it is too long or arrives too late."""
    size = 0
    while piece := response.read1(CHUNK):
        size += len(piece)
        if size > most:
            raise Refusal(f"its answer has more than {most:,} bytes", 200)
        if time.monotonic() > until:
            raise Refusal(TOO_LATE)
        yield piece


def reason(error: BaseException) -> str:
    """The cause of an error, without the addresses and object names that urllib3 adds."""
    if isinstance(error, urllib3.exceptions.TimeoutError) and not isinstance(
        error, urllib3.exceptions.ConnectTimeoutError
    ):
        return TOO_LATE
    causes = [one for one in (*error.args, error.__cause__, error.__context__) if isinstance(one, OSError)]
    if isinstance(error, OSError) or not causes:
        words = getattr(error, "strerror", None) or str(error).rpartition(": ")[2] or type(error).__name__
        return " ".join(words.split())[:SAID]
    return reason(causes[0])


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


def vectors_in(body: bytes, count_wanted: int, dim: int | None) -> Vectors:
    """The vectors (N, D) of an answer, ordered by `index`. Raises Refusal if the body is not a valid answer."""
    try:
        entries = orjson.loads(body)["data"]
        if not isinstance(entries, list) or len(entries) != count_wanted:
            got = len(entries) if isinstance(entries, list) else "no list of"
            raise Refusal(f"it answers with {got} vectors for {count_wanted} texts", 200)
        rows = [entry["index"] for entry in entries]
        vectors = [vector_of(entry["embedding"]) for entry in entries]
    except orjson.JSONDecodeError:
        raise Refusal("its answer is no JSON", 200) from None
    except (KeyError, TypeError, ValueError, OverflowError):
        raise Refusal("its answer is not a valid answer of /v1/embeddings", 200) from None
    if any(type(row) is not int for row in rows) or sorted(rows) != list(range(count_wanted)):
        raise Refusal("the values of `index` in its answer must be 0, 1, 2, …, one for each text", 200)
    dims = {vector.shape for vector in vectors}
    if len(dims) != 1 or not vectors[0].size:
        have = ", ".join(sorted({str(shape[0]) if len(shape) == 1 else "?" for shape in dims}))
        raise Refusal(f"its vectors have {have} dimensions; all must have the same number, at least 1", 200)
    if dim is not None and dims != {(dim,)}:
        raise OtherDimension(f"its vectors have {vectors[0].size} dimensions, not {dim}", 200)
    matrix: Vectors = np.empty((count_wanted, vectors[0].size), np.float32)
    matrix[rows] = vectors
    if not np.isfinite(matrix).all():
        raise Refusal("a vector holds NaN or infinity", 200, of_texts=True)
    if not matrix.any(axis=1).all():
        raise Refusal("a vector is zero", 200, of_texts=True)
    return matrix


def vector_of(embedding: object) -> Vectors:
    """One vector (D,), from base64 of float32 or a list of numbers. Raises TypeError or ValueError for other values."""
    if isinstance(embedding, str):
        return np.frombuffer(binascii.a2b_base64(embedding, strict_mode=True), "<f4")
    if not isinstance(embedding, list) or not all(type(number) in (float, int) for number in embedding):
        raise TypeError("no vector")
    with np.errstate(over="ignore"):  # infinity is refused later
        return np.array(embedding, np.float32)
