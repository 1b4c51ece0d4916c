"""The file of keys while it is swapped, broken, torn and mended, as operators and Kubernetes do it."""

import asyncio
import hashlib
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isosim.access.key_file import LOOK_SECONDS, Keys
from isosim.errors import Unauthorized


def line(key: str, rest: str = "read domains=*") -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()} {rest}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text(line("old"))
    return tmp_path / "keys"


def test_a_key_is_found_by_itself_and_not_by_its_hash(path: Path) -> None:
    keys = Keys(path)
    assert keys.find("old") is not None
    for other in ("", "olD", "old ", "\ud800", "é", hashlib.sha256(b"old").hexdigest()):
        assert keys.find(other) is None


def test_a_kubernetes_secret_is_swapped_by_links_even_to_a_file_of_the_same_time(tmp_path: Path) -> None:
    for name, key in (("..2024_01", "new"), ("..2024_02", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(line(key))
        os.utime(tmp_path / name / "keys", (1, 1))  # their sizes are the same, too
    (tmp_path / "..data").symlink_to("..2024_02")
    (tmp_path / "keys").symlink_to("..data/keys")
    keys = Keys(tmp_path / "keys")
    (tmp_path / "..data_tmp").symlink_to("..2024_01")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    keys.look()
    assert keys.find("new") is not None
    assert keys.find("old") is None


@pytest.mark.parametrize(
    "broken",
    [b"isk_secret read\n", b"\xff\xfe", line("new", "read").encode(), line("new").encode() * 2],
)
def test_a_file_that_is_broken_keeps_the_old_keys_and_says_so_without_a_word_of_it(
    path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(path)
    path.write_bytes(broken)
    caplog.set_level(logging.DEBUG)
    for _ in range(3):
        keys.look()
    assert not keys.valid
    assert keys.find("old") is not None
    assert keys.find("new") is None
    assert len(caplog.records) == 1  # not at every look
    assert "stay in force" in caplog.text
    assert "secret" not in caplog.text
    assert hashlib.sha256(b"new").hexdigest()[:8] not in caplog.text
    path.write_text(line("new"))
    keys.look()
    assert keys.valid
    assert keys.find("new") is not None
    assert "is valid again" in caplog.text


def test_a_file_that_is_cut_anywhere_grants_nothing_more(path: Path) -> None:
    """As a full disk or a copy in progress leaves it."""
    whole = line("old", "read domains=team-a-* rate=100/m team a")
    path.write_text(whole)
    keys = Keys(path)
    for end in range(1, len(whole) - 1):
        path.write_text(whole[:end])
        keys.look()
        assert not keys.valid, whole[:end]
        grant = keys.find("old")
        assert grant is not None
        assert (grant.patterns, str(grant.rate), grant.name) == (("team-a-*",), "100 texts a minute", "team a")


def test_a_file_that_is_gone_keeps_the_old_keys(path: Path) -> None:
    keys = Keys(path)
    path.unlink()
    keys.look()
    assert not keys.valid
    assert keys.find("old") is not None


def test_an_empty_file_lets_nobody_in(path: Path) -> None:
    keys = Keys(path)
    path.write_text("# nobody\n")
    keys.look()
    assert keys.valid
    assert keys.find("old") is None


def test_a_broken_file_at_the_start_is_refused_naming_the_line(path: Path) -> None:
    path.write_text(line("old") + "\n# note\nnonsense\n")
    with pytest.raises(ValueError, match="line 4: expected"):
        Keys(path)


def test_a_removed_key_is_taken_back_within_a_second(path: Path) -> None:
    async def watched() -> None:
        keys = Keys(path)
        watching = asyncio.create_task(keys.watch())
        await asyncio.to_thread(path.write_text, line("new"))
        async with asyncio.timeout(20):
            while keys.find("new") is None:  # noqa: ASYNC110 - a file sends no event
                await asyncio.sleep(0.01)
        assert keys.find("old") is None
        watching.cancel()

    asyncio.run(watched())
    assert LOOK_SECONDS <= 1


def test_a_line_that_the_next_one_was_appended_to_grants_nothing(path: Path) -> None:
    """A line that was cut off, and a second key after it: the options of one must not become the other's."""
    whole = line("old", "read my team domains=team-a-*")
    for end in range(1, len(whole)):
        path.write_text(whole[:end] + line("new", "read,calibrate domains=* rate=1/h"))
        with pytest.raises(ValueError, match="line 1"):
            Keys(path)


def test_a_key_is_refused_after_its_last_day_and_told_so(path: Path) -> None:
    today = datetime.now(UTC).date()
    keys = {}
    for days in (1, 0, -1):
        path.write_text(line("a", f"read domains=* until={today + timedelta(days)}"))
        keys[days] = Keys(path)
    assert all(keys[days].identify("Bearer a").may_use("default") for days in (1, 0))
    with pytest.raises(Unauthorized, match=f"was valid until {today - timedelta(1)}"):
        keys[-1].identify("Bearer a")
