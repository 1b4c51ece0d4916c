"""Bodies of every permitted size that cost the server the most: JSON for each route, and 100 MB of all other types."""

import io
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tests.workbooks import workbook

DIMENSIONS = 384  # of the encoder whose users bring vectors
BLOCK = 1_000_000  # bytes; a large body repeats a block of about this size
LARGE = 100_000_000  # bytes; ISOSIM_MAX_CALIBRATION_BYTES
LARGEST = 1_999_000  # bytes of JSON; ISOSIM_MAX_BODY_BYTES is 2,000,000
SMALL = 16_000  # bytes; routes that take only a few fields take 16,384
MOST_TEXTS, AT_ONCE = 2048, 8  # vectors in an answer, and such answers at once
JSON = "application/json"


@dataclass(frozen=True)
class Form:
    """A route's JSON: a list, and the fields beside it."""

    fields: str  # the other fields, as in JSON; may be empty
    items: str  # name of the list
    entry: str
    wrap: str = "{}"  # where the object's members belong in the body
    size: int = LARGEST
    method: str = "POST"

    def object(self, *members: str) -> str:
        return "{" + self.wrap.replace("{}", ",".join(filter(None, members)), 1) + "}"

    def list_of(self, content: str) -> str:
        return self.object(self.fields, f'"{self.items}":[{content}]')


TENSOR = '"name":"text","shape":[1],"datatype":"BYTES"'
FORMS = {
    "/similarity": Form("", "pairs", '["a","b"]'),
    "/similarity vectors": Form("", "vectors", "[[1],[1]]"),
    "/similarity tei": Form('"source_sentence":"a"', "sentences", '"b"', '"inputs":{{}}'),
    "/percentile": Form("", "cosines", "0.5"),
    **{route: Form("", "inputs", '"a"') for route in ("/embed", "/", "/invocations", "/tokenize")},
    "/rerank": Form('"query":"a"', "texts", '"b"'),
    "/rerank documents": Form('"query":"a"', "documents", '{"text":"b"}'),
    **{route: Form('"query":"a"', "documents", '"b"') for route in ("/v1/rerank", "/v2/rerank")},
    **{route: Form('"text_1":"a"', "text_2", '"b"') for route in ("/score", "/v1/score")},
    **{route: Form('"model":"isosim"', "texts", '"a"') for route in ("/v1/embed", "/v2/embed")},
    "/v1/embeddings": Form('"model":"isosim"', "input", '"a"'),
    "/v2/models/isosim/infer": Form(TENSOR, "data", '"a"', wrap='"inputs":[{{}}]'),
    "/calibrate": Form('"domain":"hostile"', "texts", '"a"'),
    "/calibrate labels": Form('"domain":"hostile","texts":["a"]', "labels", '["a","b",1]'),
    "/domains/default/labels": Form("", "labels", '["a","b",1]'),
    "/domains/default/champion": Form('"version":1', "revision", "1", size=SMALL, method="PUT"),
    "/domains/default/rollback": Form("", "revision", "1", size=SMALL),
    "/domains/default/thresholds/x": Form('"fmr":0.01', "revision", "1", size=SMALL, method="PUT"),
}


