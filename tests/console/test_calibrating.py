"""From a text to a version, with all that can go wrong on the way."""

import csv
import io
import re
import time
from typing import Any

from isosim.jobs.job import Status
from isosim.jobs.posted import Posted
from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit, labelled
from tests.processes import wait_until
from tests.stores import jobs_of
from tests.tables import FILES, TEXTS
from tests.text import sentences
from tests.workbooks import workbook

FILE = "Choose a file, or drop it anywhere on this page"
LABELS = "File of labelled pairs"
POST = re.compile(r"/calibrate\?")
ROWS = [["id", "street", "question"], *([f"T-{n}", "Hauptstr. 12", f"{t} Öl"] for n, t in enumerate(sentences(300)))]


def csv_of(rows: list[list[str]], encoding: str = "windows-1252") -> bytes:
    written = io.StringIO()
    csv.writer(written, delimiter=";").writerows(rows)
    return written.getvalue().encode(encoding)


def test_the_whole_way_goes_by_keyboard_alone(visit: Visit, site: Site) -> None:
    site.copies("typed")
    analyst = visit("#/domains")
    keyboard = analyst.page.keyboard
    keyboard.press("Tab")
    assert analyst.focused() == "Skip to the content"
    keyboard.press("Enter")
    assert analyst.focused() == "Domains"
    analyst.enters("New calibration")
    analyst.sees("1. Text of the domain")
    assert analyst.focused() == "New calibration"  # the new view's heading
    analyst.tabs_to("Or paste")
    keyboard.insert_text("\n".join([*sentences(400), "", *sentences(50)]))
    assert analyst.understood() == {
        "Sentences": "450", "Distinct": "400", "Same word for word": "50", "Empty": "1", "Too long": "0",
        "Longest (characters)": str(max(len(text) for text in sentences(400))),
    }  # fmt: skip
    analyst.tabs_to("Domain")
    keyboard.type("typed")
    keyboard.press("Escape")  # the list of known names
    analyst.tabs_to("Put it in use")
    keyboard.type("always")
    analyst.enters("More options")
    analyst.tabs_to("Method")
    keyboard.type("cent")
    analyst.enters("Start the calibration")
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees("Version 2 of typed")
    analyst.enters("Open the report")
    analyst.sees("Which threshold?")
    assert analyst.focused() == "typed, version 2"
    analyst.tabs_to("Wanted false-match rate in per cent")
    keyboard.press("Control+a")
    keyboard.type("10")
    analyst.sees("For a false-match rate of 10 %")
    analyst.page.go_back()
    analyst.sees("Open the report")
    analyst.go("#/domains")
    analyst.enters("Versions of typed")
    analyst.sees("Version 2")
    analyst.enters("Return to version 1")
    analyst.sees("Put version 1 of typed in use?")
    keyboard.press("Escape")
    assert analyst.focused() == "Return to version 1"  # back where it was
    assert site.get("/domains/typed")["champion"] == 2
    keyboard.press("Enter")
    analyst.sees("Put version 1 of typed in use?")
    keyboard.press("Enter")
    analyst.sees("Version 1 of typed is in use now.")
    assert site.get("/domains/typed")["champion"] == 1


