"""Several writers at once, and writers that are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from isosim.domains.store import Aliases, DomainStore
from isosim.errors import Conflict, IsosimError
from isosim.scoring.calibration import DomainModel
from isosim.store.artifacts import FRESH
from tests.objects import objects  # noqa: F401 - a fixture

MANIFEST = {"method": "identity", "encoder": {"id": "tiny", "digest": "d"}}

PUBLISH = """
import sys
from pathlib import Path
import numpy as np
from isosim.store.artifacts import FRESH
from isosim.domains.store import DomainStore
from isosim.scoring.calibration import DomainModel
domains = DomainStore(Path(sys.argv[1]))
manifest = {"method": "flow", "encoder": {"id": "tiny", "digest": "d"}}
for _ in range(int(sys.argv[2])):
    print(domains.publish("news", manifest, {}, {"mean": np.zeros(200_000, np.float32)}, DomainModel()), flush=True)
"""


@pytest.fixture(params=["folder", "bucket"])
def domains(request: pytest.FixtureRequest, tmp_path: Path) -> DomainStore:
    """In a folder, and in object storage."""
    return DomainStore(tmp_path if request.param == "folder" else request.getfixturevalue("objects").bucket())


@pytest.fixture
def in_folder(tmp_path: Path) -> DomainStore:
    return DomainStore(tmp_path)


def publisher(domains: DomainStore, versions: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISH, str(domains.root.parent), str(versions)],
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


def test_threads_that_publish_at_once_get_different_consecutive_numbers(domains: DomainStore) -> None:
    each = 1 if domains.distant else 3
    found = at_once(8, lambda _: [domains.publish("news", MANIFEST, {}, None, DomainModel()) for _ in range(each)])
    assert sorted(chain(*found)) == domains.versions("news") == list(range(1, 8 * each + 1))
    for version in domains.versions("news"):
        assert domains.load("news", version).manifest["version"] == version


def test_processes_that_publish_at_once_get_different_consecutive_numbers(domains: DomainStore) -> None:
    each = 3 if domains.distant else 10
    running = [publisher(domains, each) for _ in range(3)]
    found = [int(line) for process in running for line in process.communicate(timeout=60)[0].split()]
    assert sorted(found) == domains.versions("news") == list(range(1, 3 * each + 1))


def test_of_promotions_with_the_same_expectation_exactly_one_wins(domains: DomainStore) -> None:
    versions = [domains.publish("news", MANIFEST, {}, None, DomainModel()) for _ in range(8)]
    found = at_once(8, lambda n: domains.promote("news", "d", versions[n], expected=Aliases()))
    (winner,) = (result for result in found if isinstance(result, Aliases))
    assert domains.aliases("news", "d") == winner
    assert winner.revision == 1
    assert sum(isinstance(result, Conflict) for result in found) == 7


PROMOTE = """
import sys
from pathlib import Path
from isosim.domains.store import DomainStore
from isosim.errors import Conflict
domains = DomainStore(Path(sys.argv[1]))
while True:
    expected = domains.aliases("news", "d")
    print(expected.revision, flush=True)
    version = sys.stdin.readline()
    if not version:
        break
    try:
        domains.promote("news", "d", int(version), expected=expected)
    except Conflict:
        print("lost", flush=True)
    else:
        print("won", flush=True)
    sys.stdin.readline()
"""
ROUNDS = 200


@dataclass
class Promoter:
    """A process that promotes what it is told to, expecting what it read before."""

    popen: "subprocess.Popen[str]"

    def hear(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def say(self, word: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()


def test_of_two_workers_that_promote_at_once_200_times_one_wins_each_time(domains: DomainStore) -> None:
    for _ in range(4):
        domains.publish("news", MANIFEST, {}, None, DomainModel())
    both = [
        Promoter(
            subprocess.Popen(
                [sys.executable, "-c", PROMOTE, str(domains.root.parent)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
            )
        )
        for _ in range(2)
    ]  # fmt: skip
    wins = [0, 0]
    for number in range(ROUNDS // 5 if domains.distant else ROUNDS):  # in a bucket 200 took 33 s
        assert [worker.hear() for worker in both] == [str(number)] * 2
        offered = (1, 2) if number % 2 else (3, 4)
        for one in (0, 1) if number % 4 < 2 else (1, 0):  # each is told first as often
            both[one].say(str(offered[one]))
        ends = [worker.hear() for worker in both]
        assert sorted(ends) == ["lost", "won"]
        wins[ends.index("won")] += 1
        found = domains.aliases("news", "d")
        assert (found.champion, found.revision) == (offered[ends.index("won")], number + 1)
        for worker in both:
            worker.say("next")
    for worker in both:
        worker.popen.communicate(timeout=30)
    assert min(wins) > 0  # both were in time for some
    for version in domains.versions("news"):
        domains.load("news", version)


def test_a_promotion_and_the_deletion_of_the_same_version_do_not_both_succeed(domains: DomainStore) -> None:
    for _ in range(3 if domains.distant else 10):
        version = domains.publish("news", MANIFEST, {}, None, DomainModel())
        expected = domains.aliases("news", "d")
        calls: list[Callable[[], Any]] = [
            partial(domains.promote, "news", "d", version, expected=expected),
            partial(domains.delete, "news", version),
        ]
        promoted, deleted = at_once(2, lambda number: calls[number]())  # noqa: B023 - used up within the round
        assert isinstance(promoted, IsosimError) != isinstance(deleted, IsosimError)
        champion = domains.aliases("news", "d").champion
        assert champion is None or champion in domains.versions("news")


def test_a_publication_and_the_deletion_of_its_domain_at_once_leave_no_version(domains: DomainStore) -> None:
    domains.publish("news", MANIFEST, {}, None, DomainModel())
    for _ in range(3 if domains.distant else 10):
        begun = domains.generation("news")
        calls: list[Callable[[], Any]] = [
            partial(domains.publish, "news", MANIFEST, {}, None, DomainModel(), generation=begun),
            partial(domains.remove, "news"),
        ]
        at_once(2, lambda number: calls[number]())  # noqa: B023 - used up within the round
        assert domains.versions("news") == []


def test_a_writer_killed_at_any_moment_leaves_whole_versions_and_no_others(domains: DomainStore) -> None:
    seen = 0
    for _ in range(4):
        process = publisher(domains, 10_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        versions = domains.versions("news")
        assert versions == list(range(1, len(versions) + 1))
        assert all(domains.load("news", version).weights is not None for version in versions)
        assert len(versions) > seen
        seen = len(versions)
    assert domains.publish("news", MANIFEST, {}, None, DomainModel()) == seen + 1


def test_what_a_killed_writer_left_is_swept_away(in_folder: DomainStore) -> None:
    in_folder.publish("news", MANIFEST, {}, None, DomainModel())
    old, fresh = (in_folder.root / "news" / f".building-{name}" for name in ("old", "fresh"))
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "weights.safetensors").write_bytes(b"half")
    a_while_ago = time.time() - 2 * FRESH
    os.utime(old, (a_while_ago, a_while_ago))
    in_folder.prune("news", keep=5)
    assert not old.exists()
    assert fresh.exists()  # perhaps somebody is at it
