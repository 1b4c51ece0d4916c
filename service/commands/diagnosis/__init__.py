"""The parts of `isosim doctor`: a module for each part of the set-up. Here: the answer to one question."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """`found` says what there is; `remedy` how to mend it, where it is not well."""

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
