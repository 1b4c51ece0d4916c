"""`isosim doctor`: check the set-up, and say how to fix faults."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import typer

from isosim.commands.diagnosis import Finding, configuration, fault, packages
from isosim.commands.shared import AsJson, EncoderId, Store
from isosim.commands.terminal import FAILED, print_json, show


def doctor(
    model_store: Store = None,
    encoder: EncoderId = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis for cache and limits (ISOSIM_REDIS_URL)")] = None,
    as_json: AsJson = False,
) -> None:
    """Look for faults in the set-up, and say how to fix them.

    Checks what `isosim serve` would use with the same settings. The exit code is 1 if there is a fault, and 0 if there
    are only warnings.
    """
    findings = list(examine(model_store=model_store, encoder=encoder, redis_url=redis_url))
    count = Counter(finding.state for finding in findings)
    if as_json:
        counts = {"faults": count["fault"], "warnings": count["warning"]}
        print_json({"ok": not count["fault"], **counts, "checks": findings})
    else:
        signs = {"ok": "ok", "warning": "WARNING", "fault": "FAULT"}
        show(("", "check", "found", "remedy"), [(signs[f.state], f.check, f.found, f.remedy) for f in findings])
        if sys.stdout.isatty():
            print(f"{count['fault']} faults, {count['warning']} warnings, {count['ok']} ok")
    if count["fault"]:
        raise typer.Exit(FAILED)


def examine(**given: object) -> Iterator[Finding]:
    """Yields all findings, first those about packages. Without ONNX Runtime, checks only packages and settings."""
    yield from packages.look()
    settings, findings = configuration.read(**given)
    yield from findings
    yield from configuration.variables()
    if settings is None:
        return
    try:
        from isosim.commands.diagnosis import machine, redis_server, store  # noqa: PLC0415
    except ImportError as error:
        yield fault("store", f"cannot be checked: {error}", "install the missing packages that are named above")
        return
    yield configuration.exposure(settings)
    yield from configuration.keys(settings.api_keys_file)
    yield from machine.look(settings)
    yield from store.look(settings)
    yield from redis_server.look(settings)
