"""Domains and versions, looked at and changed: each change after a question that says what will follow."""

import re
from dataclasses import replace
from pathlib import Path

from loadtest.servers import multiply
from tests.console.conftest import Site, Visit
from tests.processes import Serve, wait_until
from tests.stores import domains_of, files_of, record_of
from tests.text import sentences

LETTERS = [("letters", 2)]


def test_versions_are_promoted_returned_to_and_deleted_after_a_question_and_not_before(
    visit: Visit, site: Site
) -> None:
    site.copies("moves", *4 * LETTERS)
    analyst = visit("#/domains")
    analyst.presses("Versions of moves")
    analyst.presses("Put moves, version 1, in use")
    analyst.sees(re.compile(r"^From now on .* answered by version 1 \(whitening, .+\)\.$"))
    analyst.sees(re.compile(r"^Version 4 \(whitening, .+\) becomes the previous one, and can be returned to\.$"))
    analyst.answers("Cancel")
    assert site.get("/domains/moves")["champion"] == 4
    analyst.presses("Put moves, version 1, in use")
    analyst.answers("Put in use")
    analyst.sees("Version 1 of moves is in use now.")
    assert site.get("/domains/moves")["champion"] == 1
    analyst.presses("Return to version 4")  # the one before is the newer one
    analyst.answers("Put in use")
    analyst.sees("Version 4 of moves is in use now.")
    assert site.get("/domains/moves")["champion"] == 4
    assert analyst.page.get_by_role("button", name="Delete moves, version 4").count() == 0
    analyst.presses("Delete moves, version 2")
    assert analyst.focused() == "Cancel"  # what cannot be undone is not one key away
    analyst.page.keyboard.press("Escape")
    assert len(site.get("/domains/moves")["versions"]) == 4
    analyst.presses("Delete moves, version 2")
    analyst.answers("Delete")
    analyst.sees("Version 2 of moves is deleted.")
    assert [version["version"] for version in site.get("/domains/moves")["versions"]] == [1, 3, 4]
    site.server.client.delete("/domains/moves/versions/3")  # somebody else, meanwhile
    analyst.presses("Put moves, version 3, in use")
    analyst.answers("Put in use")
    said = analyst.alert()
    assert "Version 3 was not put in use: " in said
    assert "Look at the list again." in said
    analyst.presses("Dismiss")
    analyst.page.locator("#alerts .alert").wait_for(state="detached")


def test_a_domain_is_deleted_after_its_name_was_typed(visit: Visit, site: Site) -> None:
    site.copies("fleeting")
    analyst = visit("#/calibrate")
    analyst.presses("Domains", "link")
    analyst.presses("Versions of fleeting")
    analyst.presses("Delete domain fleeting")
    dialog = analyst.page.get_by_role("dialog")
    dialog.wait_for()
    analyst.page.go_back()  # a question goes away with the page that asked it
    analyst.sees("1. Text of the domain")
    assert dialog.count() == 0
    analyst.go("#/domains")
    assert analyst.page.get_by_role("button", name="Delete domain default").count() == 0
    analyst.presses("Versions of fleeting")
    analyst.presses("Delete domain fleeting")
    assert "Its 1 version and its saved thresholds go for good" in dialog.inner_text()
    delete = dialog.get_by_role("button", name="Delete the domain")
    name = dialog.get_by_label("Type fleeting to confirm")
    name.fill("fleetin")
    name.press("Enter")
    assert delete.is_disabled()
    assert site.get("/domains/fleeting")["champion"] == 1
    name.fill("fleeting")
    name.press("Enter")
    analyst.sees("fleeting is deleted.")
    assert site.server.client.get("/domains/fleeting").status_code == 404


def test_what_is_not_there_is_said_and_leads_on(visit: Visit) -> None:
    analyst = visit("#/report/letters/99")
    analyst.sees("It may have been deleted meanwhile")
    analyst.presses("To the domains", "link")
    analyst.go("#/report/nothere/1")
    assert analyst.page.get_by_role("link", name="To the domains").count() == 1  # the remedy that the server names
    analyst.presses("To the domains", "link")
    row = analyst.page.locator("tr.domain", has_text="default")
    assert "not measured: no percentiles" in row.inner_text()
    assert row.get_by_role("button").count() == 0  # nothing to unfold
    row.get_by_role("link", name="Calibrate default").click()
    analyst.sees("1. Text of the domain")
    assert analyst.field("Domain").input_value() == "default"
    analyst.go("#/compare/nothere")
    analyst.sees(re.compile("There is no nothere here that can answer; .* is chosen instead."))
    analyst.go("#/report/letters/1")
    analyst.presses("Try it", "link")  # the navigation keeps to the domain
    analyst.sees("Scored by")
    assert analyst.field("Scored by").input_value() == "letters"
    assert analyst.page.get_by_text("There is no").count() == 0
    analyst.presses("Find matches", "link")
    analyst.sees("Your matches")


def test_a_damaged_domain_says_that_requests_get_503_and_what_to_do(visit: Visit, site: Site) -> None:
    site.copies("torn")
    record_of(site.store, "torn").write_bytes(b"{")
    [unreadable] = site.get("/domains/torn")["unreadable"]
    analyst = visit("#/domains")
    row = analyst.page.locator("tr.domain", has_text="torn")
    assert row.get_by_text("damaged").is_visible()
    assert row.get_by_role("link").count() == 0  # nothing of it can be tried
    said = analyst.page.get_by_text(re.compile("^Requests for torn are answered with status 503"))
    assert said.count() == 0  # fifty damaged domains are fifty lines
    analyst.presses("Versions of torn")
    said.wait_for()
    analyst.sees(unreadable[1:])
    analyst.sees("Run this command where the model store is")
    assert analyst.page.get_by_text("own similarity is in use").count() == 0
    analyst.presses("Delete domain torn")
    assert "All of its versions" in analyst.text("dialog")
    analyst.go("#/compare/torn")
    assert "torn: damaged" in analyst.field("Scored by").inner_text()


