"""What makes a place a model store, in a folder and in a bucket."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isosim.errors import Unavailable
from isosim.store.identity import MARKER, create, identify
from isosim.store.object_storage import opened, remote
from tests.objects import objects  # noqa: F401 - a fixture


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found: Path = tmp_path / "store" if request.param == "folder" else request.getfixturevalue("objects").bucket()
    return found


def put(root: Path, key: str, content: bytes) -> None:
    if remote(root):
        opened(root).write(key, content)
    else:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(content)


def read(root: Path, key: str) -> bytes:
    return opened(root).read(key)[0] if remote(root) else (root / key).read_bytes()


def keys(root: Path) -> list[str]:
    if remote(root):
        return [entry.key for entry in opened(root).list("")]
    return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


def test_a_place_without_a_store_is_refused_with_the_remedy_and_left_as_it_is(root: Path) -> None:
    with pytest.raises(Unavailable, match=r"no model store at .*ISOSIM_MODEL_STORE.*isosim export.*isosim store init"):
        identify(root)
    assert keys(root) == []
    put(root, "domains/something", b"")
    with pytest.raises(Unavailable, match="no model store at"):
        identify(root)


def test_a_store_is_made_once_and_keeps_its_id(root: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(create, [root] * 8))
    assert ids == {identify(root), create(root)}
    assert keys(root) == [MARKER]
    assert json.loads(read(root, MARKER)) == {"id": ids.pop(), "format": 1}


def test_a_store_without_an_id_that_has_an_encoder_is_given_one(root: Path) -> None:
    put(root, "encoders/tiny/9f57/manifest.json", b"{}")
    found = identify(root)
    assert found
    assert identify(root) == found
    assert json.loads(read(root, MARKER))["id"] == found


def test_a_store_of_a_later_format_is_refused(root: Path) -> None:
    put(root, MARKER, b'{"id": "a", "format": 2}')
    with pytest.raises(Unavailable, match="has format 2; this release reads format 1"):
        identify(root)
