"""Files of any kind: shown by /inspect, calibrated over HTTP and from the command line alike."""

import contextlib
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from isosim.api.calibration.files import memory_of_reader
from isosim.api.state import MOST_FILES
from isosim.jobs.intake import MEMORY
from isosim.jobs.sandbox import LEAST_MEMORY, MEMORY_OF_LINES
from tests.processes import Serve, Server, wait_until
from tests.tables import FILES, TEXTS, table
from tests.workbooks import row, workbook

OCTETS = "application/octet-stream"


@pytest.fixture(scope="module")
def reading_server(module_serve: Serve, module_store: Path) -> Server:
    return module_serve(model_store=module_store, encoder="tiny")


def inspect(server: Server, content: bytes, kind: str = OCTETS, **query: Any) -> Any:
    return server.client.post("/inspect", params=query, content=content, headers={"content-type": kind})


@pytest.mark.parametrize("name", ["windows-1252.txt", "semicolon.csv", "book.xlsx", "table.parquet"])
def test_a_file_is_shown_before_anything_starts(reading_server: Server, name: str) -> None:
    content, form, query = FILES[name]
    answer = inspect(reading_server, content, **query)
    assert answer.status_code == 200, answer.text
    facts = answer.json()
    assert (facts["format"], facts["sentences"], facts["distinct"]) == (form, 400, 400)
    assert facts["column"] == ("text" if form == "text" else "question")
    place = facts["columns"].index(facts["column"])
    assert [row[place] for row in facts["rows"]] == TEXTS[:10]
    assert facts["encoding_certain"] is ("1252" not in name and "semicolon" not in name)
    written = inspect(reading_server, content, give="sentences", **query)
    assert written.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in written.iter_lines()] == TEXTS


def threshold(server: Server, domain: str) -> Any:
    answer = server.client.get(f"/domains/{domain}/threshold", params={"fmr": 0.01})
    assert answer.status_code == 200, answer.text
    return {name: answer.json()[name] for name in ("similarity", "interval", "pairs")}


def test_a_file_gives_the_threshold_of_its_sentences(reading_server: Server) -> None:
    content, _, query = FILES["semicolon.csv"]
    answer = reading_server.client.post(
        "/calibrate", params={"domain": "semicolons", **query}, content=content, headers={"content-type": OCTETS}
    )
    job = reading_server.wait_for(answer.json()["job"])
    assert job["status"] == "succeeded", job
    assert any("windows-1252, a guess" in notice for notice in job["notices"])
    reading_server.calibrate("plain", TEXTS)
    assert threshold(reading_server, "semicolons") == threshold(reading_server, "plain")


