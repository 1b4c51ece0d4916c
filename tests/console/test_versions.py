"""Domains, versions and reports, as the page shows and changes them."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from isosim.encoders.store import EncoderStore
from isosim.store.artifacts import sha256
from loadtest.many import multiply
from tests.commands.conftest import calibrate
from tests.console.conftest import Visit
from tests.processes import Process, Serve, Server, serve_with, wait_until
from tests.stores import files_of, record_of
from tests.text import sentences


@pytest.fixture(scope="module")
def changing(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with three versions of letters, the third champion."""
    folder = tmp_path_factory.mktemp("changing")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    running: list[Process] = []
    server = serve_with(folder, running, model_store=folder / "store", encoder="tiny")
    for method in ("identity", "sn", "centring"):
        server.calibrate("letters", sentences(300), method=method, promote="always")
    yield server
    for process in running:
        process.kill()


def champion(server: Server) -> int:
    found: int = server.client.get("/domains/letters").json()["champion"]
    return found


def test_promotion_rollback_and_deletion_happen_after_a_confirmation_and_not_before(
    visit: Visit, changing: Server
) -> None:
    analyst = visit(changing, "#/domains")
    analyst.presses("Versions of letters")
    analyst.sees("Version 3")
    analyst.presses("Promote letters, version 1")
    analyst.sees("Version 3 becomes the previous one; rolling back returns to it.")
    analyst.answers("Cancel")
    assert champion(changing) == 3
    analyst.presses("Promote letters, version 1")
    analyst.answers("Promote")
    analyst.sees("letters is now answered by version 1.")
    assert champion(changing) == 1
    analyst.presses("Return to version 3")  # the one before is the newer one
    analyst.answers("Return to version 3")
    analyst.sees("letters is again answered by version 3.")
    assert champion(changing) == 3
    assert analyst.page.get_by_role("button", name="Delete letters, version 3").count() == 0
    analyst.presses("Delete letters, version 2")
    assert analyst.focused() == "Cancel"  # what cannot be undone is not one key away
    analyst.page.keyboard.press("Escape")
    assert len(changing.client.get("/domains/letters").json()["versions"]) == 3
    analyst.presses("Delete letters, version 2")
    analyst.answers("Delete")
    analyst.sees("Version 2 of letters is deleted.")
    assert [v["version"] for v in changing.client.get("/domains/letters").json()["versions"]] == [1, 3]


def test_a_domain_is_deleted_after_its_name_was_typed(visit: Visit, changing: Server) -> None:
    changing.calibrate("fleeting", sentences(300), method="sn")
    analyst = visit(changing, "#/domains")
    analyst.presses("Versions of fleeting")
    assert analyst.page.get_by_role("button", name="Delete domain default").count() == 0
    analyst.presses("Delete domain fleeting")
    dialog = analyst.page.get_by_role("dialog")
    delete = dialog.get_by_role("button", name="Delete the domain")
    name = dialog.get_by_label("Type fleeting to confirm")
    assert delete.is_disabled()
    name.fill("fleetin")
    assert delete.is_disabled()
    name.press("Enter")
    assert dialog.is_visible()
    assert "Its 1 version and its saved thresholds go for good" in dialog.inner_text()
    name.fill("fleeting")
    name.press("Enter")
    analyst.sees("fleeting is deleted.")
    assert changing.client.get("/domains/fleeting").status_code == 404


def test_what_somebody_else_did_meanwhile_is_said(visit: Visit, changing: Server) -> None:
    changing.calibrate("notes", sentences(300), method="sn")
    changing.calibrate("notes", sentences(300), method="sn", promote="never")
    analyst = visit(changing, "#/domains")
    analyst.presses("Versions of notes")
    changing.client.delete("/domains/notes/versions/2")
    analyst.presses("Promote notes, version 2")
    analyst.answers("Promote")
    said = analyst.alert()
    assert "Version 2 was not promoted: " in said
    assert "Look at the list again." in said
    analyst.presses("Dismiss")
    analyst.page.locator("#alerts .alert").wait_for(state="detached")


