"""`isosim store`: removes unused files, in a folder and in a bucket; keeps those in use; rebuilds damaged records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.commands import store as command_of
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.jobs.job import JobRequest
from isosim.settings import Settings
from isosim.store.blobs import address_of, opened, remote
from isosim.store.identity import create
from tests.encoders import copy_encoders
from tests.objects import objects  # noqa: F401 - a fixture
from tests.processes import command
from tests.stores import domains_of, jobs_of, post_job, publish

KEEP = 2
DAY = 86400.0


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found: Path = tmp_path / "store" if request.param == "folder" else request.getfixturevalue("objects").bucket()
    return found


def published(root: Path, encoder: EncoderArtifact, count: int) -> DomainStore:
    """Versions of `news`, the first one champion."""
    domains = domains_of(root)
    for number in range(count):
        publish(domains, "news", encoder, weights={"mean": np.zeros(1000, np.float32)}, promote=not number)
    return domains


def settings(root: Path, tmp_path: Path) -> Settings:
    return Settings(model_store=root, keep_versions=KEEP, encoder="tiny")


def collect(root: Path, tmp_path: Path, age: float, *, encoders: bool = False) -> list[tuple[str, str]]:
    """Removes; what it was, by the end of its name, and why."""
    removed = []
    for found in command_of.garbage(settings(root, tmp_path), age, encoders=encoders):
        found.remove()
        removed.append((found.name.rstrip("/").rpartition("/")[2].rpartition("!")[2], found.why))
    return removed


def test_old_versions_go_and_those_with_a_name_or_a_job_or_too_young_stay(
    root: Path, tmp_path: Path, tiny: EncoderArtifact
) -> None:
    domains = published(root, tiny, 6)
    post_job(jobs_of(root), JobRequest("news", tiny.digest, tiny.id, "sn", "never", base=2, champion=1, labels=20))
    assert collect(root, tmp_path, DAY) == []
    assert sorted(domains.read("news").versions) == [1, 2, 3, 4, 5, 6]
    old = [(found.why, found.size > 4000) for found in command_of.garbage(settings(root, tmp_path), -1, encoders=False)]
    assert old == [("an old version", True)] * 2
    assert {why for _, why in collect(root, tmp_path, -1)} == {"an old version"}
    assert sorted(domains.read("news").versions) == [1, 2, 5, 6]
    assert collect(root, tmp_path, -1) == []
    assert [domains.load("news", number).version.number for number in (1, 2, 5, 6)] == [1, 2, 5, 6]
    assert domains.read("news").served(tiny.digest).champion == 1


def test_an_encoder_that_nobody_names_is_gone_for_good(
    root: Path, tmp_path: Path, tiny_store: Path, tiny: EncoderArtifact
) -> None:
    copy_encoders(tiny_store, root)
    given = settings(root, tmp_path).model_copy(update={"encoder": "another"})
    assert list(command_of.garbage(given, -1, encoders=False)) == []
    (found,) = command_of.garbage(given, -1, encoders=True)
    assert (found.why, found.size > 10_000) == ("an unused encoder", True)
    found.remove()
    assert EncoderStore.at(root).ids() == []


def test_what_was_left_unfinished_goes(root: Path, tmp_path: Path, tiny: EncoderArtifact) -> None:
    domains = published(root, tiny, 1)
    domains.blobs.write("versions/news/0123/weights.safetensors", b"half")
    wanted = [("0123", "left unfinished")]
    if remote(root):
        domains.blobs.write("encoders/tiny/0123/encoder.onnx", b"half")
        wanted *= 2
    assert collect(root, tmp_path, DAY) == [], "too young"
    assert collect(root, tmp_path, -1) == wanted
    assert list(domains.blobs.list("encoders/")) == []
    assert domains.load("news", 1).version.number == 1


def test_the_command_says_what_it_frees_and_a_dry_run_removes_nothing(
    root: Path, tmp_path: Path, tiny: EncoderArtifact
) -> None:
    create(opened(root))
    published(root, tiny, 1)
    if remote(root):
        opened(root).write("versions/news/0123/weights.safetensors", b"half")
    given: dict[str, Any] = {"model_store": address_of(root)}
    dry = command("store", "gc", "--dry-run", "--json", **given)
    assert json.loads(dry.stdout) == {"dry_run": True, "bytes": 0, "removed": []}, dry.stderr
    assert "0 items, 0 bytes are freed" in command("store", "gc", **given).stdout
    refused = command("store", "gc", "--older-than", "5s", **given)
    assert (refused.returncode, "at least 60s" in refused.stderr) == (1, True)


def test_a_repair_keeps_what_can_be_read_and_says_what_to_do_about_the_rest(
    root: Path, tmp_path: Path, tiny: EncoderArtifact
) -> None:
    create(opened(root))
    domains = published(root, tiny, 2)
    domains.promote("news", tiny.digest, 2)
    before, key = domains.read("news"), domains.records.key("news")
    given: dict[str, Any] = {"model_store": address_of(root)}

    def repaired() -> Any:
        done = command("store", "repair", "news", "--json", **given)
        return json.loads(done.stdout)

    champions = {tiny.digest: {"champion": 2, "previous": 1, "rolled_back": False}}
    sound = {"domain": "news", "versions": [1, 2], "revision": before.revision, "served": champions}
    assert repaired() == sound
    domains.blobs.write(key, domains.blobs.read(key)[0].replace(b'"thresholds": {}', b'"thresholds": 1'))
    assert repaired() == sound | {"revision": before.revision + 1}

    domains.blobs.write(key, b"{")
    done = command("store", "repair", "news", **given)
    told = "news: versions 1, 2; champions: none; to make one: isosim domains promote news VERSION\n"
    assert done.stdout == told, done.stderr
    assert domains.read("news").revision > before.revision + 1
    assert domains.load("news", 2).weights is not None
    assert command("store", "repair", "../news", **given).returncode == 1
    assert command("store", "repair", "nothing", **given).stdout == "nothing: versions none; champions: none\n"
    assert list(domains.names()) == ["news"]
