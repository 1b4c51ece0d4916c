"""README is a first screen: a newcomer reads it whole."""

from tests.docs.pages import ROOT


def test_the_readme_has_fewer_than_650_words() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 650
