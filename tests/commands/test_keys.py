"""`isosim keys`: what it prints is what the server takes."""

import hashlib
import json
import re
from pathlib import Path

from isosim.access.key_file import Keys
from tests.processes import command


def test_a_new_key_and_its_line_fit_and_the_key_is_long_enough(tmp_path: Path) -> None:
    done = command(
        "keys", "new", "--scopes", "read,calibrate", "--name", "team a", "--domains", "a,b-*", "--rate", "9/s"
    )
    found = re.fullmatch(r"key: (isk_[A-Za-z0-9_-]{43})\nline: (\S+) (.+)\n", done.stdout)
    assert found is not None, done.stdout
    key, digest, rest = found.groups()
    assert digest == hashlib.sha256(key.encode()).hexdigest()
    assert rest == "read,calibrate domains=a,b-* rate=9/s team a"
    (tmp_path / "keys").write_text(f"{digest} {rest}\n")
    grant = Keys(tmp_path / "keys").identify(f"Bearer {key}")
    grant.check_scope("calibrate")
    assert grant.name == "team a"


def test_added_keys_stand_in_a_file_of_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n")
    file.chmod(0o640)
    made = [json.loads(command("keys", "new", "--add", str(path), "--json").stdout)["key"] for path in (file, file)]
    assert [Keys(file).identify(f"Bearer {key}").scopes for key in made] == [{"read"}, {"read"}]
    assert file.read_text().startswith("# ours\n")
    assert "read domains=*\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    command("keys", "new", "--add", str(tmp_path / "fresh"))
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o600


def test_no_line_is_added_to_a_file_that_may_have_been_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{'a' * 64} read domains=team-*")
    done = command("keys", "new", "--add", str(file))
    assert done.returncode == 1
    assert "does not end with a line break" in done.stderr
    assert file.read_text() == f"{'a' * 64} read domains=team-*"


def test_the_list_shows_rights_and_neither_keys_nor_hashes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    options = ("--json", "--until", "2027-01-31", "--name", "us")
    made = json.loads(command("keys", "new", "--add", str(file), *options).stdout)
    for done in (command("keys", "list", str(file)), command("keys", "list", "--json", api_keys_file=file)):
        assert "us" in done.stdout and "2027-01-31" in done.stdout
        assert made["key"] not in done.stdout
        assert made["line"].split()[0] not in done.stdout


def test_what_the_server_would_not_take_is_not_made(tmp_path: Path) -> None:
    for option, value in (
        ("--scopes", "write"), ("--rate", "fast"), ("--until", "soon"), ("--domains", "A"), ("--name", "a=b"),
        ("--name", "#1"),
    ):  # fmt: skip
        done = command("keys", "new", "--add", str(tmp_path / "keys"), option, value)
        assert done.returncode == 1
        assert done.stdout == ""
    assert not (tmp_path / "keys").exists()
    assert command("keys", "list").returncode == 1
