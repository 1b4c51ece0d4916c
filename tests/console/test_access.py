"""The page by keyboard alone, and for readers of all kinds."""

import re
from pathlib import Path
from typing import Any

import pytest

from isosim.encoders.store import EncoderStore
from loadtest.many import multiply
from tests.commands.conftest import calibrate
from tests.console.analyst import Analyst
from tests.console.conftest import Visit
from tests.processes import Serve, Server
from tests.text import sentences

PLACES = [
    "#/domains",
    "#/glossary",
    "#/report/tickets/1",
    "#/report/letters/2",
    "#/calibrate",
    "#/compare",
    "#/label/letters",
]


def faults(analyst: Analyst) -> list[str]:
    """What axe-core finds that is serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    found: list[dict[str, Any]] = axe.run(analyst.page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("place", PLACES)
def test_axe_finds_no_serious_fault(visit: Visit, shown: Server, scheme: str, place: str) -> None:
    analyst = visit(shown, place, color_scheme=scheme)
    if "report" in place:
        analyst.sees(re.compile("The line stands at"))
        analyst.opens_details()
        for box in analyst.page.get_by_text("Numbers", exact=True).all():
            box.click()
    if place == "#/domains":
        analyst.presses("Versions of letters")
    if place == "#/calibrate":
        analyst.fills("Or paste", "\n".join(sentences(20)))
        analyst.understood()
        analyst.page.get_by_text("Labelled pairs (optional)").click()
        analyst.page.get_by_text("More options").click()
        analyst.fills("Domain", "Wrong Name")
        analyst.presses("Start the calibration")
    if place == "#/compare":
        analyst.presses("Fill in an example")
        analyst.sees("How to read this")
    if "label" in place:
        analyst.fills("Or paste", "\n".join(sentences(60)))
        analyst.understood()
        analyst.presses("Draw pairs")
        analyst.sees("2. Do these two mean the same?", 60)
        for label in "10s10101":
            analyst.page.keyboard.press(label)
        analyst.sees(re.compile("^(From a|At no) similarity"))
    assert faults(analyst) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_dialogs_alerts_and_outcomes(visit: Visit, shown: Server, scheme: str) -> None:
    analyst = visit(shown, "#/domains", color_scheme=scheme)
    analyst.presses("Versions of letters")
    analyst.presses("Roll back to version 1")
    assert faults(analyst) == []
    analyst.page.keyboard.press("Escape")
    job = next(job for job in shown.client.get("/calibrate").json()["jobs"] if job["domain"] == "letters")
    analyst.go(f"#/job/{job['job']}")
    analyst.sees("Open the report")
    assert faults(analyst) == []
    analyst.go("#/calibrate/few")
    analyst.fills("Or paste", "\n".join(sentences(20)))
    analyst.understood()
    analyst.presses("Start the calibration")
    analyst.alert()
    assert faults(analyst) == []


@pytest.mark.parametrize("width", [360, 700])
@pytest.mark.parametrize("place", PLACES)
def test_a_narrow_window_needs_no_sideways_scrolling(visit: Visit, shown: Server, place: str, width: int) -> None:
    analyst = visit(shown, place)
    analyst.page.set_viewport_size({"width": width, "height": 800})
    if "report" in place:
        analyst.sees(re.compile("The line stands at"))
    # Pictures follow the window a frame or more later.
    analyst.page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)


def cut(analyst: Analyst) -> list[str]:
    """Tables that are wider than their place."""
    found: list[str] = analyst.page.evaluate(
        """() => [...document.querySelectorAll('.scroll')]
            .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute('aria-label'))"""
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_report_promote_and_delete_are_in_sight(visit: Visit, shown: Server, scheme: str) -> None:
    shown.calibrate("letters", sentences(300), method="sn", promote="never")
    number = max(version["version"] for version in shown.client.get("/domains/letters").json()["versions"])
    analyst = visit(shown, "#/domains", color_scheme=scheme)
    analyst.page.set_viewport_size({"width": 390, "height": 844})
    assert analyst.page.locator("header.top").bounding_box()["height"] < 100  # two rows; three took 113
    analyst.presses("Versions of letters")
    for name in ("Report of", "Promote", "Delete"):
        box = analyst.page.get_by_label(re.compile(rf"^{name} letters, version {number}$")).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert cut(analyst) == []
    table = analyst.page.get_by_role("table", name="Versions of letters")
    assert "Method: " in table.locator("td[data-label=Method]").first.evaluate(
        "cell => getComputedStyle(cell, '::before').content + cell.textContent"
    ).replace('" ": "', ": ").replace('"', "")
    shown.client.delete(f"/domains/letters/versions/{number}")


@pytest.mark.parametrize("width", [390, 1100, 1400])
def test_two_versions_side_by_side_are_not_cut_at_any_width(visit: Visit, shown: Server, width: int) -> None:
    analyst = visit(shown, "#/compare/tickets/letters")
    analyst.page.set_viewport_size({"width": width, "height": 900})
    analyst.page.get_by_label("One against many").check()
    analyst.fills("Sentence", "Ωμέγα 東京 quite foreign")  # flagged
    analyst.fills("Compared with", "\n".join([*sentences(3), "東京 Ωμέγα ✂ " * 400]))
    analyst.presses("Score")
    table = analyst.page.get_by_role("table", name="Scores")
    table.wait_for()
    for column in ("Verdict", "Similarity", "Percentile", "Probability", "Flags"):
        assert table.locator(f"[data-label={column}]").count() == 8
    assert cut(analyst) == []


def test_three_hundred_domains_are_short_lines_with_their_versions_folded(
    visit: Visit, serve: Serve, store: Path
) -> None:
    artifact = EncoderStore.at(store).find("tiny")
    calibrate(store, artifact, "d0", "sn")
    multiply(store, 300)
    analyst = visit(serve(model_store=store, encoder="tiny"), "#/domains")
    assert analyst.page.locator("tr.domain").count() == 50
    assert analyst.page.evaluate("document.documentElement.scrollHeight") < 3500  # 50 cards took 8,600
    assert analyst.page.get_by_role("table", name=re.compile("^Versions of")).count() == 0
    line = analyst.page.locator("tr.domain", has_text="d142").inner_text()
    assert [
        word for word in ("version 1", "standard normalization", "no requests yet", "1 version") if word not in line
    ] == []
    toggle = analyst.page.get_by_role("button", name="Versions of d142")
    toggle.click()
    assert toggle.get_attribute("aria-expanded") == "true"
    analyst.page.get_by_role("table", name="Versions of d142").wait_for()
    toggle.click()
    assert not analyst.page.get_by_role("table", name="Versions of d142").is_visible()


def test_the_whole_way_goes_by_keyboard_alone(visit: Visit, serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("letters", sentences(300), method="identity")
    analyst = visit(server)
    keyboard = analyst.page.keyboard
    keyboard.press("Tab")
    assert analyst.focused() == "Skip to the content"
    keyboard.press("Enter")
    assert analyst.focused() == "Domains"
    analyst.enters("New calibration")
    analyst.sees("1. Text of the domain")
    assert analyst.focused() == "New calibration"  # the new view's heading
    analyst.tabs_to("Or paste")
    keyboard.insert_text("\n".join(sentences(400)))
    analyst.tabs_to("Domain")
    keyboard.type("letters")
    keyboard.press("Escape")  # the list of known names
    analyst.tabs_to("Let it answer")
    keyboard.type("always")
    analyst.enters("More options")
    analyst.tabs_to("Method")
    keyboard.type("cent")
    analyst.enters("Start the calibration")
    analyst.sees("Version 2 of letters", 120)
    analyst.enters("Open the report")
    analyst.sees("Which threshold?")
    assert analyst.focused() == "letters, version 2"
    analyst.tabs_to("Wanted false-match rate in per cent")
    keyboard.press("Control+a")
    keyboard.type("10")
    analyst.sees(re.compile("For a false-match rate of 10 %"))
    analyst.page.go_back()
    analyst.sees("Open the report")
    analyst.go("#/domains")
    analyst.enters("Versions of letters")
    analyst.sees("Version 2")
    analyst.enters("Roll back to version 1")
    analyst.sees("Roll letters back?")
    assert analyst.focused() == "Roll back to version 1"
    keyboard.press("Escape")
    assert analyst.focused() == "Roll back to version 1"  # back where it was
    assert server.client.get("/domains/letters").json()["champion"] == 2
    keyboard.press("Enter")
    analyst.sees("Roll letters back?")
    keyboard.press("Enter")
    analyst.sees("letters is again answered by version 1.")
    assert server.client.get("/domains/letters").json()["champion"] == 1
