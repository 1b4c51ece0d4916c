"""State machines of stores: a store that is killed at a chosen operation, and how a machine is run."""

from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from isosim.store.blobs import Blobs
from tests.store.conftest import Open


class Killed(BaseException):
    """The process ends here."""


class Crashing:
    """A store whose process is killed before or after one of its operations, and does nothing from then on until `left`
    is set anew."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs, self.left, self.after = blobs, -1, False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blobs, name)
        if not callable(method):
            return method

        def call(*given: Any, **named: Any) -> Any:
            if self.left == 0:  # it is dead
                raise Killed
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            result = method(*given, **named)
            if self.left == 0:
                raise Killed
            return result

        return call


def run_on(place: Open, machine: type[RuleBasedStateMachine], examples: int) -> None:
    """Runs a machine whose attribute `make` opens the store."""
    made = type(machine.__name__, (machine,), {"make": staticmethod(place)})
    run_state_machine_as_test(made, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))
