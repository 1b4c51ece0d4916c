"""The texts that the table of languages is measured with: from a git remote to a file a language, in small."""

import subprocess
import sys
from pathlib import Path

import pytest

from evaluation import catalogues
from tests.text import sentences

ENGLISH = sentences(240)


def entry(message: str, translation: str, *, fuzzy: bool = False) -> str:
    half = len(message) // 2  # in two lines, as gettext wraps them
    mark = "#, fuzzy\n" if fuzzy else ""
    return f'{mark}msgid "{message[:half]}"\n"{message[half:]}"\nmsgstr "{translation}"\n'


def written(folder: Path) -> str:
    """A repository with two catalogues that are wanted and two files that are not; its commit."""
    german, korean = ([entry(text, f"{word} {text[::-1]}") for text in ENGLISH] for word in ("Wort", "낱말"))
    kept = [
        entry("_Open the <b>old</b> file &amp; go", "_Öffne die <b>alte</b> Datei &amp; geh"),
        entry("Open", "Öffne"),
    ]
    files = {
        "po/de.po": [*german, *kept, entry("Nobody has looked at this", "Unfug", fuzzy=True)],
        "help/guide-ko.po": korean,
        "po/fr.po": [entry(ENGLISH[0], "non")],
        "large.bin": ["x" * 1000],
    }
    for name, blocks in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(blocks), "utf-8")
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (
        ["init", "-q"],
        ["config", "uploadpack.allowFilter", "true"],
        ["add", "-A"],
        [*identity, "commit", "-qm", "t"],
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    said = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return said.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    commit = written(tmp_path / "remote" / "some" / "project")
    monkeypatch.setattr(catalogues, "HOST", f"file://{tmp_path}/remote")
    monkeypatch.setattr(catalogues, "CATALOGUES", {"some/project": commit})
    return commit


def test_catalogues_are_fetched_at_their_commit_and_a_fetch_that_failed_leaves_nothing(
    remote: str, tmp_path: Path
) -> None:
    folder = tmp_path / "out" / "some" / "project"
    with pytest.raises(subprocess.CalledProcessError):
        catalogues.fetch("some/project", "0" * 40, folder)
    assert not folder.exists()
    catalogues.fetch("some/project", remote, folder)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "help/guide-ko.po",
        "po/de.po",
    ]
    found = catalogues.translations(folder)
    assert found["de"].pop("Open the old file & go") == "Öffne die alte Datei & geh"
    assert found == {
        "de": {text: f"Wort {text[::-1]}" for text in ENGLISH},
        "ko": {text: f"낱말 {text[::-1]}" for text in ENGLISH},
    }


@pytest.mark.usefixtures("remote")
def test_every_language_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["catalogues", str(tmp_path / "out")])
    catalogues.main()
    texts = {path.stem: path.read_text("utf-8").splitlines() for path in (tmp_path / "out/text").iterdir()}
    assert texts.keys() == {"en", "de", "ko"}
    assert set(texts["en"]) == {*ENGLISH, "Open the old file & go"}
    assert texts["ko"] == [f"낱말 {text[::-1]}" for text in ENGLISH]
