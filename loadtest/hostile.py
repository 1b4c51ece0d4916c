"""Hostile JSON bodies for each route that reads JSON: each is legal to send and was chosen to cost the server the most.

`bodies(route, size)` yields `(name, content type, body)`; each body has almost `size` bytes.
`python -m loadtest.hostile PORT [WORD …]` sends them to a running server and prints for each body the status, the
seconds, and the longest answer of `/livez` meanwhile; words select routes or kinds.
"""

import http.client
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

LARGEST = 1_999_000  # bytes; ISOSIM_MAX_BODY_BYTES is 2,000,000
SMALL = 16_000  # bytes; routes that take only a few fields take 16,384
JSON = "application/json"


@dataclass(frozen=True)
class Form:
    """A route's body: a list, and the fields beside it."""

    fields: str  # the other fields, as in JSON; may be empty
    items: str  # name of the list
    entry: str
    wrap: str = "{}"  # where the object's members belong in the body
    size: int = LARGEST

    def object(self, *members: str) -> str:
        return "{" + self.wrap.replace("{}", ",".join(filter(None, members)), 1) + "}"


FORMS = {
    "/similarity": Form("", "pairs", '["a","b"]'),
    "/similarity vectors": Form("", "vectors", "[[1],[1]]"),
    "/similarity tei": Form('"source_sentence":"a"', "sentences", '"b"', '"inputs":{{}}'),
    "/percentile": Form("", "cosines", "0.5"),
    "/embed": Form("", "inputs", '"a"'),
    "/": Form("", "inputs", '"a"'),
    "/invocations": Form("", "inputs", '"a"'),
    "/tokenize": Form("", "inputs", '"a"'),
    "/rerank": Form('"query":"a"', "texts", '"b"'),
    "/rerank documents": Form('"query":"a"', "documents", '{"text":"b"}'),
    "/v2/rerank": Form('"query":"a"', "documents", '"b"'),
    "/v1/rerank": Form('"query":"a"', "documents", '"b"'),
    "/score": Form('"text_1":"a"', "text_2", '"b"'),
    "/v1/score": Form('"text_1":"a"', "text_2", '"b"'),
    "/v1/embeddings": Form('"model":"isosim"', "input", '"a"'),
    "/v2/models/isosim/infer": Form(
        '"name":"text","shape":[1],"datatype":"BYTES"', "data", '"a"', wrap='"inputs":[{{}}]'
    ),
    "/calibrate": Form('"domain":"hostile"', "texts", '"a"'),
    "/calibrate labels": Form('"domain":"hostile","texts":["a"]', "labels", '["a","b",1]'),
    "/domains/default/labels": Form("", "labels", '["a","b",1]'),
    "/domains/default/champion": Form('"version":1', "revision", "1", size=SMALL),
    "/domains/default/rollback": Form("", "revision", "1", size=SMALL),
    "/domains/default/thresholds/x": Form('"fmr":0.01', "revision", "1", size=SMALL),
    "/domains/default/migration": Form("", "without", '"a"', size=SMALL),
}
PUT = ("/domains/default/champion", "/domains/default/thresholds/x")


