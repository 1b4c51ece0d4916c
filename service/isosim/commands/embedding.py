"""`isosim embed`: compute vectors of sentences in files and pipes."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import typer

from isosim.commands.client import asking, pinned
from isosim.commands.files import Column, limits, notices
from isosim.commands.shared import AsJson, whole
from isosim.commands.similarity import pieces
from isosim.commands.terminal import answer, bar, dumped
from isosim.errors import EmptyInput
from isosim.jobs.sandbox import Reading, read_path
from isosim.jobs.tables import kind_of_name
from isosim.jobs.text_lines import STDIN
from isosim.jobs.vector_files import header_of
from isosim_client import Client

SUFFIXES = (".npy", ".jsonl")


@asking
def embed(
    client: Client,
    file: Annotated[
        Path, typer.Argument(help="text with one sentence per line, or a table; - reads standard input")
    ] = STDIN,
    column: Column = None,
    domain: Annotated[str, typer.Option(help="name, name@3 or name@previous")] = "default",
    space: Annotated[
        Literal["calibrated", "raw"],
        typer.Option(help="calibrated: by the domain's calibration; raw: the frozen encoder's vectors"),
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="scale vectors to unit length")] = True,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="the .npy or .jsonl file to write; default: JSON lines on standard output"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn sentences into vectors.

    Writes one row of the .npy, or one JSON list, for each line of the text or row of the table, in the same order. With
    --json and --output, prints a summary as JSON.
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{output}: the name must end in {' or '.join(SUFFIXES)}", param_hint="--output")
    lines = column is None and kind_of_name(file.name) in (None, "text")
    reading = Reading("entries", column, kind="text" if lines else None, force=lines)
    with ExitStack() as stack:
        facts, texts = stack.enter_context(read_path(file, reading, limits()))
        notices(file, facts)
        check(file, facts)
        version = pinned(client, domain)
        target: BinaryIO = sys.stdout.buffer if output is None else stack.enter_context(whole(output))
        progress = stack.enter_context(bar("embedding"))
        done = 0
        for piece in pieces(texts, str):
            vectors = np.array(client.embed(piece, domain=str(version), space=space, normalize=normalize), "<f4")
            if output is None or output.suffix == ".jsonl":
                target.write(b"".join(dumped(vector) + b"\n" for vector in vectors))
                target.flush()
            else:
                if not done:
                    target.write(header_of(facts["sentences"], vectors.shape[1]))
                target.write(vectors.tobytes())
            done += len(piece)
            progress(f"{done:,} lines", done / facts["sentences"])
    if output is not None:
        dim = vectors.shape[1]
        summary = {"output": str(output), "rows": done, "dim": dim, "space": space, **version._asdict()}
        answer(summary, f"{output}: {done:,} × {dim}, {space}, {version}", as_json=as_json)


def check(file: Path, facts: dict[str, Any]) -> None:
    """Raises EmptyInput if a line or row has no usable text: it cannot be skipped, because each gets a vector."""
    if facts["empty"] or facts["too_long"]:
        raise EmptyInput(
            f"{'standard input' if file == STDIN else file}: {facts['empty']:,} lines or rows are empty, and "
            f"{facts['too_long']:,} are too long; each must have a text, because each gets a vector"
        )
