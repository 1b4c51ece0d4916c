"""Starts isosim's commands by forking a process that has imported them, since the imports take ten times as long as the
rest of a start. Tests that are about a start from nothing use `subprocess`.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# Variables that take effect only when a process starts from nothing.
AT_START = ("LANG", "LC_ALL", "LD_PRELOAD", "PYTHONIOENCODING", "PYTHONPATH", "PYTHONUTF8")
BASE = dict(os.environ)
MODULES = ("isosim.server.app", "isosim.worker.supervisor")  # and every command; none of them imports torch
FITTING = ("isosim.fitting.job", "isosim.export.model_store")  # imported too for the commands that need torch
FIT = ("bundle", "calibrate", "encoder", "export", "label", "train")


class Forked:
    """A command in a process of its own, with the methods of `subprocess.Popen` that the tests call."""

    def __init__(self, stem: "Stem", pid: int, args: Sequence[object]) -> None:
        self.stem, self.pid, self.args = stem, pid, args

    @property
    def returncode(self) -> int | None:
        return self.stem.codes.get(self.pid)

    def poll(self) -> int | None:
        self.stem.listen(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                assert timeout is not None
                raise subprocess.TimeoutExpired([str(word) for word in self.args], timeout)
            self.stem.listen(0.05)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Stem:
    """The process that forks, and the socket to it. Thread-safe."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.socket, theirs = socket.socketpair()
        self.codes: dict[int, int] = {}  # exit code of the last process with a number, once it has ended
        self._lock = threading.RLock()
        self._rest = b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *modules],
                env=BASE,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.socket.close()
        self._process.wait(10)

    def start(self, words: Sequence[object], env: Mapping[str, str], files: Sequence[int]) -> Forked:
        """`isosim …` with these files as standard input, output and error, in a session of its own."""
        asked = json.dumps({"words": [*map(str, words)], "env": dict(env), "cwd": str(Path.cwd())}).encode()
        with self._lock:
            socket.send_fds(self.socket, [len(asked).to_bytes(4, "big")], [*files])
            self.socket.sendall(asked)
            pid = None
            while pid is None:
                pid = self.listen(10)
        return Forked(self, pid, words)

    def listen(self, seconds: float) -> int | None:
        """Takes news of the processes, after waiting for them up to `seconds`; the last one that has started."""
        started = None
        with self._lock:
            if select.select([self.socket], [], [], seconds)[0]:
                received = self.socket.recv(1 << 16)
                assert received, "the process that forks has ended"
                *lines, self._rest = (self._rest + received).split(b"\n")
                for news in map(json.loads, lines):
                    if "started" in news:
                        started = news["started"]
                        self.codes.pop(started, None)  # of an earlier process with the same number
                    else:
                        self.codes[news["ended"]] = news["code"]
        return started


@functools.cache
def stem(process: int, *modules: str) -> Stem:
    """`process`: the one that asks, since a process that a test has forked needs a stem of its own."""
    return Stem(modules)


Started = Forked | subprocess.Popen[bytes]


def begin(words: Sequence[object], env: Mapping[str, str], files: Sequence[int]) -> Started:
    """Starts `isosim …`; from nothing if its environment asks for that."""
    if all(env.get(name) == BASE.get(name) for name in AT_START):
        modules = (*MODULES, *FITTING) if words[:1] and words[0] in FIT else MODULES
        return stem(os.getpid(), *modules).start(words, env, files)
    command = [sys.executable, "-m", "isosim.cli", *map(str, words)]
    out, err, into = files[1], files[2], files[0]
    return subprocess.Popen(command, env=env, stdin=into, stdout=out, stderr=err, start_new_session=True)


def start(words: Sequence[object], env: Mapping[str, str], out: IO[Any]) -> Started:
    """Starts `isosim …`, with its output in a file."""
    with Path(os.devnull).open() as nothing:
        return begin(words, env, [nothing.fileno(), out.fileno(), out.fileno()])


def run(words: Sequence[object], env: Mapping[str, str], given: bytes, timeout: float) -> tuple[int, bytes, bytes]:
    """Runs `isosim …` to its end; its exit code, and what it wrote to standard output and standard error."""
    (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = (os.pipe(), os.pipe(), os.pipe())
    try:
        process = begin(words, env, [theirs_in, theirs_out, theirs_err])
    finally:
        for theirs in (theirs_in, theirs_out, theirs_err):
            os.close(theirs)
    said: dict[int, bytes] = {}

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(ours_in, "wb") as file:
            file.write(given)

    def read(end: int) -> None:
        with os.fdopen(end, "rb") as file:
            said[end] = file.read()

    threads = [
        threading.Thread(target=write),
        *(threading.Thread(target=read, args=[end]) for end in (ours_out, ours_err)),
    ]
    for thread in threads:
        thread.start()
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        for thread in threads:
            thread.join(timeout)
    return code, said[ours_out], said[ours_err]


def serve(connection: socket.socket) -> None:
    """Forks for each request, and tells which process has started and which has ended, until the tests are over."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(**news: int) -> None:
        connection.sendall(json.dumps(news).encode() + b"\n")

    while True:
        watched: list[Any] = [connection, woken]
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            os.read(woken, 4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    tell(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))
        if connection in ready:
            head, files, _, _ = socket.recv_fds(connection, 4, 3)
            if not head:
                return
            asked = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
            pid = os.fork()
            if not pid:
                connection.close()
                os.close(woken)
                signal.set_wakeup_fd(-1)
                os.close(wakes)
                become(files, **asked)
            for file in files:
                os.close(file)
            tell(started=pid)


def become(files: Sequence[int], words: list[str], env: dict[str, str], cwd: str) -> None:
    """Runs a command in this process, which has just been forked, and ends it."""
    from isosim.cli import main
    from isosim.server import announcements

    os.setsid()
    vars(announcements)["STARTED"] = time.perf_counter()
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
    for target, file in enumerate(files):
        os.dup2(file, target)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    random.seed()
    sys.argv = ["isosim", *words]
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    code: Any = 1
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        getattr(threading, "_shutdown")()  # noqa: B009 - waits for threads, as the end of a process does
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code if isinstance(code, int) else bool(code))


def main() -> None:
    from importlib import import_module

    from isosim.cli import COMMANDS

    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    modules = sys.argv[2:]
    for name in (*modules, *(f"isosim.{place.partition(':')[0]}" for place, _ in COMMANDS.values())):
        import_module(name)
    assert ("torch" in sys.modules) is (len(modules) > len(MODULES))
    gc.collect()
    gc.freeze()
    serve(connection)


if __name__ == "__main__":
    main()
