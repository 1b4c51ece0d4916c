"""`isosim embed`: vectors of sentences in files and pipes."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.adapters.text_lines import STDIN, opened
from service.commands.completion import versions
from service.commands.console import print_json, remark
from service.commands.in_process import CHUNK, InProcess
from service.commands.progress import bar
from service.commands.shared import AsJson, EncoderId, Store, stored
from service.commands.vectors import vector_file
from service.core.calibration import Calibration, Matrix
from service.core.errors import EmptyInput
from service.core.similarity import normalized

SUFFIXES = (".npy", ".jsonl")


def embed(
    file: Annotated[Path, typer.Argument(help="text, one sentence a line; - reads standard input")] = STDIN,
    domain: Annotated[str, typer.Option(help="name, name@3 or name@previous", autocompletion=versions)] = "default",
    space: Annotated[
        Literal["calibrated", "raw"], typer.Option(help="raw: the frozen encoder's vectors")
    ] = "calibrated",
    normalize: Annotated[bool, typer.Option(help="to unit length")] = True,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="x.npy or x.jsonl; else lines of JSON on standard output"),
    ] = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Turn sentences into vectors, here and now, without a server.

    A row, or a JSON list, for each line, in order; input of any length. With --json and --output, what was written.
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{output}: a name ends in {' or '.join(SUFFIXES)}", param_hint="--output")
    settings = stored(model_store=model_store, encoder=encoder)
    with opened(file, settings.max_characters) as text, InProcess(settings) as parts:
        calibration = parts.calibration(domain)
        dim = parts.artifact.spec.dim
        with vector_file(output, dim) as rows, bar("embedding") as progress:
            before = 0
            for block in text.blocks():
                for start in range(0, len(block), CHUNK):
                    chunk = block[start : start + CHUNK]
                    check(chunk, text.name, before + start)
                    rows.write(vectors(parts, chunk, calibration if space == "calibrated" else None, unit=normalize))
                    progress(f"{before + start + len(chunk):,} lines", text.share)
                before += len(block)
            if not text.number:
                raise EmptyInput(f"{text.name} is empty")
    if output is None:
        return
    source = {"domain": calibration.domain, "version": calibration.version, "encoder": calibration.encoder}
    if as_json:
        print_json({"output": str(output), "rows": text.number, "dim": dim, "space": space, **source})
    else:
        remark(f"{output}: {text.number:,} × {dim}, {space}, {calibration.domain}@{calibration.version}")


def check(chunk: list[str], name: str, before: int) -> None:
    """Raises EmptyInput: without a vector for it, row i would no longer be line i."""
    for number, line in enumerate(chunk, before + 1):
        if not line.strip():
            raise EmptyInput(f"{name}, line {number}: empty; each line needs a sentence, as each gets a row")


def vectors(parts: InProcess, chunk: list[str], calibration: Calibration | None, *, unit: bool) -> Matrix:
    """(N, D), as POST /embed gives them."""
    embedded = parts.embed(chunk)
    found = embedded.vectors if calibration is None else calibration.latents(embedded.vectors)
    found = normalized(found) if unit else found
    return found[embedded.rows]
