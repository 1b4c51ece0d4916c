"""The machine's clock jumps by hours, forward and back: nothing alive is taken for dead, nothing in use is swept."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.jobs import becomes, held_job, state, whole_versions
from tests.faults.load import Load
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

JUMPS = ("+1h", "-2h", "+10d", "-10d")
Jump = Callable[[str], None]
# The library that fakes the clock shifts what `time.sleep` waits for as well, until it is refused; `select` it lets be.
SLEEP = "import select, time\n\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"


@pytest.fixture
def jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the clock of all processes that are started from now on; what measures durations keeps its pace."""
    setting = tmp_path / "clock"
    setting.write_text("+0\n")
    told = subprocess.check_output(["faketime", "-f", "+0", "env"], text=True)
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(SLEEP)
    library = next(line.partition("=")[2] for line in told.splitlines() if line.startswith("LD_PRELOAD="))
    for name, value in {
        "LD_PRELOAD": library.replace("libfaketime.so", "libfaketimeMT.so"),
        "FAKETIME_TIMESTAMP_FILE": str(setting),
        "FAKETIME_CACHE_DURATION": "1",  # s; to look at the setting in every call costs more than all else
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path / "python"), os.environ.get("PYTHONPATH")])),
    }.items():
        monkeypatch.setenv(name, value)

    def set_clock(offset: str) -> None:
        other = setting.with_suffix(".new")
        other.write_text(offset + "\n")
        other.replace(setting)

    return set_clock


def date(server: Server) -> str:  # to the hour: [:19]
    return server.client.get("/livez").headers["date"]


def test_a_calibration_and_an_upload_outlive_jumps_of_the_clock(jump: Jump, serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        upload = "\n".join(sentences(2500)) * 40  # 6 MB: the first half may take minutes
        half = len(upload) // 2
        head = "POST /calibrate?domain=slow&method=sn HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
        connection.sendall(f"{head}content-length: {len(upload)}\r\n\r\n{upload[:half]}".encode())
        held = held_job(server, server, "held")  # which says nothing for as long as it is held
        with Load(server) as load:
            for offset in JUMPS:
                before = date(server)
                jump(offset)
                wait_until(lambda: date(server)[:19] != before[:19])  # noqa: B023 - used up within the round
                assert state(server, held.job)["status"] == "running"
                load.answered(5)
                held.breathe()
        load.nothing_was_lost(10)
        jump("+10d")
        held.let_go()
        assert becomes(server, held.job, "succeeded")["attempt"] == 1  # and it has swept after itself

        connection.sendall(upload[half:].encode())
        answer = connection.recv(65536).decode()
        assert answer.startswith("HTTP/1.1 202 "), answer
    assert whole_versions(store, "held") == [1]
