"""A version's report: the threshold to use first, each word explained where it stands, the statistics under Details."""

import re

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit
from tests.processes import wait_until
from tests.text import sentences

JARGON = re.compile(r"rawness|nulling|AUROC|PSI|expected calibration error|variance|spectrum", re.IGNORECASE)


def advised(site: Site, reference: str, target: str = "fmr=0.01") -> float:
    found: float = site.get(f"/domains/{reference}/threshold?{target}")["similarity"]
    return found


@pytest.mark.parametrize("domain", ["letters", "tickets"])
def test_a_report_begins_with_the_threshold_to_use_and_the_next_step(visit: Visit, site: Site, domain: str) -> None:
    champion = site.get(f"/domains/{domain}")["champion"]
    report = site.get(f"/domains/{domain}/versions/{champion}")["report"]
    similarity = advised(site, domain)
    analyst = visit(f"#/report/{domain}/{champion}")
    assert analyst.heading() == f"{domain}, version {champion}"
    analyst.sees("The line stands at")
    first = analyst.text(".view section.card")
    if report["labels"]:  # what they tell comes first
        rows = report["labels"]["table"]
        best = max((row for row in rows if row["precision"] <= 0.9), key=lambda row: row["precision"])
        use = (
            f"Use {best['similarity']:.2f}: {100 * best['precision']:.0f}\N{NO-BREAK SPACE}% of the pairs that pass are"
        )
        assert first.index(use) < first.index(f"From {similarity:.2f} on, 1 in 100 unrelated pairs passes")
        assert float(analyst.field("Wanted precision in per cent").input_value()) == pytest.approx(
            100 * best["precision"]
        )
        brings = analyst.page.get_by_role("table", name="What a threshold brings, and costs")
        assert brings.get_by_role("row").count() == len(rows) + 1
        ends = "cells => cells.map((cell) => getComputedStyle(cell).textAlign)"
        assert set(brings.locator("th[scope=col]:nth-child(3), td:nth-child(3)").evaluate_all(ends)) == {"right"}
    else:
        assert f"From {similarity:.2f} on, 1 in 100 unrelated pairs passes." in first
    passing = float(f"{report['sentences'] * (report['sentences'] - 1) / 200:.2g}")
    assert f"each compared with each, about {passing:,.0f} pairs pass. Nearly all of them are false" in first
    assert "Next step: " in first
    assert not JARGON.search(analyst.text())
    analyst.opens("Details")
    assert JARGON.search(analyst.text())
    analyst.presses("Save it under a name")
    assert analyst.focused() == "Name of the threshold"


def sees_pictures(analyst: Analyst, number: int) -> None:
    """Each shows something, and says it in words."""
    painted = """(number) => {
        const all = [...document.querySelectorAll("canvas")];
        const data = (e) => {  // of a copy: Chromium warns of repeated reading of what may lie on a GPU
            const copy = new OffscreenCanvas(e.width, e.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(e, 0, 0);
            return copy.getImageData(0, 0, e.width, e.height).data;
        };
        return all.length === number && all.every((e) => e.ariaLabel.length > 50 && data(e).some((v) => v > 0));
    }"""
    analyst.page.wait_for_function(painted, arg=number)


def test_details_tell_what_was_measured_in_pictures_and_numbers(visit: Visit, site: Site) -> None:
    report = site.get("/domains/tickets/versions/1")["report"]
    analyst = visit("#/report/tickets/1")
    analyst.opens("Details")
    details = analyst.text("details.folded")
    assert "because" in details
    sees_pictures(analyst, 2)
    analyst.sees(re.compile("In [0-9]+ of [0-9]+ groups of the [0-9]+ labelled pairs"))
    assert f"{report['before']['effective_rank']:.0f} before" in details
    table = analyst.page.get_by_role("table", name="The candidates")
    assert table.get_by_role("row").count() == len(report["candidates"]) + 1
    assert table.get_by_role("rowheader", name=re.compile("chosen")).count() == 1

    analyst.go("#/report/letters/2")
    analyst.opens("Details")
    analyst.sees("Whitening is used, because it was asked for.")
    analyst.sees("No other method was tried: only labelled pairs can choose one.")
    sees_pictures(analyst, 1)
    columns = analyst.page.locator("table", has_text="Threshold for a false-match rate").locator("th[scope=col]")
    assert columns.all_text_contents() == ["Similarity", "False-match rate"]


