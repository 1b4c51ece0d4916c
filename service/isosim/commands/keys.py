"""`isosim keys`: make API keys, and list the keys of a file. A key is printed once and stored only as a hash."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from isosim.access.grants import SCOPES, Grant, parse_grant
from isosim.access.key_file import Keys
from isosim.commands.shared import AsJson
from isosim.commands.terminal import EPILOG, answer, group, print_json, show
from isosim.errors import InvalidInput, Unavailable
from isosim.settings import Settings
from isosim.store.artifacts import locked, write_atomically

PREFIX = "isk_"  # lets people and secret scanners recognize a key
KEY_BYTES = 32  # 256 bits: a key cannot be guessed from its hash

app = group("Make API keys, and list the keys of a file.")


@app.command(epilog=EPILOG)
def new(
    scopes: Annotated[
        str, typer.Option(help=f"what the key may do: any of {', '.join(SCOPES)}, separated by commas")
    ] = "read",
    name: Annotated[str, typer.Option(help="owner of the key, as a note in the file")] = "",
    domains: Annotated[str, typer.Option(help="domains that the key may use, like reuters,sts-*; *: all")] = "*",
    rate: Annotated[str | None, typer.Option(help="maximum rate of texts, like 100/s, 6000/m or 100000/h")] = None,
    until: Annotated[str | None, typer.Option(help="last day on which the key is accepted, like 2027-01-31")] = None,
    add: Annotated[
        Path | None, typer.Option(help="key file to which the key's line is appended; created if missing")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; prints it once, with the line for the server's key file."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    options = {"domains": domains, "rate": rate, "until": until}
    given = [f"{option}={value}" for option, value in options.items() if value is not None]
    words = [scopes, *given, *name.split()]
    check(words)
    line = " ".join([hashlib.sha256(key.encode()).hexdigest(), *words])
    if add is not None:
        append(add, line)
    answer(
        {"key": key, "line": line},
        f"key: {key}\n" + (f"line: {line}" if add is None else f"added to {add}"),
        as_json=as_json,
    )


def check(words: list[str]) -> None:
    """Raises InvalidInput if the server would not accept a line with these words after the key's hash."""
    if any("#" in word for word in words):
        raise InvalidInput("'#' begins a comment in the file; leave it out")
    try:
        parse_grant("", words)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def append(path: Path, line: str) -> None:
    """Appends a line by replacing the file atomically, so that a server never reads part of a line. A new file can be
    read by its owner only. Raises InvalidInput if the file does not end with a line break."""
    path = path.resolve()
    with locked(path.with_name(f".{path.name}.lock")):
        before = path.read_bytes() if path.exists() else b""
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        if before and not before.endswith(b"\n"):
            raise InvalidInput(
                f"{path} does not end with a line break, so its last line may have been cut off; check the line, end "
                "it with a line break and try again"
            )
        mask = os.umask(0o077)
        try:
            write_atomically(path, before + line.encode() + b"\n")
        finally:
            os.umask(mask)
        path.chmod(mode)


@app.command("list", epilog=EPILOG)
def list_keys(
    file: Annotated[Path | None, typer.Argument(help="a key file; default: ISOSIM_API_KEYS_FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """List what each key of a file may do, as the server reads it; shows neither keys nor hashes."""
    path = file or Settings().api_keys_file
    if path is None:
        raise Unavailable("no key file is set: give its path, or set ISOSIM_API_KEYS_FILE")
    try:
        grants = Keys(path).grants
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    rows = [described(grant) for grant in grants]
    if as_json:
        print_json(rows)
    else:
        show(("id", "scopes", "domains", "rate", "until", "name"), [list(row.values()) for row in rows])


def described(grant: Grant) -> dict[str, object]:
    return {
        "id": grant.id,
        "scopes": ",".join(scope for scope in SCOPES if scope in grant.scopes),
        "domains": "all" if grant.patterns is None else ",".join(grant.patterns),
        "rate": None if grant.rate is None else str(grant.rate),
        "until": None if grant.until is None else str(grant.until),
        "name": grant.name,
    }
