"""Sentences scored by one version or two, each pair called a match or not."""

import re

from tests.console.conftest import Site, Visit
from tests.text import sentences

WORDS = {True: "✓ match", False: "✕ no match"}
SOME = sentences(5)
PAIRS = [[SOME[0], other] for other in SOME]


def test_two_versions_are_shown_side_by_side_with_the_verdict_of_each(visit: Visit, site: Site) -> None:
    analyst = visit("#/compare/letters")
    analyst.presses("Score")
    analyst.sees("Write a sentence.")
    assert analyst.focused() == "Sentence"
    analyst.fills("Sentence", SOME[0])
    analyst.fills("Compared with", "\n".join(SOME))
    analyst.fills("Wanted false-match rate in per cent", "20")
    analyst.chooses("Second version", "letters@1")
    analyst.presses("Score")
    table = analyst.page.get_by_role("table", name="Scores")
    table.wait_for()
    expected: dict[str, list[tuple[float, float]]] = {}
    best: list[str] = []
    for reference in ("letters", "letters@1"):
        limit = site.get(f"/domains/{reference}/threshold?fmr=0.2")["similarity"]
        answer = site.post("/similarity", pairs=PAIRS, domain=reference)["similarity"]
        for other, similarity in zip(SOME, answer, strict=True):
            expected.setdefault(other, []).append((similarity, limit))
        best = best or sorted(SOME, key=dict(zip(SOME, answer, strict=True)).__getitem__, reverse=True)
    similarities, verdicts = (
        table.locator(f"[data-label={name}]").all_inner_texts() for name in ("Similarity", "Verdict")
    )
    assert table.locator("tbody th").all_inner_texts() == best  # the most similar first, two lines each
    pairs = [pair for other in best for pair in expected[other]]
    digits = (
        4 if any(abs(one - limit) < 0.005 for one, limit in pairs) else 2
    )  # no number seems to contradict its verdict
    assert list(zip(similarities, verdicts, strict=True)) == [
        (f"{one:.{digits}f}", WORDS[one >= limit]) for one, limit in pairs
    ]
    for _, limit in expected[SOME[0]]:
        analyst.sees(f"a similarity of at least {limit:.{digits}f} (false-match rate 20 %)")
    assert set(verdicts) == set(WORDS.values())


def test_a_saved_threshold_decides_as_the_service_does(visit: Visit, site: Site) -> None:
    site.copies("deciding", ("tickets", 1))
    site.server.client.put("/domains/deciding/thresholds/duplicates", json={"fmr": 0.3}).raise_for_status()
    match = site.post("/similarity", pairs=PAIRS, domain="deciding", threshold="duplicates")["match"]
    analyst = visit("#/compare/deciding")
    analyst.fills("Sentence", SOME[0])
    analyst.fills("Compared with", "\n".join(SOME))
    analyst.chooses("A pair is a match at", "saved:duplicates")
    analyst.presses("Score")
    analyst.sees("(duplicates, false-match rate 30 %)")
    table = analyst.page.get_by_role("table", name="Scores")
    verdicts = table.locator("[data-label=Verdict]").all_inner_texts()
    assert sorted(verdicts) == sorted(WORDS[one] for one in match)
    heads = table.get_by_role("columnheader").all_inner_texts()
    assert heads.index("Verdict") > heads.index("Probability")
    analyst.chooses("A pair is a match at", "fmr")
    analyst.fills("Wanted false-match rate in per cent", "99")
    analyst.presses("Score")
    analyst.sees("Some pairs are called a match though their probability is below 50 %")
    analyst.chooses("Second version", "default")
    analyst.presses("Score")
    analyst.sees("no verdict for false-match rate 99 %")
    remedy = analyst.page.get_by_role("link", name="New calibration")
    assert remedy.get_attribute("href") == "#/calibrate/default"
    analyst.chooses("A pair is a match at", "")
    analyst.presses("Score")
    analyst.sees("default was not calibrated with text of its own. Calibrate it to get percentiles.")
    analyst.sees_no_more("Some pairs are called a match")


def test_precision_is_offered_where_labels_were_given_and_searches_ask_for_their_entries(visit: Visit) -> None:
    analyst = visit("#/compare/letters")
    precision = analyst.page.locator("option[value=precision]")
    assert precision.count() == 0
    analyst.go("#/compare/tickets")
    precision.wait_for(state="attached")
    analyst.chooses("A pair is a match at", "precision")
    assert analyst.field("Wanted precision in per cent").input_value() == "90"
    analyst.chooses("A pair is a match at", "false_hit_rate")
    analyst.fills("Entries searched", "50")
    analyst.presses("Fill in an example")
    analyst.sees("false hit rate 1 % among 50 entries")
    analyst.sees(re.compile("Percentile and probability answer different questions: "))


def test_sentences_run_in_their_own_direction_where_they_are_typed_and_where_they_are_shown(visit: Visit) -> None:
    direction = "element => getComputedStyle(element).direction"
    analyst = visit("#/compare")
    for label, text in (("Sentence", "الطقس جميل جدا"), ("Compared with", "מזג האוויר יפה")):
        analyst.fills(label, text)
        assert analyst.field(label).evaluate(direction) == "rtl"
    analyst.presses("Score")
    shown = analyst.page.locator(".scores .sample, bdi.sample")
    shown.first.wait_for()
    assert {element.evaluate(direction) for element in shown.all()} == {"rtl"}
    analyst.fills("Sentence", "From left to right")
    assert analyst.field("Sentence").evaluate(direction) == "ltr"
