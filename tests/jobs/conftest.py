"""The stores of each kind that the tests of records use."""

from tests.store.conftest import blobs, objects, place  # noqa: F401 - fixtures
