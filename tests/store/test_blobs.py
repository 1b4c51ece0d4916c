"""Objects of a store: what is read, what a condition refuses, what a listing shows; in a folder and in buckets."""

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.errors import Unavailable
from isosim.store import blobs as module
from isosim.store.blobs import Blobs, Changed, Folder, check, condition_of, tag_in
from tests.objects import Objects, start_objects
from tests.security.redis_guarded import certified
from tests.store.conftest import Open, in_memory
from tests.store.machines import run_on

KEYS = st.sampled_from(["a", "a.b", "a-b", "d/a", "d/b", "d/e/a", "d.json"])
CONTENTS = st.binary(max_size=3)


class Machine(RuleBasedStateMachine):
    """A store beside a dictionary: contents by key, and every tag that was ever seen."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.blobs = type(self).make()
        self.model: dict[str, bytes] = {}
        self.tags: dict[tuple[str, bytes], str] = {}

    def seen(self, key: str, tag: str) -> None:
        content = self.model[key]
        assert self.tags.setdefault((key, content), tag) is not None

    @rule(key=KEYS, content=CONTENTS)
    def writes(self, key: str, content: bytes) -> None:
        tag = self.blobs.write(key, content)
        self.model[key] = content
        self.seen(key, tag)

    @rule(key=KEYS, content=CONTENTS)
    def creates(self, key: str, content: bytes) -> None:
        there = self.model.get(key)
        try:
            tag = self.blobs.write(key, content, new=True)
        except Changed:
            assert there is not None
            assert there != content
        else:
            assert there in (None, content)
            self.model[key] = content
            self.seen(key, tag)

    @rule(key=KEYS, content=CONTENTS, fresh=st.booleans())
    def replaces(self, key: str, content: bytes, fresh: bool) -> None:
        there = self.model.get(key)
        if there is None:
            with pytest.raises(Changed):
                self.blobs.write(key, content, over=next(iter(self.tags.values()), "0" * 32))
            return
        _, tag = self.blobs.read(key)
        if not fresh:
            between = uuid.uuid4().bytes
            self.blobs.write(key, between)
            self.model[key] = between
            with pytest.raises(Changed):
                self.blobs.write(key, content, over=tag)
            return
        after = self.blobs.write(key, content, over=tag)
        self.model[key] = content
        assert self.blobs.read(key) == (content, after)

    @rule(keys=st.lists(KEYS, max_size=3))
    def deletes(self, keys: list[str]) -> None:
        self.blobs.delete(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(prefix=st.sampled_from(["", "d/", "d/e/", "nothing/"]), after=st.sampled_from(["", "a", "d/a", "d/e"]))
    def lists(self, prefix: str, after: str) -> None:
        found = list(self.blobs.list(prefix, after))
        wanted = sorted(key for key in self.model if key.startswith(prefix) and key > after)
        assert [entry.key for entry in found] == wanted
        assert [entry.size for entry in found] == [len(self.model[key]) for key in wanted]

    @invariant()
    def holds_what_was_written(self) -> None:
        for key, content in self.model.items():
            assert self.blobs.read(key)[0] == content

    def teardown(self) -> None:
        self.blobs.delete([entry.key for entry in list(self.blobs.list(""))])


def test_it_behaves_like_a_dictionary_with_conditions(place: Open) -> None:
    run_on(place, Machine, examples=10 if "s3" in place().address else 60)


def test_what_is_missing_is_not_found(blobs: Blobs) -> None:
    for call in (blobs.read, blobs.stamp):
        with pytest.raises(FileNotFoundError):
            call("nothing")
    with pytest.raises(FileNotFoundError), blobs.files("d/", ["a"]):
        pass
    blobs.delete(["nothing", "d/nothing"])


def test_a_stamp_changes_with_every_write_and_only_then(blobs: Blobs) -> None:
    seen = []
    for number in range(20):
        blobs.write("a", f"{number:03}".encode())
        seen += [blobs.stamp("a"), blobs.stamp("a")]
        assert next(iter(blobs.list(""))).stamp == seen[-1]
    assert seen[::2] == seen[1::2]
    assert len(set(seen)) == 20


def test_a_refused_write_whose_content_is_there_was_made_before(blobs: Blobs) -> None:
    """The answer to the first one was lost."""
    tag = blobs.write("a", b"mine", new=True)
    assert blobs.write("a", b"mine", new=True) == tag
    after = blobs.write("a", b"next", over=tag)
    assert blobs.write("a", b"next", over=tag) == after


def test_files_are_as_they_were_uploaded(blobs: Blobs, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = tmp_path_factory.mktemp("source")
    contents = {"small": b"x", "large": os.urandom(20 << 20)}
    for name, content in contents.items():
        (source / name).write_bytes(content)
        blobs.upload(f"d/{name}", source / name)
    with blobs.files("d/", contents) as folder:
        assert {name: (folder / name).read_bytes() for name in contents} == contents


@pytest.mark.parametrize("new", [False, True])
def test_of_many_writers_with_one_condition_one_succeeds(place: Open, new: bool) -> None:
    for attempt in range(5):
        key = f"k{attempt}"
        condition = {"new": True} if new else {"over": place().write(key, b"first")}

        def one(number: int, key: str = key, condition: dict[str, Any] = condition) -> bool:
            try:
                place().write(key, f"writer {number}".encode(), **condition)
            except Changed:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(one, range(8))) == 1


def test_a_store_that_keeps_conditions_passes_the_check_and_is_left_as_it_was(blobs: Blobs) -> None:
    check(blobs)
    assert list(blobs.list("")) == []


@pytest.mark.parametrize("ignored", ["new", "over"])
def test_a_store_that_ignores_a_condition_is_refused(ignored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = in_memory()
    write = blobs.write

    def careless(key: str, content: bytes, **conditions: Any) -> str:
        return write(key, content, **{name: value for name, value in conditions.items() if name != ignored})

    monkeypatch.setattr(blobs, "write", careless)
    with pytest.raises(Unavailable, match="If-None-Match" if ignored == "new" else "If-Match"):
        check(blobs)


HOLD = """
import sys, time
from pathlib import Path
from isosim.store.blobs import Folder, condition_of, tag_in
with Folder(Path(sys.argv[1]))._locked("a"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holding(root: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        try:
            yield
        finally:
            child.kill()


def test_a_held_lock_is_given_up_after_a_deadline_and_only_its_key_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    folder = Folder(tmp_path)
    tag = folder.write("a", b"1")
    with holding(tmp_path):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="lock of a"):
            folder.write("a", b"2", over=tag)
        assert 0.3 <= time.monotonic() - began < 5
        assert folder.read("a")[0] == b"1"
        folder.write("b", b"1", new=True)
    assert folder.write("a", b"2", over=tag)  # its holder was killed


def test_a_folder_that_becomes_empty_is_not_removed_under_a_writer(tmp_path: Path) -> None:
    """Two threads write and delete the only object of a folder; each finds the folder removed now and then."""
    folder = Folder(tmp_path)

    def one(name: str) -> None:
        for _ in range(300):
            folder.write(f"d/{name}", b"1")
            folder.delete([f"d/{name}"])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, ["a", "b"]))
    assert list(tmp_path.iterdir()) == []


