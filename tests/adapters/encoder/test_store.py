"""Exported encoders in a folder and in a bucket: the newest or the pinned one, whole or refused."""

import dataclasses
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isosim.encoders import store as encoder_store
from isosim.encoders.spec import EncoderSpec
from isosim.encoders.store import EncoderArtifact, EncoderStore, Endpoint
from isosim.errors import Action, Conflict, CorruptArtifact, InvalidInput, Unavailable
from isosim.store.artifacts import MANIFEST, json_bytes, manifest_bytes, parsed_manifest
from isosim.store.blobs import Blobs, Folder
from tests.store.conftest import Open, blobs, place  # noqa: F401 - fixtures
from tests.store.machines import Crashing, Killed

FILES = ("encoder.onnx", "calibrator.onnx", "tokenizer.json")
SPEC = EncoderSpec("somewhere", "w", "t", "mean", 6, 256, "", "fp32", 384, 0)
PREFIX = f"encoders/bert/{SPEC.digest}/"

Write = Callable[[Path], dict[str, object]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of fetched encoders."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    return encoder_store.cache()


@pytest.fixture
def encoders(blobs: Blobs) -> EncoderStore:  # noqa: F811
    return EncoderStore(blobs)


def writing(content: str = "") -> Write:
    def write(folder: Path) -> dict[str, object]:
        for file in FILES:
            (folder / file).write_text(file + content)
        return {"parity": 1e-6}

    return write


def add(encoders: EncoderStore, name: str = "bert", **changes: object) -> EncoderArtifact:
    return encoders.add(name, dataclasses.replace(SPEC, **changes), writing())  # type: ignore[arg-type]


def keys(encoders: EncoderStore) -> list[str]:
    return [entry.key for entry in encoders.blobs.list("")]


def test_what_was_added_is_found_by_its_name(encoders: EncoderStore) -> None:
    added = add(encoders)
    found = encoders.find("bert")
    assert found == added
    assert (found.spec, found.digest, found.folder.name) == (SPEC, SPEC.digest, SPEC.digest)
    assert [p.read_text() for p in (found.encoder, found.calibrator, found.tokenizer)] == list(FILES)
    assert encoders.has("bert", SPEC.digest)
    assert not encoders.has("bert", "0" * 64)
    assert encoders.ids() == ["bert"]
    assert keys(encoders) == sorted(PREFIX + name for name in (*FILES, MANIFEST))


def test_the_newest_export_answers_and_an_older_one_where_it_is_pinned(encoders: EncoderStore) -> None:
    older = add(encoders, layers=3)
    time.sleep(0.002)
    newer = add(encoders, layers=6)
    assert encoders.find("bert") == newer
    assert encoders.find(f"bert@{older.digest}") == older
    assert encoders.find(f"bert@{older.digest[:12]}") == older


@pytest.mark.parametrize("name", ["bert", "bert@0000", "gpt", "gpt@1234", "..", "*", "ber*", "", "/", "a\0", "bert/"])
def test_an_encoder_that_is_not_there_is_unavailable_with_the_remedy(encoders: EncoderStore, name: str) -> None:
    if name != "bert":
        add(encoders)
    with pytest.raises(Unavailable) as error:
        encoders.find(name)
    assert error.value.remedy == (Action.EXPORT, {"source": "minilm"})


@pytest.mark.parametrize("name", FILES[1:])
def test_a_changed_file_is_named(encoders: EncoderStore, cache: Path, name: str) -> None:
    encoders.add("bert", SPEC, writing())
    encoders.blobs.write(PREFIX + name, b"other")
    for copy in cache.rglob(name):  # only a copy that was damaged too is made again
        copy.write_bytes(b"damaged")
    with pytest.raises(CorruptArtifact, match=name.replace(".", r"\.")):
        encoders.find("bert")


def test_an_encoder_of_a_bucket_is_fetched_once_and_again_if_the_copy_is_damaged(
    encoders: EncoderStore, cache: Path
) -> None:
    if isinstance(encoders.blobs, Folder):
        assert add(encoders).folder.is_relative_to(encoders.blobs.root)
        assert not cache.exists()
        return
    artifact = add(encoders)
    written = artifact.tokenizer.stat().st_ino
    assert encoders.find("bert").tokenizer.stat().st_ino == written
    artifact.tokenizer.write_text("damaged")
    left = artifact.folder.with_name(".building-0123456789abcdef")  # of a process that was killed
    left.mkdir()
    (left / "encoder.onnx").write_text("half")
    assert encoders.find("bert").tokenizer.read_text() == "tokenizer.json"
    assert encoders.ids() == ["bert"]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            artifact.encoder.unlink()
            found = pool.map(lambda _: encoders.find("bert").encoder.read_text(), range(8))
            assert set(found) == {"encoder.onnx"}


@pytest.mark.parametrize("digest", [SPEC.digest, "0" * 64], ids=["another place", "another release"])
def test_an_encoder_in_another_ones_place_or_of_a_release_that_computes_other_vectors_is_refused(
    encoders: EncoderStore, digest: str
) -> None:
    """A release that raises GRAPH_FORMAT: the digest it was stored under is no longer what its recipe gives."""
    add(encoders)
    manifest = parsed_manifest(encoders.blobs.read(PREFIX + MANIFEST)[0], "")
    for name in FILES:
        encoders.blobs.write(f"encoders/bert/{'0' * 64}/{name}", encoders.blobs.read(PREFIX + name)[0])
    encoders.blobs.delete([PREFIX + MANIFEST])
    encoders.blobs.write(f"encoders/bert/{'0' * 64}/{MANIFEST}", manifest_bytes({**manifest, "digest": digest}))
    if digest == SPEC.digest:
        with pytest.raises(CorruptArtifact, match="another encoder"):
            encoders.find("bert")
        return
    with pytest.raises(Unavailable, match="calibrate its domains anew after a new export") as error:
        encoders.find("bert")
    assert error.value.remedy == (Action.EXPORT, {"source": SPEC.source})


@pytest.mark.parametrize("damage", ["no spec", "a field missing", "a field too many", "no json"])
def test_a_damaged_manifest_is_corrupt(encoders: EncoderStore, damage: str) -> None:
    add(encoders)
    manifest = json.loads(encoders.blobs.read(PREFIX + MANIFEST)[0])
    del manifest["seal"]
    match damage:
        case "no spec":
            del manifest["encoder"]
        case "a field missing":
            del manifest["encoder"]["dim"]
        case "a field too many":
            manifest["encoder"]["colour"] = "blue"
    encoders.blobs.write(PREFIX + MANIFEST, b"{" if damage == "no json" else json_bytes(manifest))
    with pytest.raises(CorruptArtifact, match=r"manifest\.json"):
        encoders.find("bert")
    assert encoders.sound("bert", SPEC.digest) is None  # and is withdrawn, so that an export writes it anew
    assert add(encoders) == encoders.sound("bert", SPEC.digest)


@pytest.mark.parametrize("after", [False, True])
def test_an_export_that_is_killed_at_any_step_is_whole_or_not_there(place: Open, after: bool) -> None:  # noqa: F811
    for step in range(1, len(FILES) + 3):
        crashing = Crashing(place())
        crashing.left, crashing.after = step, after
        encoders = EncoderStore(place())
        with pytest.raises(Killed):
            add(EncoderStore(crashing))
        whole = after and step == len(FILES) + 2
        assert encoders.has("bert", SPEC.digest) is whole
        assert encoders.ids() == ["bert"] * whole
        (left,) = encoders.garbage(-1, set()) if keys(encoders) else [None]
        assert left is None or left.why == ("an unused encoder" if whole else "left unfinished")
        assert list(encoders.garbage(60, set())) == []
        assert add(encoders).encoder.read_text() == "encoder.onnx"
        encoders.remove(encoders.find("bert"))
        assert keys(encoders) == []


def test_two_exports_of_one_encoder_at_once_leave_one_that_is_whole(encoders: EncoderStore, place: Open) -> None:  # noqa: F811
    """Their files differ, as those of two releases of torch may."""
    with ThreadPoolExecutor(3) as pool:
        others = [EncoderStore(place()) for _ in range(3)]

        def export(number: int) -> None:
            for _ in range(3):
                others[number]._publish(PREFIX, *made[number])

        made = []
        for number in range(3):
            folder = EncoderStore(place()).add(f"n{number}", SPEC, writing(str(number))).folder
            facts = parsed_manifest((folder / MANIFEST).read_bytes(), "")
            made.append((folder, facts["files"], (folder / MANIFEST).read_bytes()))
        list(pool.map(export, range(3)))
    found = encoders.find("bert")
    assert len({path.read_text()[-1] for path in (found.encoder, found.calibrator, found.tokenizer)}) == 1


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "-x", "a b", "a@b", "a\0"])
def test_a_name_that_is_no_folders_name_is_refused(encoders: EncoderStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="encoder id"):
        add(encoders, name)
    assert keys(encoders) == []


