"""From a file to its matches: what passes, what that is worth, and nothing lost on the way."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

from isosim.jobs.tables import open_table
from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit
from tests.processes import wait_until
from tests.text import sentences

FILE = "Choose a file, or drop it anywhere on this page"
KNOWN = "Choose the file of known texts"
TEXTS = sentences(250)
AGAIN = [text.upper() for text in TEXTS[:60]]  # the encoder does not tell capital letters apart
QUEUED = "Waiting for a worker"
PLACE = "document.querySelector('.judging .equal').getBoundingClientRect().top + scrollY"  # of the buttons that judge


def table(texts: list[str], name: str = "question", encoding: str = "utf-8") -> bytes:
    written = io.StringIO()
    csv.writer(written, delimiter=";").writerows(
        [["id", name], *([f"T-{n}", f"{text} Öl"] for n, text in enumerate(texts))]
    )
    return written.getvalue().encode(encoding)


def match(analyst: Analyst, site: Site) -> str:
    """The job of a match of a file with duplicates, whose page is open."""
    analyst.go("#/")
    analyst.chooses_file("tickets.csv", table([*TEXTS, *AGAIN, TEXTS[3]]))
    analyst.understood()
    analyst.presses("Find matches")
    analyst.sees(QUEUED)
    site.work()
    analyst.sees("Do these two mean the same?")
    return str(analyst.page.url.rpartition("/")[2])


def pair(analyst: Analyst) -> list[str]:
    analyst.page.locator(".pair:not([hidden]) blockquote").first.wait_for()
    return [text.strip() for text in analyst.page.locator(".pair blockquote").all_inner_texts()]


def judge(analyst: Analyst, count: int) -> None:
    """Judges pairs rightly, by keys."""
    for _ in range(count):
        a, b = pair(analyst)
        analyst.page.locator(".judging .pair").scroll_into_view_if_needed()
        analyst.page.keyboard.press(str(int(a.lower() == b.lower())))


def tile(analyst: Analyst) -> str:
    analyst.page.locator(".tile:not(.stale)").filter(has_text=re.compile("Next step|out of reach")).wait_for()
    return analyst.text(".tile")


def downloaded(analyst: Analyst, name: str, folder: Path) -> Path:
    with analyst.page.expect_download() as download:
        analyst.page.get_by_role("button", name=name, exact=True).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        rows = open_table(file, "xlsx", sheet="matches") if path.suffix == ".xlsx" else open_table(file)
        return [dict(zip(rows.columns, cells, strict=False)) for _, cells in rows.filled()]


def test_from_a_file_to_pairs_of_a_stated_precision(visit: Visit, site: Site, tmp_path: Path) -> None:
    analyst = visit()
    assert analyst.heading() == "Find matches"
    job = match(analyst, site)
    assert analyst.heading() == "Matches in tickets.csv"
    said = tile(analyst)
    assert said.startswith("Not judged yet")  # nothing is claimed, and no number looks like a result
    assert "How many of the most alike pairs mean the same is unknown" in said
    assert not re.search("false|%", said)
    first = analyst.page.locator("table.found tbody tr").first.inner_text()
    assert "1.00" in first
    analyst.sees("1 row repeats a text word for word")
    place = analyst.page.evaluate(PLACE)
    judge(analyst, 60)
    analyst.sees("60: enough for an answer. The next goal is 100")
    wait_until(lambda: "of them are right" in tile(analyst))
    assert analyst.page.evaluate(PLACE) == place  # whatever the result says
    answer = site.get(f"/matches/{job}?precision=0.9")["answer"]
    said = tile(analyst)
    assert f"{answer['passing']} pairs" in said
    assert f"about {round(answer['expected_false'])} are false" in said
    hits = answer["passing"] - answer["expected_false"]
    assert f"about {hits / answer['recall'] - hits:.0f} are missed" in said
    low, high = (round(100 * end) for end in answer["precision_interval"])
    assert f"Between {low} % and {high} % of them are right" in said.replace("\xa0", " ")
    assert "after 40 more (100 in all)" in said
    assert "after 140 more" in said
    analyst.opens("Details")
    analyst.sees(f"; {answer['matched_rows'][0]:,} of 311 rows in a pair. You judged {answer['confirmed']} of the")
    analyst.sees(re.compile("those among the .* most alike pairs. From 60 judgements.$"))
    path = downloaded(analyst, "Download", tmp_path)
    rows = rows_of(path)
    assert path.name == "tickets pairs.xlsx"
    assert len(rows) == answer["passing"] + 1  # one row repeats a text
    assert sum(row["text A"].lower() == row["text B"].lower() for row in rows) / len(rows) > 0.7
    analyst.sees(
        re.compile(f"^The file has {answer['passing']} pairs.* Before them, 1 row repeats a text word for word")
    )
    assert analyst.focused() == "Download"
    hint = analyst.page.get_by_text("A text is in a group only if")
    assert hint.count() == 0
    analyst.chooses("Content", "clusters")
    assert hint.is_visible()
    analyst.chooses("Format", "csv")
    groups = rows_of(downloaded(analyst, "Download", tmp_path))
    assert {row["size"] for row in groups if row["text"].startswith(TEXTS[3])} == {"3"}
    labels_file = downloaded(analyst, "Download labels", tmp_path)
    labels = rows_of(labels_file)
    assert len(labels) == 60
    assert all(int(row["label"]) == (row["a"].lower() == row["b"].lower()) for row in labels)

    labels_are_given_to_a_later_match(visit(), site, labels_file)
    nothing_is_said_of_another_target(analyst, site, job)
    a_deleted_match_says_so(analyst, visit("#/"), site, job)


def labels_are_given_to_a_later_match(analyst: Analyst, site: Site, labels: Path) -> None:
    """Those of pairs that are there again, as they were drawn or chosen."""
    texts = [f"{text} Öl" for text in [*TEXTS[:100], *AGAIN, "Another text."]]
    job = site.post("/matches", a=texts)["job"]
    site.work()
    analyst.go(f"#/matches/{job}")
    analyst.opens("Labels of an earlier match")
    analyst.chooses_file("labels.csv", b"one,two\n1,2\n", "File of labels")
    analyst.sees("It has no columns a, b and label")
    head, first, *rest = labels.read_text(encoding="utf-8-sig").splitlines()
    assert head.endswith(",chosen,numbers_differ,negation_differs")
    assert first.endswith(",0,False,False")
    analyst.chooses_file(
        "labels.csv", "\n".join([head, f"{first.rsplit(',', 3)[0]},1,,", *rest]).encode(), "File of labels"
    )
    analyst.sees(re.compile(r"^\d+ labels of 60 taken over\. The texts of the others are not among these pairs\.$"))
    answer = site.get(f"/matches/{job}")["answer"]
    assert 1 < answer["judged"] < 60
    assert answer["chosen"] == 1
    analyst.sees(f"{answer['judged'] - 1} of about 50")
    site.server.client.delete(f"/matches/{job}")


def a_deleted_match_says_so(analyst: Analyst, another: Analyst, site: Site, job: str) -> None:
    """Until then it is listed, also where this tab is not known."""
    another.page.get_by_role("rowheader", name="tickets.csv").first.wait_for()
    analyst.go("#/")
    analyst.presses("tickets.csv", "link")
    analyst.sees("60: enough for an answer. The next goal is 100")
    assert analyst.field("Wanted").input_value() == "0.99"  # what was asked for last
    analyst.presses("Delete this match")
    analyst.answers("Delete it")
    analyst.sees("Your matches")
    assert job not in [one["job"] for one in site.get("/matches")["matches"]]
    another.go(f"#/matches/{job}")  # from a bookmark
    assert another.heading() == "This match is not there any more"
    another.page.get_by_role("main").get_by_role("link", name="Find matches").click()
    another.sees("Your matches")


def nothing_is_said_of_another_target(analyst: Analyst, site: Site, job: str) -> None:
    """Of one out of reach, of one that is not computed yet, and of a wrong one."""
    hold = analyst.page.get_by_text("No pairs reach what is asked for above")
    assert not hold.is_visible()
    analyst.fills("Wanted", "99.99")
    assert "out of reach" in tile(analyst)
    assert not analyst.page.get_by_text("Details", exact=True).is_visible()  # of another target
    assert hold.is_visible()  # beside a button that is off
    assert analyst.page.get_by_role("button", name="Download", exact=True).is_disabled()
    told = re.search(r"the highest that is likely is ([\d.]+) %, with ([\d,]+) pairs", tile(analyst))
    assert told, tile(analyst)
    analyst.chooses("Ask for", "surely")
    assert analyst.field("Wanted").input_value() == "99.99"  # the number stays
    assert "At no line are surely 99.99 % of the pairs right after 60 judgements" in tile(analyst)
    analyst.chooses("Ask for", "precision")
    tile(analyst)
    analyst.presses(f"Ask for {told[1]} %")
    wait_until(lambda: tile(analyst).startswith(f"{told[2]} pairs"))
    assert analyst.field("Wanted").input_value() == told[1]
    analyst.fills("Wanted", "99.99")
    assert "out of reach" in tile(analyst)
    analyst.fills("Wanted", "11")  # of a target that is not computed yet, nothing is said
    assert analyst.page.locator(".tile.stale").count() == 1
    assert analyst.page.get_by_role("button", name="Download", exact=True).is_disabled()
    analyst.fills("Wanted", "0.8")
    analyst.sees("Give per cent: from 10 to below 100")
    analyst.chooses("Ask for", "similarity")
    analyst.fills("Wanted", "7")
    analyst.sees("Give a number from −1 to 1.")
    assert analyst.page.locator(".tile.stale").count() == 1
    analyst.fills("Wanted", "-1")
    analyst.sees(re.compile("above the line (is|are) left out because you judged"))
    analyst.fills("Wanted", "0.99")
    wait_until(lambda: f"{site.get(f'/matches/{job}?similarity=0.99')['answer']['passing']} pairs" in tile(analyst))


def test_the_line_in_the_histogram_is_dragged_by_mouse_and_by_keyboard(visit: Visit, site: Site) -> None:
    job = site.post("/matches", a=[*TEXTS, *AGAIN], domain="letters")["job"]
    site.work()
    analyst = visit(f"#/matches/{job}")
    line = analyst.page.get_by_role("slider", name="Lowest similarity that passes")
    canvas = analyst.page.locator("figure canvas")

    def stands_at(similarity: float) -> None:
        """The line, the target and what is said of it agree with the server."""
        passing = site.get(f"/matches/{job}?similarity={similarity}")["answer"]["passing"]
        said = f"The line stands at {similarity:.2f}: {passing:,} pairs pass."
        wait_until(lambda: said in canvas.get_attribute("aria-label"), 15)
        assert f"{passing:,} pairs" in tile(analyst)
        assert analyst.field("Ask for").input_value() == "similarity"
        assert float(analyst.field("Wanted").input_value()) == float(line.input_value()) == similarity

    tile(analyst)
    begun = site.get(f"/matches/{job}")
    assert abs(float(line.input_value()) - begun["answer"]["similarity"]) <= 0.005
    box, (low, high) = line.bounding_box(), (float(line.get_attribute(name)) for name in ("min", "max"))
    assert low <= begun["histogram"]["edges"][0] < begun["histogram"]["edges"][-1] <= high

    def place(similarity: float) -> tuple[float, float]:
        width = box["width"] - 24  # the thumb's middle stays within the plot
        return box["x"] + 12 + width * (similarity - low) / (high - low), box["y"] + box["height"] / 2

    target = round((begun["floor"] + 1) / 2, 2)
    analyst.page.mouse.move(*place(float(line.input_value())))
    analyst.page.mouse.down()
    analyst.page.mouse.move(*place(target), steps=5)
    assert analyst.page.locator(".tile.stale").count() == 1  # nothing is said of a place that is not computed
    analyst.page.mouse.up()
    stands_at(target)
    analyst.tabs_to("Lowest similarity that passes", most=200)  # past the buttons of the list
    analyst.page.keyboard.press("ArrowRight")
    stands_at(round(target + 0.01, 2))
    analyst.page.reload()  # the address holds the target
    stands_at(round(target + 0.01, 2))
    judge(analyst, 12)
    wait_until(lambda: site.get(f"/matches/{job}")["judged"] == 12)
    labels = site.get(f"/matches/{job}")["histogram"]
    same, different = sum(labels["matches"]), sum(labels["others"])
    wait_until(lambda: f"Judged: {same} the same, {different} different" in canvas.get_attribute("aria-label"))


def test_new_texts_against_known_ones_in_another_format(visit: Visit, site: Site, tmp_path: Path) -> None:
    analyst = visit("#/find/letters")
    analyst.field("New texts against known ones").check()
    files = {
        "fieldset.drop >> nth=1": ("known.csv", table(TEXTS, "text", "windows-1252").decode("windows-1252")),
        "h1": ("new.txt", "\n".join(f"{text} Öl" for text in AGAIN[:20])),
    }
    for place, (name, content) in files.items():  # where it is dropped; beside both, the first that has none
        dropped = analyst.page.evaluate_handle(
            """([name, content]) => {
                const transfer = new DataTransfer();
                const bytes = Uint8Array.from(content, (one) => one.codePointAt(0));
                transfer.items.add(new File([name.endsWith("csv") ? bytes : content], name));
                return transfer;
            }""",
            [name, content],
        )
        analyst.page.dispatch_event(place, "drop", {"dataTransfer": dropped})
        analyst.page.locator(".understood strong", has_text=name).first.wait_for()
    analyst.sees("CSV with semicolons, windows-1252.")
    analyst.page.evaluate("location.hash = '#/domains'")
    wait_until(lambda: analyst.heading() == "Domains")
    analyst.page.go_back()  # the form has the files that were chosen
    for name, _ in files.values():
        analyst.page.locator(".understood strong", has_text=name).first.wait_for()
    analyst.presses("Find matches")
    analyst.sees(QUEUED)
    site.work()
    assert analyst.heading() == "Matches in new.txt and known.csv"
    tile(analyst)
    heads = analyst.page.get_by_role("table", name="Pairs that pass").get_by_role("columnheader")
    wanted = ["Similarity", "Text of new.txt", "Text of known.csv", "Your judgement", "Notes"]
    wait_until(lambda: heads.all_inner_texts() == wanted)
    analyst.chooses("Content", "best")
    best = rows_of(downloaded(analyst, "Download", tmp_path))
    assert [(row["text A"], row["text B"]) for row in best[:20]] == [
        (f"{text.upper()} Öl", f"{text} Öl") for text in TEXTS[:20]
    ]
    assert {row["match found"] for row in best[:20]} == {"yes"}
    assert analyst.page.get_by_role("button", name="Use these labels for letters").is_disabled()  # there are too few
    judge(analyst, 24)
    use = analyst.page.get_by_role("button", name="Use these labels for letters")
    wait_until(use.is_enabled)
    analyst.page.evaluate("location.hash = '#/find'")
    wait_until(lambda: analyst.heading() == "Find matches")
    assert analyst.page.locator(".understood p").count() == 0  # what was posted is not offered again


def test_leaving_with_unsent_judgements_asks_and_those_of_another_key_are_held(visit: Visit, site: Site) -> None:
    analyst = visit()
    analyst.expected.append("net::ERR_")
    job = match(analyst, site)
    before = pair(analyst)
    posts = re.compile("/labels$")
    analyst.page.route(posts, lambda route: route.abort("connectionrefused"))
    judge(analyst, 3)
    asked = []
    analyst.page.once("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    analyst.page.reload()
    assert asked == ["beforeunload"]
    analyst.page.unroute(posts)
    wait_until(lambda: site.get(f"/matches/{job}")["judged"] == 3)
    assert pair(analyst) != before
    analyst.page.route(
        posts, lambda route: route.fulfill(status=404, json={"error": "no match", "error_type": "NotFound"})
    )
    judge(analyst, 2)  # with another key, whose match this is not
    analyst.sees("No match.")
    context = analyst.page.context
    analyst.page.close()
    again = Analyst.at(context, analyst.url)
    again.go("#/")
    again.sees("2 judgements to send: open it")
    again.go(f"#/matches/{job}")
    wait_until(lambda: site.get(f"/matches/{job}")["judged"] == 5)


def test_the_same_figures_are_said_in_the_same_words_and_a_goal_stands_until_it_is_reached(
    visit: Visit, site: Site
) -> None:
    job = site.post("/matches", a=[*TEXTS, *AGAIN])["job"]
    site.work()
    analyst = visit()
    width, judged, adjusted = 0.5, 50, False

    def answered(route: Any) -> None:
        state = route.fetch().json()
        state["answer"] |= {"precision": 0.9, "precision_interval": [0.95 - width, 0.95], "recall": 0.5,
                            "recall_interval": [0.4, 0.6], "expected_false": 5, "expected_false_interval": [1, 9],
                            "more_labels": 7, "judged": judged, "adjusted": adjusted}  # fmt: skip
        route.fulfill(json=state)

    analyst.page.route(re.compile(rf"/matches/{job}(\?.*)?$"), answered)
    analyst.go(f"#/matches/{job}/similarity/0.5")
    tile(analyst)
    learnt, said = "From your judgements it has learned which words matter", dict[tuple[float, int], str]()
    for wanted, width, judged, colour, goal, adjusted in (
        ("0.5", 0.22, 50, "warn", "50 more (100 in all)", False),
        ("0.6", 0.5, 51, "bad", "49 more (100 in all)", False),
        ("0.5", 0.22, 50, "warn", "50 more (100 in all)", False),
        ("0.6", 0.25, 99, "warn", "1 more (100 in all)", False),
        ("0.5", 0.1, 100, "good", "100 more (200 in all)", True),
    ):  # fmt: skip
        analyst.fills("Wanted", wanted)
        analyst.page.locator(".tile.stale").wait_for()
        found = tile(analyst)
        assert goal in found, (judged, found)
        assert (learnt in found) == adjusted
        assert analyst.page.locator(f".tile .badge.{colour}").count() == 1, (width, found)
        assert analyst.page.get_by_role("button", name="Judge more pairs").is_visible()
        assert said.setdefault((width, judged), found) == found
    analyst.page.locator("option", has_text="Pairs, the surest first").wait_for(state="attached")
    analyst.page.get_by_role("columnheader", name="How sure").wait_for()


def test_a_wrong_judgement_is_changed_in_the_list(visit: Visit, site: Site) -> None:
    job = site.post("/matches", a=[*TEXTS, *AGAIN, TEXTS[3]])["job"]
    site.work()
    analyst = visit(f"#/matches/{job}/similarity/0.5")

    def labels() -> dict[int, int]:
        return {row["pair"]: row["label"] for row in rows_judged(site, job)}

    judge(analyst, 12)
    wait_until(lambda: len(labels()) == 12)
    before = labels()
    analyst.chooses("Show", "judged")
    analyst.page.get_by_role("table", name="Judged pairs").wait_for()
    chips = analyst.page.get_by_label(re.compile("^Judgement of pair"))
    assert chips.count() == 12
    same = min(pair for pair, label in before.items() if label == 1)
    last = max(before)
    chip = analyst.field(f"Judgement of pair {same + 1}")
    chip.select_option("0")
    wait_until(lambda: labels() == before | {same: 0})
    analyst.sees("12 of about 50")  # the same pair counts once
    chip.select_option("1")
    wait_until(lambda: labels() == before)
    analyst.chooses("Show", "passing")  # where the same pair stands too, its copies not counted
    analyst.page.get_by_role("table", name="Pairs that pass").wait_for()
    chip.select_option("0")
    wait_until(lambda: labels() == before | {same: 0})
    out = site.get(f"/matches/{job}?similarity=0.5")["answer"]["left_out"]
    analyst.sees(re.compile(f"{out} above the line (is|are) left out because you judged"))
    analyst.fills("Wanted", "0.51")
    wait_until(lambda: chip.count() == 0)  # it is left out
    analyst.fills("Wanted", "0.5")
    pairs_are_judged_in_the_list(analyst, site, job)
    analyst.chooses("Show", "judged")
    chip.select_option("1")
    wait_until(lambda: labels() == before)
    analyst.chooses(f"Judgement of pair {last + 1}", "")
    analyst.sees("11 of about 50")
    wait_until(lambda: labels() == {pair: label for pair, label in before.items() if pair != last})
    wait_until(lambda: chips.count() == 11)
    another = visit(f"#/matches/{job}/similarity/0.5")
    judge(another, 1)
    wait_until(lambda: len(labels()) == 12)
    analyst.page.evaluate("window.dispatchEvent(new Event('focus'))")  # back in the first tab
    wait_until(lambda: chips.count() == 12)
    another.page.set_viewport_size({"width": 800, "height": 200})
    another.page.evaluate("scrollTo(0, 0)")
    another.page.keyboard.press("1")  # no pair is seen
    another.page.get_by_role("button", name="Judge pairs").click()
    another.page.keyboard.press("0")
    wait_until(lambda: len(labels()) == 13)
    assert site.get(f"/matches/{job}?similarity=0.5")["judged"] == 13


def pairs_are_judged_in_the_list(analyst: Analyst, site: Site, job: str) -> None:
    """By keyboard. A row that is left out stays where it is, and these judgements count for the list only."""

    def answer() -> Any:
        return site.get(f"/matches/{job}?similarity=0.5")["answer"]

    tile(analyst)
    before, listed = answer(), analyst.page.locator("table.passing tbody tr")
    shown = listed.all_inner_texts()
    different = analyst.page.get_by_role("button", name=re.compile("^Different: pair")).nth(2)
    number = different.get_attribute("aria-label").removeprefix("Different: pair ")
    different.focus()
    analyst.page.keyboard.press("Enter")
    assert analyst.focused() == f"Judgement of pair {number}"
    analyst.presses(re.compile("^Same: pair"))
    wait_until(lambda: (answer()["judged"], answer()["chosen"]) == (before["judged"] + 2, 2))
    assert answer()["passing"] == before["passing"] - 1
    analyst.opens("Details")
    analyst.sees("besides, 2 pairs judged in the list, which tell nothing of the others")
    analyst.sees("12 of about 50")
    assert listed.count() >= len(shown)
    assert analyst.field(f"Judgement of pair {number}").input_value() == "0"
    for pair in [row["pair"] for row in rows_judged(site, job) if row["chosen"]]:
        analyst.chooses(f"Judgement of pair {pair + 1}", "")
    wait_until(lambda: answer() == before)


def rows_judged(site: Site, job: str) -> list[dict[str, Any]]:
    lines = site.server.client.get(f"/matches/{job}/result?form=judged").text.splitlines()
    return [json.loads(line) for line in lines]


def test_the_sample_by_keyboard_alone(visit: Visit, site: Site) -> None:
    analyst = visit()
    keyboard = analyst.page.keyboard
    analyst.enters("Try it with a sample")
    analyst.sees("CSV with commas")
    assert analyst.page.get_by_role("radio", name="question").is_checked()
    analyst.tabs_to("Find matches")
    analyst.enters("Find matches")
    analyst.sees(QUEUED)
    site.work()
    analyst.sees("Do these two mean the same?")
    assert analyst.focused().startswith("Matches in sample.csv")
    first = pair(analyst)
    analyst.enters("Judge pairs")  # keys judge a pair that is seen
    for undo in ("Backspace", "u"):
        keyboard.press(" ")
        assert pair(analyst) != first
        keyboard.press(undo)
        assert pair(analyst) == first
    analyst.enters("Same")
    analyst.sees("The pair before: same.")
    tile(analyst)
    analyst.tabs_to("Content")
    keyboard.type("groups")
    with analyst.page.expect_download() as download:
        analyst.enters("Download")
    assert download.value.suggested_filename.endswith(" clusters.xlsx")


def test_the_best_pairs_so_far_stand_below_the_progress(visit: Visit, site: Site) -> None:
    job = site.post("/matches", a=TEXTS)["job"]
    analyst = visit()
    best = [{"row_a": 7, "row_b": 1234, "a": "One <b>text</b>", "b": "another text"}]
    running = site.get(f"/matches/{job}") | {"status": "running", "stage": "embedding", "progress": 0.2, "best": best}
    events = f"event: state\ndata: {json.dumps(running)}\n\n"
    analyst.page.route(re.compile(f"/matches/{job}$"), lambda route: route.fulfill(json=running))
    analyst.page.route(
        re.compile(f"/matches/{job}/events$"),
        lambda route: route.fulfill(body=events, content_type="text/event-stream"),
    )
    analyst.go(f"#/matches/{job}")
    analyst.sees("The most alike so far")
    row = analyst.page.locator("table.found tbody tr").inner_text()
    assert all(text in row for text in ("7 and 1,234", "One <b>text</b>", "another text"))
    site.server.client.delete(f"/matches/{job}")


def test_a_match_is_cancelled_and_a_failed_one_says_why(visit: Visit, site: Site) -> None:
    analyst = visit()
    analyst.presses("Find matches")
    analyst.sees("Choose a file or paste text first.")
    analyst.fills("Or paste", "one text")
    analyst.opens("Kind of text (optional)")
    analyst.fills("Domain", "No Domain")
    analyst.presses("Find matches")
    analyst.sees("1 to 64 of a–z")
    analyst.fills("Domain", "")
    analyst.presses("Find matches")
    assert "one text was posted, and a match needs two" in analyst.alert()
    analyst.fills("Or paste", "one text\nanother")
    analyst.presses("Find matches")
    analyst.sees(QUEUED)
    analyst.presses("Cancel")
    analyst.answers("Cancel it")
    analyst.sees("The match is cancelled.")