def test_nothing_is_kept_of_what_was_inspected_or_refused(reading_server: Server, module_store: Path) -> None:
    before = sorted(module_store.rglob("*"))
    for name, (content, _, query) in FILES.items():
        assert inspect(reading_server, content, **query).status_code == 200, name
        assert inspect(reading_server, content[: len(content) // 2] + b"\0", column="nowhere").status_code in (415, 422)
    assert sorted(module_store.rglob("*")) == before


BLANK_ROWS = b"id,text,state\n1,a b c d e f,open\n" + b",,\n" * 10_000_000  # read in 20 s


def readers(server: Server) -> list[str]:
    """Processes in which the server reads files."""
    found = []
    for task in Path(f"/proc/{server.popen.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a child that has ended
            children = task.read_text().split()
            found += [child for child in children if b"jobs.sandbox" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return found


@pytest.mark.parametrize("path", ["/inspect", "/calibrate?domain=d&column=text"])
def test_a_caller_who_hangs_up_ends_the_reading(reading_server: Server, path: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            reading_server.url + path, content=BLANK_ROWS, headers={"content-type": "text/csv"},
            timeout=httpx.Timeout(30, read=2),
        )  # fmt: skip
    wait_until(lambda: not readers(reading_server), 5)
    route = f'"{path.partition("?")[0]}"'
    lines: Callable[[], list[str]] = lambda: reading_server.log.read_text().splitlines()  # noqa: E731 - asked again
    last = wait_until(lambda: [line for line in lines() if route in line and '"status":499' in line])[0]
    assert json.loads(last)["level"] == "info"


def test_one_workbook_is_read_at_a_time_and_a_text_beside_it(reading_server: Server) -> None:
    """Their parsers hold the whole file: four together could take 6 GB."""
    rows = "".join(f'<row r="{number}"><c r="A{number}"/></row>' for number in range(4, 1_500_000))
    content = workbook(xml=row(1, ["id", "text"]) + row(2, [1, "a b c d e f"]) + rows)
    with ThreadPoolExecutor(2) as pool:
        posts = [pool.submit(inspect, reading_server, content) for _ in range(2)]
        most, texts = 0, 0
        while not all(post.done() for post in posts):
            most = max(most, len(readers(reading_server)))
            if most and not texts:
                assert inspect(reading_server, b"one sentence\nanother one\n").status_code == 200
                texts = 1
    assert ([post.result().status_code for post in posts], most, texts) == ([200, 200], 1, 1)


@pytest.mark.parametrize("left", [None, 2**40, 2**32, 2**31, 2**30])
def test_readers_together_take_less_than_a_container_has_left(left: int | None) -> None:
    whole, lines = (memory_of_reader(left, whole=kind) for kind in (True, False))
    assert LEAST_MEMORY <= lines < whole <= MEMORY
    if left is None:
        assert (whole, lines) == (MEMORY, MEMORY_OF_LINES)
    else:
        assert whole + 3 * lines < left
    assert memory_of_reader(1000, whole=True) == LEAST_MEMORY


def test_no_more_files_arrive_at_once_than_the_temporary_folder_has_room_for(reading_server: Server) -> None:
    address = ("127.0.0.1", reading_server.client.base_url.port)
    head = b"POST /inspect HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\ncontent-length: 1000\r\n\r\na"
    with contextlib.ExitStack() as stack:

        def refused() -> Any:
            """What one more file is told when another has begun to arrive; None if it was read."""
            stack.enter_context(socket.create_connection(address)).sendall(head)
            answer = inspect(reading_server, b"a\nb\n")
            return None if answer.status_code == 200 else answer

        answer = wait_until(refused)
        assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
        assert f"{MOST_FILES} files are arriving" in answer.json()["error"]
    wait_until(lambda: inspect(reading_server, b"a\nb\n").status_code == 200)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-ndjson"])
def test_utf_16_with_its_mark_is_read_everywhere(reading_server: Server, kind: str) -> None:
    lines = [json.dumps(text, ensure_ascii=False) if "json" in kind else text for text in TEXTS]
    content = "\n".join(lines).encode("utf-16")
    query = {"domain": "wide", "promote": "never"}
    answer = reading_server.client.post("/calibrate", params=query, content=content, headers={"content-type": kind})
    assert answer.status_code == 202, answer.text
    assert reading_server.client.get(answer.headers["location"]).json()["sentences"] == 400


LONG = "x" * 10_001
LINES, NPY, JSON = "application/x-ndjson", "application/x-npy", "application/json"
WIDE = ("文" * 1500 + "\n").encode("utf-16") + ("文" * 1500 + "\n").encode("utf-16-le") * 23_000  # 69 MB, in UTF-8 103


def post_text(server: Server, content: str | bytes, kind: str = "text/plain", column: str = "") -> Any:
    query = {"domain": "said"} | ({"column": column} if column else {})
    return server.client.post("/calibrate", params=query, content=content, headers={"content-type": kind})


@pytest.mark.parametrize(
    ("content", "kind", "column", "status", "why"),
    [
        ("one sentence\nanother one\n", "text/plain; charset=us-ascii", "", 422, "2 distinct sentences"),
        ("", "text/plain", "", 400, "the file is empty"),
        ("%PDF-1.7\n1 0 obj\n", "text/csv", "", 415, "not text but application/pdf"),
        (table(","), "text/csv", "", 422, "columns id, question, state; say which one holds the sentences, for ex"),
        ("\n".join(TEXTS[:50] * 3), "text/plain", "", 422, "50 distinct sentences among 150; method"),
        (json.dumps(TEXTS), "text/plain", "", 422, "the lines look like JSON; write one JSON value a line"),
        (f"{LONG}\n{LONG}\n", OCTETS, "", 422, "all sentences are longer than 10,000 characters: 2 (line 1, "),
        ("<p>One sentence.</p>\n" * 300, "text/html", "", 415, "'text/html' is not read here"),
        ('{"id": "1", "headline": "How do I log in?"}\n', LINES, "", 422, "line 1: the file is a table with the columns"
         " id, headline; say which one holds the sentences, for example column 'headline'"),
        ("[1]", JSON, "", 422, "domain: belongs in the JSON body; options go in the query only with other "
         "bodies"),
        (table(","), OCTETS, "state", 422, "1 distinct sentences among 400; method 'auto' needs at least 200; for "
         "steady thresholds, use 2,000 or more; 'state' was read; the longest text is in column 'question'"),
        (b"\x93NUMPY", NPY, "a", 422, "not for .npy"),
        (WIDE, OCTETS, "", 422, "1 distinct sentences"),
        (b"a sentence\n" * 10_000_000, OCTETS, "", 413, "at most"),
    ],
    ids=count(),
)  # fmt: skip
def test_a_body_that_cannot_be_used_is_told_why(
    reading_server: Server, content: str | bytes, kind: str, column: str, status: int, why: str
) -> None:
    answer = post_text(reading_server, content, kind, column)
    assert (answer.status_code, why in answer.json()["error"]) == (status, True), answer.text


def test_a_sentence_that_is_too_long_is_left_out_whatever_the_body(reading_server: Server) -> None:
    texts = [*TEXTS[:300], LONG]
    for answer in (
        reading_server.client.post("/calibrate", json={"domain": "said", "texts": texts}),
        post_text(reading_server, "\n".join(map(json.dumps, texts)), "application/x-ndjson"),
        post_text(reading_server, "\n".join(texts), OCTETS),
    ):
        assert answer.status_code == 202, answer.text
        job = reading_server.client.get(answer.headers["location"]).json()
        assert job["sentences"] == 300
        assert any("left out" in notice and ("301" in notice or "texts[300]" in notice) for notice in job["notices"])