def test_a_version_that_could_not_be_loaded_is_marked_and_can_be_promoted_after_a_repair(
    visit: Visit, site: Site
) -> None:
    site.copies("broken", *2 * LETTERS)
    weights = files_of(site.store, "broken", 1) / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"")
    asked = site.server.client.post("/similarity", json={"pairs": [["a", "b"]], "domain": "broken@1"})
    assert asked.status_code == 503
    weights.write_bytes(whole)
    analyst = visit("#/report/broken/1")
    analyst.sees("Its files are damaged: this server could not load it.")
    assert analyst.page.get_by_text("damaged", exact=True).is_visible()
    analyst.presses("Put in use")
    analyst.answers("Put in use")
    analyst.sees("This version is in use: it answers requests for broken")
    assert analyst.page.get_by_text("damaged", exact=True).count() == 0


def test_without_a_champion_a_version_is_promoted_before_thresholds_are_saved(visit: Visit, site: Site) -> None:
    site.copies("waiting", promote=False)
    analyst = visit("#/report/waiting/1")
    analyst.sees("Put a version in use first; then thresholds can be saved.")
    analyst.sees("For a false-match rate of 1 %")
    assert "Next step: put this version in use" in analyst.text(".view section.card")
    save = analyst.page.get_by_role("button", name="Save this threshold")
    assert save.is_disabled()
    analyst.presses("Put in use")
    analyst.answers("Put in use")
    analyst.sees("No threshold of this domain is saved.")
    analyst.sees("For a false-match rate of 1 %")
    assert save.is_enabled()


def test_of_many_domains_some_are_shown_as_short_lines_and_the_others_found(
    visit: Visit, site: Site, serve: Serve, store: Path
) -> None:
    with domains_of(site.store).files("letters", 2) as (version, folder):
        domains_of(store).publish("d0", folder, replace(version, job=None), promote=lambda _: True)
    multiply(store, 250)
    analyst = visit("#/domains", serve(model_store=store, encoder="tiny", local_worker=False))
    lines = analyst.page.locator("tr.domain")
    assert lines.count() == 50
    assert analyst.page.evaluate("document.documentElement.scrollHeight") < 3500  # 50 cards took 8,600
    line = lines.filter(has_text="d142").inner_text()
    assert [word for word in ("version 1", "whitening", "no requests yet", "1 version") if word not in line] == []
    toggle = analyst.page.get_by_role("button", name="Versions of d142")
    versions = analyst.page.get_by_role("table", name="Versions of d142")
    assert versions.count() == 0
    toggle.click()
    versions.wait_for()
    assert toggle.get_attribute("aria-expanded") == "true"
    toggle.click()
    assert not versions.is_visible()
    analyst.presses("Show more domains")
    analyst.sees("d188")
    assert lines.count() == 100
    analyst.sees("The first 200 domains by name; the filter finds the others.")
    analyst.fills("Filter by name", "99")
    wait_until(lambda: lines.count() == 2)
    analyst.sees("2 domains.")
    analyst.go("#/compare/d99")
    assert analyst.field("Scored by").input_value() == "d99"  # beyond the first page
    analyst.fills("Find a domain", "98")
    wait_until(lambda: analyst.page.locator("option[value=d98]").count() == 2)
    analyst.go("#/calibrate/d99")
    analyst.sees("This domain exists")
    analyst.go("#/label/d98")
    analyst.sees("Labels for d98")


def test_running_calibrations_stand_above_the_domains_which_can_be_sorted(visit: Visit, site: Site) -> None:
    site.calibrate("zz-newest", sentences(300), method="sn")
    site.post("/calibrate", domain="aa-coming", texts=sentences(300), method="sn")
    analyst = visit("#/domains")
    running = analyst.page.get_by_role("table", name="Running calibrations")
    running.get_by_role("row", name=re.compile("aa-coming queued")).wait_for()
    assert running.bounding_box()["y"] < analyst.page.get_by_role("table", name="Domains").bounding_box()["y"]
    known = [one["domain"] for one in site.get("/domains")["domains"]]
    names = analyst.page.locator("tr.domain th")
    assert [name.split("\n")[0] for name in names.all_inner_texts()] == known
    analyst.sees(f"{len(known)} domains.")
    analyst.chooses("Sort by", "newest")
    assert names.first.inner_text() == "zz-newest"
    assert len(known) == names.count()
    site.copies("yy-late")
    analyst.presses(re.compile("^Cancel calibration of aa-coming"))
    analyst.answers("Cancel the calibration")
    running.wait_for(state="hidden")
    analyst.page.locator("tr.domain").filter(has_text="yy-late").wait_for()  # read again when a calibration ends
    analyst.go("#/compare/letters")
    listed = [one.get_attribute("label") for one in analyst.field("Scored by").locator("optgroup").all()]
    assert listed[0] == "zz-newest"
    assert len(listed) <= 12  # the ten newest, default, and the one asked for
    assert analyst.field("Scored by").input_value() == "letters"
