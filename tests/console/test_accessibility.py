"""Every view for readers of all kinds: axe-core, light and dark, and windows of any width."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit
from tests.text import sentences

WIDTHS = [1400, 1100, 700, 390, 360]
DUPLICATES = [*sentences(230), *(text.upper() for text in sentences(43)), sentences(1)[0]]
CUT = """() => [...document.querySelectorAll('.scroll:has(table.stacked)')]
    .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute('aria-label'))"""


def domains(analyst: Analyst) -> None:
    analyst.go("#/domains")
    analyst.presses("Versions of accessible")
    analyst.page.get_by_role("table", name="Saved thresholds of accessible").wait_for()


def question(analyst: Analyst) -> None:
    domains(analyst)
    analyst.presses("Delete accessible, version 1")
    analyst.page.get_by_role("dialog").wait_for()


def report(analyst: Analyst, place: str) -> None:
    analyst.go(place)
    analyst.sees("The line stands at")
    for box in analyst.page.get_by_text("Numbers", exact=True).locator("visible=true").all():
        box.click()


def calibrate(analyst: Analyst) -> None:
    """With errors at a field and above the page."""
    analyst.go("#/calibrate/few")
    analyst.fills("Or paste", "\n".join(sentences(20)))
    analyst.understood()
    analyst.opens("Labelled pairs (optional)")
    analyst.opens("More options")
    analyst.presses("Start the calibration")
    analyst.alert()
    analyst.fills("Domain", "Wrong Name")
    analyst.presses("Start the calibration")
    analyst.sees("1 to 64 of a–z")


def compare(analyst: Analyst) -> None:
    analyst.go("#/compare/tickets/letters")
    analyst.fills("Sentence", "Ωμέγα 東京 quite foreign")  # flagged
    analyst.fills("Compared with", "\n".join([*sentences(3), "東京 Ωμέγα ✂ " * 400]))
    analyst.presses("Score")
    analyst.page.get_by_role("table", name="Scores").wait_for()
    for column in ("Verdict", "Similarity", "Percentile", "Probability", "Flags"):
        assert analyst.page.locator(f"[data-label={column}]").count() == 8


def start(analyst: Analyst) -> None:
    """With two files, and errors."""
    analyst.go("#/find/letters")
    analyst.field("New texts against known ones").check()
    analyst.fills("Or paste", "\n".join(sentences(20)))
    analyst.understood()
    analyst.presses("Find matches")
    analyst.sees("Choose a file or paste text first.")
    analyst.page.get_by_role("table", name="Your matches").wait_for()


def match(analyst: Analyst) -> None:
    """With a figure, judged pairs and one that is not sent."""
    analyst.expected.append("net::ERR_")
    every = analyst.page.request.get(f"{analyst.url}/matches").json()["matches"]
    job = next(one["job"] for one in every if one["rows"] == [len(DUPLICATES)])
    analyst.go(f"#/matches/{job}")
    analyst.sees(re.compile("are false"))
    analyst.page.route(re.compile("/labels$"), lambda route: route.abort("connectionrefused"))
    analyst.page.locator(".pair:not([hidden])").wait_for()
    analyst.page.locator("h1").focus()
    analyst.page.locator(".judging .pair").scroll_into_view_if_needed()
    analyst.page.keyboard.press("0")
    analyst.sees(re.compile("1 judgement not sent yet"))


@pytest.fixture(scope="module", autouse=True)
def judged(site: Site) -> None:
    """A match with as many judged pairs as it takes for a figure."""
    job = site.post("/matches", a=DUPLICATES)["job"]
    site.work()
    for _ in range(3):
        pairs = site.get(f"/matches/{job}/label?count=20&precision=0.9")["pairs"]
        labels = [{"pair": one["pair"], "label": int(one["a"].lower() == one["b"].lower())} for one in pairs]
        site.post(f"/matches/{job}/labels", labels=labels)


def job(analyst: Analyst) -> None:
    oldest = analyst.page.request.get(f"{analyst.url}/calibrate").json()["jobs"][-1]
    analyst.go(f"#/job/{oldest['job']}")
    analyst.sees("Open the report")


def glossary(analyst: Analyst) -> None:
    analyst.go("#/label/letters")
    analyst.presses("Glossary")
    analyst.sees("Words under “Details”")


VIEWS: dict[str, Callable[[Analyst], None]] = {
    "domains": domains,
    "question": question,
    "report": lambda analyst: report(analyst, "#/report/letters/2"),
    "report of labels": lambda analyst: report(analyst, "#/report/tickets/1"),
    "calibrate": calibrate,
    "job": job,
    "compare": compare,
    "start": start,
    "match": match,
    "label": lambda analyst: analyst.go("#/label/letters"),
    "glossary": glossary,
}


def faults(analyst: Analyst) -> list[str]:
    """What axe-core finds that is serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    found: list[dict[str, Any]] = Axe().run(analyst.page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_accessible_light_and_dark_and_fits_into_any_window(visit: Visit, site: Site, view: str) -> None:
    if not site.server.client.get("/domains/accessible").is_success:
        site.copies("accessible", *3 * [("letters", 2)])
        site.server.client.put("/domains/accessible/thresholds/duplicates", json={"fmr": 0.1}).raise_for_status()
    analyst = visit()
    VIEWS[view](analyst)
    for scheme in ("light", "dark"):
        analyst.page.emulate_media(color_scheme=scheme)
        assert faults(analyst) == [], scheme
    for width in WIDTHS:
        analyst.page.set_viewport_size({"width": width, "height": 844})
        # Pictures follow the window a frame or more later.
        analyst.page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        assert analyst.page.evaluate(CUT) == []


def test_on_a_phone_a_table_names_its_columns_in_each_line(visit: Visit) -> None:
    analyst = visit("#/domains")
    analyst.page.set_viewport_size({"width": 390, "height": 844})
    assert analyst.page.locator("header.top").bounding_box()["height"] < 100  # two rows; three took 113
    analyst.presses("Versions of letters")
    cell = analyst.page.get_by_role("table", name="Versions of letters").locator("td[data-label=Sentences]").first
    assert "Sentences" in cell.evaluate("cell => getComputedStyle(cell, '::before').content")
