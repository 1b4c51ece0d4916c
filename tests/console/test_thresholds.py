"""Verdicts at a threshold, and thresholds that are saved under names."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Visit
from tests.processes import Serve, Server
from tests.text import sentences


@pytest.fixture
def named(serve: Serve, store: Path) -> Server:
    """A server with two versions of letters, the second champion."""
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("letters", sentences(300), method="identity")
    server.calibrate("letters", sentences(300), method="centring", promote="always")
    return server


def save(server: Server, domain: str, name: str, **target: float) -> None:
    response = server.client.put(f"/domains/{domain}/thresholds/{name}", json=target)
    assert response.status_code == 200, response.text


def verdicts(analyst: Analyst) -> dict[str, list[str]]:
    """The verdicts of the table of scores, by sentence; one a version."""
    table = analyst.page.get_by_role("table", name="Scores")
    table.wait_for()
    found: dict[str, list[str]] = {}
    for row in table.locator("tbody tr").all():
        if row.locator("th").count():
            sentence = row.locator("th").inner_text()
        found.setdefault(sentence, []).append(row.locator("[data-label=Verdict]").inner_text())
    return found


def compare_many(analyst: Analyst) -> list[list[str]]:
    """Fills in one sentence against five; the pairs."""
    some = sentences(5)
    analyst.page.get_by_label("One against many").check()
    analyst.fills("Sentence", some[0])
    analyst.fills("Compared with", "\n".join(some))
    return [[some[0], other] for other in some]


WORDS = {True: "✓ match", False: "✕ no match"}


def test_each_pair_is_called_a_match_or_not_at_a_rate_that_was_typed_in(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/compare/letters")
    pairs = compare_many(analyst)
    analyst.fills("Wanted false-match rate in per cent", "20")
    analyst.chooses("Second version", "letters@1")
    analyst.presses("Score")
    expected: dict[str, list[str]] = {}
    for reference in ("letters", "letters@1"):
        limit = shown.client.get(f"/domains/{reference}/threshold?fmr=0.2").json()["similarity"]
        answer = shown.client.post("/similarity", json={"pairs": pairs, "domain": reference}).json()
        for (_, other), similarity in zip(pairs, answer["similarity"], strict=True):
            expected.setdefault(other, []).append(WORDS[similarity >= limit])
        analyst.sees(re.compile(rf"a similarity of at least {limit:.4f} \(false-match rate 20 %\)"))
    assert verdicts(analyst) == expected
    assert {word for words in expected.values() for word in words} == set(WORDS.values())


def test_a_saved_threshold_decides_as_the_service_does(visit: Visit, named: Server) -> None:
    save(named, "letters", "duplicates", fmr=0.3)
    analyst = visit(named, "#/compare/letters")
    pairs = compare_many(analyst)
    analyst.chooses("A pair is a match at", "saved:duplicates")
    analyst.presses("Score")
    answer = named.client.post(
        "/similarity", json={"pairs": pairs, "domain": "letters", "threshold": "duplicates"}
    ).json()
    assert set(answer["match"]) == {True, False}
    expected = {other: [WORDS[match]] for (_, other), match in zip(pairs, answer["match"], strict=True)}
    assert verdicts(analyst) == expected
    analyst.sees(re.compile(r"\(duplicates, false-match rate 30 %\)"))


def test_precision_is_offered_where_labels_were_given_and_searches_ask_for_their_entries(
    visit: Visit, shown: Server
) -> None:
    analyst = visit(shown, "#/compare/letters")
    kinds = analyst.page.get_by_label("A pair is a match at").locator("option")
    assert "precision" not in kinds.all_inner_texts()
    analyst.chooses("Scored by", "tickets")
    analyst.page.locator("option[value=precision]").wait_for(state="attached")
    analyst.chooses("A pair is a match at", "precision")
    assert analyst.page.get_by_label("Wanted precision in per cent").input_value() == "90"
    analyst.chooses("A pair is a match at", "false_hit_rate")
    analyst.fills("Entries searched", "0")
    analyst.presses("Fill in an example")
    analyst.sees("Give a whole number above 0.")
    analyst.fills("Entries searched", "50")
    analyst.presses("Score")
    analyst.sees(re.compile("false hit rate 1 % among 50 entries"))
    analyst.sees(re.compile("Percentile and probability answer different questions: "))


def test_a_version_that_cannot_reach_the_target_says_why_there_is_no_verdict(visit: Visit, named: Server) -> None:
    save(named, "letters", "precise", precision=0.9)
    analyst = visit(named, "#/compare/letters")
    analyst.chooses("A pair is a match at", "saved:precise")
    analyst.presses("Fill in an example")
    analyst.sees(
        "letters@2: no verdict for precise, precision 90 %. Domain 'letters' was given no labels; label pairs for it."
    )
    assert "Verdict" not in analyst.page.get_by_role("table", name="Scores").inner_text()
    analyst.chooses("A pair is a match at", "")
    analyst.presses("Score")
    analyst.page.get_by_text(re.compile("no verdict for precise")).wait_for(state="detached")


def test_a_threshold_is_saved_replaced_after_a_question_and_deleted(visit: Visit, named: Server) -> None:
    def target(name: str) -> dict[str, float] | None:
        saved = named.client.get("/domains/letters/thresholds").json()["thresholds"]
        return next((one["target"] for one in saved if one["name"] == name), None)

    analyst = visit(named, "#/report/letters/1")
    analyst.sees("No threshold of this domain is saved.")
    name = analyst.page.get_by_label("Name of the threshold")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    assert name.input_value() == "fmr-0.01"
    name.fill("Duplicate Tickets")
    analyst.presses("Save this threshold")
    analyst.sees(re.compile("A name is 1 to 64 of a–z.*for example fmr-0.01"))
    name.fill("duplicates")
    analyst.presses("Save this threshold")
    analyst.sees("The threshold duplicates of letters is saved: false-match rate 1 %.")
    assert target("duplicates") == {"fmr": 0.01}
    # The value is the one of the version that is looked at, not of the champion.
    mine = named.client.get("/domains/letters@1/threshold?fmr=0.01").json()["similarity"]
    table = analyst.page.get_by_role("table", name="Saved thresholds of letters")
    table.get_by_text(f"{mine:.4f}").wait_for()
    analyst.fills("Wanted false-match rate in per cent", "5")
    analyst.sees(re.compile("For a false-match rate of 5 %"))
    assert name.input_value() == "duplicates"  # a typed name stays
    analyst.presses("Save this threshold")
    analyst.sees("It stands for: false-match rate 1 %. From now on it will stand for: false-match rate 5 %.")
    analyst.answers("Cancel")
    assert target("duplicates") == {"fmr": 0.01}
    analyst.presses("Save this threshold")
    analyst.answers("Replace")
    analyst.sees("The threshold duplicates of letters is saved: false-match rate 5 %.")
    assert target("duplicates") == {"fmr": 0.05}
    analyst.presses("Delete the threshold duplicates of letters")
    assert analyst.focused() == "Cancel"
    analyst.answers("Delete")
    analyst.sees("The threshold duplicates of letters is deleted.")
    assert target("duplicates") is None


def test_the_domains_line_shows_its_saved_thresholds_with_the_champions_value(visit: Visit, named: Server) -> None:
    save(named, "letters", "duplicates", fmr=0.01)
    save(named, "letters", "precise", precision=0.9)
    analyst = visit(named, "#/domains")
    analyst.presses("Versions of letters")
    table = analyst.page.get_by_role("table", name="Saved thresholds of letters")
    value = named.client.get("/domains/letters/threshold?fmr=0.01").json()["similarity"]
    table.get_by_text(f"{value:.4f}").wait_for()
    table.get_by_text("Domain 'letters' was given no labels; label pairs for it.", exact=True).wait_for()
    table.get_by_text("Similarity in version 2").wait_for()


def test_a_key_that_may_not_save_is_told_which_scope_it_lacks(
    visit: Visit, serve: Serve, store: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    granted = {"reader": "read", "owner": "read,calibrate,admin"}
    keys.write_text(
        "".join(f"{hashlib.sha256(k.encode()).hexdigest()} {scopes} domains=*\n" for k, scopes in granted.items())
    )
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    server.client.headers["authorization"] = "Bearer owner"
    server.calibrate("letters", sentences(300), method="identity")
    analyst = visit(server, "#/report/letters/1")
    analyst.fills("API key", "reader")
    analyst.answers("Use this key")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    analyst.presses("Save this threshold")
    said = analyst.alert().splitlines()
    assert said[0] == "The threshold fmr-0.01 was not saved: the API key lacks the scope 'admin'"
    assert "for a key with that scope" in "".join(said[1:])


def test_a_threshold_is_saved_by_keyboard_alone(visit: Visit, named: Server) -> None:
    analyst = visit(named, "#/report/letters/2")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    analyst.tabs_to("Name of the threshold")
    analyst.page.keyboard.press("Control+a")
    analyst.page.keyboard.type("same")
    analyst.page.keyboard.press("Enter")
    analyst.sees("The threshold same of letters is saved: false-match rate 1 %.")


def test_a_name_that_cannot_be_used_comes_with_one_that_can(visit: Visit, named: Server) -> None:
    analyst = visit(named, "#/report/letters/2")
    analyst.sees(re.compile("For a false-match rate of 1 %"))
    analyst.fills("Name of the threshold", "Good Duplicates!")
    analyst.presses("Save this threshold")
    analyst.presses("Use “good-duplicates”")
    analyst.presses("Save this threshold")
    analyst.sees("The threshold good-duplicates of letters is saved: false-match rate 1 %.")


def test_rolling_back_names_the_saved_thresholds_that_give_no_verdict_then(visit: Visit, named: Server) -> None:
    save(named, "letters", "precise", precision=0.9)
    save(named, "letters", "duplicates", fmr=0.01)
    analyst = visit(named, "#/domains")
    analyst.presses("Versions of letters")
    analyst.presses("Roll back to version 1")
    dialog = analyst.page.get_by_role("dialog")
    dialog.wait_for()
    assert "The saved threshold precise gives no verdict then: Domain 'letters" in dialog.inner_text()
    assert "POST /domains" not in dialog.inner_text()
    assert "duplicates" not in dialog.inner_text()


def test_promoting_a_version_that_loses_a_saved_threshold_asks_with_its_name_and_is_done(
    visit: Visit, named: Server
) -> None:
    labels = [(text, text.upper(), 1) for text in sentences(40)] + [(*sentences(n + 2)[n:], 0) for n in range(40)]
    job = named.client.post("/domains/letters/labels", json={"labels": labels, "promote": "always"}).json()["job"]
    assert named.wait_for(job)["promoted"]
    save(named, "letters", "precise", precision=0.8)
    analyst = visit(named, "#/domains")
    analyst.presses("Versions of letters")
    analyst.presses("Promote letters, version 1")
    dialog = analyst.page.get_by_role("dialog")
    dialog.wait_for()
    assert "The saved threshold precise gives no verdict then: Domain 'letters" in dialog.inner_text()
    analyst.answers("Promote")
    analyst.sees("letters is now answered by version 1.")
    analyst.presses("Return to version 3")
    analyst.answers("Return to version 3")
    analyst.presses("Roll back to version 1")
    analyst.answers("Roll back to version 1")
    analyst.sees("letters is again answered by version 1.")


def test_a_match_that_is_improbable_is_remarked_and_the_verdict_stands_last(visit: Visit, shown: Server) -> None:
    analyst = visit(shown, "#/compare/tickets")
    compare_many(analyst)
    analyst.fills("Wanted false-match rate in per cent", "99")
    analyst.presses("Score")
    analyst.sees(re.compile("Some pairs are called a match though their probability is below 50 %"))
    heads = analyst.page.get_by_role("table", name="Scores").get_by_role("columnheader").all_inner_texts()
    assert heads.index("Verdict") > heads.index("Probability")
    analyst.chooses("A pair is a match at", "")
    analyst.presses("Score")
    analyst.page.get_by_text(re.compile("Some pairs are called a match")).wait_for(state="detached")