def test_a_second_store_has_what_the_first_lacks_and_is_not_written(encoders: EncoderStore, tmp_path: Path) -> None:
    carried = EncoderStore.at(tmp_path / "carried")
    older = add(carried, layers=3)
    add(carried, "gpt")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "carried").rglob("*")}
    both = EncoderStore(encoders.blobs, Folder(tmp_path / "carried"))
    assert both.ids() == ["bert", "gpt"]
    assert both.has("bert", older.digest)
    assert both.find("bert") == older
    mine = add(both)
    assert both.find("bert") == mine
    assert both.find(f"bert@{older.digest}") == older
    assert encoders.ids() == ["bert"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "carried").rglob("*")} == before
    assert [one.name for one in both.garbage(-1, set())] == [f"{encoders.blobs.address}/{PREFIX[:-1]}"]


def test_an_address_is_replaced_for_every_reader_and_never_over_an_unseen_one(encoders: EncoderStore) -> None:
    def write(folder: Path) -> dict[str, object]:
        (folder / "calibrator.onnx").write_text("graph")
        return {"kind": "remote", "remote": vars(Endpoint("http://a/v1", "m"))}

    artifact = encoders.add("far", SPEC, write)
    moved = encoders.readdress(artifact, Endpoint("http://b/v1", "m"))
    assert moved.remote == Endpoint("http://b/v1", "m")
    assert encoders.find("far") == moved

    class Overtaken(Crashing):
        def read(self, key: str) -> tuple[bytes, str]:
            found = self.blobs.read(key)
            encoders.readdress(artifact, Endpoint("http://c/v1", "m"))
            return found

    late = EncoderStore(Overtaken(encoders.blobs))
    with pytest.raises(Conflict, match="try again"):
        late.readdress(artifact, Endpoint("http://d/v1", "m"))
    assert encoders.find("far").remote == Endpoint("http://c/v1", "m")


def test_all_that_register_a_name_at_once_get_one_registration_and_after_a_removal_another(
    encoders: EncoderStore,
    place: Open,  # noqa: F811
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: EncoderStore(place()).registration("bert"), range(8)))
    (first,) = found
    assert encoders.ids() == []
    encoders.remove(add(encoders))
    assert keys(encoders) == []
    assert encoders.registration("bert") != first
