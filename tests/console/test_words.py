"""What the page says to an analyst who knows no statistics: the decision first, each word explained where it stands."""

import re
from typing import Any

import pytest

from tests.console.conftest import Visit
from tests.processes import Server

PERCENTILE = "The share of random pairs of the domain's sentences that are less similar than this pair"
JARGON = re.compile(r"rawness|nulling|hubness|AUROC|PSI|expected calibration error|variance|spectrum", re.IGNORECASE)


@pytest.mark.parametrize("place", ["letters/2", "tickets/1"])
def test_a_report_begins_with_the_threshold_to_use_and_the_next_step(visit: Visit, shown: Server, place: str) -> None:
    domain, version = place.split("/")
    advised = shown.client.get(f"/domains/{domain}@{version}/threshold?fmr=0.01").json()["similarity"]
    report = shown.client.get(f"/domains/{domain}/versions/{version}").json()["report"]
    analyst = visit(shown, f"#/report/{place}")
    analyst.sees(re.compile("The line stands at"))
    first = analyst.page.locator(".view section.card").first.inner_text()
    if report["labels"]:  # what they tell comes first
        rows = report["labels"]["table"]
        best = max((row for row in rows if row["precision"] <= 0.9), key=lambda row: row["precision"])
        assert (
            f"Use {best['similarity']:.3f}: {100 * best['precision']:.0f} % of the pairs that pass are matches" in first
        )
        assert f"From {advised:.3f} on, 1 in 100 unrelated pairs passes" in first
        assert first.index("are matches") < first.index("1 in 100")
        assert float(analyst.page.get_by_label("Wanted precision in per cent").input_value()) == 100 * best["precision"]
    else:
        assert f"Use {advised:.3f}: 1 in 100 unrelated pairs passes." in first
    passing = float(f"{report['sentences'] * (report['sentences'] - 1) / 200:.2g}")
    assert f"each compared with each, about {passing:,.0f} pairs pass. Nearly all of them are false" in first
    assert "Next step: " in first
    assert not JARGON.search(analyst.page.locator("main").inner_text())
    analyst.opens_details()
    assert JARGON.search(analyst.page.locator("main").inner_text())


def test_what_the_gate_measured_stands_in_the_details_after_a_plain_sentence(visit: Visit, shown: Server) -> None:
    reason = shown.client.get("/domains/tickets/versions/1").json()["report"]["reason"]
    analyst = visit(shown, "#/report/tickets/1")
    details = analyst.page.locator("details.folded")
    assert reason[:60] not in analyst.page.locator("main").inner_text()
    analyst.opens_details()
    words = details.inner_text()
    assert re.search("The encoder's own cosine is kept, because|was chosen, because", words)
    assert words.index("because") < words.index(reason[:60])


def test_saving_is_one_step_from_the_decision(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/letters/2")
    analyst.sees(re.compile("The line stands at"))
    analyst.presses("Save it under a name")
    assert analyst.focused() == "Name of the threshold"


def test_a_word_is_explained_on_hover_on_focus_and_on_a_tap_and_escape_hides_it(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/compare/letters")
    analyst.presses("Fill in an example")
    word = analyst.page.get_by_role("button", name="Percentile", exact=True)
    word.wait_for()
    tip = analyst.page.locator(".tip")

    def shows() -> bool:
        return tip.is_visible() and tip.inner_text().startswith(PERCENTILE)

    described = word.get_attribute("aria-describedby")
    assert (analyst.page.locator(f"#{described}").text_content() or "").startswith(PERCENTILE)
    assert word.get_attribute("title") is None
    word.hover()
    assert shows()
    analyst.page.mouse.move(5, 5)
    tip.wait_for(state="hidden")
    analyst.tabs_to("Percentile")
    assert shows()
    analyst.page.keyboard.press("Escape")
    assert not tip.is_visible()
    word.click()
    assert shows()


def test_the_glossary_has_every_word_in_one_sentence_and_is_reached_from_every_page(
    visit: Visit, shown: Server
) -> None:
    analyst = visit(shown, "#/domains")
    analyst.presses("Glossary", "link")
    analyst.sees("Words on every page")
    found = {
        row.locator("dt").inner_text(): row.locator("dd").inner_text()
        for row in analyst.page.locator("dl.words > div").all()
    }
    wanted = (
        "percentile, false-match rate, false hit rate, champion, precision, recall, probability, "
        "calibrated similarity, raw cosine, identity, domain, version, rawness, bag of words, nulling, hubness, AUROC, "
        "PSI"
    )
    assert set(wanted.split(", ")) <= set(found)
    for word, sentence in found.items():
        assert re.fullmatch(r"[^.]*(\d\.\d[^.]*)*\.", sentence), (word, sentence)


def honesty(visit: Visit, server: Server, labels: dict[str, Any]) -> str:
    """What the picture of probabilities says of a version's labels."""
    analyst = visit(server)
    said: str = analyst.page.evaluate(
        """async (labels) => {
            const { reliability } = await import('./console/pictures.js');
            return reliability(labels, new AbortController().signal).querySelector('.summary').textContent;
        }""",
        labels,
    )
    return said


def test_an_interval_without_its_own_estimate_is_left_out(visit: Visit, shown: Server) -> None:
    labels = {"reliability": [], "ece": 0.02, "ece_of_a_perfect_map": 0.032, "pairs": 1000}
    older = honesty(visit, shown, labels | {"ece_low": 0.0, "ece_high": 0.017})
    assert older.startswith("Promised and observed shares differ by 2 points on average, over 1,000 labelled pairs.")
    assert "1.7" not in older
    newer = honesty(visit, shown, labels | {"ece_low": 0.01, "ece_high": 0.031})
    assert "differ by 2 points on average (95 % interval 1 point to 3.1 points)" in newer


def test_percentiles_and_probabilities_are_shown_no_finer_than_the_data_support(visit: Visit, shown: Server) -> None:
    found = visit(shown).page.evaluate(
        """async () => {
            const { percentile, roughly } = await import('./console/format.js');
            return [
                percentile(1 - 1e-9, true, 11175), percentile(1 - 5e-4, true, 11175), percentile(0.975, false, 11175),
                percentile(1 - 1e-9, true, 2000000), percentile(null, null, null), roughly(0.264), roughly(0.9999),
                roughly(0.001),
            ];
        }"""
    )
    assert found == [
        "above 99.991 %", "above 99.91 %", "97.5 %",
        "above 99.99995 %", "–", "26 %", "above 99 %",
        "below 1 %",
    ]  # fmt: skip


def test_tiny_rates_are_written_without_an_exponent(visit: Visit, shown: Server) -> None:
    script = "async (rates) => rates.map((await import('./console/format.js')).percent)"
    found = visit(shown).page.evaluate(script, [1e-9, 0.5, 0.0123, 1])
    assert found == ["0.0000001 %", "50 %", "1.2 %", "100 %"]