def numbered(size: int, pattern: str) -> str:
    """`pattern` up to `size` characters, separated by commas; `#` becomes another number each time."""
    return ",".join(pattern.replace("#", f"{number:05x}") for number in range(size // (len(pattern) + 5)))


def json_bodies(route: str, size: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Names and bodies of almost `size` bytes for a key of FORMS. Those that cost the most are in COSTLY."""
    form = FORMS[route]
    size = form.size if size is None else size
    room = size - len(form.list_of("")) - 64
    valid = f'"{form.items}":[{form.entry}]'

    def filled(part: str) -> str:
        return ",".join([part] * max(1, room // (len(part) + 1)))

    members = {  # beside a valid list
        "unknown names": numbered(room, '"k#":0'),
        "unknown names like ours": numbered(room, '"domain#":0'),
        "one long name": '"' + "k" * room + '":0',
        "20 long names": numbered(room, '"' + "domain" * (room // 130) + '#":0'),
        "the same name": filled(valid),
    }
    entries = {  # of the list
        "valid entries": filled(form.entry),
        "one wrong entry at the end": filled(form.entry) + ",null",
        "empty objects": filled("{}"),
        "lists of one number": filled("[1]"),
        "objects with unknown names": numbered(room, '{"text":"a","k#":0}'),
        "object of unknown names": '{"text":"a",' + numbered(room, '"k#":0') + "}",
        "labels as objects": filled('{"a":"x","b":"y","label":2,"k":0}'),
        "one long number": "9" * room,
        "numbers of 4000 digits": filled("9" * 4000),
        "numbers beyond floats": filled("1e400"),
        "deep lists, 150 levels": filled("[" * 150 + "]" * 150),
        "deep objects": '{"k":' * (room // 6) + "0" + "}" * (room // 6),
        "one long text": '"' + "a" * room + '"',
        "one text of escapes": '"' + "\\u00e9" * (room // 6) + '"',
        "half a surrogate pair at the end": '"' + "a" * (room - 8) + '\\ud83d"',
        "many short texts": numbered(room, '"a#"'),
    }
    yield from ((name, form.object(form.fields, valid, more).encode()) for name, more in members.items())
    yield from ((name, form.list_of(content).encode()) for name, content in entries.items())
    number = form.object(form.fields, f'"{form.items}":{entries["one long number"]}')
    yield "one long number instead of the list", number.encode()
    yield "cut", form.list_of(filled(form.entry))[:-3].encode()
    yield "not UTF-8", form.list_of('"' + "a" * (room // 2)).encode() + b"\xff" * (room // 2) + b'"]}'


COSTLY = (
    "unknown names", "unknown names like ours", "20 long names", "valid entries", "one wrong entry at the end",
    "lists of one number", "empty objects", "objects with unknown names", "one long number", "deep lists, 150 levels",
    "one text of escapes", "many short texts",
)  # fmt: skip


@dataclass(frozen=True)
class Body:
    """A body: `block`, `times` times."""

    name: str
    path: str
    content_type: str
    block: bytes
    times: int = 1
    method: str = "POST"

    @classmethod
    def of_lines(cls, name: str, path: str, content_type: str, line: str) -> "Body":
        """LARGE bytes; `#` in the line becomes a number that differs from line to line of a block."""
        block = "".join(line.replace("#", f"{number:07d}") for number in range(BLOCK // len(line))).encode()
        return cls(name, path, content_type, block, LARGE // len(block))

    @property
    def size(self) -> int:
        return len(self.block) * self.times

    def send(self, port: int) -> int:
        """Status of the answer; 0 if the server closed the connection before the whole body had arrived."""
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        head += f"content-length: {self.size}\r\ncontent-type: {self.content_type}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
            with suppress(ConnectionError):  # an answer may have come all the same
                for part in (head.encode(), *[self.block] * self.times):
                    connection.sendall(part)
            with suppress(ConnectionError):
                begins = connection.recv(64)
                while connection.recv(1 << 20):  # to the end: an answer may be large
                    pass
                return int(begins[9:12] or 0)
        return 0


def small_bodies() -> Iterator[Body]:
    for route, form in FORMS.items():
        for name, content in json_bodies(route):
            if name in COSTLY:
                yield Body(f"{route}: {name}", route.partition(" ")[0], JSON, content, method=form.method)


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
        path = f"{post}&column=2" if kind.startswith("text/") and kind != "text/plain" else post
        yield Body.of_lines(name, path, kind, line)
        if "NDJSON" in name or kind in ("text/csv", any_kind):
            yield Body.of_lines(f"/inspect: {name}", "/inspect?give=sentences", any_kind, line)
    sheet = workbook([[f"Sentence number {row} of a workbook."] for row in range(300_000)])
    for path in (f"{post}&column=1", "/inspect"):
        yield Body(f"workbook, {path}", path, any_kind, sheet)


def asking_bodies() -> Iterator[Body]:
    """Bodies that are small beside their answers: as many vectors as a request may ask for, of the same texts."""
    texts = ",".join(f'"Text {number}"' for number in range(MOST_TEXTS))
    for form in ("base64", "float"):
        content = f'{{"model":"isosim","encoding_format":"{form}","input":[{texts}]}}'.encode()
        yield from (Body(f"vectors as {form}", "/v1/embeddings", JSON, content) for _ in range(AT_ONCE))


def vector_bodies() -> Iterator[Body]:
    """100 MB of each kind, for a server whose users bring vectors."""
    post = "/calibrate?domain=vectors"
    rows = LARGE // (4 * DIMENSIONS)
    vectors = np.random.default_rng(0).standard_normal((rows, DIMENSIONS), np.float32)
    for name, values in {"vectors (.npy)": vectors, "NaN (.npy)": np.full_like(vectors, np.nan)}.items():
        np.save(file := io.BytesIO(), values)
        yield Body(name, post, "application/x-npy", file.getvalue())
    for name, number in {"NDJSON of vectors": "0.#", "NDJSON of wrong vectors": "null"}.items():
        line = '{"vector": [' + ",".join([number, *["0.123456789"] * (DIMENSIONS - 1)]) + "]}\n"
        yield Body.of_lines(name, post, "application/x-ndjson", line)
