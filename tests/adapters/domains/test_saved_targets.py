"""Targets that a domain keeps under names in its aliases: changed by compare-and-set, kept by every other change."""

import json
from pathlib import Path
from typing import Any

import pytest

from isosim.domains.calibrations import ChangeWatch
from isosim.domains.store import MOST_TARGETS, Aliases, DomainStore
from isosim.errors import Conflict, CorruptArtifact, InvalidInput, NotFound
from isosim.scoring.advice import Target
from tests.adapters.domains.test_store import MINE, NONE, THEIRS, promote, publish
from tests.objects import Objects, objects  # noqa: F401 - a fixture

LOOSE, STRICT = Target(fmr=0.1), Target(false_hit_rate=0.01, gallery=1000)


@pytest.fixture(params=["folder", "bucket"])
def domains(request: pytest.FixtureRequest, tmp_path: Path) -> DomainStore:
    """One domain with two versions, the second one champion; in a folder, and in object storage."""
    store = DomainStore(tmp_path if request.param == "folder" else request.getfixturevalue("objects").bucket())
    for _ in range(2):
        promote(store, publish(store))
    return store


def saved(domains: DomainStore, encoder: str = MINE) -> dict[str, Target]:
    return dict(domains.aliases("news", encoder).targets)


def content(domains: DomainStore) -> Any:
    found = domains.storage.aliases("news").content
    assert found is not None
    return json.loads(found)


def rewrite(domains: DomainStore, **changes: Any) -> None:
    """As another writer would, with what it read and did not understand."""
    with domains.storage.changing("news") as before:
        domains.storage.replace("news", before, json.dumps(content(domains) | changes).encode())


def test_a_saved_target_is_every_encoders_and_counts_as_a_change(domains: DomainStore) -> None:
    assert domains.set_target("news", "duplicates", LOOSE) == 3
    assert domains.set_target("news", "search", STRICT, revision=3) == 4
    assert saved(domains) == saved(domains, THEIRS) == {"duplicates": LOOSE, "search": STRICT}
    assert domains.aliases("news", MINE) == Aliases(2, 1, 4)
    assert content(domains)["thresholds"]["search"] == {"false_hit_rate": 0.01, "gallery": 1000}


def test_readers_are_told_of_a_change(domains: DomainStore) -> None:
    watch = ChangeWatch(domains)
    watch.changes({"news": NONE})
    domains.set_target("news", "duplicates", LOOSE)
    assert watch.changes({"news": NONE}) == {"news"}
    domains.set_target("news", "duplicates", LOOSE)
    assert watch.changes({"news": NONE}) == set()  # nothing was changed


def test_promotion_rollback_and_deletions_of_versions_keep_it(domains: DomainStore) -> None:
    domains.set_target("news", "duplicates", LOOSE)
    promote(domains, publish(domains))
    domains.rollback("news", MINE, expected=domains.aliases("news", MINE))
    promote(domains, publish(domains, encoder=THEIRS), THEIRS)
    domains.delete("news", 1)
    domains.prune("news", 1)
    assert saved(domains) == {"duplicates": LOOSE}


def test_a_change_of_an_older_state_is_refused_and_a_repeated_one_is_not(domains: DomainStore) -> None:
    assert domains.set_target("news", "duplicates", LOOSE, revision=2) == 3
    assert domains.set_target("news", "duplicates", LOOSE, revision=2) == 3  # the answer to the first was lost
    for target in (STRICT, None):
        with pytest.raises(Conflict, match="are at revision 3, not 2; read the domain again, then retry"):
            domains.set_target("news", "duplicates", target, revision=2)
    assert domains.set_target("news", "duplicates", None, revision=3) == 4
    assert domains.set_target("news", "duplicates", None, revision=3) == 4
    with pytest.raises(NotFound, match="no saved threshold 'duplicates'"):
        domains.set_target("news", "duplicates", None, revision=4)
    assert saved(domains) == {}