def test_a_table_and_labelled_pairs_in_an_old_encoding_become_a_version(visit: Visit, site: Site) -> None:
    analyst = visit("#/calibrate")
    rows = [*ROWS, ["300", "", ""], ["301", "", "x" * 10_001]]
    analyst.chooses_file("<i>tickets & 1.csv", csv_of(rows))
    analyst.sees("CSV with semicolons, windows-1252.")
    assert analyst.page.get_by_role("radio", name="question").is_checked()
    assert analyst.page.get_by_role("cell", name=re.compile("Öl")).count() == 10
    shown = analyst.understood()
    assert (shown["Sentences"], shown["Distinct"], shown["Empty"], shown["Too long"]) == ("300", "300", "1", "1")
    analyst.sees("1 row longer than 10,000 characters will be left out (row 303).")
    analyst.fills("Domain", "files")
    analyst.chooses("Put it in use", "always")
    analyst.opens("Labelled pairs (optional)")
    pairs = [
        ["a", "b", "label", "weight"],
        *([f"{a} Öl", b, str(n % 2), "2.5"] for n, (a, b, _) in enumerate(labelled(60))),
    ]
    analyst.chooses_file("pairs.xlsx", workbook([*pairs, ["One.", "Two.", "7", "1"]]), LABELS)
    analyst.sees("neither 0 nor 1: 7 in row 62")
    analyst.chooses_file("pairs.csv", csv_of(pairs), LABELS)
    analyst.presses("Start the calibration")  # waits until the labels are read
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees("Version 1 of files")
    assert analyst.text(".outcome") == "in use Version 1 of files is in use."
    analyst.sees("It was to be put in use in any case.")
    analyst.page.reload()
    analyst.sees("Version 1 of files")
    # The tab has kept the file's name; the server has not.
    source = "<i>tickets & 1.csv, CSV with semicolons, windows-1252, column question"
    assert analyst.page.get_by_text(source).count() == 1
    assert analyst.page.locator("main i").count() == 0
    job = site.get("/calibrate")["jobs"][0]
    assert (job["domain"], job["sentences"], job["labels"]) == ("files", 300, 60)
    assert "tickets & 1" not in str(job)


def test_what_is_sent_is_what_was_shown_of_every_kind_of_file(visit: Visit, site: Site) -> None:
    """Without a correction: the sheet with the table is taken, not the cover before it."""
    analyst = visit()
    for name, (content, form, _) in FILES.items():
        analyst.go("#/calibrate/kinds")
        analyst.chooses_file(name, content)
        assert analyst.understood()["Distinct"] == str(len(TEXTS)), name
        assert form == "text" or analyst.page.get_by_role("radio", name="question").is_checked(), name
        analyst.presses("Start the calibration")
        analyst.sees("Waiting for a worker")
        [job] = jobs_of(site.store).unended()
        with jobs_of(site.store).posted(job) as posted:
            assert list(Posted.from_folder(posted).texts) == TEXTS, name
        jobs_of(site.store).cancel(job.id)


def choose(analyst: Analyst, name: str, content: bytes, said: str) -> None:
    analyst.go("#/calibrate")
    analyst.chooses_file(name, content)
    analyst.sees(said)


def test_what_was_understood_wrongly_can_be_corrected(visit: Visit) -> None:
    analyst = visit()
    polish = "\n".join(f"{sentence} Łódź źle się czuje." for sentence in sentences(50))
    choose(analyst, "polish.txt", polish.encode("iso-8859-2"), "A guess. If the rows below show wrong letters")
    analyst.field("Encoding").focus()
    analyst.chooses("Encoding", "iso-8859-2")
    analyst.sees("Łódź źle się czuje")
    assert analyst.focused() == "Encoding"
    analyst.chooses("Encoding", "utf-8")  # does not fit, and is taken back
    analyst.page.locator(".fault", has_text="utf-8").wait_for()
    assert analyst.field("Encoding").input_value() == "iso-8859-2"

    notes = [["note"], *([f"Only a note, number {n}."] for n in range(30))]
    choose(analyst, "book.xlsx", workbook(notes, ROWS, names=["Notes", "Tickets"]), "Excel workbook, sheet Tickets.")
    for sheet in ("Notes", "Tickets"):
        analyst.chooses("Sheet", sheet)
        analyst.sees(f"Excel workbook, sheet {sheet}.")
    analyst.page.get_by_role("checkbox", name="The first row holds the columns' names").click()
    distinct = analyst.page.locator(".understood dl > div", has_text="Distinct")
    distinct.filter(has_text="301").wait_for()

    choose(analyst, "tickets.csv", csv_of(ROWS), "CSV with semicolons, windows-1252.")
    remark = analyst.page.locator(".verdict", has_text="not sentences")
    assert remark.count() == 0
    analyst.page.get_by_role("radio", name="id").click()
    analyst.sees("These look like numbers or codes, not sentences")
    analyst.page.keyboard.press("ArrowRight")  # the focus is still on the chosen column
    analyst.sees("These look like names or categories, not sentences")
    distinct.filter(has_text=re.compile("^Distinct\\s*1$")).wait_for()
    analyst.page.set_viewport_size({"width": 390, "height": 844})
    analyst.page.get_by_role("radio", name="question").click()
    remark.wait_for(state="detached")
    analyst.sees("Chosen: question (3 of 3)")
    head = analyst.page.locator("th.chosen").bounding_box()
    assert 0 <= head["x"] < head["x"] + head["width"] <= 390  # in sight on a phone
    analyst.chooses("Read it as", "text")
    analyst.sees("Text, one sentence a line, windows-1252.")

    assert not analyst.field("Or paste").is_visible()  # it would push the preview away
    analyst.presses("Paste text instead")
    analyst.fills("Or paste", "\n".join("\t".join(row) for row in ROWS))
    analyst.sees("Table with tabs")


