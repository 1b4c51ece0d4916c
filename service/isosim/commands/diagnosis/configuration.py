"""Checks of settings, environment variables and the key file."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from isosim.access.key_file import Keys
from isosim.commands.diagnosis import Finding, fault, ok, warning
from isosim.errors import Unavailable
from isosim.settings import Settings, unread

# Matches environment variables like ISOSIM_SERVICE_HOST. If a namespace has a Service called "isosim", Kubernetes sets
# such variables in all pods of the namespace.
LINKS = re.compile(r"ISOSIM_(SERVICE_(HOST|PORT)|PORT_\d+_)")


def read(**given: object) -> tuple[Settings | None, list[Finding]]:
    """The settings, and findings about them. If the settings are invalid: None, and a finding for each error."""
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        return None, [wrong(problem["loc"], problem["msg"], str(problem.get("input"))) for problem in error.errors()]
    changed = sorted(settings.model_fields_set)
    return settings, [ok("settings", f"set: {', '.join(changed)}" if changed else "all at their defaults")]


def wrong(place: tuple[int | str, ...], message: str, value: str) -> Finding:
    name = "ISOSIM_" + "_".join(str(part) for part in place).upper()
    if name == "ISOSIM_PORT" and value.startswith("tcp://"):
        return fault(
            "settings",
            f"{name}={value} comes from a Kubernetes Service named isosim",
            "set enableServiceLinks: false in the pod, or name the Service differently",
        )
    return fault("settings", f"{name}: {message}", f"correct {name}; service/isosim/settings.py says how to choose it")


def variables(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Reports `ISOSIM_*` variables that are not settings and so have no effect."""
    links = []
    for name, nearest in unread(environment).items():
        if LINKS.match(name):
            links.append(name)
        elif nearest is not None:
            yield fault("variables", f"{name} is not a setting and has no effect", f"did you mean {nearest}?")
        else:
            yield warning("variables", f"{name} is not a setting and has no effect", f"unset {name}")
    if links:
        yield warning(
            "variables",
            f"{len(links)} set by Kubernetes and not used by isosim ({links[0]}, …)",
            "set enableServiceLinks: false in the pod",
        )


def exposure(settings: Settings) -> Finding:
    """Reports who can reach the server."""
    from isosim.server.composition import check_exposure  # noqa: PLC0415 - needs ONNX Runtime

    try:
        check_exposure(settings)
    except Unavailable as error:
        return fault("exposure", str(error), "set ISOSIM_API_KEYS_FILE")
    if settings.allow_anonymous and settings.api_keys_file is None:
        return warning(
            "exposure", f"anyone who can reach {settings.host} may do everything", "set ISOSIM_API_KEYS_FILE"
        )
    return ok("exposure", "with keys" if settings.api_keys_file is not None else f"{settings.host} only")


def keys(path: Path | None) -> Iterator[Finding]:
    """Checks that the key file exists, is valid, and is writable only by its owner."""
    if path is None:
        return
    try:
        known = Keys(path)
        mode = path.stat().st_mode
    except OSError as error:
        yield fault("keys", f"{path}: {error.strerror}", "make it readable for the server's user, or correct the path")
        return
    except ValueError as error:
        yield fault(
            "keys",
            str(error),
            "write each line as: <sha256 of the key> <scope,scope,…> domains=… [name]; isosim keys new prints one",
        )
        return
    if mode & 0o022:
        yield fault("keys", f"other users can write {path} and so add keys", f"chmod 600 {path}")
    elif mode & 0o004:
        yield warning("keys", f"all users of this machine can read {path}", f"chmod 600 {path}")
    else:
        yield ok("keys", f"{path}: {known.count} keys")
    if not known.count:
        yield warning(
            "keys", f"{path} holds no key, so that all requests are refused", f"add a key: isosim keys new --add {path}"
        )