def test_the_last_object_takes_no_store_with_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a", b"1")
    folder.delete(["a"])
    assert tmp_path.is_dir()


def test_a_folder_keeps_no_locks_and_no_halves(tmp_path: Path) -> None:
    folder = Folder(tmp_path)

    def turn(number: int) -> None:
        for _ in range(20):
            with contextlib.suppress(Changed):
                _, tag = folder.read("d/a")
                folder.write("d/a", f"{number} {time.time_ns()}".encode(), over=tag)

    folder.write("d/a", b"0")
    threads = [threading.Thread(target=turn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["a"]


def test_a_write_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from isosim.store.blobs import Folder\n"
        "f = Folder(Path(sys.argv[1]))\nprint('go', flush=True)\n"
        "while True:\n    for c in (b'a', b'b'): f.write('k', c * 100_000, over=f.read('k')[1])\n"
    )
    folder = Folder(tmp_path)
    folder.write("k", b"a" * 100_000)
    for pause in (0.0, 0.001, 0.005, 0.01, 0.02, 0.03):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(pause)
            child.kill()
        content, tag = folder.read("k")
        assert content in (b"a" * 100_000, b"b" * 100_000)
        assert [entry.key for entry in folder.list("")] == ["k"]
        folder.write("k", b"a" * 100_000, over=tag)


def test_a_bucket_that_hangs_is_an_error_within_its_time_limits(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    monkeypatch.setattr(module, "READ", timedelta(seconds=0.5))
    blobs = module.opened(objects.bucket().as_posix().replace("s3:/", "s3://"))
    blobs.write("a", b"1")
    objects.hang()
    try:
        for call in (lambda: blobs.read("a"), lambda: blobs.write("a", b"2"), lambda: list(blobs.list(""))):
            began = time.monotonic()
            with pytest.raises(OSError, match="object storage s3://"):
                call()
            assert time.monotonic() - began < 8
    finally:
        objects.go_on()
    assert blobs.read("a")[0] in (b"1", b"2")


def test_a_bucket_that_is_not_there_is_no_empty_store(objects: Objects) -> None:
    blobs = module.opened("s3://no-such-bucket-at-all/x")
    for call in (lambda: blobs.read("a"), lambda: list(blobs.list(""))):
        with pytest.raises(OSError, match="bucket") as error:
            call()
        assert not isinstance(error.value, FileNotFoundError)


def test_a_bucket_behind_an_authority_of_ones_own_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_CA_BUNDLE names the authority, and AWS_ENDPOINT_URL_S3 the server, as the chart does."""
    ca = certified(tmp_path)
    server = start_objects(tmp_path, "localhost", tmp_path / "server.pem", tmp_path / "server.key")
    try:
        for name, value in (server.variables | {"AWS_ENDPOINT_URL_S3": server.url}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        place = server.bucket()
        with pytest.raises(OSError, match="object storage s3://"):
            check(module.opened(place))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(ca))
        check(module.opened(place))
    finally:
        server.kill()


def test_a_tag_of_google_cloud_storage_holds_the_generation_that_it_compares() -> None:
    """It refuses a conditional write that names the ETag alone."""
    assert condition_of(tag_in({"e_tag": '"a"', "version": "17"})) == {"e_tag": '"a"', "version": "17"}
    assert condition_of(tag_in({"e_tag": '"a"', "version": None})) == {"e_tag": '"a"'}
