"""Keys, passwords and texts: in no log at any level, no metric, no error, also when something fails."""

import hashlib
from pathlib import Path

import pytest

from tests.faults.load import metric
from tests.processes import Serve, command, wait_until
from tests.security.conftest import bearer, key_line

KEYS = {"isk_owner-7f3a9c": "read,calibrate,admin owner", "isk_reader-51be02": "read rate=1000/s"}
PASSWORD = "hunter2-correct-horse"  # noqa: S105 - a test's own
PLAIN = {"content-type": "text/plain"}
WRONG = "isk_guessed-99aa77"
TEXT = "the unspeakable sentence of nobody"
HASHES = [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
SECRETS = [*KEYS, PASSWORD, WRONG, TEXT, "unspeakable", *HASHES, *(digest.upper() for digest in HASHES)]


def check(where: str, text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, f"{where} holds {secret!r}"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("".join(key_line(key, rest) for key, rest in KEYS.items()))
    return path


def test_a_file_of_keys_that_breaks_is_logged_without_its_words_and_seen_in_a_metric(
    serve: Serve, store: Path, keys: Path
) -> None:
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys, log_level="debug")
    owner = bearer(next(iter(KEYS)))
    assert metric(server, "isosim_api_keys ") == 2
    assert metric(server, "isosim_api_keys_file_valid") == 1
    good = keys.read_text()
    for broken in (
        good + f"{WRONG} read\n",
        good.replace("read", "wread"),
        good.replace(" ", " isk_owner-7f3a9c=1 ", 1),
    ):
        keys.write_text(broken)
        wait_until(lambda: metric(server, "isosim_api_keys_file_valid") == 0)
        assert server.client.get("/domains", headers=owner).status_code == 200
        keys.write_text(good)
        wait_until(lambda: metric(server, "isosim_api_keys_file_valid") == 1)
    log = server.log.read_text()
    assert log.count("stay in force") == 3
    check("the log", log)


@pytest.mark.parametrize("broken", [f"{WRONG} read\n", "isk_owner-7f3a9c\n"])
def test_a_file_that_is_broken_at_the_start_is_refused_without_its_words(
    store: Path, tmp_path: Path, broken: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(broken)
    for words in (["serve"], ["doctor"], ["keys", "list"]):
        done = command(*words, model_store=store, encoder="tiny", api_keys_file=path)
        assert done.returncode != 0
        assert "line 1" in done.stdout + done.stderr
        check(" ".join(words), done.stdout + done.stderr)
