"""How a domain and its versions are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.errors import InvalidInput
from isosim.scoring.calibration import DomainRef


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("default", "default", "champion"),
        ("news@3", "news", 3),
        ("news@0", "news", 0),
        ("news@previous", "news", "previous"),
        ("news@champion", "news", "champion"),
        ("0", "0", "champion"),
        ("a.b_c-d", "a.b_c-d", "champion"),
        ("a" * 64 + "@999999999", "a" * 64, 999_999_999),
    ],
)
def test_a_name_and_a_version(text: str, name: str, version: int | str) -> None:
    assert DomainRef.parse(text) == DomainRef(name, version)


@pytest.mark.parametrize(
    "text",
    [
        "", "@", "@3", "news@", "news@03", "news@-1", "news@1.5", "news@latest", "news@3@4", "news@1000000000",
        "News", "NEWS", "news@Previous", "nëws", "новости", "news@٣", "ｎews",
        "..", ".", ".hidden", "-x", "_x", "../etc", "a/b", "a\\b", "/etc/passwd", "a/../../b", "a%2fb",
        "a b", " a", "a ", "a\n", "a\0", "a" * 65,
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="domain"):
        DomainRef.parse(text)


@given(st.text())
def test_whatever_is_taken_is_safe_as_a_folders_name(text: str) -> None:
    try:
        ref = DomainRef.parse(text)
    except InvalidInput as error:
        assert len(str(error)) < 400  # a long text is not sent back whole
        return
    assert ref.name.isascii()
    assert not set(ref.name) & set("/\\@ \0\n")
    assert not ref.name.startswith(".")


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True), st.integers(0, 999_999_999))
def test_a_written_reference_is_read_back(name: str, version: int) -> None:
    assert DomainRef.parse(f"{name}@{version}") == DomainRef(name, version)
