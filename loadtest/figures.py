"""`python -m loadtest.figures`: writes the tables of README.md from the JSON results."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def read(folder: Path, part: str) -> Any:
    return json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))


def markdown(rows: Iterable[Iterable[str]]) -> str:
    first, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([first, "|---" * (first.count(" | ") + 1) + "|", *rest])


def number(value: Any, digits: int = 3) -> str:
    """A value of the results: a number, several of them, or none."""
    if value is None or isinstance(value, list):
        return " / ".join(number(one, digits) for one in value or ())
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.{digits}g}"


def table(folder: Path) -> str:
    """The measured values but zeros that must be zero, those beyond their limit in bold, and each part's machine."""
    rows, machines = [["", "measured", "bar"]], []
    for part in (read(folder, file.stem) for file in sorted(folder.glob("*.json"))):
        machine = part["hardware"].get("gpu") or part["hardware"]["processor"].removesuffix(" Processor")
        machines.append(f"`{part['part']}` {machine.replace('(R)', '')}")
        for line in (line for line in part["lines"] if line["bar"] or not line["holds"]):
            bar = "" if line["note"] == "no bar" else f"{'≤' if line['at_most'] else '≥'} {number(line['bar'], 6)}"
            value = number(line["value"]) + line["unit"]
            rows.append([line["name"], value if line["holds"] else f"**{value}**", bar])
    return markdown(rows) + f"\n\nMachines: {', '.join(machines)}."


def gpu(folder: Path) -> str:
    """One column for each encoder; without details of batches and servers."""
    part = read(folder, "gpu")
    columns = part["result"]["columns"].values()
    shown = (name for name in next(iter(columns)) if name.endswith("pairs/s") or not re.search(";|in a batch", name))
    rows = ([name, *(number(column.get(name)) for column in columns)] for name in shown)
    return markdown([[part["hardware"]["gpu"], *part["result"]["columns"]], *rows])


# Name of a table in README.md -> function that makes the table. Two comments with the name enclose the table (`marks`).
TABLES = {"measured": table, "gpu": gpu}


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


if __name__ == "__main__":
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for table_name, make in TABLES.items():
        begin, end = marks(table_name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{make(HERE / 'results')}\n{end}{rest.partition(end)[2]}"
    (HERE / "README.md").write_text(text, encoding="utf-8")
