"""Fetches sentences in nine languages for `languages`: messages and help pages of free desktop programs.

Reads the gettext catalogues of six repositories at pinned commits, and writes one file per language:

    python -m evaluation.catalogues OUT
    python -m evaluation languages --text OUT/text --encoder me5
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LANGUAGES = ("ar", "de", "hi", "ja", "ko", "ru", "th", "zh_CN")
HOST = "https://github.com"
CATALOGUES = {  # repository -> commit; each has its own free licence, and nothing is redistributed
    "GNOME/epiphany": "0781e9471a683629baf0d6424a6e368f7c0931c2",
    "GNOME/gnome-control-center": "6dfc9f2fe27499890df831e13d7bcc5ee6da5bec",
    "GNOME/gnome-user-docs": "46747c67c12109de9234644bcbcb89d1ff5e7d37",
    "GNOME/nautilus": "a7e2395be6a7bbbb47ae1147dacce3bc063176b2",
    "linuxmint/cinnamon-translations": "8a8faebc0b080082a39cb59ec57cba477b389d02",
    "mate-desktop/mate-user-guide": "79ed32e16f54ba973d2b4f0f275f53a22b472644",
}
FEWEST_WORDS = 4  # minimum number of words of an English sentence; shorter texts are labels of buttons
Translations = dict[str, dict[str, str]]  # language -> English -> translation
KEYWORD = re.compile(r'(msgid_plural|msgid|msgctxt|msgstr(?:\[\d+\])?) (".*")')


def language_of(path: str | Path) -> str | None:
    stem = Path(path).stem
    return next((name for name in LANGUAGES if re.search(rf"(^|[^A-Za-z]){name}$", stem)), None)


def fetch(repository: str, commit: str, folder: Path) -> None:
    """Fetches a repository's catalogues in LANGUAGES at a commit. git checks their content against the commit's hash.

    Raises:
        subprocess.CalledProcessError: git or the network failed; the folder is then not created.
    """
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    run = ["git", "-c", "gc.auto=0", "-C", str(part)]

    def git(*words: str) -> bytes:
        return subprocess.run([*run, *words], check=True, stdout=subprocess.PIPE).stdout  # noqa: S603

    git("init", "--quiet")
    git("remote", "add", "origin", f"{HOST}/{repository}")
    git("fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", commit)  # fetches no files yet
    listed = git("ls-tree", "-r", "-z", "--name-only", commit).decode().split("\0")
    wanted = [path for path in listed if path.endswith(".po") and language_of(path)]
    git("checkout", "--quiet", commit, "--", *wanted)
    shutil.rmtree(part / ".git")
    part.rename(folder)


def entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yields message and translation of each entry of a gettext catalogue, except fuzzy entries."""
    for block in path.read_text("utf-8").split("\n\n"):
        lines = block.splitlines()
        if any(line.startswith("#,") and "fuzzy" in line for line in lines):
            continue
        found: dict[str, str] = {}
        keyword = ""
        for line in lines:
            if match := KEYWORD.fullmatch(line):
                keyword = match[1]
                found[keyword] = ast.literal_eval(match[2])
            elif line.startswith('"') and keyword:
                found[keyword] += ast.literal_eval(line)
        if found.get("msgid") and (translation := found.get("msgstr") or found.get("msgstr[0]")):
            yield found["msgid"], translation


def plain(text: str) -> str:
    """Text without markup and without the marks of keyboard shortcuts."""
    text = re.sub(r"<[^<>]*>", " ", text).replace("_", "")
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return " ".join(text.split())


def translations(folder: Path) -> Translations:
    found: Translations = defaultdict(dict)
    for path in sorted(folder.rglob("*.po")):
        language = language_of(path)
        for message, translation in entries(path) if language else ():
            english, other = plain(message), plain(translation)
            if len(english.split()) >= FEWEST_WORDS and other != english:
                found[str(language)][english] = other
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    for repository, commit in CATALOGUES.items():
        folder = out / "catalogues" / repository
        if not folder.exists():
            fetch(repository, commit, folder)
    found = translations(out / "catalogues")
    texts = {"en": sorted({text for pairs in found.values() for text in pairs})}
    texts |= {name: list(dict.fromkeys(found[name].values())) for name in sorted(found)}
    (out / "text").mkdir(parents=True, exist_ok=True)
    for name, lines in texts.items():
        (out / "text" / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    print(", ".join(f"{name} {len(lines)}" for name, lines in texts.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
