"""Bodies of every permitted size: hostile JSON for each route, and 100 MB of text, NDJSON, labels, tables, vectors and
archives. Some are allowed and some refused."""

import io
import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtest import hostile
from tests.workbooks import workbook

DIMENSIONS = 384  # of the encoder whose users bring vectors
BLOCK = 1_000_000  # bytes; a large body repeats a block of about this size
LARGE = 100_000_000  # bytes; ISOSIM_MAX_CALIBRATION_BYTES
# Kinds of hostile JSON that cost the most of those in hostile.py.
KINDS = (
    "unknown names", "unknown names like ours", "20 long names", "valid entries", "one wrong entry at the end",
    "lists of one number", "empty objects", "objects with unknown names", "one long number", "deep lists, 150 levels",
    "one text of escapes", "many short texts",
)  # fmt: skip


@dataclass(frozen=True)
class Body:
    """A body: `block`, `times` times, between `begin` and `end`."""

    name: str
    path: str
    content_type: str
    block: bytes
    times: int = 1
    begin: bytes = b""
    end: bytes = b""
    method: str = "POST"

    @property
    def size(self) -> int:
        return len(self.begin) + len(self.block) * self.times + len(self.end)

    def send(self, port: int) -> int:
        """Status of the answer; 0 if the server closed the connection before the whole body had arrived."""
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        head += f"content-length: {self.size}\r\ncontent-type: {self.content_type}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
            try:
                connection.sendall(head.encode() + self.begin)
                for _ in range(self.times):
                    connection.sendall(self.block)
                connection.sendall(self.end)
            except ConnectionError:
                pass  # an answer may have come all the same
            try:
                return int(connection.recv(64)[9:12] or 0)
            except ConnectionError:
                return 0


def small_bodies() -> Iterator[Body]:
    for route in hostile.FORMS:
        path = route.partition(" ")[0]
        method = "PUT" if path in hostile.PUT else "POST"
        for name, content_type, body in hostile.bodies(route):
            if name in KINDS:
                yield Body(f"{route}: {name}", path, content_type, body, method=method)


def repeated(line: str) -> bytes:
    """A block of lines; `#` in the line becomes a number that differs from line to line."""
    made = (line.replace("#", f"{number:07d}") for number in itertools.count())
    return "".join(itertools.islice(made, BLOCK // len(line))).encode()


def large_bodies() -> Iterator[Body]:
    """100 MB of each kind, for a server that encodes texts."""
    post, any_kind, ndjson = "/calibrate?domain=large", "application/octet-stream", "application/x-ndjson"
    sentence = "Sentence # of a large body, whose words are always the same but for its number at the beginning.\n"
    lines = {
        "sentences": ("text/plain", sentence),
        "lines of 10,000 characters": ("text/plain", "word " * 1990 + "#\n"),
        "one line": ("text/plain", "word " * 200),
        "blank lines": ("text/plain", "\n" * 100),
        "lines like a table": ("text/plain", "#," * 20 + "word\n"),
        "one JSON list": ("text/plain", '["' + "word " * 200),
        "NDJSON of strings": (ndjson, f'"{sentence.strip()}"\n'),
        "NDJSON of labelled pairs": (ndjson, '{"a": "text #", "b": "another text #", "label": 1}\n'),
        "NDJSON of lists": (ndjson, '{"a": [' + "1," * 50_000 + '1], "b": "text", "label": 1}\n'),
        "NDJSON of unknown names": (ndjson, "{" + ",".join(f'"k{n}": "v"' for n in range(10_000)) + "}\n"),
        "NDJSON, one line": (ndjson, "[" * 100),
        "CSV": ("text/csv", f'#,"{sentence.strip()}",open\n'),
        "CSV, one cell": ("text/csv", '"' + "word " * 200),
        "TSV": ("text/tab-separated-values", f"#\t{sentence.strip()}\topen\n"),
        "any": (any_kind, sentence),
    }
    for name, (kind, line) in lines.items():
        block = repeated(line)
        path = f"{post}&column=2" if kind.startswith("text/") and kind != "text/plain" else post
        yield Body(name, path, kind, block, LARGE // len(block))
        if "NDJSON" in name or kind in ("text/csv", any_kind):
            yield Body(f"/inspect: {name}", "/inspect?give=sentences", any_kind, block, LARGE // len(block))
    for path in (f"{post}&column=1", "/inspect"):
        yield Body(
            f"workbook, {path}",
            path,
            any_kind,
            workbook([[f"Sentence number {row} of a workbook."] for row in range(300_000)]),
        )
    yield Body("archive of zeros", "/domains/import", "application/x-tar", bytes(BLOCK), LARGE // BLOCK)


def vector_bodies() -> Iterator[Body]:
    """100 MB of each kind, for a server whose users bring vectors."""
    post = "/calibrate?domain=vectors"
    header = io.BytesIO()
    rows = LARGE // (4 * DIMENSIONS)
    facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, DIMENSIONS)}
    np.lib.format.write_array_header_1_0(header, facts)
    block = np.random.default_rng(0).standard_normal((rows // 20, DIMENSIONS)).astype("<f4").tobytes()
    rest = block[: 4 * DIMENSIONS * (rows % 20)]
    yield Body("vectors (.npy)", post, "application/x-npy", block, 20, header.getvalue(), rest)
    yield Body("NaN (.npy)", post, "application/x-npy", b"\xff" * len(block), 20, header.getvalue(), rest)
    for name, number in {"NDJSON of vectors": "0.#", "NDJSON of wrong vectors": "null"}.items():
        block = repeated('{"vector": [' + ",".join([number, *["0.123456789"] * (DIMENSIONS - 1)]) + "]}\n")
        yield Body(name, post, "application/x-ndjson", block, LARGE // len(block))
