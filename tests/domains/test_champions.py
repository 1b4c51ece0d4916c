"""The champions that listings show are those of the records, and only changed records are read."""

from dataclasses import replace
from typing import Any

import pytest

from isosim.domains.champions import Champions
from isosim.domains.domain import Migration
from isosim.domains.store import DomainStore
from isosim.store.blobs import Blobs
from tests.domains.test_domains import ENCODER, always, damage, publish

OTHER = "f" * 64


class Counting:
    """A store that notes the keys that are read."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.keys: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)

    def read(self, key: str) -> tuple[bytes, str]:
        self.keys.append(key)
        return self.blobs.read(key)


@pytest.fixture
def counting(blobs: Blobs) -> Counting:
    return Counting(blobs)


def listed(champions: Champions) -> dict[str, int | None]:
    found = ((name, one.champion(ENCODER)[1]) for name, one in champions.read().items())
    return {name: None if champion is None else champion.version for name, champion in found}


def test_a_listing_follows_every_change_and_reads_only_what_has_changed(blobs: Blobs, counting: Counting) -> None:
    store = DomainStore(blobs)
    champions = Champions(DomainStore(counting))  # type: ignore[arg-type]
    assert listed(champions) == {}
    for name in ("b", "a"):
        publish(store, name, promote=always)
    publish(store, "c")
    assert list(listed(champions).items()) == [("a", 1), ("b", 1), ("c", None)]
    counting.keys.clear()
    assert listed(champions) == {"a": 1, "b": 1, "c": None}
    assert counting.keys == []
    publish(store, "b", promote=always)
    store.remove("c")
    assert listed(champions) == {"a": 1, "b": 2}
    assert counting.keys == ["domains/b.json"]
    damage(store, "a")
    assert listed(champions) == {"a": None, "b": 2}
    assert champions.read()["a"].damaged
    store.repair("a")
    store.promote("a", ENCODER, 1)
    assert listed(champions) == {"a": 1, "b": 2}


def test_a_new_process_reads_the_summary_and_what_has_changed_since(blobs: Blobs, counting: Counting) -> None:
    store = DomainStore(blobs)
    for name in ("a", "b", "c"):
        publish(store, name, promote=always)
    Champions(store).read()
    publish(store, "b", promote=always)
    champions = Champions(DomainStore(counting))  # type: ignore[arg-type]
    assert listed(champions) == {"a": 1, "b": 2, "c": 1}
    assert counting.keys == ["champions.json", "domains/b.json"]
    blobs.write("champions.json", b"{")
    assert listed(Champions(store)) == {"a": 1, "b": 2, "c": 1}


def test_a_domain_that_has_moved_is_listed_for_its_new_encoder(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    publish(store, "a", promote=always)
    store.move("a", Migration(ENCODER, "one", OTHER, "two", "2026-01-01T00:00:00+00:00"))
    assert Champions(store).read()["a"].champion(ENCODER) == (OTHER, None)
    two = publish(store, "a")
    store.change("a", lambda domain: replace(domain, aliases={**domain.aliases, OTHER: domain.served(ENCODER)}))
    digest, champion = Champions(store).read()["a"].champion(ENCODER)
    assert (digest, champion is not None and champion.version, two.number) == (OTHER, 1, 2)
