"""Versions and aliases of domains: numbers, promotion, rollback, deletion."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isosim.arrays import Weights
from isosim.domains.calibrations import FULL_LOOK, ChangeWatch
from isosim.domains.folders import ANNOUNCED
from isosim.domains.objects import BucketStorage
from isosim.domains.store import Aliases, DomainStore
from isosim.errors import Conflict, NotFound
from isosim.scoring.calibration import DomainModel
from tests.core.scoring.references import REFERENCE
from tests.objects import Objects, objects  # noqa: F401 - a fixture

MINE, THEIRS = "a" * 64, "b" * 64
NONE: frozenset[int] = frozenset()
WEIGHTS: Weights = {"mean": np.arange(8, dtype=np.float32), "flow.0.0.permutation": np.arange(8)}


def manifest(encoder: str = MINE) -> dict[str, Any]:
    return {"method": "flow", "encoder": {"id": "tiny", "digest": encoder}}


@pytest.fixture(params=["folder", "bucket"])
def domains(request: pytest.FixtureRequest, tmp_path: Path) -> DomainStore:
    """In a folder, and in object storage."""
    return DomainStore(tmp_path if request.param == "folder" else request.getfixturevalue("objects").bucket())


@pytest.fixture
def in_folder(tmp_path: Path) -> DomainStore:
    return DomainStore(tmp_path)


def publish(domains: DomainStore, domain: str = "news", encoder: str = MINE) -> int:
    return domains.publish(domain, manifest(encoder), {"sentences": 7}, WEIGHTS, DomainModel(reference=REFERENCE))


def promote(domains: DomainStore, version: int, encoder: str = MINE) -> Aliases:
    return domains.promote("news", encoder, version, expected=domains.aliases("news", encoder))


def test_what_is_published_is_read_back(domains: DomainStore) -> None:
    version = publish(domains)
    stored = domains.load("news", version)
    assert stored.weights is not None
    assert stored.model.reference is not None
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(stored.weights[name], array)
        assert stored.weights[name].dtype == array.dtype
    np.testing.assert_array_equal(stored.model.reference.similarities, REFERENCE.similarities)
    assert stored.model.reference.pairs == REFERENCE.pairs
    assert (stored.manifest["domain"], stored.manifest["version"], stored.manifest["method"]) == ("news", 1, "flow")
    assert domains.report("news", version) == {"sentences": 7}


def test_identity_is_a_version_without_weights(domains: DomainStore) -> None:
    version = domains.publish("news", manifest(), {}, None, DomainModel(reference=REFERENCE))
    assert domains.load("news", version).weights is None
    assert domains.load("news", domains.publish("news", manifest(), {}, None, DomainModel())).model.reference is None


def test_numbers_count_up_a_domain_each(domains: DomainStore) -> None:
    assert [publish(domains), publish(domains), publish(domains, "law"), publish(domains)] == [1, 2, 1, 3]
    assert domains.domains() == ["law", "news"]
    assert domains.versions("news") == [1, 2, 3]


def test_the_tenth_version_comes_after_the_ninth(domains: DomainStore) -> None:
    assert [publish(domains) for _ in range(11)] == domains.versions("news") == list(range(1, 12))


def test_a_store_without_the_domain_has_nothing_of_it(domains: DomainStore) -> None:
    assert (domains.domains(), domains.versions("news"), list(domains.announced())) == ([], [], [])
    assert not domains.was_there("news")
    assert domains.aliases("news", MINE) == Aliases()
    for read in (domains.manifest, domains.report, domains.load):
        with pytest.raises(NotFound, match="news"):
            read("news", 1)


def test_a_store_whose_volume_is_away_is_an_error_and_not_an_empty_one(in_folder: DomainStore) -> None:
    in_folder.prepare()
    publish(in_folder)
    promote(in_folder, 1)
    in_folder.root.rename(in_folder.root.with_name("away"))
    with pytest.raises(OSError, match="domains"):
        ChangeWatch(in_folder).changes({"news": frozenset({1})})


def test_a_publication_that_fails_takes_no_number(domains: DomainStore) -> None:
    publish(domains)
    with pytest.raises(TypeError):
        domains.publish("news", manifest(), {"report": object()}, WEIGHTS, DomainModel(reference=REFERENCE))
    assert domains.versions("news") == [1]
    assert publish(domains) == 2


def test_promotion_makes_the_champion_the_previous_one(domains: DomainStore) -> None:
    versions = [publish(domains) for _ in range(3)]
    assert promote(domains, versions[0]) == Aliases(1, None, 1)
    assert promote(domains, versions[2]) == Aliases(3, 1, 2)
    assert domains.aliases("news", MINE) == Aliases(3, 1, 2)


def test_promoting_the_champion_again_keeps_the_previous_one(domains: DomainStore) -> None:
    publish(domains)
    publish(domains)
    promote(domains, 1)
    before = promote(domains, 2)
    assert promote(domains, 2) == domains.aliases("news", MINE) == before


def test_rollback_swaps_champion_and_previous_and_back(domains: DomainStore) -> None:
    publish(domains)
    publish(domains)
    promote(domains, 1)
    promote(domains, 2)
    assert domains.rollback("news", MINE, expected=domains.aliases("news", MINE)) == Aliases(1, 2, 3)
    assert domains.rollback("news", MINE, expected=domains.aliases("news", MINE)) == Aliases(2, 1, 4)


def test_there_is_no_rolling_back_without_a_previous_version(domains: DomainStore) -> None:
    publish(domains)
    promote(domains, 1)
    with pytest.raises(Conflict, match="no previous"):
        domains.rollback("news", MINE, expected=domains.aliases("news", MINE))


def test_an_outdated_expectation_is_a_conflict(domains: DomainStore) -> None:
    for _ in range(3):
        publish(domains)
    promote(domains, 1)
    seen = domains.aliases("news", MINE)
    promote(domains, 2)
    with pytest.raises(Conflict, match="changed meanwhile"):
        domains.promote("news", MINE, 3, expected=seen)
    with pytest.raises(Conflict, match="changed meanwhile"):
        domains.promote("news", MINE, 1, expected=seen)  # it was the champion when the caller looked
    assert domains.aliases("news", MINE).champion == 2


def test_each_encoder_has_its_own_champion(domains: DomainStore) -> None:
    publish(domains, encoder=MINE)
    publish(domains, encoder=THEIRS)
    promote(domains, 1, MINE)
    promote(domains, 2, THEIRS)
    assert domains.aliases("news", MINE).champion == 1
    assert domains.aliases("news", THEIRS).champion == 2
    with pytest.raises(Conflict, match="another encoder"):
        promote(domains, 2, MINE)


def test_a_version_that_does_not_exist_cannot_be_promoted(domains: DomainStore) -> None:
    publish(domains)
    with pytest.raises(NotFound):
        promote(domains, 2)
    assert domains.aliases("news", MINE) == Aliases()


def test_champion_and_previous_of_any_encoder_cannot_be_deleted(domains: DomainStore) -> None:
    for encoder in (MINE, MINE, MINE, THEIRS):
        publish(domains, encoder=encoder)
    promote(domains, 1)
    promote(domains, 2)
    promote(domains, 4, THEIRS)
    for version in (1, 2, 4):
        with pytest.raises(Conflict):
            domains.delete("news", version)
    domains.delete("news", 3)
    assert domains.versions("news") == [1, 2, 4]


def test_a_deleted_version_is_gone_and_its_number_never_returns(domains: DomainStore) -> None:
    publish(domains)
    publish(domains)
    domains.delete("news", 2)
    with pytest.raises(NotFound):
        domains.load("news", 2)
    with pytest.raises(NotFound):
        domains.delete("news", 2)
    assert publish(domains) == 3


def test_a_deleted_version_leaves_its_number_alone(in_folder: DomainStore) -> None:
    publish(in_folder)
    in_folder.delete("news", 1)
    assert [path.name for path in (in_folder.root / "news" / "1").iterdir()] == ["deleted"]


def test_deleting_what_is_not_there_changes_nothing(domains: DomainStore) -> None:
    publish(domains)
    with pytest.raises(NotFound):
        domains.delete("typo", 1)
    with pytest.raises(NotFound):
        domains.promote("typo", MINE, 1, expected=Aliases())
    assert domains.domains() == ["news"]
    assert not domains.was_there("typo")


def test_pruning_keeps_the_newest_and_those_with_a_name(domains: DomainStore) -> None:
    for _ in range(6):
        publish(domains)
    promote(domains, 1)
    promote(domains, 2)
    assert domains.prune("news", keep=2) == [3, 4]
    assert domains.versions("news") == [1, 2, 5, 6]
    assert domains.prune("news", keep=2) == []
    assert publish(domains) == 7


def test_a_reader_is_told_of_every_change_of_aliases_once(domains: DomainStore) -> None:
    for _ in range(2):
        publish(domains)
    publish(domains, "law")
    watch, resident = ChangeWatch(domains), {"news": frozenset({1}), "law": frozenset({1})}
    watch.changes(resident)
    assert watch.changes(resident) == set()
    promote(domains, 1)
    domains.promote("law", MINE, 1, expected=Aliases())
    assert watch.changes(resident) == {"news", "law"}
    assert watch.changes(resident) == set()
    promote(domains, 2)
    assert watch.changes(resident) == {"news"}
    assert watch.changes(resident) == set()


def test_a_deletion_is_a_change_of_aliases(domains: DomainStore) -> None:
    for _ in range(3):
        publish(domains)
    watch, resident = ChangeWatch(domains), {"news": frozenset({1})}
    for change in (lambda: domains.delete("news", 1), lambda: domains.prune("news", keep=1)):
        watch.changes(resident)
        before = domains.aliases("news", MINE).revision
        change()
        assert domains.aliases("news", MINE).revision == before + 1
        assert watch.changes(resident) == {"news"}
    assert domains.missing("news", [1, 2, 3]) == {1, 2}


def unannounced(domains: DomainStore, change: Callable[[], object]) -> None:
    """As a process of an earlier release changes a folder: without a word."""
    folder = domains.root / ".changes"
    before = set(folder.iterdir()) if folder.is_dir() else set()
    change()
    for made in set(folder.iterdir()) - before:
        made.unlink()


def test_what_an_earlier_release_changes_in_a_folder_is_seen_at_the_next_look(in_folder: DomainStore) -> None:
    for _ in range(2):
        publish(in_folder)
    watch, resident = ChangeWatch(in_folder), {"news": frozenset({1})}
    watch.changes(resident)
    unannounced(in_folder, lambda: promote(in_folder, 2))
    assert watch.changes(resident) == {"news"}
    version = in_folder.root / "news" / "1"
    (version / "manifest.json").unlink()  # a deletion of the release before: the aliases stay as they are
    (version / "deleted").touch()
    assert watch.changes(resident) == {"news"}


def test_each_of_many_resident_domains_is_compared_once_in_a_full_look(
    in_folder: DomainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    in_folder.prepare()
    resident = dict.fromkeys((f"d{number}" for number in range(1000)), NONE)
    watch = ChangeWatch(in_folder)
    watch.changes(resident)  # the first look is at all of them
    version = publish(in_folder, "d500")
    unannounced(in_folder, lambda: in_folder.promote("d500", MINE, version, expected=Aliases()))
    looks = 0
    while not watch.changes(resident):
        now += 0.5
        looks += 1
        assert now <= FULL_LOOK
    assert looks > 1
    unannounced(in_folder, lambda: in_folder.delete("d500", publish(in_folder, "d500")))
    now += FULL_LOOK  # the process was stopped
    assert watch.changes(resident) == {"d500"}


def test_two_processes_that_announce_at_once_are_both_heard(
    domains: DomainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([1_000, 1_000, 1_001] if not domains.distant else [])
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks, None) or real())
    publish(domains)
    publish(domains)
    for version in (1, 2):
        promote(domains, version)
    assert len(set(domains.announced())) == 2


@pytest.mark.parametrize("behind", [-3600, 3600])
def test_in_a_folder_the_clocks_of_writers_do_not_matter(
    in_folder: DomainStore, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(in_folder)
    watch = ChangeWatch(in_folder)
    watch.changes({})
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - behind * 10**9)
    promote(in_folder, 1)
    in_folder.storage.announce("law")
    assert watch.changes({}) == {"news", "law"}


def test_old_announcements_are_swept_by_later_ones(in_folder: DomainStore) -> None:
    for _ in range(2):
        publish(in_folder)
    promote(in_folder, 1)
    old = next((in_folder.root / ".changes").iterdir())
    long_ago = old.stat().st_mtime - ANNOUNCED - 1
    os.utime(old, (long_ago, long_ago))
    other = DomainStore(in_folder.root.parent)  # another process
    other.promote("news", MINE, 2, expected=other.aliases("news", MINE))
    assert not old.exists()
    assert len(list(in_folder.announced())) == 1


def test_a_change_that_cannot_be_announced_is_made_all_the_same(in_folder: DomainStore) -> None:
    publish(in_folder)
    watch = ChangeWatch(in_folder)
    watch.changes({"news": frozenset({1})})
    (in_folder.root / ".changes").write_text("in the way")
    promote(in_folder, 1)
    assert in_folder.aliases("news", MINE).champion == 1


def test_a_removed_domain_leaves_nothing_but_its_numbers(domains: DomainStore) -> None:
    for _ in range(2):
        publish(domains)
    promote(domains, 1)
    promote(domains, 2)
    expected = domains.aliases("news", MINE)
    for _ in range(2):  # it may be repeated
        domains.remove("news")
        assert (domains.domains(), domains.versions("news"), domains.was_there("news")) == ([], [], True)
        assert domains.aliases("news", MINE).champion is None
        with pytest.raises(NotFound):
            domains.load("news", 2)
    with pytest.raises(NotFound):
        domains.rollback("news", MINE, expected=replace(expected, revision=domains.aliases("news", MINE).revision))
    assert [garbage.why for garbage in domains.storage.garbage(0)][:1] != ["half deleted"]
    for garbage in domains.storage.garbage(-1):
        garbage.remove()
    assert publish(domains) == 3
    assert promote(domains, 3).champion == 3
    assert domains.domains() == ["news"]


def test_what_began_before_a_domain_was_removed_cannot_publish(domains: DomainStore) -> None:
    version = publish(domains)
    begun = domains.generation("news")
    domains.remove("news")
    with pytest.raises(Conflict, match="deleted after this calibration began"):
        domains.publish("news", manifest(), {}, WEIGHTS, DomainModel(), generation=begun)
    assert domains.versions("news") == []
    anew = domains.publish("news", manifest(), {}, WEIGHTS, DomainModel(), generation=domains.generation("news"))
    assert (version, anew) == (1, 2)
    with pytest.raises(Conflict):
        domains.publish("news", manifest(), {}, WEIGHTS, DomainModel(), generation=begun)


def test_a_damaged_domain_can_be_removed(in_folder: DomainStore) -> None:
    for _ in range(2):
        publish(in_folder)
    begun = in_folder.generation("news")
    (in_folder.root / "news" / "aliases.json").write_text("{")
    (in_folder.root / "news" / "1" / "manifest.json").write_text("{")
    in_folder.remove("news")
    assert in_folder.domains() == []
    with pytest.raises(Conflict):
        in_folder.publish("news", manifest(), {}, WEIGHTS, DomainModel(), generation=begun)
    assert publish(in_folder) == 3


def cut_off(domains: DomainStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no version is buried: the process is killed, or the bucket goes away."""

    def away(domain: str, version: int) -> None:
        raise OSError(f"{domain}@{version}: the bucket is away")

    monkeypatch.setattr(domains.storage, "bury", away)


