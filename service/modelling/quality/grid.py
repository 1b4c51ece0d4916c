"""A table that goes to the terminal or into a Markdown file."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table


@dataclass(frozen=True)
class Grid:
    """A title, columns, and rows of cells; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def rich(self) -> Table:
        table = Table(*self.columns, title=self.title)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [self.columns, ("---", *["---:"] * (len(self.columns) - 1)), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(values: Sequence[float], digits: int = 2) -> str:
    """The mean over seeds, with half the range behind where there are several."""
    spread = f" ±{(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"
