"""Versions and aliases of domains: numbers, promotion, rollback, deletion."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.adapters.domain_store import Aliases, DomainStore, Weights
from service.core.domain_model import DomainModel
from service.core.errors import Conflict, NotFound
from tests.core.references import REFERENCE
from tests.objects import objects  # noqa: F401 - a fixture

BOTH = ("news", "law")
MINE, THEIRS = "a" * 64, "b" * 64
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
    assert (domains.domains(), domains.versions("news"), domains.changes(["news"])) == ([], [], {})
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
        in_folder.changes(["news"])


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
    assert domains.changes(["typo"]) == {}


def test_pruning_keeps_the_newest_and_those_with_a_name(domains: DomainStore) -> None:
    for _ in range(6):
        publish(domains)
    promote(domains, 1)
    promote(domains, 2)
    assert domains.prune("news", keep=2) == [3, 4]
    assert domains.versions("news") == [1, 2, 5, 6]
    assert domains.prune("news", keep=2) == []
    assert publish(domains) == 7


def test_a_stamp_changes_with_the_aliases_of_its_domain_alone(domains: DomainStore) -> None:
    publish(domains)
    publish(domains)
    publish(domains, "law")
    assert domains.changes(BOTH) == {}
    promote(domains, 1)
    domains.promote("law", MINE, 1, expected=Aliases())
    before = domains.changes(BOTH)
    promote(domains, 2)
    after = domains.changes(BOTH)
    assert before.keys() == after.keys() == {"news", "law"}
    assert before["news"] != after["news"]
    assert before["law"] == after["law"]