def test_the_line_moves_with_what_is_asked_for(visit: Visit, site: Site) -> None:
    analyst = visit("#/report/tickets/1")
    analyst.chooses("Ask for", "fmr")
    canvas = analyst.page.locator("figure", has_text="Which threshold?").locator("canvas")
    analyst.sees(f"The line stands at a similarity of {advised(site, 'tickets'):.2f}.")
    before = canvas.evaluate("e => e.toDataURL()")
    analyst.fills("Wanted false-match rate in per cent", "5")
    analyst.sees(f"The line stands at a similarity of {advised(site, 'tickets', 'fmr=0.05'):.2f}.")
    assert canvas.evaluate("e => e.toDataURL()") != before
    analyst.fills("Wanted false-match rate in per cent", "0.01")
    analyst.sees("For a false-match rate of 0.01 %")
    analyst.fills("Wanted false-match rate in per cent", "0")
    analyst.sees("Give a number above 0 and below 100.")
    analyst.fills("Wanted false-match rate in per cent", "0.000001")
    analyst.sees("No threshold: Fmr: 0.000001 %; it must be a share, at least 0.00001 %")
    assert analyst.page.get_by_text(re.compile("^request ")).count() == 0  # the reader is only typing
    assert analyst.field("Name of the threshold").input_value() == ""
    assert analyst.page.get_by_text("The line stands at").count() == 0
    analyst.chooses("Ask for", "false_hit_rate")
    analyst.sees("For a wrong match in 1 % of searches among 10,000 entries")
    analyst.sees("Where sentences of the text mean the same, this similarity is too high")
    analyst.fills("Entries searched", "50")
    analyst.sees("For a wrong match in 1 % of searches among 50 entries")
    analyst.sees(f"{advised(site, 'tickets', 'false_hit_rate=0.01&gallery=50'):.2f}")
    analyst.fills("Entries searched", "0")
    analyst.sees("Give a whole number above 0.")


def test_a_threshold_is_saved_replaced_after_a_question_and_deleted(visit: Visit, site: Site) -> None:
    def target() -> dict[str, float] | None:
        saved = site.get("/domains/saving/thresholds")["thresholds"]
        return next((one["target"] for one in saved if one["name"] == "good-duplicates"), None)

    site.copies("saving", ("letters", 1), ("letters", 2))
    analyst = visit("#/report/saving/1")
    analyst.sees("No threshold of this domain is saved.")
    analyst.sees("For a false-match rate of 1 %")
    name = analyst.field("Name of the threshold")
    assert name.input_value() == "fmr-0.01"
    save = analyst.page.get_by_role("button", name="Save this threshold")
    analyst.fills("Wanted false-match rate in per cent", "0")
    analyst.sees("Give a number above 0 and below 100.")
    assert save.is_disabled()  # it would save the target before
    analyst.fills("Wanted false-match rate in per cent", "1")
    wait_until(save.is_enabled)
    analyst.tabs_to("Name of the threshold")
    analyst.page.keyboard.press("Control+a")
    analyst.page.keyboard.type("Good Duplicates!")
    analyst.page.keyboard.press("Enter")
    analyst.sees("1 to 64 of a–z")
    analyst.enters("Use “good-duplicates”")
    analyst.page.keyboard.press("Enter")
    analyst.sees("The threshold good-duplicates of saving is saved: false-match rate 1 %.")
    # The value is the one of the version that is looked at, not of the champion.
    table = analyst.page.get_by_role("table", name="Saved thresholds of saving")
    table.get_by_text(f"{advised(site, 'saving@1'):.2f}").wait_for()
    analyst.fills("Wanted false-match rate in per cent", "5")
    analyst.sees("For a false-match rate of 5 %")
    assert name.input_value() == "good-duplicates"  # a typed name stays
    analyst.presses("Save this threshold")
    analyst.sees("It stands for: false-match rate 1 %. From now on it will stand for: false-match rate 5 %.")
    analyst.answers("Cancel")
    assert target() == {"fmr": 0.01}
    analyst.presses("Save this threshold")
    analyst.answers("Replace")
    analyst.sees("The threshold good-duplicates of saving is saved: false-match rate 5 %.")
    assert target() == {"fmr": 0.05}
    analyst.presses("Delete the threshold good-duplicates of saving")
    assert analyst.focused() == "Cancel"
    analyst.answers("Delete")
    analyst.sees("The threshold good-duplicates of saving is deleted.")
    assert target() is None


