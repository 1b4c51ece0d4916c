"""A progress bar on the terminal while the client waits for a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ._answers import Job


@contextmanager
def bar(wanted: bool) -> Iterator[Callable[[Job], None]]:
    """Yields a function that shows a job's state as a progress bar on standard error. The function does nothing if
    `wanted` is False, standard error is not a terminal, or rich is not installed."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra, and slow to import
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    except ImportError:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("connecting", total=1.0)
        yield lambda job: progress.update(task, completed=job.progress, description=f"{job.domain}: {job.stage}")
