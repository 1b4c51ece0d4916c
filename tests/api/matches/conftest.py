"""A store of each kind."""

from tests.store.conftest import blobs, objects, place  # noqa: F401 - fixtures
