"""Objects of a store: what is read, what a condition refuses, what a listing shows; in a folder and in buckets."""

import contextlib
import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isosim.errors import Unavailable
from isosim.store import blobs as module
from isosim.store.artifacts import locked
from isosim.store.blobs import LOCKS, Blobs, Changed, Folder, check, condition_of, tag_in
from isosim.store.identity import create
from tests.objects import Objects, start_objects
from tests.security.redis_guarded import certified
from tests.store.conftest import EVERY_PLACE, Open
from tests.store.machines import run_on

KEYS = st.sampled_from(["a", "a.b", "a-b", "d/a", "d/b", "d/e/a", "d.json"])
CONTENTS = st.binary(max_size=3)


class Machine(RuleBasedStateMachine):
    """A store beside a dictionary."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.blobs = type(self).make()
        self.model: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.stamps: dict[str, tuple[str, bytes]] = {}  # of objects that were not written since, and their contents

    def write(self, key: str, content: bytes, **condition: Any) -> None:
        tag = self.blobs.write(key, content, **condition)
        self.model[key], self.tags[key] = content, tag
        assert self.blobs.read(key) == (content, tag)

    @rule(key=KEYS, content=CONTENTS, condition=st.sampled_from(["", "new", "over", "late"]), repeated=st.booleans())
    def writes(self, key: str, content: bytes, condition: str, repeated: bool) -> None:
        tag = self.tags.get(key, "0" * 32)
        if condition == "late":  # another has written meanwhile
            self.write(key, uuid.uuid4().bytes)
        given: dict[str, Any] = {"": {}, "new": {"new": True}}.get(condition, {"over": tag})
        holds = {"": True, "new": key not in self.model, "over": key in self.model, "late": False}[condition]
        for _ in range(1 + repeated):
            # If the content is the same, an earlier write has succeeded and its answer was lost: no conflict.
            with contextlib.nullcontext() if holds or self.model.get(key) == content else pytest.raises(Changed):
                self.write(key, content, **given)

    @rule(keys=st.lists(KEYS, max_size=3))
    def deletes(self, keys: list[str]) -> None:
        self.blobs.delete(keys)
        for key in keys:
            for known in (self.model, self.tags, self.stamps):
                known.pop(key, None)
            for call in (self.blobs.read, self.blobs.stamp):
                with pytest.raises(FileNotFoundError):
                    call(key)

    @rule(prefix=st.sampled_from(["", "d/", "d/e/", "nothing/"]), after=st.sampled_from(["", "a", "d/a", "d/e"]))
    def lists(self, prefix: str, after: str) -> None:
        found = [(entry.key, entry.size) for entry in self.blobs.list(prefix, after)]
        wanted = sorted(key for key in self.model if key.startswith(prefix) and key > after)
        assert found == [(key, len(self.model[key])) for key in wanted]

    @rule(names=st.sets(st.sampled_from(["a", "b"])))
    def reads_files(self, names: set[str]) -> None:
        contents = {name: self.model.get(f"d/{name}") for name in names}
        if None in contents.values():
            with pytest.raises(FileNotFoundError), self.blobs.files("d/", names):
                pass
            return
        with self.blobs.files("d/", names) as folder:
            assert {name: (folder / name).read_bytes() for name in names} == contents

    @invariant()
    def holds_what_was_written(self) -> None:
        there = {entry.key: entry for entry in self.blobs.list("")}
        assert {key: self.blobs.read(key)[0] for key in there} == self.model
        for key, (stamp, content) in self.stamps.items():
            assert (there[key].stamp != stamp) or (content == self.model[key])
        self.stamps = {key: (self.blobs.stamp(key), self.model[key]) for key in self.model}
        assert {key: stamp for key, (stamp, _) in self.stamps.items()} == {key: there[key].stamp for key in there}
        assert list(self.blobs.unfinished(-1)) == []  # neither locks nor halves


@EVERY_PLACE
def test_it_behaves_like_a_dictionary_with_conditions(place: Open) -> None:
    run_on(place, Machine, examples=60)


@EVERY_PLACE
def test_large_files_are_as_they_were_uploaded(blobs: Blobs, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Into a bucket in parts."""
    source = tmp_path_factory.mktemp("source") / "a"
    source.write_bytes(os.urandom(20 << 20))
    blobs.upload("d/a", source)
    with blobs.files("d/", ["a"]) as folder:
        assert (folder / "a").read_bytes() == source.read_bytes()


@EVERY_PLACE
@pytest.mark.parametrize(("ignored", "header"), [("new", "If-None-Match"), ("over", "If-Match"), ("", "")])
def test_a_store_that_ignores_a_condition_is_refused(blobs: Blobs, ignored: str, header: str) -> None:
    class Careless:
        address, delete = blobs.address, staticmethod(blobs.delete)

        def write(self, key: str, content: bytes, **given: Any) -> str:
            return blobs.write(key, content, **{name: value for name, value in given.items() if name != ignored})

    with pytest.raises(Unavailable, match=header) if header else contextlib.nullcontext():
        check(Careless())  # type: ignore[arg-type]
    assert list(blobs.list("")) == []  # it is left as it was


