"""Pairs of the analyst's own text, judged one at a time, and sent as a domain's labels."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Visit, labelled
from tests.processes import Serve, Server
from tests.text import sentences
from tests.workbooks import workbook

FILE = "Choose a file, or drop it anywhere on this page"
OWN = "Go on with labels from a file"
OUTCOME = re.compile(r"Version 2 of letters")


@pytest.fixture
def letters(serve: Serve, store: Path) -> Server:
    """A server with one version of letters."""
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("letters", sentences(300), method="identity")
    return server


def draw(analyst: Analyst, texts: list[str]) -> None:
    table = "\r\n".join(["id;text", *(f"{n};{text} Öl" for n, text in enumerate(texts))])
    analyst.page.get_by_label(FILE, exact=True).set_input_files(
        {"name": "own.csv", "mimeType": "text/csv", "buffer": table.encode("windows-1252")}
    )
    analyst.sees("CSV with semicolons, windows-1252.")
    analyst.presses("Draw pairs")
    analyst.sees("2. Do these two mean the same?", 60)


def pair(analyst: Analyst) -> list[str]:
    found: list[str] = analyst.page.locator(".pair blockquote").all_inner_texts()
    return found


def judge(analyst: Analyst, count: int) -> list[tuple[str, str, int]]:
    """Presses 1 for every other pair, else 0; the pairs with the labels."""
    judged = []
    for number in range(count):
        a, b = pair(analyst)
        label = number % 2
        analyst.page.keyboard.press(str(label))
        judged.append((a, b, label))
    return judged


def kept(analyst: Analyst) -> dict[str, Any]:
    """What the tab has stored."""
    found: dict[str, Any] = analyst.page.evaluate(
        """() => ({
            drawing: JSON.parse(sessionStorage.getItem("isosim.labels.letters.drawing")),
            ...JSON.parse(sessionStorage.getItem("isosim.labels.letters.judged")),
        })"""
    )
    return found


def downloaded(analyst: Analyst, folder: Path) -> Path:
    with analyst.page.expect_download() as download:
        analyst.presses("Download as TSV")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_pairs_are_judged_and_sent_by_keyboard_alone(visit: Visit, letters: Server) -> None:
    analyst = visit(letters, "#/label/letters")
    keyboard = analyst.page.keyboard
    analyst.tabs_to("Or paste")
    keyboard.insert_text("\n".join(sentences(120)))
    analyst.sees("Text, one sentence a line, UTF-8.")
    analyst.tabs_to("Draw pairs")
    keyboard.press("Enter")
    analyst.sees("2. Do these two mean the same?", 60)
    first = pair(analyst)
    assert "similarity is" not in analyst.page.locator(".judging").inner_text()  # it would sway the judgement
    keyboard.press("1")
    analyst.sees("The pair before: same.")
    assert pair(analyst) != first
    keyboard.press("Backspace")
    assert pair(analyst) == first
    keyboard.press("s")
    second = pair(analyst)
    keyboard.press("Space")
    assert pair(analyst) != second
    keyboard.press("u")
    assert pair(analyst) == second
    judge(analyst, 19)
    analyst.sees("19 labels, ")
    analyst.tabs_to("Send 19 labels")
    keyboard.press("Enter")
    analyst.sees("At least 20 labelled pairs are needed: 1 more.")
    analyst.page.locator("h1").focus()
    judge(analyst, 11)
    analyst.tabs_to("Send 30 labels")
    keyboard.press("Enter")
    analyst.sees(OUTCOME, 120)
    report = letters.client.get("/domains/letters/versions/2").json()["report"]
    assert report["labels"]["pairs"] == 30
    analyst.page.go_back()
    analyst.sees("All of these labels were sent: ")
    analyst.presses("see what came of them", "link")
    analyst.sees(OUTCOME)
    analyst.page.go_back()
    assert analyst.page.get_by_role("button", name="Send 30 labels again").is_enabled()
    analyst.page.keyboard.press("0")
    analyst.sees("Send 31 labels")
    assert not analyst.page.get_by_text("All of these labels were sent: ").is_visible()


def test_a_reload_and_another_page_lose_no_label(visit: Visit, letters: Server) -> None:
    analyst = visit(letters, "#/label/letters")
    draw(analyst, sentences(60))
    judge(analyst, 7)
    now = pair(analyst)
    analyst.page.reload()
    analyst.sees(re.compile("7 pairs judged"))
    assert pair(analyst) == now
    analyst.presses("Domains", "link")
    analyst.sees("letters")
    analyst.go("#/label/letters")
    analyst.sees(re.compile("7 pairs judged"))
    analyst.presses("Forget them")
    analyst.answers("Forget them")
    analyst.sees("The labels are forgotten.")
    analyst.page.reload()
    analyst.sees("No labels yet.")
    assert not analyst.page.locator(".judging").is_visible()


def test_downloaded_labels_are_read_again_by_the_page_and_by_the_server(
    visit: Visit, letters: Server, tmp_path: Path
) -> None:
    analyst = visit(letters, "#/label/letters")
    draw(analyst, sentences(120))
    judged = judge(analyst, 24)
    file = downloaded(analyst, tmp_path)
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    assert lines[0] == ["a", "b", "label", "weight"]
    assert [(a, b, int(label)) for a, b, label, _ in lines[1:]] == judged
    assert sum(float(weight) for *_, weight in lines[1:]) == pytest.approx(24, rel=1e-6)
    other = visit(letters, "#/label/letters")  # a browser that knows nothing of them
    other.page.get_by_label(OWN).set_input_files(file)
    other.sees(re.compile("^24 labels, "))
    assert downloaded(other, tmp_path).read_text() == file.read_text()
    other.presses("Send 24 labels")
    other.sees(OUTCOME, 120)
    labels = letters.client.get("/domains/letters/versions/2").json()["report"]["labels"]
    assert labels["pairs"] == 24


def test_what_is_sent_are_all_labels_with_weights_that_make_up_for_the_drawing(visit: Visit, letters: Server) -> None:
    analyst = visit(letters, "#/label/letters")
    draw(analyst, sentences(120))
    judge(analyst, 25)
    stored = kept(analyst)
    with analyst.page.expect_request(re.compile("/domains/letters/labels")) as sent:
        analyst.presses("Send 25 labels")
    assert sent.value.url.endswith("?version=1&kind=matches")
    sent_labels = [json.loads(line) for line in sent.value.post_data.splitlines()]
    strata, queue = stored["drawing"]["strata"], stored["drawing"]["queue"]
    places = [place for place, _ in stored["judged"]]
    counts = [sum(queue[place][2] == number for place in places) for number in range(len(strata))]
    pairs = 120 * 119 / 2
    assert sum(stratum["size"] for stratum in strata) == pairs
    assert min(counts) > 0
    for label, (place, judged) in zip(sent_labels, stored["judged"], strict=True):
        _, _, stratum, _ = queue[place]
        assert (label["a"], label["b"], label["label"]) == (*queue[place][:2], judged)
        assert label["weight"] == pytest.approx(strata[stratum]["size"] / counts[stratum] * 25 / pairs)
    analyst.sees(OUTCOME, 120)


def test_labels_of_ones_own_are_sent_without_judging_and_the_next_ones_replace_them(
    visit: Visit, letters: Server
) -> None:
    analyst = visit(letters, "#/label/letters")
    rows = [[a, b, n % 2] for n, (a, b, _) in enumerate(labelled(40))]
    analyst.page.get_by_label(OWN).set_input_files(
        {
            "name": "own.xlsx", "mimeType": "application/octet-stream",
            "buffer": workbook([["a", "b", "label"], *rows]),
        }
    )  # fmt: skip
    analyst.presses("Send 40 labels")
    analyst.sees(OUTCOME, 120)
    assert letters.client.get("/domains/letters/versions/2").json()["report"]["labels"]["pairs"] == 40


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("report.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "Copy the text out of a PDF"),
        ("labels.csv", b"a,b,label\nOne.,Two.,7\n", "Line 2: the label 7 is neither 0 nor 1."),
        ("labels.tsv", b"One.\tTwo.\nThree.\tFour.\n", "expected a label and two sentences, found 2 columns"),
    ],
)
def test_a_file_that_holds_no_labels_is_refused_at_its_field(
    visit: Visit, letters: Server, name: str, content: bytes, words: str
) -> None:
    analyst = visit(letters, "#/label/letters")
    analyst.page.get_by_label(OWN).set_input_files({"name": name, "mimeType": "", "buffer": content})
    analyst.sees(re.compile(re.escape(words)))
    assert analyst.page.get_by_label(OWN).get_attribute("aria-invalid") == "true"
    analyst.sees("No labels yet.")


def test_drawing_can_be_stopped_and_begun_again(visit: Visit, letters: Server) -> None:
    analyst = visit(letters, "#/label/letters")
    held: list[Any] = []
    analyst.page.route("**/embed", lambda route: held.append(route))  # noqa: PLW0108 - Playwright cannot take a builtin
    analyst.fills("Or paste", "\n".join(sentences(120)))
    analyst.sees("Text, one sentence a line, UTF-8.")
    analyst.presses("Draw pairs")
    analyst.sees("Reading with the encoder", 30)
    analyst.presses("Stop")
    analyst.page.get_by_role("button", name="Stop").wait_for(state="detached")
    assert not analyst.page.locator(".judging").is_visible()
    analyst.page.unroute("**/embed")
    analyst.presses("Draw pairs")
    analyst.sees("2. Do these two mean the same?", 60)


def test_more_text_can_be_drawn_from_and_the_judged_pairs_stay(visit: Visit, letters: Server) -> None:
    analyst = visit(letters, "#/label/letters")
    draw(analyst, sentences(60))
    judge(analyst, 6)
    analyst.opens("Draw from other text")
    analyst.fills("Or paste", "\n".join(sentences(160)[80:]))
    analyst.sees("Text, one sentence a line, UTF-8.")
    analyst.presses("Draw pairs")
    analyst.sees(re.compile("0 pairs judged.*6 more labels from files"), 60)
    judge(analyst, 3)
    analyst.sees(re.compile("^9 labels, "))


def test_the_page_is_reached_from_the_navigation_from_a_domain_and_from_its_report(
    visit: Visit, letters: Server
) -> None:
    analyst = visit(letters, "#/domains")
    analyst.presses("Label", "link")
    analyst.chooses("Domain", "letters")
    analyst.sees("Label pairs for letters")
    analyst.go("#/report/letters/1")
    analyst.presses(re.compile("Add labels"), "link")
    analyst.sees("Label pairs for letters")


def test_labels_that_promise_no_threshold_by_precision_say_so_before_they_are_sent(
    visit: Visit, letters: Server
) -> None:
    analyst = visit(letters, "#/label/letters")
    assert analyst.page.get_by_role("button", name="Send the labels").is_disabled()  # there are none
    draw(analyst, sentences(120))
    for _ in range(24):
        analyst.page.keyboard.press("0")
    warning = analyst.page.locator(".verdict", has_text="No threshold by precision can be expected of these labels yet")
    warning.wait_for()
    assert "none of the pairs that score highest is a match" in warning.inner_text()
    for _ in range(24):
        analyst.page.keyboard.press("Backspace")
    for _ in range(24):
        analyst.page.keyboard.press("1")
    analyst.sees("24 labels, 24 of them matches.")
    assert not warning.is_visible()
