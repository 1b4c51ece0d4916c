"""What makes a place a model store, in a folder and in a bucket."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from isosim.errors import Unavailable
from isosim.store.blobs import Blobs
from isosim.store.identity import MARKER, create, identify
from tests.objects import objects  # noqa: F401 - a fixture
from tests.store.conftest import blobs, place  # noqa: F401 - fixtures


def keys(blobs: Blobs) -> list[str]:  # noqa: F811
    return [entry.key for entry in blobs.list("")]


def test_a_place_without_a_store_is_refused_with_the_remedy_and_left_as_it_is(blobs: Blobs) -> None:  # noqa: F811
    with pytest.raises(Unavailable, match=r"no model store at .*ISOSIM_MODEL_STORE.*isosim export.*isosim store init"):
        identify(blobs)
    assert keys(blobs) == []
    blobs.write("domains/something", b"")
    with pytest.raises(Unavailable, match="no model store at"):
        identify(blobs)


def test_a_store_is_made_once_and_keeps_its_id(blobs: Blobs) -> None:  # noqa: F811
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(create, [blobs] * 8))
    assert ids == {identify(blobs), create(blobs)}
    assert keys(blobs) == [MARKER]
    assert json.loads(blobs.read(MARKER)[0]) == {"id": ids.pop(), "format": 1}


def test_a_store_without_an_id_that_has_an_encoder_is_given_one(blobs: Blobs) -> None:  # noqa: F811
    blobs.write("encoders/tiny/9f57/manifest.json", b"{}")
    found = identify(blobs)
    assert found
    assert identify(blobs) == found
    assert json.loads(blobs.read(MARKER)[0])["id"] == found


def test_a_store_of_a_later_format_is_refused(blobs: Blobs) -> None:  # noqa: F811
    blobs.write(MARKER, b'{"id": "a", "format": 2}')
    with pytest.raises(Unavailable, match="has format 2; this release reads format 1"):
        identify(blobs)
