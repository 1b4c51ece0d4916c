"""Files of any kind on the Calibrate page: shown before anything starts, corrected where the guess was wrong."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Visit, labelled
from tests.processes import Serve, Server
from tests.tables import FILES, TEXTS
from tests.text import sentences
from tests.workbooks import workbook

FILE = "Choose a file, or drop it anywhere on this page"
OUTCOME = re.compile(r"Version \d+ of")


def choose(analyst: Analyst, name: str, content: bytes, label: str = FILE) -> None:
    analyst.page.get_by_label(label, exact=True).set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    )


def csv_of(rows: list[list[str]], separator: str = ",", encoding: str = "utf-8") -> bytes:
    written = io.StringIO()
    csv.writer(written, delimiter=separator).writerows(rows)
    return written.getvalue().encode(encoding)


def heads(analyst: Analyst) -> list[str]:
    found: list[str] = analyst.page.locator(".preview thead th").all_inner_texts()
    return [head.strip() for head in found]


@pytest.fixture
def server(serve: Serve, store: Path) -> Server:
    return serve(model_store=store, encoder="tiny")


def tickets(count: int) -> list[list[str]]:
    rows = [[str(n), f"{text} Öffnen für 5 €.", "open"] for n, text in enumerate(sentences(count))]
    return [["id", "question", "state"], *rows]


def test_a_table_in_an_old_encoding_becomes_a_version_of_its_column(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    rows = [*tickets(300), ["300", "", "open"], ["301", "x" * 10_001, "open"]]
    choose(analyst, "<i>tickets & 1.csv", csv_of(rows, ";", "windows-1252"))
    analyst.sees("CSV with semicolons, windows-1252.")
    assert heads(analyst) == ["id", "question", "state"]
    assert analyst.page.get_by_role("radio", name="question").is_checked()
    assert analyst.page.get_by_role("cell", name=re.compile("Öffnen für 5 €")).count() == 10
    shown = analyst.understood()
    assert (shown["Sentences"], shown["Distinct"], shown["Empty"], shown["Too long"]) == ("300", "300", "1", "1")
    analyst.sees("1 row longer than 10,000 characters will be left out (row 303).")
    analyst.fills("Domain", "tickets")
    analyst.presses("Start the calibration")
    source = "<i>tickets & 1.csv, CSV with semicolons, windows-1252, column question"
    analyst.sees(source)
    analyst.sees(OUTCOME, 120)
    analyst.page.reload()
    analyst.sees(OUTCOME)
    assert analyst.page.get_by_text(source).count() == 1  # the tab has kept it; the server has no names of files
    assert analyst.page.locator("main i").count() == 0
    assert "tickets & 1" not in server.client.get("/calibrate").text
    assert server.client.get("/calibrate").json()["jobs"][0]["sentences"] == 300


def test_every_file_gives_the_threshold_of_its_sentences(visit: Visit, server: Server) -> None:
    """As they are dropped, without a correction: the sheet with the table is taken, not the cover before it."""
    server.calibrate("posted", TEXTS)

    def threshold(domain: str) -> dict[str, Any]:
        found = server.client.get(f"/domains/{domain}/threshold?fmr=0.01").raise_for_status().json()
        return {name: found[name] for name in ("similarity", "interval", "pairs")}

    for name, (content, form, query) in FILES.items():
        domain = name.replace(".", "-")
        analyst = visit(server, "#/calibrate")
        choose(analyst, name, content)
        analyst.understood()
        if form != "text":
            assert analyst.page.get_by_role("radio", name="question").is_checked(), name
        if "sheet" in query:
            assert analyst.page.get_by_label("Sheet", exact=True).input_value() == query["sheet"]
        assert analyst.understood()["Distinct"] == str(len(TEXTS)), name
        analyst.fills("Domain", domain)
        analyst.presses("Start the calibration")
        analyst.sees(OUTCOME, 120)
        assert threshold(domain) == threshold("posted"), name


def test_a_guessed_encoding_can_be_overruled(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    text = "\n".join(f"{sentence} Łódź źle się czuje." for sentence in sentences(50))
    choose(analyst, "polish.txt", text.encode("iso-8859-2"))
    analyst.sees(re.compile("A guess. If the rows below show wrong letters"))
    analyst.page.get_by_label("Encoding", exact=True).focus()
    analyst.chooses("Encoding", "iso-8859-2")
    analyst.sees(re.compile("Łódź źle się czuje"))
    analyst.page.get_by_text(re.compile(r"Text, one sentence a line, ISO-8859-2\.")).first.wait_for()
    assert analyst.focused() == "Encoding"


def test_an_encoding_that_does_not_fit_is_refused_and_the_last_one_stays(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    choose(analyst, "german.txt", "\n".join(f"{text} Füße." for text in sentences(50)).encode("windows-1252"))
    analyst.understood()
    analyst.chooses("Encoding", "utf-8")
    analyst.page.locator(".fault").first.wait_for()
    assert "utf-8" in analyst.page.locator(".fault").first.inner_text()
    assert analyst.page.get_by_label("Encoding", exact=True).input_value() == "windows-1252"


def test_a_workbook_shows_its_sheets_and_the_chosen_one_is_calibrated(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    notes = [["note"], *([f"Only a note, number {n}."] for n in range(30))]
    content = workbook(notes, tickets(250), names=["Notes", "Tickets"])
    choose(analyst, "tickets.xlsx", content)
    analyst.sees("Excel workbook, sheet Notes.")
    analyst.chooses("Sheet", "Tickets")
    analyst.sees("Excel workbook, sheet Tickets.")
    assert heads(analyst) == ["id", "question", "state"]
    analyst.fills("Domain", "tickets")
    analyst.presses("Start the calibration")
    analyst.sees(OUTCOME, 120)
    assert server.client.get("/calibrate").json()["jobs"][0]["sentences"] == 250


def test_text_in_utf_16_is_read_as_what_it_is(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    choose(analyst, "notes.txt", "\n".join([*sentences(220), "Τελευταία πρόταση."]).encode("utf-16"))
    analyst.sees("Text, one sentence a line, UTF-16.")
    assert analyst.understood()["Sentences"] == "221"
    assert analyst.page.get_by_label("Encoding", exact=True).count() == 0


def test_a_click_chooses_another_column(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    choose(analyst, "tickets.csv", csv_of(tickets(40)))
    assert analyst.understood()["Distinct"] == "40"
    analyst.page.get_by_role("radio", name="state").click()
    analyst.page.wait_for_function("() => document.querySelector('.facts.tiles').innerText.includes('39')")
    shown = analyst.understood()
    assert (shown["Sentences"], shown["Distinct"], shown["Same word for word"]) == ("40", "1", "39")
    assert analyst.page.get_by_role("radio", name="state").is_checked()
    analyst.page.keyboard.press("ArrowLeft")  # the focus is still on the chosen column
    analyst.page.wait_for_function("() => !document.querySelector('.facts.tiles').innerText.includes('39')")
    assert analyst.page.get_by_role("radio", name="question").is_checked()


def test_whether_the_first_row_is_a_header_can_be_corrected(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    choose(analyst, "tickets.csv", csv_of(tickets(40)))
    assert analyst.understood()["Sentences"] == "40"
    box = analyst.page.get_by_role("checkbox", name="The first row holds the columns' names")
    assert box.is_checked()
    box.click()
    analyst.page.wait_for_function("() => document.querySelector('.facts.tiles').innerText.includes('41')")
    assert "question" not in heads(analyst)
    assert analyst.page.locator(".preview tbody td").nth(1).inner_text() == "question"


def test_a_pasted_part_of_a_spreadsheet_is_a_table(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    analyst.fills("Or paste", "\n".join("\t".join(row) for row in tickets(40)))
    analyst.sees(re.compile("Table with tabs"))
    assert heads(analyst) == ["id", "question", "state"]


def test_lines_with_separators_can_be_read_as_sentences_all_the_same(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    lines = "\n".join(f"{n}\t{text}" for n, text in enumerate(sentences(250)))
    choose(analyst, "lines.tsv", lines.encode())
    analyst.sees(re.compile("Table with tabs"))
    analyst.chooses("Read it as", "text")
    analyst.sees(re.compile("Text, one sentence a line"))
    analyst.fills("Domain", "lines")
    analyst.presses("Start the calibration")
    analyst.sees(OUTCOME, 120)
    assert server.client.get("/calibrate").json()["jobs"][0]["sentences"] == 250


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("report.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"), ("empty.txt", b"", "empty")],
)
def test_what_cannot_be_read_is_refused_at_its_field_in_the_servers_words(
    visit: Visit, tiny_server: Server, name: str, content: bytes, words: str
) -> None:
    answer = tiny_server.client.post("/inspect", content=content, headers={"content-type": "application/octet-stream"})
    assert words in answer.json()["error"]
    analyst = visit(tiny_server, "#/calibrate")
    choose(analyst, name, content)
    analyst.sees(re.compile(re.escape(answer.json()["error"][1:60])))
    field = analyst.page.get_by_label(FILE, exact=True)
    assert field.get_attribute("aria-invalid") == "true"
    analyst.fills("Domain", "letters")
    analyst.presses("Start the calibration")
    analyst.page.wait_for_function("() => document.activeElement?.type === 'file'")
    assert analyst.focused() == FILE


def test_labelled_pairs_of_any_file_go_along(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    choose(analyst, "tickets.csv", csv_of(tickets(300), ";", "windows-1252"))
    analyst.understood()
    analyst.fills("Domain", "tickets")
    analyst.page.get_by_text("Labelled pairs (optional)").click()
    rows = [["label", "a", "b"], *([str(n % 2), f"{a} Öl", f"{b} Öl"] for n, (a, b, _) in enumerate(labelled(60)))]
    choose(analyst, "pairs.csv", csv_of(rows, ";", "windows-1252"), "File of labelled pairs")
    analyst.sees("60 labelled pairs understood.")
    analyst.presses("Start the calibration")
    analyst.sees(OUTCOME, 120)
    job = server.client.get("/calibrate").json()["jobs"][0]
    assert (job["sentences"], job["labels"]) == (300, 60)


def test_a_workbook_of_labelled_pairs_with_weights_is_read_and_its_faults_are_named(
    visit: Visit, tiny_server: Server
) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    analyst.page.get_by_text("Labelled pairs (optional)").click()
    rows = [[a, b, str(label), "2.5"] for a, b, label in labelled(30)]
    header = ["a", "b", "label", "weight"]
    choose(analyst, "pairs.xlsx", workbook([header, *rows]), "File of labelled pairs")
    analyst.sees("30 labelled pairs understood.")
    rows[4][2] = "7"
    choose(analyst, "pairs.xlsx", workbook([header, *rows]), "File of labelled pairs")
    analyst.sees("Line 6: the label 7 is neither 0 nor 1.")


@pytest.mark.parametrize(
    ("written", "offered"),
    [("My Tickets", "my-tickets"), ("Über uns", "uber-uns"), ("letters@2", "letters-2"), ("-x", "x")],
)
def test_a_name_that_cannot_be_used_comes_with_one_that_can(
    visit: Visit, tiny_server: Server, written: str, offered: str
) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    analyst.fills("Domain", written)
    analyst.page.keyboard.press("Tab")
    analyst.sees(re.compile("1 to 64 of a–z"))
    analyst.presses(f"Use “{offered}”")
    field = analyst.page.get_by_label("Domain", exact=True)
    assert field.input_value() == offered
    assert field.get_attribute("aria-invalid") is None
    assert analyst.page.get_by_role("button", name=re.compile("^Use")).count() == 0


COLUMNS = [
    ["id", "street", "question"],
    *([f"T-{n:05}", "Hauptstr. 12", text] for n, text in enumerate(sentences(300))),
]


def test_a_column_of_codes_or_names_is_remarked_and_sentences_are_not(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    choose(analyst, "tickets.csv", csv_of(COLUMNS, ";", "utf-8"))
    analyst.understood()
    remark = analyst.page.locator(".verdict", has_text="not sentences")
    assert remark.count() == 0
    analyst.page.get_by_label("id", exact=True).check()
    analyst.sees(re.compile("^These look like numbers or codes, not sentences"))
    analyst.page.get_by_label("street", exact=True).check()
    analyst.sees(re.compile("^These look like names or categories, not sentences"))
    analyst.page.get_by_label("question", exact=True).check()
    remark.wait_for(state="detached")


@pytest.mark.parametrize(("name", "warned"), [("wikipedia-ko", True), ("wikipedia-en", False)])
def test_text_that_an_english_encoder_cannot_read_is_remarked(
    visit: Visit, tiny_server: Server, data: Path, name: str, warned: bool
) -> None:
    texts = (data / "text" / f"{name}.txt").read_text().split("\n")[:300]
    analyst = visit(tiny_server)

    def as_minilm(route: Any) -> None:
        facts = route.fetch().json()
        facts["encoder"]["id"] = "minilm"
        route.fulfill(json=facts)

    analyst.page.route("**/console/server.json", as_minilm)
    analyst.go("#/calibrate")
    analyst.sees("minilm: English")
    analyst.fills("Or paste", "\n".join(texts))
    analyst.understood()
    assert analyst.page.get_by_text(re.compile("^Most of this is not English")).count() == warned


def test_on_a_phone_the_chosen_column_is_in_sight_and_named(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    analyst.page.set_viewport_size({"width": 390, "height": 844})
    wide = [[*row[:2], *([f"note {n}"] * 4), row[2]] for n, row in enumerate(COLUMNS)]
    wide[0] = ["id", "street", "date", "owner", "state", "place", "question"]
    choose(analyst, "tickets.csv", csv_of(wide, ";", "utf-8"))
    analyst.understood()
    analyst.sees(re.compile(r"Chosen: question \(7 of 7\)"))
    head = analyst.page.locator("th.chosen").bounding_box()
    assert 0 <= head["x"] < head["x"] + head["width"] <= 390
