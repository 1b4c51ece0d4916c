"""Stores for the jobs: a folder, memory, and a bucket of an S3 server."""

from tests.objects import objects  # noqa: F401 - a fixture
from tests.store.conftest import blobs, place  # noqa: F401 - fixtures
