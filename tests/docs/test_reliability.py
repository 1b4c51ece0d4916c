"""docs/reliability.md promises nothing that no test shows, and leaves out no test of a fault."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def names_in(file: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| fault"))]
    assert len(rows) == len(NAMED)
    missing = [f"{path}::{name}" for path, name in NAMED if name not in names_in(ROOT / path)]
    assert missing == []


def test_every_test_of_a_fault_has_a_row() -> None:
    files = (ROOT / "tests" / "faults").glob("test_*.py")
    assert {name for file in files for name in names_in(file)} <= {name for _, name in NAMED}
