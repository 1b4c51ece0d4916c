"""A store of each kind: a folder and a bucket in memory; an S3 server's where object storage itself is tested."""

from collections.abc import Callable
from pathlib import Path

import pytest

from isosim.store.blobs import Blobs, Bucket, opened
from tests.objects import Objects, objects  # noqa: F401 - a fixture

Open = Callable[[], Blobs]  # opens the test's store once more, as another process would


def in_memory() -> Blobs:
    from obstore.store import MemoryStore

    return Bucket(MemoryStore(), "memory://")


EVERY_PLACE = pytest.mark.parametrize("place", ["folder", "memory", "s3"], indirect=True)


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        made = in_memory()
        return lambda: made
    if request.param == "folder":
        return lambda: opened(str(tmp_path))
    server: Objects = request.getfixturevalue("objects")
    address = server.bucket().as_posix().replace("s3:/", "s3://")
    return lambda: opened(address)


@pytest.fixture
def blobs(place: Open) -> Blobs:
    return place()
