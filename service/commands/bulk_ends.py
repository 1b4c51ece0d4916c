"""What a person is told at the end of a bulk command."""

from typing import Any

from service.commands.console import remark


def search_of(recall: dict[str, Any] | None) -> str:
    """How the pairs were looked for."""
    if recall is None:
        return "exact search"
    looked = f"{recall['looked_at']} of {recall['cells']} cells a row"
    if recall["found"] is None:
        return f"{looked}, recall unknown: {recall['asked']:,} rows that were looked at whole are in no pair"
    return f"{looked}, recall {recall['found']:.4f} of the {recall['pairs']:,} pairs of {recall['asked']:,} rows"


def say_failed(failed: dict[str, int]) -> None:
    for reason, count in failed.items():
        remark(f"isosim: {count:,} rows have no result: {reason}")


def line_of(facts: dict[str, Any], name: str) -> str:
    """What a person is told at the end."""
    there = f"{facts['output']}: {facts['rows']:,} rows in {facts['parts']:,} files, {facts['bytes'] / 1e6:,.1f} MB"
    there = f"{there}, {name}"
    if not facts["computed"]:
        return f"{there}; all were there already"
    return (
        f"{there}; {facts['computed']:,} rows in {facts['seconds']:,.1f} s, {facts['rate']:,.0f} rows/s, "
        f"{facts['sentences'] / facts['seconds']:,.0f} sentences/s on {facts['engines']} engines"
    )
