"""Checks of `isosim doctor`, one module for each part of the set-up; this module defines their result."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """Result of one check. `found` describes the state. `remedy` says how to fix a fault or warning; it is None if
    `state` is ok."""

    check: str
    state: State
    found: str
    remedy: str | None = None


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, "warning", found, remedy)


def fault(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, "fault", found, remedy)