def test_a_report_shows_why_and_its_pictures_tell_their_numbers_in_words(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/letters/2")
    assert analyst.heading() == "letters, version 2"
    analyst.opens_details()
    analyst.sees("Whitening is used, because it was asked for.")
    advised = shown.client.get("/domains/letters@2/threshold?fmr=0.01").json()["similarity"]
    analyst.sees(f"{advised:.4f}")
    figures = analyst.page.locator("canvas")
    assert figures.count() == 3  # no labels, and no candidates where the method was given
    for canvas in figures.all():
        assert len(canvas.get_attribute("aria-label") or "") > 60
        assert canvas.evaluate("e => e.getContext('2d').getImageData(0, 0, e.width, e.height).data.some((v) => v > 0)")
    for box in analyst.page.get_by_text("Numbers", exact=True).all():
        box.click()
    assert analyst.page.get_by_role("table", name="Threshold for a false-match rate").get_by_role("row").count() == 7


def test_the_advisors_line_moves_with_the_wanted_rate(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/tickets/1")
    analyst.chooses("Ask for", "fmr")
    image = "e => e.toDataURL()"
    canvas = analyst.page.locator("figure", has_text="Which threshold?").locator("canvas")
    at_1 = shown.client.get("/domains/tickets@1/threshold?fmr=0.01").json()["similarity"]
    analyst.sees(f"The line stands at a similarity of {at_1:.3f}.")
    before = canvas.evaluate(image)
    analyst.fills("Wanted false-match rate in per cent", "5")
    at_5 = shown.client.get("/domains/tickets@1/threshold?fmr=0.05").json()["similarity"]
    analyst.sees(f"The line stands at a similarity of {at_5:.3f}.")
    assert canvas.evaluate(image) != before
    analyst.presses("Ask for a rate of 0.01 %")
    analyst.sees(re.compile("For a false-match rate of 0.01 %"))
    analyst.fills("Wanted false-match rate in per cent", "0")
    analyst.sees("Give a number above 0 and below 100.")
    analyst.fills("Wanted false-match rate in per cent", "0.000001")
    analyst.sees(re.compile("No threshold: Fmr: 0.000001 %; it must be a share, at least 0.00001 %"))
    assert analyst.page.get_by_text(re.compile("^request ")).count() == 0  # the reader is only typing
    assert analyst.page.get_by_label("Name of the threshold").input_value() == ""
    assert analyst.page.get_by_text(re.compile("^The line stands at")).count() == 0
    analyst.chooses("Ask for", "precision")
    rows = shown.client.get("/domains/tickets/versions/1").json()["report"]["labels"]["table"]
    reached = max((row["precision"] for row in rows if row["precision"] <= 0.9), default=0.9)
    assert float(analyst.page.get_by_label("Wanted precision in per cent").input_value()) == pytest.approx(
        100 * reached
    )
    analyst.sees(re.compile("For a precision of|No threshold: "))


def test_searches_have_a_threshold_of_their_own(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/letters/2")
    analyst.chooses("Ask for", "false_hit_rate")
    analyst.sees(re.compile("For a wrong match in 1 % of searches among 10,000 entries"))
    analyst.sees(re.compile(r"Fewer than 0\.0\d+ % of random pairs pass\."))  # as the table of precisions says it
    analyst.fills("Entries searched", "50")
    analyst.sees(re.compile("Where sentences of the text mean the same, this similarity is too high"))
    advised = shown.client.get("/domains/letters@2/threshold?false_hit_rate=0.01&gallery=50").json()
    analyst.sees(re.compile("For a wrong match in 1 % of searches among 50 entries"))
    analyst.sees(f"{advised['similarity']:.4f}")
    analyst.fills("Entries searched", "0")
    analyst.sees("Give a whole number above 0.")
    analyst.chooses("Ask for", "fmr")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    assert analyst.page.get_by_text("is too high to find such duplicates").count() == 0
    assert not re.search("^false$", analyst.page.locator(".answer").inner_text(), re.MULTILINE)


def test_a_labelled_version_tells_what_each_threshold_brings_and_costs(visit: Visit, shown: Server) -> None:
    rows = shown.client.get("/domains/tickets/versions/1").json()["report"]["labels"]["table"]
    analyst = visit(shown, "#/report/tickets/1")
    table = analyst.page.get_by_role("table", name="What a threshold brings, and costs")
    assert rows
    assert table.get_by_role("row").count() == len(rows) + 1
    analyst.sees(f"{rows[0]['similarity']:.3f}")


def test_labels_and_candidates_have_their_pictures(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/tickets/1")
    report = shown.client.get("/domains/tickets/versions/1").json()["report"]
    analyst.opens_details()
    analyst.sees(re.compile("Promised and observed shares differ by [0-9.]+ points? on average"))
    analyst.sees("The candidates and their evidence")
    analyst.chooses("Evidence shown", "hubness")
    analyst.sees(re.compile("^Hubness. 0: no sentence"))
    table = analyst.page.get_by_role("table", name="Candidates and their evidence")
    analyst.page.locator("figure", has_text="The candidates").get_by_text("Numbers").click()
    assert table.get_by_role("row").count() == len(report["candidates"]) + 1
    assert table.get_by_role("rowheader", name=re.compile("chosen")).count() == 1


def test_raw_cosines_have_one_picture_and_directions_say_how_they_are_counted(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/tickets/1")
    report = shown.client.get("/domains/tickets/versions/1").json()["report"]
    analyst.opens_details()
    analyst.sees(re.compile(f"The {report['evidence']['directions']:.0f} directions of .* are another measure"))
    analyst.chooses("Evidence shown", "effective_rank")
    analyst.sees(re.compile("^Effective rank.*under “Singular spectrum” other sentences are counted"))
    analyst.go("#/report/letters/1")
    analyst.opens_details()
    title = analyst.page.get_by_role("heading", name=re.compile("^Random pairs"))
    assert title.inner_text() == "Random pairs"
    columns = analyst.page.locator("table", has_text="Similarity that a share of random pairs").locator("th[scope=col]")
    assert columns.all_text_contents() == ["Share of random pairs", "Similarity"]
    analyst.go("#/report/letters/2")
    analyst.opens_details()
    assert title.inner_text() == "Random pairs, before and after"
    assert columns.all_text_contents() == ["Share of random pairs", "Before", "After"]


def test_the_default_domain_without_versions_offers_a_calibration_and_nothing_to_unfold(
    visit: Visit, shown: Server
) -> None:
    analyst = visit(shown, "#/domains")
    row = analyst.page.locator("tr.domain", has_text="default")
    assert "raw cosine, no percentiles" in row.inner_text()
    assert row.get_by_role("button").count() == 0
    row.get_by_role("link", name="Calibrate default").click()
    analyst.sees("1. Text of the domain")
    assert analyst.page.get_by_label("Domain", exact=True).input_value() == "default"


def test_a_version_from_before_the_numbers_says_so(visit: Visit, serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("old", sentences(300), method="sn")
    server.kill()
    folder = files_of(store, "old", 1)
    report = orjson.loads((folder / "report.json").read_bytes())
    for name in ("before", "after", "reference", "raw_reference", "candidates", "labels", "domain_test"):
        del report[name]
    (folder / "report.json").write_bytes(orjson.dumps(report))
    record = orjson.loads(record_of(store, "old").read_bytes())
    record["versions"]["1"]["files"]["report.json"] = sha256(folder / "report.json")
    record_of(store, "old").write_bytes(orjson.dumps(record))
    analyst = visit(serve(model_store=store, encoder="tiny"), "#/report/old/1")
    analyst.opens_details()
    analyst.sees("This version's report has no distribution of random pairs; a new calibration writes one.")
    analyst.sees("This version's report has no spectrum; a new calibration writes one.")
    analyst.sees(re.compile("so no threshold can be advised"))


def test_a_damaged_domain_says_that_requests_get_503_and_what_to_do(visit: Visit, serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("torn", sentences(300), method="sn")
    server.kill()
    record_of(store, "torn").write_bytes(b"{")
    server = serve(model_store=store, encoder="tiny")
    assert server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": "torn"}).status_code == 503
    [unreadable] = server.client.get("/domains/torn").json()["unreadable"]
    assert str(store) not in unreadable  # where the store lies is not the analyst's
    analyst = visit(server, "#/domains")
    row = analyst.page.locator("tr.domain", has_text="torn")
    assert row.get_by_role("link").count() == 0  # nothing of it can be tried
    assert "0 versions" not in row.inner_text()
    said = analyst.page.get_by_text(re.compile("^Requests for torn are answered with status 503"))
    assert said.count() == 0  # fifty damaged domains are fifty lines
    analyst.presses("Versions of torn")
    said.wait_for()
    analyst.sees(re.compile(re.escape(unreadable[1:])))
    assert "isosim store repair torn" in unreadable
    analyst.sees(re.compile("^Run this command where the model store is"))
    assert analyst.page.locator("tr.domain", has_text="torn").get_by_text("damaged").is_visible()
    assert analyst.page.get_by_text("Raw cosines answer").count() == 0
    analyst.presses("Delete domain torn")
    assert "0 versions" not in analyst.page.get_by_role("dialog").inner_text()
    analyst.go("#/compare/torn")
    assert "torn: damaged" in analyst.page.get_by_label("Scored by").inner_text()


def test_a_version_that_could_not_be_loaded_is_marked_and_can_be_promoted_after_a_repair(
    visit: Visit, serve: Serve, store: Path
) -> None:
    server = serve(model_store=store, encoder="tiny")
    for _ in range(2):
        server.calibrate("torn", sentences(300), method="sn", promote="always")
    server.client.post("/domains/torn/rollback").raise_for_status()
    server.kill()
    weights = files_of(store, "torn", 2) / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"")
    server = serve(model_store=store, encoder="tiny")
    assert server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": "torn@2"}).status_code == 503
    weights.write_bytes(whole)
    analyst = visit(server, "#/report/torn/2")
    analyst.sees("Its files are damaged: this server could not load it.")
    assert analyst.page.get_by_text("damaged", exact=True).is_visible()
    analyst.presses("Promote")
    analyst.page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    analyst.sees(re.compile("This version answers requests for torn"))
    assert analyst.page.get_by_text("damaged", exact=True).count() == 0


def test_a_report_that_is_not_there_leads_back(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/report/letters/99")
    analyst.sees(re.compile("It may have been deleted meanwhile"))
    analyst.presses("To the domains", "link")
    analyst.sees("version 2")
    assert analyst.heading() == "Domains"


def test_two_versions_score_side_by_side(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/compare/letters")
    analyst.page.get_by_label("One against many").check()
    some = sentences(4)
    analyst.fills("Sentence", some[0])
    analyst.fills("Compared with", "\n".join(some[1:]))
    analyst.chooses("Second version", "letters@1")
    analyst.presses("Score")
    table = analyst.page.get_by_role("table", name="Scores")
    table.wait_for()
    pairs = [[some[0], other] for other in some[1:]]
    both = [
        shown.client.post("/similarity", json={"pairs": pairs, "domain": d}).json() for d in ("letters", "letters@1")
    ]
    best = max(range(3), key=lambda row: both[0]["similarity"][row])
    rows = [row.inner_text() for row in table.locator("tbody tr").all()]
    assert rows[0].startswith(some[1 + best])
    for row, answer in zip(rows, both, strict=False):  # the first two lines are of the best pair
        assert f"{answer['similarity'][best]:.4f}" in row
    assert "letters@2 whitening" in table.inner_text()
    analyst.chooses("Scored by", "tickets")
    analyst.chooses("Second version", "default")
    analyst.presses("Score")
    table.get_by_text("Probability").wait_for()
    analyst.sees("default has no scale yet, so there is no percentile: calibrate it with its own text.")


def test_an_empty_sentence_is_said_at_its_field(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/compare")
    analyst.presses("Score")
    analyst.sees("Write a sentence.")
    assert analyst.focused() == "Sentence"
    analyst.presses("Fill in an example")
    analyst.sees("How to read this")


def test_of_many_domains_some_are_shown_and_the_others_found(visit: Visit, serve: Serve, store: Path) -> None:
    artifact = EncoderStore.at(store).find("tiny")
    calibrate(store, artifact, "d0", "sn")
    multiply(store, 250)
    server = serve(model_store=store, encoder="tiny")
    analyst = visit(server, "#/domains")
    analyst.sees("d142")
    assert analyst.page.locator("tr.domain").count() == 50
    analyst.page.get_by_role("button", name="Show more domains").click()
    analyst.sees("d188")
    assert analyst.page.locator("tr.domain").count() == 100
    analyst.page.get_by_label("Filter domains by name").fill("99")
    analyst.sees("d99")
    wait_until(lambda: analyst.page.locator("tr.domain").count() == 2)
    analyst.go("#/compare/d99")
    assert analyst.page.get_by_label("Scored by").input_value() == "d99"  # beyond the first page
    analyst.page.get_by_label("Find a domain").fill("98")
    wait_until(lambda: analyst.page.locator("option[value=d98]").count() == 2)
    analyst.go("#/calibrate/d99")
    analyst.sees("This domain exists")
    analyst.go("#/label")
    analyst.page.get_by_label("Find a domain").fill("d98")
    analyst.page.locator("option[value=d98]").wait_for(state="attached")
    analyst.chooses("Domain", "d98")
    analyst.sees("Label pairs for d98")


def test_labels_that_reach_no_precision_say_so_where_the_table_would_stand(visit: Visit, changing: Server) -> None:
    some = sentences(60)
    labels = [(a, b, int(n == 7)) for n, (a, b) in enumerate(zip(some[:30], some[30:], strict=True))]
    changing.calibrate("scarce", sentences(300), method="identity", labels=labels, promote="always")
    assert changing.client.get("/domains/scarce/versions/1").json()["report"]["labels"]["table"] == []
    analyst = visit(changing, "#/report/scarce/1")
    analyst.sees(re.compile("^30 labels are too few for this table: they reach no precision of 50 %."))
    assert not re.search(r"^0$", analyst.page.locator("main").inner_text(), re.MULTILINE)
    saved = changing.client.put("/domains/scarce/thresholds/likely", json={"precision": 0.8}).json()
    assert "reach no precision of 0.5" in saved["notice"]
    analyst.go("#/domains")
    analyst.presses("Versions of scarce")
    analyst.sees(re.compile("reach no precision of 50 %: at each"))
    labelled = analyst.page.get_by_role("table", name="Versions of scarce").locator("td[data-label=Labels]")
    wait_until(lambda: labelled.inner_text() == "30")


def test_a_domain_without_a_champion_is_told_to_promote_before_thresholds_are_saved(
    visit: Visit, changing: Server
) -> None:
    changing.calibrate("waiting", sentences(300), method="sn", promote="never")
    analyst = visit(changing, "#/report/waiting/1")
    analyst.sees("Promote a version first; then thresholds can be saved.")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    assert analyst.page.locator(".alert").count() == 0
    assert "Next step: promote this version" in analyst.page.locator(".view section.card").first.inner_text()
    save = analyst.page.get_by_role("button", name="Save this threshold")
    assert save.is_disabled()
    analyst.presses("Promote")
    analyst.answers("Promote")
    analyst.sees("No threshold of this domain is saved.")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    assert save.is_enabled()


def test_a_question_goes_away_with_the_page_that_asked_it(visit: Visit, changing: Server) -> None:
    analyst = visit(changing, "#/calibrate")
    analyst.presses("Domains", "link")
    analyst.presses("Versions of letters")
    analyst.presses("Delete domain letters")
    analyst.page.get_by_role("dialog").wait_for()
    analyst.page.go_back()
    analyst.sees("1. Text of the domain")
    assert analyst.page.get_by_role("dialog").count() == 0
    assert changing.client.get("/domains/letters").status_code == 200


def test_an_old_calibration_says_what_is_true_now(visit: Visit, changing: Server) -> None:
    changing.calibrate("past", sentences(300), method="sn")
    changing.calibrate("past", sentences(300), method="identity", promote="never")
    jobs = changing.client.get("/calibrate").json()["jobs"]
    first, second = (next(j["job"] for j in jobs if (j["domain"], j["version"]) == ("past", n)) for n in (1, 2))
    analyst = visit(changing, f"#/job/{second}")
    outcome = analyst.page.locator(".outcome")
    assert outcome.inner_text() == "not promoted Version 2 of past is made, and does not answer; version 1 does."
    assert changing.client.put("/domains/past/champion", json={"version": 2}).status_code == 200
    analyst.go(f"#/job/{second}")
    assert outcome.inner_text() == "promoted Version 2 of past answers now."
    analyst.go(f"#/job/{first}")
    assert outcome.inner_text() == "not promoted Version 1 of past answered at first; version 2 answers now."
    changing.client.delete("/domains/past")
    analyst.go(f"#/job/{first}")
    assert outcome.inner_text() == "deleted Version 1 of past was made; it has been deleted since."
    assert analyst.page.get_by_role("link", name="Open the report").count() == 0


def test_the_navigation_keeps_to_the_domain_that_was_looked_at(visit: Visit, changing: Server) -> None:
    analyst = visit(changing, "#/report/letters/3")
    analyst.presses("Try it", "link")
    analyst.sees("Scored by")
    assert analyst.page.get_by_label("Scored by").input_value() == "letters"
    analyst.presses("Label", "link")
    analyst.sees("Label pairs for letters")


def test_an_unknown_domain_is_not_exchanged_in_silence(visit: Visit, changing: Server) -> None:
    analyst = visit(changing, "#/compare/nothere")
    analyst.sees(re.compile("There is no nothere here that can answer; .* is chosen instead."))
    analyst.go("#/compare/letters")
    analyst.sees("Scored by")
    assert analyst.page.get_by_text(re.compile("There is no")).count() == 0
