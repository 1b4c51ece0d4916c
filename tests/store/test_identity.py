"""What makes a place a model store, in a folder and in a bucket."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from isosim.errors import Unavailable
from isosim.store.blobs import MARKER, Blobs
from isosim.store.identity import create, identify


def test_a_place_without_a_store_is_refused_with_the_remedy_and_left_as_it_is(blobs: Blobs) -> None:
    for _ in range(2):
        before = [entry.key for entry in blobs.list("")]
        with pytest.raises(Unavailable, match=r"no model store at .*ISOSIM_MODEL_STORE.*isosim export.*store init"):
            identify(blobs)
        assert [entry.key for entry in blobs.list("")] == before
        blobs.write("domains/something", b"")


@pytest.mark.parametrize("encoders", [False, True])
def test_a_store_is_made_once_and_keeps_its_id(blobs: Blobs, encoders: bool) -> None:
    """One that was made before there were ids, and has an encoder, is given an id."""
    if encoders:
        blobs.write("encoders/tiny/9f57/manifest.json", b"{}")
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(identify if encoders else create, [blobs] * 8))
    assert ids == {identify(blobs), create(blobs)}
    assert [entry.key for entry in blobs.list("")][encoders:] == [MARKER]
    assert json.loads(blobs.read(MARKER)[0]) == {"id": ids.pop(), "format": 1}
    blobs.write(MARKER, b'{"id": "a", "format": 2}')
    with pytest.raises(Unavailable, match="has format 2; this release reads format 1"):
        identify(blobs)
