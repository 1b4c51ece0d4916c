"""Several processes and threads that write at once, and processes that are killed; in a folder and in a bucket."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from isosim.domains.domain import Domain
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact
from isosim.errors import Conflict, IsosimError
from isosim.store.object_storage import remote
from tests.stores import domains_of, publish

PUBLISH = """
import sys
from pathlib import Path
import numpy as np
from isosim.encoders.store import EncoderStore
from tests.stores import domains_of, publish
encoder, domains = EncoderStore(Path(sys.argv[2])).find("tiny"), domains_of(Path(sys.argv[1]))
for _ in range(int(sys.argv[3])):
    print(publish(domains, "news", encoder, weights={"mean": np.zeros(200_000, np.float32)}), flush=True)
"""


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found: Path = tmp_path if request.param == "folder" else request.getfixturevalue("objects").bucket()
    return found


@pytest.fixture
def domains(root: Path) -> DomainStore:
    return domains_of(root)


@pytest.fixture
def publisher(root: Path, tiny_store: Path) -> Callable[[int], "subprocess.Popen[bytes]"]:
    """Starts a process that publishes so many versions, each as champion."""
    return lambda versions: subprocess.Popen(
        [sys.executable, "-c", PUBLISH, str(root), str(tiny_store), str(versions)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip


def at_once(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Results or errors of calls that start together."""
    barrier = Barrier(count)

    def wait_and_call(number: int) -> Any:
        barrier.wait()
        try:
            return call(number)
        except IsosimError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


def test_processes_that_publish_at_once_get_different_consecutive_numbers(
    root: Path, domains: DomainStore, publisher: Callable[[int], "subprocess.Popen[bytes]"]
) -> None:
    each = 3 if remote(root) else 10
    running = [publisher(each) for _ in range(3)]
    found = [int(line) for process in running for line in process.communicate(timeout=60)[0].split()]
    record = domains.read("news")
    assert sorted(found) == sorted(record.versions) == list(range(1, 3 * each + 1))
    assert record.revision == 3 * each
    assert [aliases.champion for aliases in record.aliases.values()] == [3 * each]


def test_of_promotions_from_the_same_revision_exactly_one_wins(domains: DomainStore, tiny: EncoderArtifact) -> None:
    versions = [publish(domains, "news", tiny, promote=False) for _ in range(4)]
    for number in range(10):
        before = domains.read("news")
        offered = versions[:2] if number % 2 else versions[2:]
        found = at_once(
            8, lambda n: domains.promote("news", tiny.digest, offered[n % 2], revision=before.revision)  # noqa: B023
        )  # fmt: skip
        (winner,) = {one.served(tiny.digest).champion for one in found if isinstance(one, Domain)}
        after = domains.read("news")
        assert (after.served(tiny.digest).champion, after.revision) == (winner, before.revision + 1)
        assert sum(isinstance(one, Conflict) for one in found) == 4  # to make the champion champion is no change


def test_a_promotion_and_the_deletion_of_the_same_version_do_not_both_succeed(
    root: Path, domains: DomainStore, tiny: EncoderArtifact
) -> None:
    for _ in range(3 if remote(root) else 10):
        version = publish(domains, "news", tiny, promote=False)
        calls: list[Callable[[], Any]] = [
            partial(domains.promote, "news", tiny.digest, version),
            partial(domains.delete, "news", version),
        ]
        promoted, deleted = at_once(2, lambda number: calls[number]())  # noqa: B023 - used up within the round
        assert isinstance(promoted, IsosimError) != isinstance(deleted, IsosimError)
        after = domains.read("news")
        assert after.named() <= after.versions.keys()
        for number in after.versions:
            domains.load("news", number)


def test_a_publication_and_the_deletion_of_its_domain_at_once_leave_no_version(
    root: Path, domains: DomainStore, tiny: EncoderArtifact
) -> None:
    for _ in range(3 if remote(root) else 10):
        publish(domains, "news", tiny)
        begun = domains.read("news").epoch
        calls: list[Callable[[], Any]] = [
            partial(publish, domains, "news", tiny, epoch=begun),
            partial(domains.remove, "news"),
        ]
        at_once(2, lambda number: calls[number]())  # noqa: B023 - used up within the round
        assert domains.read("news").versions == {}
        assert list(domains.blobs.list("versions/")) == []


def test_a_writer_killed_at_any_moment_leaves_whole_versions_and_no_others(
    domains: DomainStore, publisher: Callable[[int], "subprocess.Popen[bytes]"], tiny: EncoderArtifact
) -> None:
    seen = 0
    for _ in range(4):
        process = publisher(10_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        record = domains.read("news")
        assert sorted(record.versions) == list(range(1, len(record.versions) + 1))
        assert all(domains.load("news", number).weights is not None for number in record.versions)
        assert record.served(tiny.digest).champion == len(record.versions) > seen
        seen = len(record.versions)
    assert publish(domains, "news", tiny) == seen + 1
    for left in domains.garbage(-60):
        left.remove()
    assert len(list(domains.blobs.list("versions/"))) == 3 * seen + 2