def test_dropped_text_is_cut_between_characters_and_other_scripts_are_remarked(visit: Visit) -> None:
    analyst = visit()

    def as_minilm(route: Any) -> None:
        facts = route.fetch().json()
        facts["encoder"]["id"] = "minilm"
        route.fulfill(json=facts)

    analyst.page.route("**/console/server.json", as_minilm)
    analyst.go("#/calibrate")
    analyst.sees("reads English")
    foreign = analyst.page.get_by_text("Most of this is not English")
    dropped = analyst.page.evaluate_handle(
        """(content) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([content], "dropped.txt", { type: "text/plain" }));
            return transfer;
        }""",
        "a" + "👍" * 300 + "\n" + "\n".join(sentences(20)),
    )
    for event in ("dragover", "drop"):
        analyst.page.dispatch_event("fieldset.drop", event, {"dataTransfer": dropped})
    analyst.sees("dropped.txt")
    assert analyst.page.locator("td.sample").first.text_content() == "a" + "👍" * 199
    assert foreign.count() == 0
    analyst.presses("Paste text instead")
    analyst.fills("Or paste", "오늘은 날씨가 아주 좋다\n서울은 대한민국의 수도이다\nA line in English")
    foreign.wait_for()


def test_a_large_paste_does_not_freeze_the_page(visit: Visit) -> None:
    analyst = visit("#/calibrate", permissions=["clipboard-read", "clipboard-write"])
    text = "\n".join(f"{text} {n}" for n in range(10) for text in sentences(2000))
    analyst.page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    box = analyst.field("Or paste")
    box.focus()
    analyst.page.keyboard.press("Control+v")
    assert analyst.understood()["Sentences"] == "20,000"
    assert box.input_value() == ""  # in the box it took six seconds, and the page stood still


def test_what_cannot_be_used_is_said_at_its_field(visit: Visit, site: Site) -> None:
    before = site.get("/calibrate")["jobs"]
    analyst = visit("#/calibrate")
    file = analyst.field(FILE)
    analyst.presses("Start the calibration")
    analyst.sees("Choose a file or paste text first.")
    analyst.sees("Give the domain a name.")
    for name, content in (("report.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"), ("empty.txt", b"")):
        analyst.chooses_file(name, content)
        refused = site.server.client.post(
            "/inspect", content=content, headers={"content-type": "application/octet-stream"}
        )
        analyst.sees(refused.json()["error"][1:60])  # in the server's words
        assert file.get_attribute("aria-invalid") == "true"
    analyst.fills("Or paste", "\n".join(sentences(20)))
    analyst.sees("Too few: the method needs at least 200 distinct sentences, here are 20.")
    for written, offered in (("My Tickets", "my-tickets"), ("Über uns", "uber-uns"), ("letters@2", "letters-2")):
        analyst.fills("Domain", written)
        analyst.page.keyboard.press("Tab")
        analyst.sees("1 to 64 of a–z")
        analyst.presses("Start the calibration")
        wait_until(lambda: analyst.focused() == "Domain")
        field = analyst.field("Domain")
        assert field.get_attribute("aria-invalid") == "true"
        analyst.presses(f"Use “{offered}”")
        assert field.input_value() == offered
        assert field.get_attribute("aria-invalid") is None
    analyst.presses("Start the calibration")
    said = analyst.alert()
    assert "20 distinct sentences; method 'auto' needs at least 200" in said
    assert "Change it and try again." in said
    analyst.fills("Or paste", "\n".join(sentences(250)))
    analyst.page.locator("#alerts .alert").wait_for(state="detached")  # it was about the text before
    assert site.get("/calibrate")["jobs"] == before


