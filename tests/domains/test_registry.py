"""Which calibration answers: resident, pinned, replaced while serving, and kept where its successor cannot be read."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.domains.domain import Domain, Migration, Version
from isosim.domains.registry import Registry
from isosim.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound
from isosim.scoring.advice import Target
from isosim.scoring.calibration import Calibration, DomainModel, DomainRef

pytestmark = pytest.mark.anyio
ENCODER, OTHER = "this-encoder", "other-encoder"
MOVE = Migration(ENCODER, "this", OTHER, "other", "2026-01-02T03:04:05+00:00")
SIZE = 10  # bytes of each calibration


def champions_of(registry: Registry) -> dict[str, Calibration]:
    """The loaded champion of each domain, of the encoder that answers for it."""
    loaded = {name: registry._champion(name) for name in registry._domains}
    return {name: champion for name, champion in loaded.items() if champion is not None and champion.version}


class FakeSource:
    """A store in memory, that can be broken and held."""

    def __init__(self) -> None:
        self.domains: dict[str, Domain] = {}
        self.announced: set[str] = set()
        self.broken: dict[tuple[str, int], Exception] = {}
        self.damaged: set[str] = set()  # domains whose records cannot be read
        self.asked: list[str] = []  # domains that were read
        self.loads: Counter[tuple[str, int]] = Counter()
        self.held: set[tuple[str, int]] | None = None  # loads that wait for `free`; None: all
        self.loading, self.free = threading.Event(), threading.Event()
        self.free.set()

    def write(self, name: str, domain: Domain) -> None:
        """Replaces a record, and announces it."""
        self.domains[name] = replace(domain, revision=self.domains.get(name, Domain()).revision + 1)
        self.announced.add(name)

    def publish(self, name: str, number: int, encoder: str = ENCODER) -> None:
        domain = self.domains.get(name, Domain())
        version = Version(number, encoder, encoder, "flow", {}, f"{name}-{number}", "")
        self.write(name, replace(domain, versions=domain.versions | {number: version}))

    def promote(self, name: str, number: int, encoder: str = ENCODER) -> None:
        if number not in self.domains.get(name, Domain()).versions:
            self.publish(name, number, encoder)
        self.write(name, self.domains[name].promoted(name, encoder, number))

    def move(self, name: str, to: Migration | None) -> None:
        self.write(name, replace(self.domains[name], move=to))

    def save(self, name: str, fmr: float) -> None:
        self.write(name, self.domains[name].with_target(name, "duplicates", Target(fmr)))

    def delete(self, name: str, number: int) -> None:
        versions = {known: version for known, version in self.domains[name].versions.items() if known != number}
        self.write(name, replace(self.domains[name], versions=versions))

    def remove(self, name: str) -> None:
        self.write(name, Domain())

    def changes(self, resident: Collection[str]) -> set[str]:
        found, self.announced = self.announced, set()
        return found

    def read(self, name: str) -> Domain:
        self.asked.append(name)
        if name in self.damaged:
            raise CorruptArtifact(f"the record of {name} is damaged")
        return self.domains.get(name, Domain())

    def load(self, name: str, version: Version) -> Calibration:
        number = version.number
        self.loads[name, number] += 1
        error = self.broken.get((name, number))
        if error is None and number not in self.domains[name].versions:
            error = NotFound(f"domain {name!r} has no version {number}")
        if self.held is None or (name, number) in self.held:
            self.loading.set()
            assert self.free.wait(10)
        if error is not None:
            raise error
        return Calibration(name, number, "flow", version.encoder, size=SIZE)


class Hold:
    """From now on, loads of these versions (of all, if there are none) wait until `go`."""

    def __init__(self, source: FakeSource, *versions: tuple[str, int]) -> None:
        self.source = source
        source.held = set(versions) or None
        source.loading.clear()
        source.free.clear()

    async def until_loading(self) -> None:
        assert await asyncio.to_thread(self.source.loading.wait, 10)

    def go(self) -> None:
        self.source.free.set()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def registry(source: FakeSource) -> Registry:
    return Registry(source, ENCODER)


async def version(registry: Registry, ref: str) -> int:
    return (await registry.resolve(DomainRef.parse(ref))).version


async def test_default_without_a_version_is_the_identity_of_version_0(registry: Registry) -> None:
    for ref in ("default", "default@0"):
        found = await registry.resolve(DomainRef.parse(ref))
        assert (found.domain, found.version, found.method) == ("default", 0, "identity")
        assert (found.transform, found.model) == (None, DomainModel())


async def test_an_unknown_domain_is_not_found_and_one_of_another_encoder_is_a_mismatch(
    source: FakeSource, registry: Registry
) -> None:
    source.publish("theirs", 1, OTHER)
    with pytest.raises(EncoderMismatch, match="theirs"):
        await version(registry, "theirs")
    for ref in ("nobody", "nobody@1", "nobody@previous", "theirs@7"):
        with pytest.raises(NotFound):
            await version(registry, ref)


async def test_a_champion_is_loaded_once(source: FakeSource, registry: Registry) -> None:
    source.promote("news", 1)
    assert await registry.resolve(DomainRef("news")) is await registry.resolve(DomainRef("news"))
    assert source.loads == {("news", 1): 1}


async def test_callers_who_ask_for_a_champion_at_the_same_time_get_the_same(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    found = await asyncio.gather(*(registry.resolve(DomainRef("news")) for _ in range(5)))
    assert len({id(calibration) for calibration in found}) == 1
    assert source.loads == {("news", 1): 1}


async def test_a_refresh_takes_a_new_champion_over_and_what_was_resolved_before_stays(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    before = await registry.resolve(DomainRef("news"))
    source.promote("news", 2)
    assert await version(registry, "news") == 1
    await registry.refresh()
    assert await version(registry, "news") == 2
    assert before.version == 1
    source.write("news", source.domains["news"].rolled_back("news", ENCODER))
    await registry.refresh()
    assert await version(registry, "news") == 1


async def test_a_start_loads_default_alone_and_a_refresh_reads_only_what_is_resident_and_changed(
    source: FakeSource, registry: Registry
) -> None:
    for domain in ("default", "news", "films", "law"):
        source.promote(domain, 1)
    await registry.refresh()
    assert champions_of(registry).keys() == {"default"}
    await version(registry, "news")
    await registry.refresh()
    source.asked.clear()
    for domain in ("news", "law"):
        source.promote(domain, 2)
    for _ in range(3):
        await registry.refresh()
    assert source.asked == ["news"]
    assert source.loads == {("default", 1): 1, ("news", 1): 1, ("news", 2): 1}
    assert await version(registry, "law") == 2


async def test_no_more_bytes_are_resident_than_allowed_and_the_longest_unasked_go_first(source: FakeSource) -> None:
    told: list[str] = []
    registry = Registry(source, ENCODER, resident_bytes=3 * SIZE, on_dropped=told.append)
    for domain in ("a", "b", "c"):
        source.promote(domain, 1)
        source.promote(domain, 2)
    for ref in ("a", "b", "a@1", "a", "c", "a@previous"):
        await version(registry, ref)
        assert registry.size <= 3 * SIZE
    assert (set(champions_of(registry)), told) == ({"a", "c"}, ["b"])
    for ref in ("a", "a@1", "c"):
        await version(registry, ref)
    assert source.loads == {("a", 2): 1, ("b", 2): 1, ("a", 1): 1, ("c", 2): 1}
    await version(registry, "b")
    assert source.loads["b", 2] == 2


async def test_a_pinned_version_that_is_asked_for_stays_before_one_that_is_not(source: FakeSource) -> None:
    registry = Registry(source, ENCODER, resident_bytes=2 * SIZE)
    for domain in ("a", "b", "c"):
        source.promote(domain, 1)
    for ref in ("a@1", "b@1", "a@1", "c@1", "a@1"):
        await version(registry, ref)
    assert source.loads["a", 1] == 1
    await version(registry, "b@1")
    assert source.loads["b", 1] == 2


async def test_the_champion_of_default_stays_whatever_else_is_asked_for(source: FakeSource) -> None:
    registry = Registry(source, ENCODER, resident_bytes=SIZE // 2)
    for domain in ("default", "news"):
        source.promote(domain, 1)
    await registry.refresh()
    held = await registry.resolve(DomainRef("news"))
    assert (held.domain, held.version) == ("news", 1)  # a request that holds it uses it to the end
    assert champions_of(registry).keys() == {"default"}
    assert registry.size == SIZE
    for _ in range(2):
        await registry.refresh()
    assert source.loads == {("default", 1): 1, ("news", 1): 1}


async def test_a_domain_that_went_for_want_of_room_comes_back_with_the_champion_of_that_moment(
    source: FakeSource,
) -> None:
    registry = Registry(source, ENCODER, resident_bytes=SIZE)
    for domain in ("a", "b"):
        source.promote(domain, 1)
    await version(registry, "a")
    await registry.refresh()
    await version(registry, "b")
    source.promote("a", 2)
    assert await version(registry, "a") == 2
    await registry.refresh()
    assert source.loads == {("a", 1): 1, ("b", 1): 1, ("a", 2): 1}


async def test_a_caller_who_leaves_does_not_end_the_load_others_wait_for(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    hold = Hold(source)
    first, second = (asyncio.create_task(registry.resolve(DomainRef("news"))) for _ in range(2))
    await hold.until_loading()
    first.cancel()
    await asyncio.sleep(0)
    hold.go()
    assert (await second).version == 1
    assert source.loads == {("news", 1): 1}


async def test_a_first_version_of_default_replaces_the_identity(source: FakeSource, registry: Registry) -> None:
    await registry.refresh()
    assert await version(registry, "default") == 0
    source.promote("default", 1)
    await registry.refresh()
    assert source.loads == {("default", 1): 1}  # before anybody asks
    assert await version(registry, "default") == 1
    assert await version(registry, "default@0") == 0


@pytest.mark.parametrize("error", [CorruptArtifact("weights"), OSError("gone"), NotFound("deleted")], ids=repr)
async def test_a_champion_that_cannot_be_loaded_leaves_the_one_before_and_the_other_domains_alone(
    source: FakeSource, error: Exception
) -> None:
    failed: list[str] = []
    registry = Registry(source, ENCODER, on_failure=failed.append)
    for domain in ("a", "b", "c"):
        source.promote(domain, 1)
        await version(registry, domain)
    source.broken["b", 2] = error
    for domain in ("a", "b", "c"):
        source.promote(domain, 2)
    await registry.refresh()
    assert [await version(registry, domain) for domain in ("a", "b", "c")] == [2, 1, 2]
    assert failed == ["b"]


@pytest.mark.parametrize("error", [CorruptArtifact("weights"), OSError("gone"), NotFound("not yet here")], ids=repr)
async def test_a_champion_that_could_not_be_loaded_is_tried_again(
    source: FakeSource, registry: Registry, error: Exception
) -> None:
    source.promote("news", 1)
    await version(registry, "news")
    source.broken["news", 2] = error
    source.promote("news", 2)
    assert not registry.behind
    await registry.refresh()
    assert registry.behind
    source.broken.clear()
    await registry.refresh()
    assert await version(registry, "news") == 2
    assert not registry.behind


async def test_it_is_tried_ever_more_rarely_said_once_and_counted_every_time(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []
    registry = Registry(source, ENCODER, on_failure=failed.append)
    source.promote("news", 1)
    await version(registry, "news")
    source.broken["news", 2] = CorruptArtifact("weights")
    source.promote("news", 2)
    for _ in range(1 + 1 + 2 + 4 + 8):
        await registry.refresh()
    assert source.loads["news", 2] == len(failed) == 5
    assert len(caplog.records) == 1
    source.promote("news", 3)  # another one is looked at at once
    await registry.refresh()
    assert await version(registry, "news") == 3


async def test_a_champion_that_is_not_there_is_the_domains_fault_and_not_the_callers(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    source.delete("news", 1)
    with pytest.raises(CorruptArtifact, match="champion of 'news' is missing"):
        await version(registry, "news")
    with pytest.raises(NotFound):
        await version(registry, "news@1")


async def test_a_promotion_while_the_first_champion_is_being_loaded_is_not_missed(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    hold = Hold(source)
    first = asyncio.create_task(registry.resolve(DomainRef("news")))
    await hold.until_loading()
    source.promote("news", 2)
    refreshed = asyncio.create_task(registry.refresh())
    await asyncio.sleep(0.05)
    hold.go()
    await asyncio.gather(first, refreshed)
    await registry.refresh()
    assert await version(registry, "news") == 2


async def test_everyone_is_told_of_a_new_champion_once(source: FakeSource) -> None:
    told: list[tuple[str, int]] = []
    registry = Registry(source, ENCODER, on_champion=lambda c: told.append((c.domain, c.version)))
    source.promote("news", 1)
    await version(registry, "news")
    await registry.refresh()
    await version(registry, "news")
    source.promote("news", 2)
    await registry.refresh()
    assert told == [("news", 1), ("news", 2)]


async def test_a_domain_that_has_gone_is_forgotten(source: FakeSource) -> None:
    dropped: list[str] = []
    registry = Registry(source, ENCODER, on_dropped=dropped.append)
    source.promote("news", 1)
    await version(registry, "news")
    source.remove("news")
    await registry.refresh()
    assert dropped == ["news"]
    with pytest.raises(NotFound):
        await version(registry, "news")


async def test_a_pinned_version_that_another_process_deleted_is_not_served_on(
    source: FakeSource, registry: Registry
) -> None:
    for number in (1, 2):
        source.promote("news", number)
    await version(registry, "news@1")  # the champion is not resident
    await registry.refresh()
    source.delete("news", 1)
    await registry.refresh()
    with pytest.raises(NotFound):
        await version(registry, "news@1")
    assert await version(registry, "news") == 2


async def test_a_version_that_is_deleted_while_it_is_being_loaded_is_not_served_on(
    source: FakeSource, registry: Registry
) -> None:
    for number in (1, 2):
        source.promote("news", number)
    hold = Hold(source)
    asked = asyncio.create_task(version(registry, "news@1"))
    await hold.until_loading()
    source.delete("news", 1)
    await registry.refresh()
    hold.go()
    assert await asked == 1
    await registry.refresh()
    assert registry.size == 0


async def test_every_version_of_a_domain_that_has_gone_goes(source: FakeSource) -> None:
    gone: list[str] = []
    registry = Registry(source, ENCODER, on_gone=gone.append)
    for number in (1, 2):
        source.promote("news", number)
    for ref in ("news", "news@1"):
        await version(registry, ref)
    source.remove("news")
    await registry.refresh()
    assert (registry.size, gone) == (0, ["news"])
    for ref in ("news", "news@1", "news@previous"):
        with pytest.raises(NotFound):
            await version(registry, ref)


async def test_that_a_domain_has_gone_is_told_also_where_it_went_for_want_of_room_before(source: FakeSource) -> None:
    gone: list[str] = []
    registry = Registry(source, ENCODER, resident_bytes=SIZE, on_gone=gone.append)
    for domain in ("a", "b"):
        source.promote(domain, 1)
        await version(registry, domain)
    source.remove("a")
    await registry.refresh()
    assert gone == ["a"]


async def test_a_domain_that_goes_for_want_of_room_while_its_broken_champion_is_read_stops_no_refresh(
    source: FakeSource,
) -> None:
    failed: list[str] = []
    registry = Registry(source, ENCODER, resident_bytes=SIZE, on_failure=failed.append)
    for domain in ("a", "b"):
        source.promote(domain, 1)
    await version(registry, "a")
    await registry.refresh()
    source.broken["a", 2] = CorruptArtifact("weights")
    source.promote("a", 2)
    hold = Hold(source, ("a", 2))
    refreshed = asyncio.create_task(registry.refresh())
    await hold.until_loading()
    await version(registry, "b")
    hold.go()
    await refreshed
    source.promote("b", 2)
    await registry.refresh()
    assert (failed, await version(registry, "b")) == (["a"], 2)


async def test_a_change_by_this_process_is_taken_over_also_where_it_could_not_be_announced(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    await version(registry, "news")
    await registry.refresh()
    source.promote("news", 2)
    source.announced.clear()
    await registry.refresh("news")
    assert await version(registry, "news") == 2


async def test_what_changed_is_taken_over_after_a_caller_of_refresh_has_gone(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    await version(registry, "news")
    await registry.refresh()
    source.promote("news", 2)
    hold = Hold(source)
    refreshed = asyncio.create_task(registry.refresh())
    await hold.until_loading()
    refreshed.cancel()
    hold.go()
    await asyncio.gather(refreshed, return_exceptions=True)
    await registry.refresh()
    assert await version(registry, "news") == 2


async def test_a_pinned_version_and_the_previous_one_answer_beside_the_champion(
    source: FakeSource, registry: Registry
) -> None:
    for number in (1, 2, 3):
        source.promote("news", number)
    await registry.refresh()
    assert [await version(registry, ref) for ref in ("news", "news@1", "news@previous", "news@3")] == [3, 1, 2, 3]
    assert await registry.resolve(DomainRef("news", 3)) is champions_of(registry)["news"]
    assert source.loads == {("news", 3): 1, ("news", 1): 1, ("news", 2): 1}


async def test_a_domain_with_one_version_has_no_previous_one(source: FakeSource, registry: Registry) -> None:
    source.promote("news", 1)
    with pytest.raises(NotFound, match="no previous"):
        await version(registry, "news@previous")


async def test_a_dropped_version_is_asked_for_again(source: FakeSource, registry: Registry) -> None:
    source.promote("news", 1)
    source.promote("news", 2)
    await version(registry, "news@1")
    source.delete("news", 1)
    source.announced.clear()
    registry.drop("news", 1)
    with pytest.raises(NotFound):
        await version(registry, "news@1")


async def test_a_pinned_version_that_cannot_be_read_is_an_error_of_that_request_alone(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    source.promote("news", 2)
    source.broken["news", 1] = CorruptArtifact("weights.safetensors")
    with pytest.raises(IsosimError, match="weights"):
        await version(registry, "news@1")
    assert await version(registry, "news") == 2


async def test_a_domain_that_cannot_be_read_and_is_resident_no_more_is_left_alone(source: FakeSource) -> None:
    failures: list[str] = []
    registry = Registry(source, ENCODER, resident_bytes=SIZE, on_failure=failures.append)
    for domain in ("news", "films"):
        source.promote(domain, 1)
    await version(registry, "news@1")
    source.damaged.add("news")
    await registry.refresh()
    await version(registry, "films@1")  # `news@1` goes for want of room
    for _ in range(3):
        await registry.refresh()
    told = len(failures)
    for _ in range(3):
        await registry.refresh()
    assert failures[told:] == []


async def saved(registry: Registry, domain: str = "news") -> float | None:
    try:
        return (await registry.target(domain, "duplicates")).fmr
    except NotFound:
        return None


async def test_saved_targets_come_with_the_champion_and_cost_no_other_look_at_the_store(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    source.save("news", 0.1)
    await registry.resolve(DomainRef("news"))
    looks = len(source.asked)
    assert [await saved(registry) for _ in range(3)] == [0.1] * 3
    assert len(source.asked) == looks == 1


async def test_a_refresh_takes_over_saved_targets_of_champions_and_of_pinned_versions(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    source.promote("law", 1)
    source.save("news", 0.1)
    source.save("law", 0.1)
    await registry.resolve(DomainRef("news"))
    await registry.resolve(DomainRef("law", 1))
    for domain in ("news", "law"):
        assert await saved(registry, domain) == 0.1
    assert source.asked.count("law") == 1  # a pinned version brings them too
    await registry.refresh()
    for domain in ("news", "law"):
        source.save(domain, 0.2)
        assert await saved(registry, domain) == 0.1
    await registry.refresh()
    for domain in ("news", "law"):
        assert await saved(registry, domain) == 0.2


async def test_saved_targets_are_taken_over_with_a_promotion_and_where_it_cannot_be_loaded(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    await registry.resolve(DomainRef("news"))
    source.promote("news", 2)
    source.save("news", 0.1)
    await registry.refresh()
    looks = len(source.asked)
    assert (await version(registry, "news"), await saved(registry)) == (2, 0.1)
    assert len(source.asked) == looks
    source.broken["news", 3] = CorruptArtifact("broken")
    source.promote("news", 3)
    source.save("news", 0.2)
    await registry.refresh()
    assert (await version(registry, "news"), await saved(registry)) == (2, 0.2)


async def test_saved_targets_of_what_is_not_resident_are_read_each_time(source: FakeSource) -> None:
    registry = Registry(source, ENCODER, resident_bytes=SIZE)
    for domain in ("news", "law"):  # the second takes the first one's room
        source.promote(domain, 1)
        source.save(domain, 0.1)
        await registry.resolve(DomainRef(domain))
    source.save("news", 0.2)
    assert await saved(registry) == 0.2
    source.save("news", 0.3)
    assert await saved(registry) == 0.3
    await registry.refresh()
    source.save("news", 0.4)
    assert await saved(registry) == 0.4


async def test_a_name_saved_since_the_last_refresh_is_found_at_once(source: FakeSource, registry: Registry) -> None:
    """Another replica has saved it, and the news of it may be on its way."""
    source.promote("news", 1)
    await registry.resolve(DomainRef("news"))
    await registry.refresh()
    assert await saved(registry) is None
    source.save("news", 0.1)
    assert await saved(registry) == 0.1
    looks = len(source.asked)
    assert await saved(registry) == 0.1
    assert len(source.asked) == looks


async def test_a_deleted_domain_takes_its_saved_targets_along(source: FakeSource, registry: Registry) -> None:
    source.promote("news", 1)
    source.save("news", 0.1)
    await registry.resolve(DomainRef("news"))
    source.remove("news")
    registry.remove("news")
    assert await saved(registry) is None
    source.promote("news", 2)
    await registry.resolve(DomainRef("news"))
    assert await saved(registry) is None


async def test_each_encoder_has_a_champion_and_a_previous_version_of_its_own(
    source: FakeSource, registry: Registry
) -> None:
    registry.add(OTHER)
    for number, encoder in enumerate((ENCODER, ENCODER, OTHER, OTHER), 1):
        source.promote("news", number, encoder)
    answers = {
        (ref, encoder): (await registry.resolve(DomainRef.parse(ref), encoder)).version
        for ref in ("news", "news@previous", "news@3")
        for encoder in (None, ENCODER, OTHER)
    }
    assert answers == {
        ("news", None): 2, ("news", ENCODER): 2, ("news", OTHER): 4,
        ("news@previous", None): 1, ("news@previous", ENCODER): 1, ("news@previous", OTHER): 3,
        ("news@3", None): 3, ("news@3", ENCODER): 3, ("news@3", OTHER): 3,
    }  # fmt: skip
    assert champions_of(registry)["news"].version == 2
    assert set(source.loads.values()) == {1}


async def test_a_refresh_replaces_the_champions_of_both_encoders_and_tells_of_the_one_that_answers(
    source: FakeSource,
) -> None:
    told: list[int] = []
    registry = Registry(source, ENCODER, on_champion=lambda champion: told.append(champion.version))
    registry.add(OTHER)
    for number, encoder in ((1, ENCODER), (2, OTHER)):
        source.promote("news", number, encoder)
        await registry.resolve(DomainRef("news"), encoder)
    source.promote("news", 3, OTHER)
    await registry.refresh()
    source.promote("news", 4, ENCODER)
    await registry.refresh()
    assert [(await registry.resolve(DomainRef("news"), encoder)).version for encoder in (ENCODER, OTHER)] == [4, 3]
    assert told == [1, 4]
    assert registry.size == 2 * SIZE


async def test_the_identity_is_default_of_each_encoder_until_it_has_a_champion(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("default", 1, OTHER)
    await registry.refresh()
    assert source.loads == {}
    registry.add(OTHER)
    await registry.refresh()
    assert source.loads == {("default", 1): 1}
    found = [await registry.resolve(DomainRef("default"), encoder) for encoder in (ENCODER, OTHER)]
    assert [(one.version, one.encoder) for one in found] == [(0, ENCODER), (1, OTHER)]


async def test_a_broken_champion_of_one_encoder_keeps_that_of_the_other_from_nothing(
    source: FakeSource, registry: Registry
) -> None:
    registry.add(OTHER)
    for number, encoder in ((1, ENCODER), (2, OTHER)):
        source.promote("news", number, encoder)
        await registry.resolve(DomainRef("news"), encoder)
    source.broken["news", 3] = CorruptArtifact("weights")
    source.promote("news", 3, ENCODER)
    source.promote("news", 4, OTHER)
    await registry.refresh()
    assert [(await registry.resolve(DomainRef("news"), encoder)).version for encoder in (ENCODER, OTHER)] == [1, 4]
    assert registry.behind


async def test_a_move_changes_who_answers_and_is_told(source: FakeSource) -> None:
    told: list[tuple[str, int | None]] = []
    registry = Registry(
        source,
        ENCODER,
        on_champion=lambda champion: told.append((champion.domain, champion.version)),
        on_dropped=lambda domain: told.append((domain, None)),
    )
    registry.add(OTHER)
    for name in ("warm", "cold"):
        source.promote(name, 1, ENCODER)
        source.promote(name, 2, OTHER)
        await version(registry, name)
    await registry.resolve(DomainRef("warm"), OTHER)  # the other champion is in memory already
    assert registry.homes == {ENCODER}
    for name in ("warm", "cold"):
        source.move(name, MOVE)
    before = await registry.resolve(DomainRef("warm"))
    await registry.refresh()
    assert (before.version, registry.is_champion(before)) == (1, False)
    assert sorted(told[2:], key=str) == [("cold", None), ("warm", 2)]
    assert champions_of(registry).keys() == {"warm"}
    assert registry.homes == {ENCODER, OTHER}
    assert [await version(registry, name) for name in ("warm", "cold")] == [2, 2]
    assert told[-1] == ("cold", 2)
    assert (await registry.resolve(DomainRef("warm"), ENCODER)).version == 1
    source.move("warm", None)
    await registry.refresh()
    assert await version(registry, "warm") == 1
    assert told[-1] == ("warm", 1)


async def test_a_domain_that_moved_to_an_encoder_that_is_not_run_is_refused_except_by_number(
    source: FakeSource,
) -> None:
    dropped: list[str] = []
    registry = Registry(source, ENCODER, on_dropped=dropped.append)
    for name in ("news", "default"):
        source.promote(name, 1)
        await version(registry, name)
        source.move(name, MOVE)
    await registry.refresh()
    assert sorted(dropped) == ["default", "news"]
    for ref in ("news", "news@previous", "default"):
        with pytest.raises(EncoderMismatch, match="has moved to encoder other"):
            await version(registry, ref)
    assert await version(registry, "news@1") == 1
    assert champions_of(registry) == {}


async def test_a_move_is_seen_by_the_next_read_before_a_refresh(source: FakeSource) -> None:
    dropped: list[str] = []
    registry = Registry(source, ENCODER, on_dropped=dropped.append)
    source.promote("news", 1)
    await version(registry, "news")
    source.move("news", MOVE)
    with pytest.raises(NotFound):
        await registry.target("news", "duplicates")  # reads the record
    assert dropped == ["news"]
    with pytest.raises(EncoderMismatch):
        await version(registry, "news")


async def test_a_damaged_record_leaves_the_champion_serving_and_other_domains_alone(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []
    registry = Registry(source, ENCODER, on_failure=failed.append)
    for name in ("news", "law"):
        for number in (1, 2):
            source.promote(name, number)
        await version(registry, name)
    source.damaged.add("news")
    for name in ("news", "law"):
        source.promote(name, 3)
    await registry.refresh()
    assert [await version(registry, name) for name in ("news", "law")] == [2, 3]
    assert (failed, registry.behind, len(caplog.records)) == (["news"], True, 1)
    for ref in ("news@1", "news@previous"):  # not in memory
        with pytest.raises(CorruptArtifact, match="record of news"):
            await version(registry, ref)
    assert (failed, len(caplog.records)) == (["news"], 1)  # the champion goes on, so no request of it has failed
    source.damaged.clear()
    await registry.refresh()
    assert (await version(registry, "news"), registry.behind) == (3, False)


async def test_a_domain_whose_record_is_damaged_is_refused_and_counted_each_time_and_logged_once(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []
    registry = Registry(source, ENCODER, on_failure=failed.append)
    source.promote("news", 1)
    source.damaged.add("news")
    for _ in range(3):
        with pytest.raises(CorruptArtifact):
            await version(registry, "news")
    assert (failed, len(caplog.records)) == (["news"] * 3, 1)
    source.damaged.clear()
    assert await version(registry, "news") == 1


async def test_a_successor_takes_the_room_of_its_champion_and_of_nobody_else(source: FakeSource) -> None:
    dropped: list[str] = []
    registry = Registry(source, ENCODER, resident_bytes=2 * SIZE, on_dropped=dropped.append)
    for name in ("a", "b"):
        source.promote(name, 1)
        await version(registry, name)
    source.promote("b", 2)
    await registry.refresh()
    assert {name: champion.version for name, champion in champions_of(registry).items()} == {"a": 1, "b": 2}
    assert dropped == []


async def test_of_a_champion_that_has_no_room_it_is_told_that_it_came_and_then_that_it_went(
    source: FakeSource,
) -> None:
    told: list[str] = []
    registry = Registry(
        source,
        ENCODER,
        resident_bytes=SIZE // 2,
        on_champion=lambda champion: told.append(f"{champion.domain} came"),
        on_dropped=lambda domain: told.append(f"{domain} went"),
    )
    source.promote("news", 1)
    assert await version(registry, "news") == 1
    assert told == ["news came", "news went"]


async def test_a_champion_that_is_asked_for_by_number_at_the_same_time_is_in_memory_once(source: FakeSource) -> None:
    dropped: list[str] = []
    registry = Registry(source, ENCODER, resident_bytes=SIZE, on_dropped=dropped.append)
    for name in ("news", "law"):
        source.promote(name, 1)
    hold = Hold(source)
    asked = [asyncio.create_task(registry.resolve(DomainRef.parse(ref))) for ref in ("news", "news@1")]
    await hold.until_loading()
    hold.go()
    first, second = await asyncio.gather(*asked)
    assert first is second is champions_of(registry)["news"]
    await version(registry, "law")
    assert (dropped, registry.size) == (["news"], SIZE)


async def test_a_domain_that_is_deleted_while_its_champion_is_loaded_is_unknown_and_not_damaged(
    source: FakeSource,
) -> None:
    failed: list[str] = []
    registry = Registry(source, ENCODER, on_failure=failed.append)
    source.promote("news", 1)
    read = source.read

    def deleted_after(name: str) -> Domain:
        found = read(name)
        source.remove(name)
        return found

    source.read = deleted_after  # type: ignore[method-assign]
    with pytest.raises(NotFound, match="news"):
        await version(registry, "news")
    assert failed == []


async def test_a_record_that_was_put_back_from_an_older_copy_is_taken_over(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    source.save("news", 0.1)
    older = source.domains["news"]
    source.promote("news", 2)
    source.save("news", 0.2)
    assert (await version(registry, "news"), await saved(registry)) == (2, 0.2)
    await registry.refresh()
    source.domains["news"] = older
    await registry.refresh("news")
    assert (await version(registry, "news"), await saved(registry)) == (1, 0.1)


class Interleaved:
    """Calls of the store, each of which returns what it read when it began, but only when the test lets it end."""

    deadline = 60.0

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        ended = asyncio.Event()
        self.waiting.append(ended)
        try:
            result = function(*args)
        except IsosimError as error:
            result = error
        await ended.wait()
        if isinstance(result, IsosimError):
            raise result
        return result

    async def settle(self) -> None:
        """Returns when all tasks wait for calls."""
        for _ in range(20):
            await asyncio.sleep(0)

    def end(self, which: int) -> None:
        if self.waiting:
            self.waiting.pop(which % len(self.waiting)).set()


class Serving:
    """A registry whose calls end in any order, and those who ask it."""

    def __init__(self, room: int, calls: Interleaved) -> None:
        self.room, self.calls, self.source = room, calls, FakeSource()
        self.told: dict[str, int] = {}  # champions, as the registry tells of them
        self.registry = Registry(
            self.source,
            ENCODER,
            resident_bytes=room * SIZE,
            calls=calls,  # type: ignore[arg-type]
            on_champion=lambda champion: self.told.update({champion.domain: champion.version}),
            on_dropped=self.forget,
        )
        self.registry.add(OTHER)
        self.numbers = count(1)
        self.tasks: list[asyncio.Task[Any]] = []

    def forget(self, name: str) -> None:
        del self.told[name]

    def ask(self, name: str, alias: int | str, encoder: str | None) -> None:
        self.tasks.append(asyncio.create_task(self.registry.resolve(DomainRef(name, alias), encoder)))

    def refresh(self, name: str | None) -> None:
        self.tasks.append(asyncio.create_task(self.registry.refresh(name)))

    def end(self, which: int) -> None:
        self.calls.end(which)

    def promote(self, name: str, encoder: str) -> None:
        self.source.promote(name, next(self.numbers), encoder)

    def move(self, name: str, to: Migration | None) -> None:
        if name in self.source.domains:
            self.source.move(name, to)

    def remove(self, name: str) -> None:
        self.source.remove(name)
        self.registry.remove(name)

    def damage(self, name: str, number: int) -> None:
        self.source.broken[name, number] = CorruptArtifact("weights")

    def check(self) -> None:
        assert self.told == {name: champion.version for name, champion in champions_of(self.registry).items()}
        assert self.registry.size <= max(self.room, 2) * SIZE  # both champions of `default` stay

    async def finish(self, last: Coroutine[Any, Any, Any]) -> Any:
        """Lets all calls end, the oldest first; the result of `last`."""
        self.tasks.append(asyncio.create_task(last))
        while not all(task.done() for task in self.tasks):
            self.end(0)
            await self.calls.settle()
        return await self.tasks[-1]

    async def check_end(self) -> None:
        """After two refreshes of a store that has become whole, all answers are the store's."""
        self.source.broken.clear()
        for _ in range(2):
            await self.finish(self.registry.refresh())
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert [one for one in ended if isinstance(one, Exception) and not isinstance(one, IsosimError)] == []
        assert not self.registry.behind
        for (name, domain), encoder in product(self.source.domains.items(), (ENCODER, OTHER)):
            aliases = domain.served(encoder)
            for alias, number in (("champion", aliases.champion), ("previous", aliases.previous)):
                if number is not None:
                    found = await self.finish(self.registry.resolve(DomainRef(name, alias), encoder))
                    assert (found.version, found.encoder) == (number, encoder)
            if not domain.versions and name != "default":
                with pytest.raises(NotFound):
                    await self.finish(self.registry.resolve(DomainRef(name), encoder))
            self.check()


