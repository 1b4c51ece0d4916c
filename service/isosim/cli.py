"""The entry point `isosim <command>`.

A command's module is imported when the command runs, so that help and shell completion stay fast.
"""

import io
import logging
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from isosim.commands.terminal import EPILOG, ReaderLeft, ended

COMMANDS = {  # name: (module:function, description in the list of commands)
    "serve": ("commands.serving:serve", "Run the API."),
    "worker": ("commands.serving:worker", "Run the jobs of a store: calibrations and matches."),
    "similarity": ("commands.similarity:similarity", "Score sentence pairs."),
    "embed": ("commands.embedding:embed", "Turn sentences into vectors."),
    "bulk": ("commands.bulk:app", "Embed or score files of any size, on Ray."),
    "inspect": ("commands.files:inspect", "Show what a file is and how a calibration would read it."),
    "calibrate": ("commands.calibration:calibrate", "Fit a calibration to sentences."),
    "label": ("commands.calibration:label", "Learn probabilities from labelled pairs."),
    "match": ("commands.match:match", "Find the texts that mean the same, in one file or two."),
    "threshold": ("commands.calibration:threshold", "Compute or save a similarity threshold."),
    "domains": ("commands.domains:app", "List, show, promote, roll back or delete domains."),
    "keys": ("commands.keys:app", "Make API keys, and list the keys of a file."),
    "train": ("commands.training:train", "Train an encoder: SimCSE, or SBERT's objectives."),
    "store": ("commands.store:app", "Make a model store, or remove unused files from it."),
    "encoder": ("commands.encoders:app", "List encoders; add one that runs on another server."),
    "export": ("commands.exporting:export", "Export an encoder into the model store."),
    "bundle": ("commands.exporting:bundle", "Write one ONNX file with a domain's weights."),
    "evaluate": ("commands.evaluating:evaluate", "Reproduce the papers' tables: STS12–16, STS-B, SICK-R."),
    "doctor": ("commands.doctor:doctor", "Look for faults in the set-up, and say how to fix them."),
}


class Commands(typer.core.TyperGroup):
    """Imports a command's module only when a user calls the command. Turns the command's result or error into an exit
    code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder and load(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # typer would report a closed pipe as an error
            raise ReaderLeft from None

    def main(self, *args: Any, **extra: Any) -> Any:
        extra |= {"prog_name": "isosim", "standalone_mode": False}
        sys.exit(ended(lambda: super(Commands, self).main(*args, **extra)))


def load(name: str) -> Any:
    """Imports a command from its module."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"isosim.{module}"), attribute)
    if not isinstance(command, typer.Typer):
        only = typer.Typer(add_completion=False, rich_markup_mode=None)
        only.command(name, epilog=EPILOG)(command)
        command = only
    command = typer.main.get_command(command)
    command.name = name
    return command


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Calibrated sentence similarity.",
    epilog=EPILOG,
)


def say_version(asked: bool) -> None:
    if asked:
        from isosim import __version__  # noqa: PLC0415 - reads the package's metadata

        print(f"isosim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=say_version, is_eager=True)
    ] = False,
) -> None:
    """Calibrated sentence similarity."""


def placeholder() -> None:
    """Represents a command in the list of commands until the command is called and imported."""


for name, (_, summary) in COMMANDS.items():
    app.command(name, help=summary)(placeholder)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # the output is UTF-8 in every locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s")
    app()


if __name__ == "__main__":
    main()
