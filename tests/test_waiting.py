"""Waiting for something fails as soon as a process that it may depend on has ended, with the end of that one's log."""

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from loadtest import servers
from tests.processes import Server, free_port, wait_until

HOUR = 3600.0  # s; a test that waited for the time to be over would never end


def started(folder: Path, script: str, url: str = "") -> Server:
    log = folder / "log"
    with log.open("wb") as file:
        popen = subprocess.Popen(["sh", "-c", script], stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    return Server(popen, log, url)


def test_a_process_that_ends_by_itself_ends_the_wait_and_its_last_words_are_shown(tmp_path: Path) -> None:
    started(tmp_path, "echo its last words; exit 3")
    with pytest.raises(AssertionError, match=r"exit code 3 while a test waited:\nits last words"):
        wait_until(lambda: False, HOUR)


def test_a_server_that_ended_is_told_once_to_others_and_always_to_those_who_ask_it(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    started(tmp_path, "exit 1", url)
    for _ in range(2):
        with pytest.raises(AssertionError, match="exit code 1"):
            wait_until(lambda: httpx.get(url).is_success, HOUR)
    with pytest.raises(AssertionError, match="was not met"):
        wait_until(lambda: False, 0.2)


def test_a_bench_whose_server_or_redis_cannot_start_fails_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        servers.process(["sh", "-c", "echo its last words"], dict(os.environ), log) as child,
        pytest.raises(RuntimeError, match="its last words"),
    ):
        servers.wait_for(free_port(), b"PING\r\n", b"+PONG", child, log)
