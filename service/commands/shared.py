"""What the commands share: the consoles, settings given on the command line, progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from service.core.errors import Unavailable
from service.settings import Settings

err = Console(stderr=True)
out = Console()

Store = Annotated[Path | None, typer.Option("--model-store", help="the model store (ISOSIM_MODEL_STORE)")]
EncoderId = Annotated[str | None, typer.Option("--encoder", help="an encoder of the store (ISOSIM_ENCODER)")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


def settings_with(**given: Any) -> Settings:
    """The environment's settings, with what the command line gave instead."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def need_training() -> None:
    """Raises Unavailable without the packages that fit and export."""
    try:
        import torch  # noqa: F401, PLC0415
    except ImportError:
        raise Unavailable("this command needs PyTorch: pip install 'isosim[train]'") from None


@contextmanager
def bar(what: str) -> Iterator[Any]:
    """A progress bar on stderr; yields a function that takes a stage and the share done."""
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda stage, done: progress.update(task, description=stage, completed=done)