def test_a_deletion_in_a_bucket_that_was_cut_off_is_answered_as_made_and_goes_on(
    objects: Objects,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domains = DomainStore(objects.bucket())
    for _ in range(2):
        publish(domains)
    promote(domains, 2)
    with monkeypatch.context() as now:
        cut_off(domains, now)
        with pytest.raises(OSError, match="away"):
            domains.delete("news", 1)
    assert domains.versions("news") == [1, 2]
    assert domains.deleted("news", 1)
    assert domains.versions("news") == [2]
    assert not domains.deleted("news", 2)


def test_versions_of_a_domain_that_is_being_removed_from_a_bucket_cannot_be_promoted(
    objects: Objects,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domains = DomainStore(objects.bucket())
    publish(domains)
    with monkeypatch.context() as now:
        cut_off(domains, now)
        with pytest.raises(OSError, match="away"):
            domains.remove("news")
    with pytest.raises(NotFound, match="being deleted"):
        promote(domains, 1)
    domains.remove("news")
    assert promote(domains, publish(domains)) == Aliases(2, None, domains.aliases("news", MINE).revision)


def test_a_version_whose_manifest_is_damaged_can_be_deleted(domains: DomainStore) -> None:
    for _ in range(3):
        publish(domains)
    promote(domains, 3)
    if isinstance(domains.storage, BucketStorage):
        domains.storage.storage.write("domains/manifests/news!1", b"{")
    else:
        (domains.root / "news" / "1" / "manifest.json").write_text("{")
    domains.delete("news", 1)
    assert domains.versions("news") == [2, 3]
    with pytest.raises(NotFound):
        domains.delete("news", 1)
