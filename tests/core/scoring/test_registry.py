"""Which calibration answers: resident, pinned, replaced while serving, and kept where its successor cannot be read."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from isosim.scoring.registry import DomainAliases, Registry

from isosim.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound
from isosim.scoring.advice import Target
from isosim.scoring.calibration import Calibration, DomainModel, DomainRef

pytestmark = pytest.mark.anyio
ENCODER = "this-encoder"
SIZE = 10  # bytes of each calibration


class FakeSource:
    """A store in memory, that can be broken and held."""

    def __init__(self) -> None:
        self.versions: set[tuple[str, int]] = set()
        self.aliases: dict[str, DomainAliases] = {}
        self.announced: set[str] = set()
        self.broken: dict[tuple[str, int], Exception] = {}
        self.asked: list[str] = []  # domains that were read
        self.loads: Counter[tuple[str, int]] = Counter()
        self.held: set[tuple[str, int]] | None = None  # loads that wait for `free`; None: all
        self.loading, self.free = threading.Event(), threading.Event()
        self.free.set()

    def promote(self, domain: str, version: int) -> None:
        self.versions.add((domain, version))
        before = self.aliases.get(domain, DomainAliases(None, None))
        self.aliases[domain] = DomainAliases(version, before.champion, before.targets)
        self.announced.add(domain)

    def save(self, domain: str, fmr: float) -> None:
        self.aliases[domain] = replace(self.aliases[domain], targets={"duplicates": Target(fmr)})
        self.announced.add(domain)

    def delete(self, domain: str, version: int) -> None:
        self.versions.discard((domain, version))
        self.announced.add(domain)

    def remove(self, domain: str) -> None:
        self.versions = {known for known in self.versions if known[0] != domain}
        del self.aliases[domain]
        self.announced.add(domain)

    def changes(self, resident: Mapping[str, frozenset[int]]) -> set[str]:
        found, self.announced = self.announced, set()
        return found

    def named(self, domain: str) -> DomainAliases:
        self.asked.append(domain)
        return self.aliases.get(domain, DomainAliases(None, None))

    def missing(self, domain: str, versions: Iterable[int]) -> set[int]:
        return {version for version in versions if (domain, version) not in self.versions}

    def exists(self, domain: str) -> bool:
        return any(name == domain for name, _ in self.versions)

    def load(self, domain: str, version: int) -> Calibration:
        self.loads[domain, version] += 1
        error = self.broken.get((domain, version))
        if error is None and (domain, version) not in self.versions:
            error = NotFound(f"domain {domain!r} has no version {version}")
        if self.held is None or (domain, version) in self.held:
            self.loading.set()
            assert self.free.wait(10)
        if error is not None:
            raise error
        return Calibration(domain, version, "flow", ENCODER, size=SIZE)


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
    source.versions.add(("theirs", 1))
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
    source.aliases["news"] = DomainAliases(1, 2)  # a rollback
    source.announced.add("news")
    await registry.refresh()
    assert await version(registry, "news") == 1


async def test_a_start_loads_default_alone_and_a_refresh_reads_only_what_is_resident_and_changed(
    source: FakeSource, registry: Registry
) -> None:
    for domain in ("default", "news", "films", "law"):
        source.promote(domain, 1)
    await registry.refresh()
    assert registry.champions.keys() == {"default"}
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
    assert (registry.champions.keys(), told) == ({"a", "c"}, ["b"])
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
    assert registry.champions.keys() == {"default"}
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
    source.loading.clear()
    source.free.clear()
    first, second = (asyncio.create_task(registry.resolve(DomainRef("news"))) for _ in range(2))
    await asyncio.to_thread(source.loading.wait, 10)
    first.cancel()
    await asyncio.sleep(0)
    source.free.set()
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
    source.versions.clear()
    with pytest.raises(CorruptArtifact, match="champion of 'news' is missing"):
        await version(registry, "news")
    with pytest.raises(NotFound):
        await version(registry, "news@1")


async def test_a_promotion_while_the_first_champion_is_being_loaded_is_not_missed(
    source: FakeSource, registry: Registry
) -> None:
    source.promote("news", 1)
    source.loading.clear()
    source.free.clear()
    first = asyncio.create_task(registry.resolve(DomainRef("news")))
    await asyncio.to_thread(source.loading.wait, 10)
    source.promote("news", 2)
    refreshed = asyncio.create_task(registry.refresh())
    await asyncio.sleep(0.05)
    source.free.set()
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
    source.loading.clear()
    source.free.clear()
    asked = asyncio.create_task(version(registry, "news@1"))
    await asyncio.to_thread(source.loading.wait, 10)
    source.delete("news", 1)
    await registry.refresh()
    source.free.set()
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
    source.held = {("a", 2)}
    source.loading.clear()
    source.free.clear()
    refreshed = asyncio.create_task(registry.refresh())
    await asyncio.to_thread(source.loading.wait, 10)
    await version(registry, "b")
    source.free.set()
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
    source.loading.clear()
    source.free.clear()
    refreshed = asyncio.create_task(registry.refresh())
    await asyncio.to_thread(source.loading.wait, 10)
    refreshed.cancel()
    source.free.set()
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
    assert await registry.resolve(DomainRef("news", 3)) is registry.champions["news"]
    assert source.loads == {("news", 3): 1, ("news", 1): 1, ("news", 2): 1}


async def test_a_domain_with_one_version_has_no_previous_one(source: FakeSource, registry: Registry) -> None:
    source.promote("news", 1)
    with pytest.raises(NotFound, match="no previous"):
        await version(registry, "news@previous")


async def test_a_dropped_version_is_asked_for_again(source: FakeSource, registry: Registry) -> None:
    source.promote("news", 1)
    source.promote("news", 2)
    await version(registry, "news@1")
    source.versions.discard(("news", 1))
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
    named = source.named

    def damaged(domain: str) -> DomainAliases:
        if domain == "news":
            raise CorruptArtifact("aliases.json")
        return named(domain)

    source.named = damaged  # type: ignore[method-assign]
    await version(registry, "news@1")
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
    assert source.asked.count("law") == 1  # a pinned version came without them; they were asked for once
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
