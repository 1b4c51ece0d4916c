"""`isosim domains` through the real entry point: what the API does, by the same rules."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from isosim.commands.calibration import print_advice
from isosim.encoders.store import EncoderArtifact
from isosim.jobs.job import JobRequest
from isosim.scoring.advice import Target
from isosim.store.blobs import address_of
from isosim_client import Threshold
from tests.commands.conftest import Run
from tests.objects import objects  # noqa: F401 - a fixture
from tests.stores import copy_version, domains_of, jobs_of, post_job, record_of
from tests.text import sentences


def test_bare_it_lists(run: Run, tiny: EncoderArtifact) -> None:
    bare, listed = run("domains"), run("domains", "list")
    assert bare.stdout == listed.stdout
    assert [line.split("\t")[:5] for line in bare.stdout.splitlines()] == [
        ["default", "1", "champion", "identity", tiny.digest[:12]],
        ["tickets", "1", "previous", "centring", tiny.digest[:12]],
        ["tickets", "2", "champion", "soft", tiny.digest[:12]],
    ]
    assert json.loads(run("domains", "--json").stdout) == json.loads(run("domains", "list", "--json").stdout)


def test_a_damaged_record_is_named_and_hides_no_other_domain(run: Run, own_store: Path) -> None:
    record_of(own_store, "tickets").write_text("{")
    listed = run("domains", model_store=own_store)
    assert [line.split("\t")[:4] for line in listed.stdout.splitlines()] == [
        ["default", "1", "champion", "identity"],
        ["tickets", "", "unreadable", ""],
    ]
    assert "domains/tickets.json" in listed.stderr
    assert "isosim store repair tickets" in listed.stderr
    rows = json.loads(run("domains", "--json", model_store=own_store).stdout)
    assert [(row["domain"], row["version"], row["method"]) for row in rows] == [
        ("default", 1, "identity"), ("tickets", None, None)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_one_command_goes_back_to_the_champions_of_a_backup(
    run: Run, own_store: Path, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A backup is named by its time; where there is none, the last ones are named."""
    place = tmp_path / "backups"
    place.mkdir()
    address = f"{place}/"
    if kind == "bucket":
        address = address_of(request.getfixturevalue("objects").bucket()) + "/"
    before = run("domains", model_store=own_store).stdout
    saved = run("domains", "export", "--all", "-o", address, model_store=own_store)
    archive = saved.stdout.partition(": ")[0]
    assert re.fullmatch(rf"{re.escape(address)}domains-\d{{4}}-\d\d-\d\dT\d{{6}}Z\.tar", archive)
    assert "exists already" in run("domains", "export", "--all", "-o", archive, model_store=own_store).stderr
    run("domains", "rollback", "tickets", "--yes", model_store=own_store)
    assert run("domains", model_store=own_store).stdout != before
    missing = run("domains", "import", f"{address}another.tar", model_store=own_store)
    assert missing.returncode == 1
    assert f"the last ones there: {archive.removeprefix(address)}" in missing.stderr
    restored = run("domains", "import", archive, "--promote", "--yes", model_store=own_store)
    assert "tickets@2 is the champion" in restored.stdout
    assert run("domains", model_store=own_store).stdout == before


def test_show_is_a_report_for_people(run: Run, calibrated_store: Path) -> None:
    done = run("domains", "show", "tickets")
    assert done.stdout.startswith("tickets@2 (champion): soft\n")
    report = domains_of(calibrated_store).report("tickets", 2)
    assert "why: method soft was asked for\n" in done.stdout
    assert f"similarity ≥ {report['reference']['threshold_at_1_percent']:.4f}" in done.stdout
    earlier = json.loads(run("domains", "show", "tickets@1", "--json").stdout)
    assert (earlier["version"], earlier["alias"], earlier["method"]) == (1, "previous", "centring")
    assert earlier["report"] == domains_of(calibrated_store).report("tickets", 1)


def test_promote_and_rollback_change_who_answers(run: Run, own_store: Path, tiny: EncoderArtifact) -> None:
    store = domains_of(own_store)
    done = run("domains", "promote", "tickets", "1", "--yes", "--json", model_store=own_store)
    assert json.loads(done.stdout) == {"domain": "tickets", "champion": 1, "previous": 2}
    assert store.read("tickets").served(tiny.digest).champion == 1
    back = run("domains", "rollback", "tickets", "--yes", model_store=own_store)
    assert back.stdout == "tickets: champion tickets@2, previous tickets@1\n"
    assert store.read("tickets").served(tiny.digest).champion == 2
    entries = json.loads(run("domains", "history", "tickets", "--limit", "2", "--json", model_store=own_store).stdout)
    assert [(one["what"], one["to"], one["by"]) for one in entries] == [
        ("rolled_back", 2, "command"), ("promoted", 1, "command"),
    ]  # fmt: skip
    assert len(done.stderr.splitlines()) == len(back.stderr.splitlines()) == 1  # the change, for the log


