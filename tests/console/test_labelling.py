"""Pairs of the analyst's own text, judged one at a time, and sent as a domain's labels."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit, labelled
from tests.text import sentences
from tests.workbooks import workbook

OWN = "Go on with labels from a file"


@pytest.fixture
def domain(site: Site, request: pytest.FixtureRequest) -> str:
    """A domain of the test's own, with one version."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    site.copies(name)
    return str(name)


def draw(analyst: Analyst, count: int) -> None:
    table = "\r\n".join(["id;text", *(f"{n};{text} Öl" for n, text in enumerate(sentences(count)))])
    analyst.chooses_file("own.csv", table.encode("windows-1252"))
    analyst.sees("CSV with semicolons, windows-1252.")
    analyst.presses("Draw pairs")
    analyst.sees("2. Do these two mean the same?")


def pair(analyst: Analyst) -> list[str]:
    found: list[str] = analyst.page.locator(".pair blockquote").all_inner_texts()
    return found


def judge(analyst: Analyst, count: int) -> list[tuple[str, str, int]]:
    """Presses 1 for every other pair, else 0; the pairs with the labels."""
    judged = []
    for number in range(count):
        a, b = pair(analyst)
        analyst.page.keyboard.press(str(number % 2))
        judged.append((a, b, number % 2))
    return judged


def downloaded(analyst: Analyst, folder: Path) -> Path:
    with analyst.page.expect_download() as download:
        analyst.presses("Download as TSV")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_by_keyboard_alone(visit: Visit, site: Site, domain: str) -> None:
    """Pairs are drawn, judged and sent, and what was sent is known."""
    analyst = visit("#/label")
    analyst.chooses("Domain", domain)
    analyst.sees(f"Label pairs for {domain}")
    keyboard = analyst.page.keyboard
    analyst.tabs_to("Or paste")
    keyboard.insert_text("\n".join(sentences(120)))
    analyst.sees("Text, one sentence a line, UTF-8.")
    analyst.enters("Draw pairs")
    analyst.sees("2. Do these two mean the same?")
    first = pair(analyst)
    assert "similarity is" not in analyst.text(".judging")  # it would sway the judgement
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
    judged = judge(analyst, 19)
    analyst.enters("Send 19 labels")
    analyst.sees("At least 20 labelled pairs are needed: 1 more.")
    analyst.page.locator("h1").focus()
    judged += judge(analyst, 6)
    with analyst.page.expect_request(re.compile(f"/domains/{domain}/labels")) as sent:
        analyst.enters("Send 25 labels")
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees(f"Version 2 of {domain}")
    assert site.get(f"/domains/{domain}/versions/2")["report"]["labels"]["pairs"] == 25

    lines = [json.loads(line) for line in sent.value.post_data.splitlines()]
    assert [(line["a"], line["b"], line["label"]) for line in lines] == judged
    weights = [line["weight"] for line in lines]
    assert sum(weights) == pytest.approx(25)
    assert len(set(weights)) > 2  # each makes up for how its pair was drawn

    analyst.page.go_back()
    analyst.sees("All of these labels were sent: ")
    assert analyst.page.get_by_role("button", name="Send 25 labels again").is_enabled()
    analyst.page.keyboard.press("0")
    analyst.sees("Send 26 labels")
    assert not analyst.page.get_by_text("All of these labels were sent: ").is_visible()


def test_no_label_is_lost(visit: Visit, domain: str, tmp_path: Path) -> None:
    """By a reload, by another page, by drawing from more text; and a file carries them to another browser."""
    analyst = visit("#/domains")
    analyst.presses(f"Versions of {domain}")
    analyst.presses(f"Add labels to {domain}", "link")
    draw(analyst, 60)
    judged = judge(analyst, 7)
    now = pair(analyst)
    analyst.page.reload()
    analyst.sees("7 pairs judged")
    assert pair(analyst) == now
    analyst.presses("Domains", "link")
    analyst.sees("letters")
    analyst.go(f"#/label/{domain}")
    analyst.opens("Draw from other text")
    held: list[Any] = []
    analyst.page.route("**/embed", lambda route: held.append(route))  # noqa: PLW0108 - Playwright cannot take a builtin
    analyst.fills("Or paste", "\n".join(sentences(160)[80:]))
    analyst.sees("Text, one sentence a line, UTF-8.")
    analyst.presses("Draw pairs")
    analyst.sees("Reading with the encoder")
    analyst.presses("Stop")
    analyst.page.get_by_role("button", name="Stop").wait_for(state="detached")
    analyst.sees("7 pairs judged")
    analyst.page.unroute("**/embed")
    analyst.presses("Draw pairs")
    analyst.sees(re.compile("0 pairs judged.*7 more labels from files"))
    judged = [*judge(analyst, 3), *judged]
    analyst.sees("10 labels, ")
    file = downloaded(analyst, tmp_path)
    head, *lines = [line.split("\t") for line in file.read_text().splitlines()]
    assert head == ["a", "b", "label", "weight"]
    assert [(a, b, int(label)) for a, b, label, _ in lines] == judged
    assert sum(float(weight) for *_, weight in lines) == pytest.approx(10, rel=1e-6)

    other = visit(f"#/label/{domain}")  # a browser that knows nothing of them
    other.field(OWN).set_input_files(file)
    other.sees(re.compile("^10 labels, "))
    assert downloaded(other, tmp_path).read_text() == file.read_text()
    analyst.presses("Forget them")
    analyst.answers("Forget them")
    analyst.sees("The labels are forgotten.")
    analyst.page.reload()
    analyst.sees("No labels yet.")
    assert not analyst.page.locator(".judging").is_visible()


def test_labels_of_a_file_are_sent_without_judging(visit: Visit, site: Site, domain: str) -> None:
    analyst = visit(f"#/report/{domain}/1")
    analyst.presses("Add labels", "link")
    analyst.sees("No labels yet.")
    for name, content, words in (
        ("report.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "Copy the text out of a PDF"),
        ("labels.csv", b"a,b,label\nOne.,Two.,7\n", "Line 2: the label 7 is neither 0 nor 1."),
        ("labels.tsv", b"One.\tTwo.\nThree.\tFour.\n", "expected a label and two sentences, found 2 columns"),
    ):
        analyst.chooses_file(name, content, OWN)
        analyst.sees(words)
        assert analyst.field(OWN).get_attribute("aria-invalid") == "true"
    rows = [[a, b, n % 2] for n, (a, b, _) in enumerate(labelled(40))]
    analyst.chooses_file("own.xlsx", workbook([["a", "b", "label"], *rows]), OWN)
    analyst.presses("Send 40 labels")
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees(f"Version 2 of {domain}")
    assert site.get(f"/domains/{domain}/versions/2")["report"]["labels"]["pairs"] == 40


def test_labels_that_promise_no_precision_say_so_before_they_are_sent(visit: Visit, domain: str) -> None:
    analyst = visit(f"#/label/{domain}")
    assert analyst.page.get_by_role("button", name="Send the labels").is_disabled()  # there are none
    draw(analyst, 120)
    for _ in range(24):
        analyst.page.keyboard.press("0")
    warning = analyst.page.locator(".verdict", has_text="No threshold by precision can be expected of these labels yet")
    warning.wait_for()
    assert "none of the pairs that score highest is a match" in warning.inner_text()
    for key in 24 * ["Backspace"] + 24 * ["1"]:
        analyst.page.keyboard.press(key)
    analyst.sees("24 labels, 24 of them matches.")
    assert not warning.is_visible()
