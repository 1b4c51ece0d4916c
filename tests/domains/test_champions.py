"""The champions that listings show are those of the records, and only changed records are read.

That they follow every change is an invariant of the machine of test_domains.
"""

from dataclasses import replace
from typing import Any

from isosim.domains.champions import Champions
from isosim.domains.domain import Migration
from isosim.domains.store import DomainStore
from isosim.store.blobs import Blobs
from tests.domains.test_domains import CREATED, ENCODER, always, publish
from tests.store.machines import Watched

OTHER = "f" * 64


def listed(champions: Champions) -> dict[str, int | None]:
    found = ((name, one.champion(ENCODER)[1]) for name, one in champions.read().items())
    return {name: None if champion is None else champion.version for name, champion in found}


def test_a_listing_reads_only_what_has_changed_also_that_of_a_new_process(blobs: Blobs) -> None:
    store, keys = DomainStore(blobs), list[str]()
    counting: Any = Watched(blobs, lambda operation, *given: keys.extend(given if operation == "read" else []))
    champions = Champions(DomainStore(counting))
    for name in ("b", "a"):
        publish(store, name, promote=always)
    publish(store, "c")
    assert list(listed(champions).items()) == [("a", 1), ("b", 1), ("c", None)]
    publish(store, "b", promote=always)
    store.remove("c")
    for again, summary in ((champions, []), (Champions(DomainStore(counting)), ["champions.json"])):
        keys.clear()
        assert listed(again) == {"a": 1, "b": 2}
        assert keys == [*summary, "domains/b.json"]
        keys.clear()
        assert listed(again) == {"a": 1, "b": 2}
        assert keys == []
    blobs.write("champions.json", b"{")
    assert listed(Champions(store)) == {"a": 1, "b": 2}


def test_a_domain_that_has_moved_is_listed_for_its_new_encoder(blobs: Blobs) -> None:
    store = DomainStore(blobs)
    publish(store, "a", promote=always)
    store.move("a", Migration(ENCODER, "one", OTHER, "two", CREATED))
    assert Champions(store).read()["a"].champion(ENCODER) == (OTHER, None)
    store.change("a", lambda domain: replace(domain, aliases={OTHER: domain.served(ENCODER)}))
    digest, champion = Champions(store).read()["a"].champion(ENCODER)
    assert (digest, champion and champion.version) == (OTHER, 1)
