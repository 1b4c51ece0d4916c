"""Links between the pages lead somewhere, anchors included, and the index of docs/ leaves out no page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for folder in (".", "docs", "evaluation", "loadtest", "clients", "model_store", "k8s", "service")
    for path in ((ROOT / folder).glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md"))
    if not {"environments", "node_modules"} & set(path.parts)
]
FENCE = re.compile(r"^\s*```.*?^\s*```", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"[a-z]+:")
INDEXED = ("docs/README.md",)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> Iterator[str]:
    """As GitHub makes them of headings: lower case, without marks, hyphens for blanks, a number behind repetitions."""
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        yield f"{anchor}-{seen[anchor]}" if anchor in seen else anchor
        seen[anchor] = seen.get(anchor, 0) + 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if OUTSIDE.match(link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(index))}
    missing = {
        str(page.relative_to(ROOT))
        for page in (ROOT / "docs").rglob("*.md")
        if page not in named and not str(page.relative_to(ROOT)).startswith(INDEXED)
    }
    assert missing == set()
