"""Fixtures of the repository's own tests, which pytest finds by the names they have here."""

from tests.conftest import minilm_store, tiny_checkpoint, tiny_store

__all__ = ["minilm_store", "tiny_checkpoint", "tiny_store"]