def test_a_held_lock_is_given_up_after_a_deadline_and_only_its_key_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    folder, began = Folder(tmp_path), time.monotonic()
    with locked(folder._lock("a")):
        with pytest.raises(Unavailable, match="lock of a"):
            Folder(tmp_path).write("a", b"2", new=True)
        assert time.monotonic() - began >= 0.3
        folder.write("b", b"1", new=True)
    folder.write("a", b"2", new=True)
    other = Folder(tmp_path / "other")
    other.root.mkdir()
    other.root.chmod(0o2770)
    other.write("a", b"1", new=True)  # other users of the group may lock it too
    modes = [oct(path.stat().st_mode & 0o7777) for path in ((other.root / LOCKS), other._lock("a"))]
    assert modes == ["0o2770", "0o666"]


@pytest.mark.parametrize("placed", [False, True])
def test_a_process_that_is_killed_in_a_write_leaves_a_whole_object_and_stops_no_writer(
    tmp_path: Path, placed: bool
) -> None:
    class Dying(Folder):
        def _place(self, whole: Path, key: str) -> None:
            if placed:
                super()._place(whole, key)
            os.kill(os.getpid(), signal.SIGKILL)

    folder = Folder(tmp_path)
    tag = folder.write("a", b"1")
    if (child := os.fork()) == 0:
        Dying(tmp_path).write("a", b"2", over=tag)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [(entry.key, folder.read(entry.key)[0]) for entry in folder.list("")] == [("a", b"2" if placed else b"1")]
    assert list(folder.unfinished(60)) == []
    for item in folder.unfinished(-1):
        item.remove()
    assert [path.name for path in tmp_path.iterdir() if path.name != LOCKS] == ["a"]


def test_a_folder_that_becomes_empty_is_not_removed_under_a_writer(tmp_path: Path) -> None:
    """Two threads write and delete the only object of a folder; each finds the folder removed now and then."""
    folder = Folder(tmp_path)

    def one(name: str) -> None:
        for _ in range(300):
            folder.write(f"d/{name}", b"1")
            folder.delete([f"d/{name}"])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, ["a", "b"]))
    folder.write("a", b"1")
    folder.delete(["a"])
    assert list(tmp_path.iterdir()) == []  # and the last object takes no store with it


@pytest.mark.parametrize("mount", [True, False])
def test_a_store_that_is_not_there_any_more_is_an_error_and_is_not_made_anew(tmp_path: Path, mount: bool) -> None:
    """Also if its folder is there and empty, as where a volume is not mounted."""
    root = tmp_path / "store"
    create(Folder(root))
    blobs = Folder(root)
    blobs.write("domains/a.json", b"{}")
    (tmp_path / "file").write_bytes(b"1")
    root.rename(tmp_path / "away")
    if mount:
        root.mkdir()
    for act in (
        lambda: blobs.read("domains/a.json"), lambda: blobs.stamp("domains/a.json"), lambda: [*blobs.list("domains/")],
        lambda: blobs.write("champions.json", b"{}"), lambda: blobs.upload("b", tmp_path / "file"),
        lambda: blobs.download("domains/a.json", tmp_path / "copy"), lambda: blobs.delete(["domains/a.json"]),
        lambda: blobs.files("domains/", ["a.json"]).__enter__(),
    ):  # fmt: skip
        with pytest.raises(Unavailable, match="any more"):
            act()
    assert root.exists() == mount
    assert not mount or not [*root.iterdir()]
    if mount:
        root.rmdir()
    (tmp_path / "away").rename(root)
    assert blobs.read("domains/a.json")[0] == b"{}"
    with pytest.raises(FileNotFoundError):
        blobs.read("domains/b.json")


def test_a_bucket_that_hangs_or_is_not_there_is_an_error_and_no_empty_store(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(blobs: Blobs, told: str) -> None:
        calls = (lambda: blobs.read("a"), lambda: blobs.write("a", b"2"), lambda: [*blobs.list("")])
        for call in calls:
            with pytest.raises(OSError, match=told) as error:
                call()
            assert not isinstance(error.value, FileNotFoundError)

    place = objects.bucket()
    patient = module.opened(place)
    patient.write("a", b"1")
    fails(module.opened("s3://no-such-bucket-at-all/x"), "[Bb]ucket")
    monkeypatch.setattr(module, "READ", timedelta(seconds=0.5))
    objects.hang()
    try:
        began = time.monotonic()
        fails(module.opened(place), "object storage s3://")
        assert time.monotonic() - began < module.REQUEST.total_seconds()
    finally:
        objects.go_on()
    assert patient.read("a")[0] in (b"1", b"2")


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
