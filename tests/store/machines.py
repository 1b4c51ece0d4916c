"""State machines of stores: a store or a process that is killed at a chosen operation, and how a machine is run."""

import functools
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from isosim.store.blobs import Blobs
from tests.store.conftest import Open


class Killed(BaseException):
    """The process ends here."""


class Watched:
    """A store that calls a function with the name and the first arguments of each operation, before it."""

    def __init__(self, blobs: Blobs, first: Callable[..., object]) -> None:
        self.blobs, self.first = blobs, first

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blobs, name)
        return functools.partial(self.call, name, method) if callable(method) else method

    def call(self, name: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.first(name, *given)
        return method(*given, **named)


class Crashing(Watched):
    """A store whose process is killed before or after its `left`th operation, and does nothing from then on until
    `left` is set anew. With `lost`, the process goes on, and only the answer is lost."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(blobs, self.begin)
        self.left, self.after, self.lost, self.hit = -1, False, False, False

    def begin(self, *_: object) -> None:
        if self.left == 0:  # it is dead
            raise Killed
        self.left -= 1
        if self.left == 0 and not self.after:
            self.end()

    def call(self, *given: Any, **named: Any) -> Any:
        try:
            return super().call(*given, **named)
        finally:
            if self.left == 0:
                self.end()

    def end(self) -> None:
        self.hit = True
        if self.lost:
            self.left = -1
            raise OSError("the answer was lost")
        raise Killed


# Of a step of a machine: at which operation, whether after it, and whether only the answer is lost.
FAULTS = st.none() | st.tuples(st.integers(1, 12), st.booleans(), st.booleans())


def faulty(step: Callable[..., None]) -> Callable[..., None]:
    """A rule in whose midst the process of `self.crashing` may be killed, or miss an answer. `self.is_hit` is called
    after that, with the arguments of the rule."""

    @functools.wraps(step)
    def run(self: Any, fault: tuple[int, bool, bool] | None, **given: Any) -> None:
        self.crashing.hit = False
        if fault is not None:
            self.crashing.left, self.crashing.after, self.crashing.lost = fault
        try:
            step(self, **given)
        except (Killed, OSError):
            if fault is None:
                raise
        finally:
            self.crashing.left = -1
            if self.crashing.hit:
                self.is_hit(killed=not self.crashing.lost, **given)

    return run


def run_on(place: Open, machine: type[RuleBasedStateMachine], examples: int) -> None:
    """Runs a machine whose attribute `make` opens the store: `examples` in memory, fewer where they take longer."""
    examples //= {"memory": 1, "s3": 8}.get(place().address.partition(":")[0], 3)

    def make() -> Blobs:
        blobs = place()
        blobs.delete([entry.key for entry in list(blobs.list(""))])  # what the example before has left
        return blobs

    made = type(machine.__name__, (machine,), {"make": staticmethod(make)})
    run_state_machine_as_test(made, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))
