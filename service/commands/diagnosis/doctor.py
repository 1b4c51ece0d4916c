"""`isosim doctor`: check the set-up, and say how to fix faults."""

import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated

import typer

from service.commands.diagnosis import Finding, fault, packages
from service.commands.shared import AsJson, EncoderId, Store
from service.commands.terminal import FAILED, print_json, show


def doctor(
    model_store: Store = None,
    encoder: EncoderId = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis for cache and jobs (ISOSIM_REDIS_URL)")] = None,
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
    """Yields all findings, those about packages first. A check that needs a missing package is skipped."""
    yield from packages.look()
    try:
        configuration = import_module("service.commands.diagnosis.configuration")
        machine = import_module("service.commands.diagnosis.machine")
    except ImportError as error:
        yield fault("settings", f"cannot be read: {error}", "pip install --upgrade isosim")
        return
    settings, findings = configuration.read(**given)
    yield from findings
    yield from configuration.variables()
    if settings is None:
        return
    yield configuration.exposure(settings)
    yield from configuration.keys(settings.api_keys_file)
    yield from machine.look(settings)
    for part in ("store", "redis_server"):
        try:
            module = import_module(f"service.commands.diagnosis.{part}")
        except ImportError as error:
            yield fault(
                part.partition("_")[0],
                f"cannot be checked: {error}",
                "install the missing packages that are named above",
            )
        else:
            yield from module.look(settings)
