"""From a text to a version, with all that can go wrong on the way."""

import contextlib
import re
import shutil
import time
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderStore
from isosim.jobs.job import JobRequest
from tests.console.conftest import Visit, labelled
from tests.faults.jobs import running_job
from tests.processes import Process, Serve, Server, serve_with, start, wait_until
from tests.stores import jobs_of, post_job
from tests.text import sentences

OUTCOME = re.compile(r"Version \d+ of")


def test_twenty_thousand_lines_become_a_version_and_the_next_is_refused_with_its_reason(
    visit: Visit, serve: Serve, minilm_store: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(minilm_store, tmp_path / "store")
    server = serve(model_store=tmp_path / "store")
    analyst = visit(server, "#/calibrate")
    text = (data / "text" / "reuters-news.txt").read_text()
    analyst.drops("reuters-news.txt", text)
    analyst.fills("Domain", "reuters")
    understood = analyst.understood()
    assert understood["Sentences"] == "20,000"
    assert understood["Distinct"] == f"{len(set(text.splitlines())):,}"
    analyst.presses("Start the calibration")
    analyst.sees("Reading the sentences with the encoder", 30)
    analyst.sees(re.compile(r"about .+ until they are read; comparing and measuring come after that"), 120)
    analyst.sees(OUTCOME, 900)
    assert analyst.page.locator(".outcome").inner_text() == "promoted Version 1 of reuters answers now."
    analyst.sees("the domain had no champion")
    analyst.presses("Open the report", "link")
    analyst.sees(re.compile("For a false-match rate of 1 % take pairs"))
    assert analyst.page.locator("canvas").count() == 4
    # A challenger from part of the same text is no better: refused, and the page says why.
    analyst.go("#/calibrate/reuters")
    analyst.sees("Version 1 answers now")
    analyst.drops("part.txt", "\n".join(text.splitlines()[:400]))
    analyst.sees("Enough to start")
    analyst.presses("Start the calibration")
    analyst.sees(OUTCOME, 300)
    assert "is made, and does not answer" in analyst.page.locator(".outcome").inner_text()
    analyst.sees(re.compile("held-out sentences the false-match rate is off by a factor of"))
    assert analyst.errors == []
    assert analyst.elsewhere == []


@pytest.fixture
def server(serve: Serve, store: Path) -> Server:
    return serve(model_store=store, encoder="tiny")


def test_pasted_text_and_labelled_pairs_become_a_version_with_probabilities(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    analyst.fills("Or paste", "\n".join([*sentences(400), "", *sentences(50)]))
    assert analyst.understood() == {
        "Sentences": "450", "Distinct": "400", "Same word for word": "50", "Empty": "1", "Too long": "0",
        "Longest (characters)": str(max(len(text) for text in sentences(400))),
    }  # fmt: skip
    analyst.fills("Domain", "letters")
    analyst.opens("Labelled pairs (optional)")
    lines = "\n".join(f"{label}\t{a}\t{b}" for a, b, label in labelled(300))
    analyst.fills("Or paste: label, sentence, sentence, with tabs between", lines)
    analyst.sees("300 labelled pairs understood.")
    analyst.opens("More options")
    analyst.chooses("Method", "sn")
    analyst.presses("Start the calibration")
    analyst.sees(OUTCOME, 120)
    analyst.presses("Open the report", "link")
    analyst.sees("What to use")
    analyst.opens_details()
    analyst.sees("Reliability of probabilities")
    analyst.sees("No candidates were measured, because the method was chosen by hand.")
    job = server.client.get("/calibrate").json()["jobs"][0]
    assert (job["method"], job["labels"], job["sentences"]) == ("sn", 300, 450)


def test_lines_that_are_too_long_are_named_and_left_out(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    analyst.drops("long.txt", "\n".join([*sentences(250), "x" * 10_001]))
    assert analyst.understood()["Too long"] == "1"
    analyst.sees("1 line longer than 10,000 characters will be left out (line 251).")
    analyst.fills("Domain", "long")
    analyst.presses("Start the calibration")
    analyst.sees(OUTCOME, 120)
    assert server.client.get("/calibrate").json()["jobs"][0]["sentences"] == 250


def test_too_few_sentences_are_said_before_and_refused_with_the_servers_words(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    analyst.fills("Or paste", "\n".join(sentences(20)))
    analyst.sees("Too few: the method needs at least 200 distinct sentences, here are 20.")
    analyst.fills("Domain", "few")
    analyst.presses("Start the calibration")
    assert "20 distinct sentences; method 'auto' needs at least 200" in analyst.alert()
    assert "Change it and try again." in analyst.alert()
    analyst.fills("Or paste", "\n".join(sentences(250)))
    analyst.page.locator("#alerts .alert").wait_for(state="detached")  # it was about the text before


@pytest.mark.parametrize("name", ["Über uns", "letters@2", "", "-x", "a" * 65])
def test_a_wrong_domain_name_is_said_at_its_field(visit: Visit, tiny_server: Server, name: str) -> None:
    before = tiny_server.client.get("/calibrate").json()["jobs"]  # of tests before this one
    analyst = visit(tiny_server, "#/calibrate")
    analyst.fills("Or paste", "\n".join(sentences(250)))
    analyst.understood()
    analyst.page.get_by_label("Domain", exact=True).evaluate("(e, name) => { e.maxLength = 99; e.value = name; }", name)
    analyst.presses("Start the calibration")
    assert analyst.focused() == "Domain"
    field = analyst.page.get_by_label("Domain", exact=True)
    assert field.get_attribute("aria-invalid") == "true"
    described = analyst.page.locator(f"#{(field.get_attribute('aria-describedby') or '').split()[0]}")
    assert described.inner_text().startswith("1 to 64 of" if name else "Give the domain a name")
    assert tiny_server.client.get("/calibrate").json()["jobs"] == before


def test_what_is_no_text_is_not_sent(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate")
    analyst.drops("picture.txt", "\x89PNG\x00\x01")
    file = analyst.page.get_by_label("Choose a file, or drop it anywhere on this page")
    analyst.page.locator(".fault:not(:empty)").first.wait_for()
    analyst.presses("Start the calibration")  # asks the server once more
    analyst.page.locator("input[type=file][aria-invalid=true]").first.wait_for(state="attached")
    file.set_input_files([])
    analyst.presses("Start the calibration")
    analyst.sees("Choose a file or paste text first.")


def test_a_running_calibration_can_be_cancelled(visit: Visit, server: Server) -> None:
    analyst = visit(server, "#/calibrate")
    analyst.drops("much.txt", "\n".join(f"{text} {n}" for n in range(40) for text in sentences(500)))
    analyst.fills("Domain", "gone")
    analyst.opens("More options")
    analyst.chooses("Method", "flow")
    analyst.presses("Start the calibration")
    analyst.sees(re.compile("Starting|Reading the sentences"), 30)
    analyst.presses("Cancel")
    assert analyst.focused() == "Keep it running"
    analyst.answers("Cancel the calibration")
    analyst.sees("The calibration is cancelled.")
    analyst.sees(re.compile("the text is deleted and nothing has changed"))
    assert server.client.get("/domains/gone").status_code == 404
    analyst.go("#/calibrate")
    assert analyst.page.get_by_role("row", name=re.compile("gone cancelled")).count() == 1


def test_the_time_that_is_left_is_that_of_the_reading(visit: Visit, serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", local_worker=False)
    jobs, encoder = jobs_of(store), EncoderStore.at(store).find("tiny")
    wanted = JobRequest("letters", encoder.digest, encoder.id, method="sn", sentences=300)
    job = post_job(jobs, wanted, sentences(300))
    attempt = jobs.claim("worker")
    assert attempt is not None
    attempt.beat("embedding", 0.1)
    analyst = visit(server, f"#/job/{job.id}")
    analyst.sees("10 %")
    time.sleep(1)
    attempt.beat("embedding", 0.4)
    analyst.sees(re.compile(r"^40 %, about \d+ seconds? until they are read; comparing and measuring come after"))


def test_a_failed_calibration_says_why_and_what_to_do(visit: Visit, server: Server, store: Path) -> None:
    wanted = JobRequest("letters", "0" * 64, "another", method="sn", sentences=300)
    job = post_job(jobs_of(store), wanted, sentences(300))
    analyst = visit(server, f"#/job/{job.id}")
    analyst.sees("It has failed.", 60)
    analyst.sees(re.compile("no encoder 'another"))
    analyst.presses("New calibration", "link")
    analyst.sees("1. Text of the domain")


def test_a_server_that_is_gone_loses_nothing_of_what_was_entered(visit: Visit, store: Path, tmp_path: Path) -> None:
    running: list[Process] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [process.kill() for process in running])
        server = serve_with(tmp_path, running, model_store=store, encoder="tiny")
        analyst = visit(server, "#/calibrate")
        analyst.expected += ["net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING"]
        analyst.drops("much.txt", "\n".join(sentences(2500)))
        analyst.understood()
        analyst.fills("Domain", "letters")
        analyst.opens("More options")
        analyst.chooses("Method", "flow")  # long enough to be interrupted
        server.kill()
        analyst.presses("Start the calibration")
        said = analyst.alert()
        assert "The calibration was not started: no answer from 127.0.0.1" in said
        assert "What you entered is still here" in said
        log = tmp_path / "again.log"
        port = int(server.url.rsplit(":", 1)[1])
        popen = start(["serve"], log, port=port, model_store=store, encoder="tiny")
        running.append(Server(popen, log, server.url))
        wait_until(lambda: server.client.get("/readyz").status_code == 200)
        analyst.presses("Try again")
        analyst.sees(re.compile("Starting|Reading|Fitting"), 60)
        running[-1].kill()
        analyst.sees(re.compile("The calibration goes on where it runs; asking again in"), 30)


def test_a_large_paste_does_not_freeze_the_page(visit: Visit, tiny_server: Server) -> None:
    analyst = visit(tiny_server, "#/calibrate", permissions=["clipboard-read", "clipboard-write"])
    text = "\n".join(f"{text} {n}" for n in range(10) for text in sentences(2000))
    analyst.page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    box = analyst.page.get_by_label("Or paste", exact=True)
    box.focus()
    began = time.monotonic()
    analyst.page.keyboard.press("Control+v")
    assert analyst.understood()["Sentences"] == "20,000"
    assert time.monotonic() - began < 4  # into the box it took six seconds, and the page stood still
    assert box.input_value() == ""


def test_a_full_queue_is_said_with_the_time_to_wait(visit: Visit, serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", max_queued_jobs=1)
    running_job(server, "one")
    analyst = visit(server, "#/calibrate")
    analyst.fills("Or paste", "\n".join(sentences(300)))
    analyst.fills("Domain", "three")
    analyst.presses("Start the calibration")
    said = analyst.alert()
    assert "1 calibrations are queued or running; the limit is 1" in said
    assert "It asks to wait 60 seconds." in said
    assert analyst.page.get_by_role("button", name="Try again").is_disabled()
