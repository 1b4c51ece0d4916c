"""State machines of stores: a store or a process that is killed at a chosen operation, and how a machine is run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from isosim.store.blobs import Blobs, Folder
from tests.store.conftest import Open


class Killed(BaseException):
    """The process ends here."""


class Crashing:
    """A store whose process is killed before or after its `left`th operation, and does nothing from then on until
    `left` is set anew. With `lost`, the process goes on, and only the answer is lost."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs, self.left, self.after, self.lost = blobs, -1, False, False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blobs, name)
        if not callable(method):
            return method

        def call(*given: Any, **named: Any) -> Any:
            if self.left == 0:  # it is dead
                raise Killed
            self.left -= 1
            if self.left == 0 and not self.after:
                self.end()
            result = method(*given, **named)
            if self.left == 0:
                self.end()
            return result

        return call

    def end(self) -> None:
        if self.lost:
            self.left = -1
            raise OSError("the answer was lost")
        raise Killed


class Dying(Folder):
    """A folder whose process is killed at its `left`th step: before or after a file takes its place, or is deleted."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root)
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _place(self, whole: Path, key: str) -> None:
        self.step()
        super()._place(whole, key)
        self.step()

    def delete(self, keys: object) -> None:
        for key in keys:  # type: ignore[attr-defined]
            self.step()
            super().delete([key])


def killed_at(step: int, root: Path, change: Callable[[Folder], object]) -> bool:
    """Makes a change in a child process; whether it was killed before its end."""
    child = os.fork()
    if child == 0:
        try:
            change(Dying(root, step))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def run_on(place: Open, machine: type[RuleBasedStateMachine], examples: int) -> None:
    """Runs a machine whose attribute `make` opens the store."""
    made = type(machine.__name__, (machine,), {"make": staticmethod(place)})
    run_state_machine_as_test(made, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))
