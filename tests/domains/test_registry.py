"""Which calibration answers: resident, pinned, replaced while serving, and kept where its successor cannot be read."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.domains import registry as module
from isosim.domains.domain import Domain, Version
from isosim.domains.registry import Registry
from isosim.errors import CorruptArtifact, EncoderMismatch, IsosimError, NotFound
from isosim.scoring.advice import Target
from isosim.scoring.calibration import Calibration, DomainRef

pytestmark = pytest.mark.anyio
ENCODER, OTHER = "this-encoder", "other-encoder"
SIZE = 10  # bytes of each calibration


def promote(domain: Domain, name: str, number: int, encoder: str = ENCODER, *, only_publish: bool = False) -> Domain:
    """Number 0 is the next one."""
    number = number or domain.next
    version = Version(number, encoder, encoder, "flow", {}, f"{name}-{number}", "")
    after = replace(domain, versions={number: version} | domain.versions, next=max(domain.next, number + 1))
    return after if only_publish else after.promoted(name, encoder, number)


def delete(domain: Domain, name: str, number: int = 0) -> Domain:
    """Number 0 is one that has no name."""
    number = number or min(domain.versions.keys() - domain.named(), default=0)
    return replace(domain, versions={known: one for known, one in domain.versions.items() if known != number})


CHANGES: dict[str, Callable[..., Domain]] = {
    "publish": partial(promote, only_publish=True),
    "promote": promote,
    "delete": delete,
    "erase": lambda domain, name: Domain(next=domain.next),
    "save": lambda domain, name, percent: domain.with_target(name, "duplicates", Target(percent / 100)),
    "put_back": lambda domain, name, percent: CHANGES["save"](promote(Domain(), name, 1), name, percent),
}


class FakeSource:
    """A store in memory, that can be broken."""

    encoder = ENCODER

    def __init__(self) -> None:
        self.domains: dict[str, Domain] = defaultdict(Domain)
        self.announced: set[str] = set()
        self.broken: dict[tuple[str, int], Exception] = {}  # versions that cannot be loaded; number 0: the record
        self.did: list[str] = []  # records that were read, and versions that were loaded

    def change(self, what: str, name: str, *given: Any) -> None:
        before = self.domains[name]
        revision = 1 if what == "put_back" else before.revision + 1  # the record of an older copy
        self.domains[name] = replace(CHANGES[what](before, name, *given), revision=revision)
        self.announced.add(name)

    def changes(self, resident: Collection[str]) -> set[str]:
        found, self.announced = self.announced, set()
        return found

    def read(self, name: str) -> Domain:
        self.did.append(name)
        if (name, 0) in self.broken:
            raise self.broken[name, 0]
        return self.domains[name]

    def load(self, name: str, version: Version) -> Calibration:
        if version.encoder != ENCODER:
            raise EncoderMismatch("another encoder")
        self.did.append(f"{name}@{version.number}")
        if (name, version.number) in self.broken:
            raise self.broken[name, version.number]
        self.domains[name].version(name, version.number)
        return Calibration(name, version.number, "flow", version.encoder, size=SIZE)


class Interleaved:
    """Calls of the store, each of which returns what it read when it began, but only when the test lets it end."""

    deadline = 60.0

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        result: asyncio.Future[Any] = asyncio.Future()
        try:
            result.set_result(function(*args))
        except (IsosimError, OSError) as error:
            result.set_exception(error)
        self.waiting.append(asyncio.Event())
        await self.waiting[-1].wait()
        return await result

    async def settle(self) -> None:
        """Returns when all tasks wait for calls."""
        for _ in range(20):
            await asyncio.sleep(0)

    def end(self, which: int) -> None:
        if self.waiting:
            self.waiting.pop(which % len(self.waiting)).set()


class Serving:
    """A registry whose calls of the store end in any order, and those who ask it."""

    def __init__(self, room: int = 9) -> None:
        self.room, self.calls, self.source = room, Interleaved(), FakeSource()
        self.registry = Registry(
            self.source,  # type: ignore[arg-type]
            resident_bytes=room * SIZE,
            calls=self.calls,  # type: ignore[arg-type]
        )
        self.tasks: list[asyncio.Task[Any]] = []

    async def do(self, what: str, *given: Any) -> None:
        if what in CHANGES:
            self.source.change(what, *given)
        elif what == "asks":
            ref = DomainRef.parse(given[0])
            self.tasks.append(asyncio.create_task(self.registry.resolve(ref)))
        elif what == "refreshes":
            self.tasks.append(asyncio.create_task(self.registry.refresh(*given)))
        elif what == "leaves":  # a caller goes
            if self.tasks:
                self.tasks.pop(given[0] % len(self.tasks)).cancel()
        elif what == "ends":
            self.calls.end(given[0])
        elif what == "spoil":  # the version, or number 0, the record, cannot be read
            errors = {"OSError": OSError("gone"), "NotFound": NotFound("gone")}
            self.source.broken[given[0], given[1]] = errors.get(given[-1], CorruptArtifact("weights"))
        elif what == "mend":
            self.source.broken.clear()
        elif what == "hush":  # what has changed was not announced
            self.source.announced.clear()
        else:
            getattr(self.registry, what)(*given)
        await self.calls.settle()
        self.check()

    def check(self) -> None:
        shown = {name: one.version for name, one in self.registry.champions().items()}
        keys = {key: self.registry.is_champion(one) for key, one in self.registry._loaded.items()}
        assert {name: number for (name, number), champion in keys.items() if champion} == shown
        domains = self.registry._domains.items()
        assert keys.keys() == {(name, one) for name, resident in domains for one in resident.versions}
        assert self.registry.size == SIZE * len(keys) <= max(self.room, 1) * SIZE  # 1: of `default`

    async def finish(self, last: Coroutine[Any, Any, Any]) -> Any:
        """Lets all calls end, the oldest first; the result of `last`."""
        task = asyncio.create_task(last)
        self.tasks.append(task)
        while not all(task.done() for task in self.tasks):
            self.calls.end(0)
            await self.calls.settle()
        return await task

    async def check_end(self) -> None:
        """After two refreshes of a store that has become whole, all answers are the store's."""
        self.source.broken.clear()
        for _ in range(2):
            await self.finish(self.registry.refresh())
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert [one for one in ended if isinstance(one, BaseException) and not isinstance(one, IsosimError)] == []
        assert not self.registry.behind
        for name, number in self.registry._loaded:
            assert number in self.source.domains[name].versions  # one that was deleted is not served on
        aliases: list[str | int] = ["champion", "previous", 0, 2]
        for name, alias in product(NAMES, aliases):
            wanted = self.wanted(name, alias)
            with nullcontext() if wanted is not None else pytest.raises((NotFound, EncoderMismatch)):
                found = await self.finish(self.registry.resolve(DomainRef(name, alias)))
                assert found.version == wanted
                if alias == "champion" and (name, wanted) in self.registry._loaded:
                    assert self.registry.champions()[name] is found
            self.check()
        assert not self.registry.damaged & self.registry._loaded.keys()

    def wanted(self, name: str, alias: str | int) -> int | None:
        """The version that the store has for a reference; None: there is none, or it is another encoder's."""
        domain = self.source.domains[name]
        aliases = domain.served(ENCODER)
        number = {"champion": aliases.champion, "previous": aliases.previous}.get(str(alias), alias)
        if name == "default" and (number == 0 or alias == "champion"):
            return int(number or 0)
        version = domain.versions.get(int(number or 0))
        return None if version is None or version.encoder != ENCODER else version.number

    async def answer(self, ref: str, domain: str = "") -> str:
        try:
            if domain:
                return str((await self.finish(self.registry.target(domain, "duplicates"))).fmr)
            return str((await self.finish(self.registry.resolve(DomainRef.parse(ref)))).version)
        except (IsosimError, OSError) as error:
            return type(error).__name__

    async def step(self, text: str, logged: list[Any]) -> None:
        """A step in words, whose calls end before the next begins, except those of `asks`.

        `news@previous = 2`: who asks for news@previous is given version 2, or is refused with an error.
        `saved news = 0.1`: the target that is saved there.
        `did …`: which records it has read and which versions it has loaded since the last such step, by domain;
        `failed …`: how often a champion could not be loaded. Others: see `do`.
        """
        asked, _, wanted = text.partition(" = ")
        what, *words = asked.split()
        values: list[Any] = [OTHER if word == "other" else int(word) if word.isdigit() else word for word in words]
        if wanted:
            assert await self.answer(what, *words) == wanted, text
        elif what == "did":
            log = sorted(self.source.did, key=lambda one: re.split("[ @]", one)[0])
            assert ", ".join(log) == " ".join(words), text
            self.source.did.clear()
        elif what == "failed":
            assert self.registry.failures == values[0], text
        elif what == "room":
            self.room = values[0]
            self.registry.resident_bytes = self.room * SIZE
        elif what == "logged":
            assert len([one for one in logged if one.levelname == "ERROR"]) == values[0], text
        elif what in ("behind", "current"):
            assert self.registry.behind is (what == "behind"), text
        elif what == "refresh":
            await self.finish(self.registry.refresh(*words))
        else:
            await self.do(what, *values)