def test_a_job_is_followed_cancelled_after_a_question_and_a_failed_one_says_why(visit: Visit, site: Site) -> None:
    jobs = jobs_of(site.store)
    job = site.post("/calibrate", domain="gone", texts=sentences(300), method="sn")["job"]
    analyst = visit()
    analyst.expected.append("net::ERR_")
    analyst.page.route("**/events", lambda route: route.abort())
    analyst.go(f"#/job/{job}")
    analyst.sees("The calibration goes on where it runs; asking again in")
    analyst.page.unroute("**/events")
    analyst.sees("Waiting for a worker")
    attempt = jobs.claim("tests")
    assert attempt is not None
    attempt.beat("embedding", 0.1)
    analyst.sees("10 %")
    time.sleep(1)
    attempt.beat("embedding", 0.4)
    analyst.sees(re.compile(r"^40 %, about \d+ seconds? until they are read; comparing and measuring come after"))
    analyst.presses("Cancel")
    assert analyst.focused() == "Keep it running"
    analyst.answers("Cancel the calibration")
    analyst.sees("The calibration is cancelled.")
    analyst.sees("the text is deleted and nothing has changed")
    analyst.go("#/calibrate")
    analyst.page.get_by_role("row", name=re.compile("gone cancelled")).wait_for()
    job = site.post("/calibrate", domain="gone", texts=sentences(300), method="sn")["job"]
    attempt = jobs.claim("tests")
    assert attempt is not None
    attempt.end(Status.FAILED, error="no encoder 'another'")
    analyst.go(f"#/job/{job}")
    analyst.sees("It has failed. no encoder 'another'")
    analyst.presses("New calibration", "link")
    analyst.sees("1. Text of the domain")


def test_a_busy_server_says_how_long_to_wait_and_what_was_entered_stays(visit: Visit, site: Site) -> None:
    jobs = jobs_of(site.store)
    analyst = visit("#/calibrate/kept")
    analyst.fills("Or paste", "\n".join(sentences(301)))
    for seed in range(2):  # so many may wait
        site.post("/calibrate", domain="kept", texts=sentences(300), seed=seed)
    analyst.presses("Start the calibration")
    assert "the limit is 2" in analyst.alert()
    analyst.sees("It asks to wait 60 seconds.")
    assert analyst.page.get_by_role("button", name="Try again").is_disabled()
    assert len(analyst.field("Or paste").input_value()) > 10_000
    for job in jobs.unended():
        jobs.cancel(job.id)


def test_an_old_calibration_says_what_is_true_now(visit: Visit, site: Site) -> None:
    first = site.calibrate("past", sentences(300), method="sn")
    second = site.calibrate("past", sentences(300), method="identity", promote="never")
    analyst = visit()

    def outcome(job: str) -> str:
        analyst.go(f"#/job/{job}")
        return analyst.text(".outcome")

    assert outcome(second) == "not in use Version 2 of past is made, and not in use; version 1 is."
    analyst.presses("Put it in use all the same")
    analyst.answers("Put in use")
    analyst.sees("This version is in use")
    assert outcome(second) == "in use Version 2 of past is in use."
    assert outcome(first) == "not in use Version 1 of past was in use at first; version 2 is in use now."
    site.server.client.delete("/domains/past").raise_for_status()
    assert outcome(first) == "deleted Version 1 of past was made; it has been deleted since."
    assert analyst.page.get_by_role("link", name="Open the report").count() == 0
