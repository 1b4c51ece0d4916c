"""Progress on stderr: a bar for whoever watches a terminal and has waited for a second, nothing for anybody else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

PATIENCE = 1.0  # s


class Report(Protocol):
    """Takes a stage and the share done, 0 to 1; None where nobody can know it."""

    def __call__(self, stage: str, done: float | None) -> None: ...


class LateBar:
    """A bar that appears once the work has lasted for a second."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self.began = time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def __call__(self, stage: str, done: float | None) -> None:
        if not self.shown or (self._progress is None and time.monotonic() - self.began < PATIENCE):
            return
        if self._progress is None:
            self._progress = self._start(stage)
        total = None if done is None else 1.0
        self._progress.update(self._task, description=stage, completed=done or 0.0, total=total)

    def _start(self, stage: str) -> Any:
        from rich.console import Console  # noqa: PLC0415 - what takes less than a second need not import it
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        # Results keep going to stdout: only what is said on stderr is moved above the bar.
        progress = Progress(
            *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        self._task = progress.add_task(stage, total=None)
        progress.start()
        return progress

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def bar(what: str, *, wanted: bool = True) -> Iterator[Report]:
    """Yields the function that the work reports to. `wanted` is False where something else fills the terminal."""
    late = LateBar(shown=wanted and sys.stderr.isatty())
    late(what, None)
    try:
        yield late
    finally:
        late.stop()