def filled(size: int, *parts: str) -> str:
    """The parts in turn, separated by commas, up to `size` characters."""
    one = ",".join(parts)
    return ",".join([one] * max(1, size // (len(one) + 1)))


def numbered(size: int, pattern: str) -> str:
    """`pattern` with the numbers 0, 1, … in place of `#`, separated by commas, up to `size` characters."""
    parts: list[str] = []
    taken = 0
    for number in itertools.count():
        part = pattern.replace("#", f"{number:x}")
        taken += len(part) + 1
        if taken > size:
            return ",".join(parts)
        parts.append(part)
    raise AssertionError


def bodies(route: str, size: int | None = None) -> Iterator[tuple[str, str, bytes]]:
    """Hostile bodies for a key of FORMS, as (name, content type, body)."""
    form = FORMS[route]
    size = form.size if size is None else size
    room = size - len(form.object(form.fields, f'"{form.items}":[]')) - 64
    fields, entry = form.fields, form.entry
    valid = f'"{form.items}":[{entry}]'

    def listing(content: str) -> str:
        return form.object(fields, f'"{form.items}":[{content}]')

    digits = "9" * 4000
    texts: dict[str, str] = {
        # names
        "unknown names": form.object(fields, valid, numbered(room, '"k#":0')),
        "unknown names like ours": form.object(fields, valid, numbered(room, '"domain#":0')),
        "unknown names outside": "{" + form.object(fields, valid)[1:-1] + "," + numbered(room, '"k#":0') + "}",
        "unknown names inside parameters": form.object(
            fields, valid, '"parameters":{' + numbered(room - 16, '"k#":0') + "}"
        ),
        "one long name": form.object(fields, valid, '"' + "k" * room + '":0'),
        "20 long names": form.object(fields, valid, numbered(room, '"' + "domain" * (room // 130) + '#":0')),
        "the same name": form.object(fields, filled(room, valid)),
        "names of other bodies": form.object(
            fields,
            valid,
            '"vectors":[' + filled(room // 2, "[[1],[1]]") + '],"inputs":[' + filled(room // 3, '""') + "]",
        ),
        # entries
        "valid entries": listing(filled(room, entry)),
        "one wrong entry at the end": listing(filled(room, entry) + ",null"),
        "numbers": listing(filled(room, "1")),
        "nulls": listing(filled(room, "null")),
        "empty texts": listing(filled(room, '""')),
        "empty lists": listing(filled(room, "[]")),
        "empty objects": listing(filled(room, "{}")),
        "lists of one number": listing(filled(room, "[1]")),
        "pairs of empty lists": listing(filled(room, "[[],[]]")),
        "lists of numbers and texts": listing(filled(room, "[1]", '"a"')),
        "objects with unknown names": listing(numbered(room, '{"text":"a","k#":0}')),
        "object of unknown names": listing('{"text":"a",' + numbered(room, '"k#":0') + "}"),
        "object instead of the list": form.object(fields, f'"{form.items}":{{' + numbered(room, '"k#":0') + "}"),
        "labels as objects": listing(filled(room, '{"a":"x","b":"y","label":2,"k":0}')),
        "one pair of many entries": listing("[" + filled(room, '"a"') + "]"),
        "one pair of long vectors": listing("[[" + filled(room // 2, "0.1") + "],[" + filled(room // 2, "0.1") + "]]"),
        # numbers
        "one long number": listing("9" * room),
        "numbers of 4000 digits": listing(filled(room, digits)),
        "one long number instead of the list": form.object(fields, f'"{form.items}":' + "9" * room),
        "numbers beyond floats": listing(filled(room, "1e400")),
        "long fractions": listing(filled(room, "0." + digits)),
        # nesting
        "deep lists": listing("[" * (room // 2) + "]" * (room // 2)),
        "deep lists, 150 levels": listing(filled(room, "[" * 150 + "]" * 150)),
        "deep objects": listing('{"k":' * (room // 6) + "0" + "}" * (room // 6)),
        # texts
        "one long text": listing('"' + "a" * room + '"'),
        "one long text instead of the list": form.object(fields, f'"{form.items}":"' + "a" * room + '"'),
        "one text of escapes": listing('"' + "\\u00e9" * (room // 6) + '"'),
        "one text of blanks": listing('"' + "\\u2003" * (room // 6) + '"'),
        "one text of surrogate pairs": listing('"' + "\\ud83d\\ude00" * (room // 12) + '"'),
        "half a surrogate pair at the end": listing('"' + "a" * (room - 8) + '\\ud83d"'),
        "longest texts": listing(filled(room, '"' + "ab " * 3333 + '"')),
        "pairs of longest texts": listing(filled(room, '["' + "ab " * 3333 + '","' + "cd " * 3333 + '"]')),
        "many short texts": listing(numbered(room, '"a#"')),
        "2000 texts of 900 characters": listing(numbered(room, '"# ' + "ab " * 300 + '"')),
        # no JSON
        "cut": listing(filled(room, entry))[:-3],
        "blanks": " " * size,
        "blanks before": " " * room + form.object(fields, valid),
        "text after the end": form.object(fields, valid) + "x" * room,
        "list as the body": "[" + filled(room, entry) + "]",
        "number as the body": "9" * room,
    }
    for name, text in texts.items():
        yield name, JSON, text.encode()
    yield "not UTF-8", JSON, listing('"' + "a" * (room // 2)).encode() + b"\xff" * (room // 2) + b'"]}'
    yield "base64", JSON, listing(filled(room, '["' + "AACAPw" * 200 + '","' + "AACAPw" * 200 + '"]')).encode()


class Probe:
    """Asks /livez without pause on one connection, and keeps the longest time."""

    def __init__(self, port: int) -> None:
        self.port, self.longest, self.ended = port, 0.0, threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        while not self.ended.is_set():
            started = time.monotonic()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            self.longest = max(self.longest, time.monotonic() - started)
            time.sleep(0.005)

    def __enter__(self) -> "Probe":
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


def send(port: int, route: str, content_type: str, body: bytes, key: str = "") -> tuple[int, str]:
    path = route.partition(" ")[0]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"content-type": content_type, **({"authorization": f"Bearer {key}"} if key else {})}
    connection.request("PUT" if path in PUT else "POST", path, body, headers)
    response = connection.getresponse()
    answer = response.read()
    try:
        said = json.loads(answer)
        error = said["error"] if isinstance(said, dict) and "error" in said else f"{len(answer):,} bytes"
        message = error["message"] if isinstance(error, dict) else error
    except ValueError:
        message = repr(answer[:80])
    return response.status, message


def main(port: int, words: list[str]) -> None:
    for route in FORMS:
        for name, content_type, body in bodies(route):
            if words and not all(word in f"{route}: {name}" for word in words):
                continue
            with Probe(port) as probe:
                started = time.monotonic()
                status, message = send(port, route, content_type, body)
                took = time.monotonic() - started
            line = f"{route:28} {name:40} {len(body):>9,} {status} {took:7.3f} s  livez {1000 * probe.longest:7.0f} ms"
            print(f"{line}  {message[:110]}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
