"""docs/reliability.md promises nothing that no test shows, and leaves out no test of a fault."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED = TEST.findall(PAGE)


def names_in(file: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


def rows(page: str) -> list[list[str]]:
    """Cells: fault, what callers see, what is kept, the test; of jobs and the store one more, for a bucket."""
    lines = [line for line in page.splitlines() if line.startswith("|") and not line.startswith(("|---", "| fault"))]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_every_row_names_a_test() -> None:
    assert [row[0] for row in rows(PAGE) if not TEST.fullmatch(row[3])] == []
    missing = [f"{path}::{name}" for path, name in NAMED if name not in names_in(ROOT / path)]
    assert missing == []


def test_every_test_of_a_fault_has_a_row() -> None:
    files = (ROOT / "tests" / "faults").glob("test_*.py")
    assert {name for file in files for name in names_in(file)} <= {name for _, name in NAMED}


def test_rows_of_jobs_and_the_store_say_what_holds_in_a_bucket() -> None:
    sections = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
    told = [*rows(sections["Calibrations and their processes"]), *rows(sections["The model store"])]
    assert len(told) > 70
    for fault, _, _, test, bucket in told:
        path, _ = TEST.findall(test)[0]
        if bucket == "the same test, in both":
            assert re.search(r'"bucket"|blobs: Blobs', (ROOT / path).read_text()), fault
        elif bucket == "this test":
            assert "objects" in (ROOT / path).read_text(), fault
        else:
            assert TEST.fullmatch(bucket) or re.fullmatch(r"not applicable: .{15,}", bucket), (fault, bucket)