def test_a_change_without_a_revision_goes_through_beside_others(domains: DomainStore) -> None:
    replace, losses = domains.storage.replace, []

    def meanwhile(*given: Any) -> None:
        if not domains.storage.exclusive and len(losses) < 2:  # a lock keeps others out
            losses.append(rewrite_without_lock(domains))
        replace(*given)

    domains.storage.replace = meanwhile  # type: ignore[method-assign]
    domains.set_target("news", "duplicates", LOOSE)
    assert saved(domains)["duplicates"] == LOOSE
    assert content(domains)["revision"] == 3 + len(losses)


def rewrite_without_lock(domains: DomainStore) -> None:
    before = domains.storage.aliases("news")
    stored = content(domains)
    type(domains.storage).replace(
        domains.storage, "news", before, json.dumps(stored | {"revision": stored["revision"] + 1}).encode()
    )


def test_a_domain_keeps_so_many_and_no_more(domains: DomainStore) -> None:
    for number in range(MOST_TARGETS):
        domains.set_target("news", f"t{number}", LOOSE)
    with pytest.raises(InvalidInput, match="has 50 saved thresholds, at most 50 are kept; delete one first"):
        domains.set_target("news", "one-more", LOOSE)
    domains.set_target("news", "t7", STRICT)  # in the place of another
    domains.set_target("news", "t8", None)
    domains.set_target("news", "one-more", LOOSE)
    assert len(saved(domains)) == MOST_TARGETS


@pytest.mark.parametrize("name", ["", "Duplicates", "a/b", "..", "a" * 65, "a\n"])
def test_a_name_is_a_name(domains: DomainStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="a name has 1 to 64 of"):
        domains.set_target("news", name, LOOSE)


def test_a_domain_without_versions_keeps_none_and_leaves_nothing_behind(domains: DomainStore) -> None:
    with pytest.raises(NotFound, match="has no version; calibrate it first"):
        domains.set_target("law", "duplicates", LOOSE)
    assert not domains.was_there("law")
    assert not (domains.root / "law").exists()


def test_deleting_the_domain_deletes_them_and_a_new_one_of_the_name_has_none(domains: DomainStore) -> None:
    domains.set_target("news", "duplicates", LOOSE)
    domains.remove("news")
    with pytest.raises(NotFound):
        domains.set_target("news", "duplicates", LOOSE)
    promote(domains, publish(domains))
    assert saved(domains) == {}


def test_a_deletion_that_is_under_way_is_no_place_to_save_at(domains: DomainStore) -> None:
    rewrite(domains, encoders={}, deleted=[1, 2])  # in a bucket its files go after this
    with pytest.raises(NotFound, match="has no version"):
        domains.set_target("news", "duplicates", LOOSE)


def test_an_earlier_release_that_rewrites_the_aliases_keeps_it(domains: DomainStore) -> None:
    """It changes what it read: here as release 0.1.0 promotes."""
    domains.set_target("news", "duplicates", LOOSE)
    stored = content(domains)
    stored["encoders"][MINE] = {"champion": 1, "previous": 2}
    rewrite(domains, **stored | {"revision": stored["revision"] + 1})
    assert saved(domains) == {"duplicates": LOOSE}
    assert domains.aliases("news", MINE) == Aliases(1, 2, 4)


@pytest.mark.parametrize("damaged", [None, [], "x", 7, {"duplicates": "x"}, {"duplicates": {"margin": 1}}])
def test_damaged_targets_are_absent_and_take_nothing_else_down(domains: DomainStore, damaged: Any) -> None:
    rewrite(domains, thresholds=damaged)
    assert (domains.aliases("news", MINE), saved(domains)) == (Aliases(2, 1, 2), {})
    promote(domains, 1)
    domains.set_target("news", "related", LOOSE)
    assert saved(domains) == {"related": LOOSE}
    assert (content(domains)["thresholds"].keys() >= {"duplicates"}) == isinstance(
        damaged, dict
    )  # perhaps a newer one's
    domains.set_target("news", "duplicates", STRICT)
    assert saved(domains) == {"duplicates": STRICT, "related": LOOSE}


def test_aliases_that_cannot_be_understood_are_not_written_over(domains: DomainStore) -> None:
    rewrite(domains, encoders=[])
    with pytest.raises(CorruptArtifact):
        domains.set_target("news", "duplicates", LOOSE)
