"""Lines of files: as they are, in order, a bad one named."""

import os
from pathlib import Path

import pytest

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.text_lines import READ, opened, read_lines


def test_lines_longer_and_shorter_than_a_read_come_whole(tmp_path: Path) -> None:
    texts = ["é" * n for n in (1, READ // 2 - 1, READ, 3 * READ, 0, 7)]
    (tmp_path / "t").write_text("\n".join(texts), encoding="utf-8")
    assert read_lines(tmp_path / "t") == texts


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\nb\n", ["a", "", "b"]),
        ("\ufeffä\r\n文".encode("utf-16-le"), ["ä", "文"]),
        (b"a\x0cb", ["a\fb"]),
    ],
)
def test_only_a_line_feed_ends_a_line(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "t").write_bytes(content)
    assert read_lines(tmp_path / "t") == lines


def test_undecoded_iso_2022_jp_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"fine\n" * 20_000 + "注文\n".encode("iso-2022-jp"))
    with pytest.raises(InvalidInput, match="line 20001 has a control character"):
        read_lines(tmp_path / "t")


def test_what_is_no_utf8_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"fine\n" * 20_000 + b"sch\xf6n\n")
    with pytest.raises(InvalidInput, match="line 20001 is not UTF-8"):
        read_lines(tmp_path / "t")


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"x" * 10 * READ)
    with opened(tmp_path / "t", longest=1000) as lines, pytest.raises(InvalidInput, match="line 1"):
        next(lines.blocks())
    assert lines.seen == READ


def test_a_text_without_words_is_empty(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("\n \n")
    with pytest.raises(EmptyInput, match="is empty"):
        read_lines(tmp_path / "t")


def test_a_files_share_rises_to_one_and_a_pipe_has_none(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"line\n" * READ)
    with opened(tmp_path / "t") as lines:
        shares = [lines.share for _ in lines.blocks()]
    assert shares == sorted(shares)  # type: ignore[type-var]
    assert shares[-1] == 1.0
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with opened(tmp_path / "pipe") as lines:
        assert lines.share is None
    os.close(writer)