def test_a_change_names_the_saved_thresholds_that_give_no_verdict_then(visit: Visit, site: Site) -> None:
    labels = [(text, text.upper(), 1) for text in sentences(40)] + [(*sentences(n + 2)[n:], 0) for n in range(40)]
    site.copies("losing")
    site.calibrate("losing", sentences(300), method="identity", labels=labels, promote="always")
    site.copies("losing")
    site.server.client.post("/domains/losing/rollback").raise_for_status()  # champion 2, which alone has labels
    for name, target in (("precise", {"precision": 0.8}), ("duplicates", {"fmr": 0.01})):
        site.server.client.put(f"/domains/losing/thresholds/{name}", json=target).raise_for_status()
    analyst = visit("#/domains")
    analyst.presses("Versions of losing")
    for button in ("Put losing, version 1, in use", "Return to version 3"):
        analyst.presses(button)
        analyst.sees("The saved threshold precise gives no verdict then: Domain 'losing")
        assert not re.search("POST|duplicates", analyst.text("dialog"))
        if "Put" in button:
            analyst.answers("Cancel")
    analyst.answers("Put in use")
    analyst.sees("Version 3 of losing is in use now.")
    table = analyst.page.get_by_role("table", name="Saved thresholds of losing")
    table.get_by_text("Similarity in version 3").wait_for()
    table.get_by_text(f"{advised(site, 'losing'):.2f}").wait_for()
    analyst.go("#/compare/losing")
    analyst.chooses("A pair is a match at", "saved:precise")
    analyst.presses("Fill in an example")
    analyst.sees("losing@3: no verdict for precise, precision 80 %. Domain 'losing' was given no labels.")
    assert "Verdict" not in analyst.page.get_by_role("table", name="Scores").inner_text()


def test_labels_that_reach_no_precision_say_so_where_the_table_would_stand(visit: Visit, site: Site) -> None:
    some = sentences(60)
    labels = [(a, b, int(n == 7)) for n, (a, b) in enumerate(zip(some[:30], some[30:], strict=True))]
    site.calibrate("scarce", sentences(300), method="identity", labels=labels, promote="always")
    site.server.client.put("/domains/scarce/thresholds/likely", json={"precision": 0.8}).raise_for_status()
    analyst = visit("#/report/scarce/1")
    analyst.sees("30 labels are too few for this table: they reach no precision of 50 %.")
    analyst.opens("Details")
    analyst.sees("The labels have 1 match, too few for a picture.")
    analyst.go("#/domains")
    analyst.presses("Versions of scarce")
    analyst.sees("reach no precision of 50 %: at each")
    row = analyst.page.get_by_role("table", name="Versions of scarce")
    row.locator("td[data-label=Labels]", has_text="30").wait_for()


def test_the_glossary_opens_beside_the_page_and_a_word_opens_it_at_its_only_sentence(visit: Visit) -> None:
    meaning = "The share of random pairs of the domain's sentences that are less similar than this pair"
    analyst = visit("#/compare/letters")
    analyst.presses("Fill in an example")
    word = analyst.page.get_by_role("button", name="Percentile", exact=True)
    word.wait_for()
    assert word.get_attribute("title").startswith(meaning)  # shown on hover
    panel = analyst.page.locator("#glossary")
    entry = panel.locator("div:focus", has_text=meaning)
    word.click()
    entry.wait_for()
    analyst.page.keyboard.press("Escape")
    panel.wait_for(state="hidden")
    assert analyst.focused() == "Percentile"
    analyst.page.keyboard.press("Enter")
    entry.wait_for()
    analyst.page.keyboard.press("Escape")
    analyst.fills("Sentence", "kept")
    analyst.presses("Glossary")
    panel.wait_for()
    analyst.page.keyboard.press("Tab")
    assert analyst.focused() == "Close"  # the way into the panel, which is long
    assert analyst.field("Sentence").input_value() == "kept"
    rows = analyst.page.locator("dl.words > div").all()
    found = {row.locator("dt").inner_text(): row.locator("dd").inner_text() for row in rows}
    wanted = "percentile, false-match rate, false hit rate, in use, precision, recall, probability, default, PSI"
    assert set(wanted.split(", ")) <= set(found)
    for word, sentence in found.items():
        assert re.fullmatch(r"[^.]*(\d\.\d[^.]*)*\.", sentence), (word, sentence)