def test_a_domain_is_deleted_with_its_versions_and_again_without_complaint(run: Run, own_store: Path) -> None:
    store = domains_of(own_store)
    assert run("domains", "delete", "tickets", model_store=own_store).returncode == 1  # nobody could be asked
    assert sorted(store.read("tickets").versions) == [1, 2]
    for _ in range(2):
        done = run("domains", "delete", "tickets", "--yes", "--json", model_store=own_store)
        answer = {"domain": "tickets", "deleted": True, "versions": [], "cancelled": []}
        assert json.loads(done.stdout) == answer, done.stderr
    assert (store.read("tickets").versions, list(store.names())) == ({}, ["default"])
    for name, why in (("default", "cannot be deleted"), ("nowhere", "no domain 'nowhere'")):
        done = run("domains", "delete", name, "--yes", model_store=own_store)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert why in done.stderr


def test_an_advised_precision_says_what_was_asked_and_what_the_labels_allow(capsys: pytest.CaptureFixture[str]) -> None:
    about: dict[str, Any] = {"domain": "tickets", "version": 2}
    labels: dict[str, Any] = {
        "similarity": 0.8986, "interval": (0.85, 0.93), "pairs": 600, "precision_interval": (0.71, 0.85),
        "recall": 0.45, "recall_interval": (0.39, 0.52),
    }  # fmt: skip
    print_advice(Target(precision=0.8), Threshold(**about, **labels))
    print_advice(Target(fmr=0.01), Threshold(similarity=0.3, interval=(0.29, 0.31), pairs=2_000_000, **about))
    assert capsys.readouterr().out.splitlines() == [
        "tickets@2: similarity ≥ 0.8986 (95 % interval 0.8500 to 0.9300; from 600 labelled pairs)",
        "  precision 80%, as requested (95 % interval from the labelled pairs with at least this similarity: "
        "71% to 85%)",
        "  lets through 45% of the matches (95 % interval 39% to 52%)",
        "tickets@2: similarity ≥ 0.3000 (95 % interval 0.2900 to 0.3100; from 2,000,000 random pairs)",
    ]


def test_a_version_that_nothing_names_can_be_deleted(run: Run, own_store: Path) -> None:
    extra = copy_version(domains_of(own_store), "tickets", 1)
    done = run("domains", "delete", "tickets", str(extra), "--yes", "--json", model_store=own_store)
    assert json.loads(done.stdout) == {"domain": "tickets", "deleted": extra, "versions": [1, 2]}


def test_a_calibration_by_hand_lets_old_versions_go_but_none_that_a_queued_job_rests_on(
    run: Run, own_store: Path, tiny: EncoderArtifact
) -> None:
    domains, jobs = domains_of(own_store), jobs_of(own_store)
    assert [copy_version(domains, "tickets", 1) for _ in range(2)] == [3, 4]
    post_job(jobs, JobRequest("tickets", tiny.digest, tiny.id, labels=20, base=3, champion=2))
    text = "\n".join(sentences(200))
    words = ("calibrate", "-", "--domain", "tickets", "--method", "identity", "--promote", "never")
    done = run(*words, stdin=text, model_store=own_store, keep_versions=1)
    assert done.returncode == 0, done.stderr
    assert sorted(domains.read("tickets").versions) == [1, 2, 3, 5]


def test_a_target_is_saved_under_a_name_and_listed_with_the_champion(run: Run, own_store: Path) -> None:
    def save(*words: str) -> Any:
        return run("threshold", *words, "--save", "duplicates", model_store=own_store)

    done = save("tickets", "--fmr", "0.1")
    advised = json.loads(run("threshold", "tickets", "--fmr", "0.1", "--json").stdout)["similarity"]
    assert done.stdout == (
        f"tickets: duplicates is saved (fmr 0.1)\n  tickets@2: similarity ≥ {advised:.4f}\n"
    )  # fmt: skip
    pairs = "".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(sentences(60)))
    named, by_score = (
        run("similarity", "--domain", "tickets", "--threshold", at, stdin=pairs, model_store=own_store).stdout
        for at in ("duplicates", str(advised))
    )
    assert named == by_score
    assert 0 < len(named.splitlines()) < 59
    lines = [line.split("\t") for line in run("domains", model_store=own_store).stdout.splitlines()]
    assert [line[-1] for line in lines] == ["", "", "duplicates: fmr 0.1"]
    told = json.loads(save("tickets", "--precision", "0.9", "--json").stdout)
    assert (told["target"], told["similarity"]) == ({"precision": 0.9}, None)
    assert "was given no labels" in told["notice"]
    rows = json.loads(run("domains", "--json", model_store=own_store).stdout)
    assert [row["thresholds"] for row in rows] == [{}, {}, {"duplicates": {"precision": 0.9}}]
    refused = save("tickets", "--fmr", "0.1", "--space", "raw")
    assert (refused.returncode, "--save" in refused.stderr) == (2, True), refused.stderr
