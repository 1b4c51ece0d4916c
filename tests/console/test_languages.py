"""Text that runs from right to left is shown so, and sentences are cut between characters."""

from tests.console.conftest import Visit
from tests.processes import Server

DIRECTION = "element => getComputedStyle(element).direction"
ARABIC, HEBREW = "الطقس جميل جدا", "מזג האוויר יפה"


def test_sentences_run_in_their_own_direction_where_they_are_typed_and_where_they_are_shown(
    visit: Visit, tiny_server: Server
) -> None:
    analyst = visit(tiny_server, "#/compare")
    analyst.fills("Sentence", ARABIC)
    analyst.fills("Compared with", HEBREW)
    for label in ("Sentence", "Compared with"):
        assert analyst.page.get_by_label(label, exact=True).evaluate(DIRECTION) == "rtl"
    analyst.presses("Score")
    analyst.sees("Scores")
    shown = analyst.page.locator(".scores .sample, bdi.sample")
    shown.first.wait_for()
    assert {element.evaluate(DIRECTION) for element in shown.all()} == {"rtl"}
    analyst.fills("Sentence", "From left to right")
    assert analyst.page.get_by_label("Sentence", exact=True).evaluate(DIRECTION) == "ltr"


def test_a_first_sentence_is_not_cut_within_an_emoji(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    analyst.drops("long.txt", "a" + "👍" * 300 + "\n" + ARABIC + "\n")
    items = analyst.page.locator("td.sample")
    items.first.wait_for(state="attached")
    long, arabic = items.all()
    assert long.text_content() == "a" + "👍" * 199
    assert arabic.evaluate(DIRECTION) == "rtl"