NAMES = ("default", "news", "law")
DOMAINS, ENCODERS, SOME = (
    st.sampled_from(NAMES),
    st.sampled_from([ENCODER, OTHER]),
    st.integers(0, 5),
)
STEPS = st.one_of(
    st.tuples(st.just("asks"), DOMAINS),
    st.tuples(
        st.just("asks"),
        st.builds("{}@{}".format, DOMAINS, st.sampled_from(["champion", "previous", 1, 2, 3])),
    ),
    st.tuples(st.just("refreshes"), st.none() | DOMAINS),
    st.tuples(st.sampled_from(["ends", "ends", "leaves"]), SOME),
    st.tuples(st.just("promote"), DOMAINS, st.just(0), ENCODERS),
    st.tuples(st.sampled_from(["delete", "erase"]), DOMAINS),
    st.tuples(st.just("spoil"), DOMAINS, st.integers(1, 5)),
)


async def interleave(steps: list[tuple[Any, ...]], room: int) -> None:
    serving = Serving(room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", serving.calls)
        patch.setattr(module, "RETRY", 1)
        for step in steps:
            await serving.do(*step)
        await serving.check_end()


@given(st.lists(STEPS, max_size=30), st.integers(1, 4))
@settings(max_examples=100)
def test_in_whatever_order_calls_end_the_registry_comes_to_what_the_store_says(
    steps: list[tuple[Any, ...]], room: int
) -> None:
    asyncio.run(interleave(steps, room))


SCENES = """
what is not there, except default, which is the identity until it has a champion
    publish theirs 1 other; theirs = EncoderMismatch; theirs@7 = NotFound; nobody = UnknownDomain
    nobody@1 = UnknownDomain; nobody@previous = UnknownDomain; promote news 1; news@previous = NotFound; default = 0
    default@0 = 0; promote default 1 other; refresh; default = 0; default@1 = EncoderMismatch

a champion is loaded once, also for callers at the same time, one of whom leaves
    promote news 1; asks news; asks news; asks news@1; leaves 0; news = 1; news = 1; refresh
    did default, news, news, news@1, news@1, news

the longest unasked goes first
    room 3; promote a 1; promote a 2; promote b 1; promote b 2; promote c 1; promote c 2; a = 2; b = 2; a@1 = 1
    a = 2; c = 2; a@previous = 1; did a, a@2, a, a@1, b, b@2, c, c@2; a = 2; a@1 = 1; c = 2; did; b = 2; did b, b@2

the champion of default stays whatever else is asked for
    room 0; promote default 1; promote news 1; refresh; news = 1; refresh; refresh; default = 1
    did default, default@1, news, news@1

a successor takes the room of its champion and of no other
    room 2; promote a 1; promote b 1; a = 1; b = 1; promote b 2; refresh

a champion that cannot be loaded leaves the one before and the other domains alone
    promote a 1; promote b 1; promote c 1; a = 1; b = 1; c = 1; spoil b 2; promote a 2; promote b 2; promote c 2
    current; refresh; behind; a = 2; b = 1; c = 2; failed 1; mend; refresh; current; b = 2; spoil b 3 OSError
    promote b 3; refresh; b = 2; spoil b 4 NotFound; promote b 4; refresh; b = 2; failed 3; mend; refresh; b = 4
    logged 3

it is tried again in every third refresh, logged once and counted every time
    promote news 1; news = 1; spoil news 2; promote news 2; did news, news@1; refresh; did default, news, news@2
    refresh; refresh; did; refresh; did news, news@2; behind; refresh; refresh; did; failed 2; logged 1
    promote news 3; refresh; news = 3; current

a champion that is not there is the fault of the domain and not of the caller
    promote news 1; delete news 1; news = CorruptArtifact; news@1 = UnknownDomain; failed 1

a domain that has gone is forgotten with all its versions
    promote news 1; promote news 2; news = 2; news@1 = 1; erase news; refresh
    did default, news, news@2, news, news@1, news; refresh; did; news = UnknownDomain; news@1 = UnknownDomain
    news@previous = UnknownDomain

a version that was deleted is forgotten, and the champion is not
    promote news 1; promote news 2; news@1 = 1; news = 2; delete news 1; hush; refresh news
    news@1 = NotFound; news = 2

a domain that was deleted takes its versions and saved targets along
    promote news 1; save news 10; news = 1; erase news; hush; refresh news; saved news = NotFound; promote news 2
    news = 2; saved news = NotFound

a change by this process is taken over also where it was not announced
    promote news 1; news = 1; refresh; promote news 2; hush; refresh; news = 1; refresh news; news = 2

saved targets come with the champion or a pinned version, and cost no other look at the store
    promote news 1; promote law 1; save news 10; save law 10; news = 1; law@1 = 1; saved news = 0.1; saved law = 0.1
    did law, law@1, news, news@1; refresh; save news 20; save law 20; saved news = 0.1; refresh
    did default, law, law, news, news; saved news = 0.2; saved law = 0.2; promote news 2; save news 30; refresh
    news = 2; saved news = 0.3; spoil news 3; promote news 3; save news 40; refresh; news = 2; saved news = 0.4

a damaged record leaves the champion serving and other domains alone
    promote news 1; promote news 2; promote law 1; news = 2; law = 1; spoil news 0; promote law 2; promote news 3
    refresh; news = 2; law = 2; behind; logged 1; news@1 = CorruptArtifact; news@previous = CorruptArtifact; logged 1
    spoil cold 0; cold = CorruptArtifact; cold = CorruptArtifact; logged 3; failed 3; mend; refresh; news = 3; current

a record that was put back from an older copy is taken over
    promote news 1; promote news 2; save news 20; news = 2; refresh; put_back news 1; refresh news; news = 1
    saved news = 0.01
"""


@pytest.mark.parametrize("scene", SCENES.strip().split("\n\n"), ids=lambda scene: scene.partition("\n")[0])
async def test_scene(scene: str, caplog: pytest.LogCaptureFixture) -> None:
    play = Serving()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", play.calls)
        patch.setattr(module, "RETRY", 3 if "third" in scene else 1)
        for step in re.split("[;\n]", scene.partition("\n")[2]):
            await play.step(step.strip(), caplog.records)
        await asyncio.gather(*play.tasks, return_exceptions=True)