DOMAINS, ENCODERS = st.sampled_from(["default", "news", "law"]), st.sampled_from([ENCODER, OTHER])
ALIASES = st.sampled_from(["champion", "champion", "previous", 1, 2, 3])
STEPS = st.one_of(
    st.tuples(st.just(Serving.ask), DOMAINS, ALIASES, st.none() | ENCODERS),
    st.tuples(st.just(Serving.refresh), st.none() | DOMAINS),
    st.tuples(st.just(Serving.end), st.integers(0, 5)),
    st.tuples(st.just(Serving.end), st.integers(0, 5)),
    st.tuples(st.just(Serving.promote), DOMAINS, ENCODERS),
    st.tuples(st.just(Serving.move), DOMAINS, st.sampled_from([MOVE, None])),
    st.tuples(st.just(Serving.remove), DOMAINS),
    st.tuples(st.just(Serving.damage), DOMAINS, st.integers(1, 5)),
)


async def interleave(steps: list[tuple[Any, ...]], room: int, patch: pytest.MonkeyPatch) -> None:
    calls = Interleaved()
    patch.setattr(asyncio, "to_thread", calls)
    serving = Serving(room, calls)
    for step, *arguments in steps:
        step(serving, *arguments)
        await calls.settle()
        serving.check()
    await serving.check_end()


@given(st.lists(STEPS, max_size=30), st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_in_whatever_order_calls_end_the_registry_comes_to_what_the_store_says(
    steps: list[tuple[Any, ...]], room: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(interleave(steps, room, patch))
