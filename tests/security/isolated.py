"""Uses isosim in namespaces of its own, and prints what it would have sent to other machines.

`python -m tests.security.isolated USE…` runs after `NAMESPACES`, in an empty folder `FOLDER/cwd`: in a network
without a way out, and on a file system of which only FOLDER can be written. FOLDER has a model store and files of
text. USE is the name of a function below, or a command of `isosim` with its arguments.
"""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import Process, RedisServer, serve_with, start
from tests.text import sentences

# Packets to other machines go into a cable that nothing answers; `wire` is its other end.
NAMESPACES = """set -e
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip link set lo up
ip link add out type veth peer name wire
ip link set out arp off up
ip link set wire up
ip addr add 192.0.2.1/24 dev out
ip route add default dev out
printf 'nameserver 192.0.2.53\noptions timeout:1 attempts:1\n' > "$1/resolv.conf"
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1" "$1"
mount -o remount,ro,bind /
cd "$1/cwd"
shift
exec "$@"
"""
ETH_P_ALL = 3  # linux/if_ether.h
FOLDER = Path("..").resolve()
CSV = {"content-type": "text/csv"}


def serve() -> None:
    running: list[Process] = []
    server = serve_with(FOLDER, running, model_store=FOLDER / "store", encoder="tiny")
    client = server.client
    assert client.post("/similarity", json={"pairs": [sentences(2)]}).status_code == 200
    # A child process reads the table.
    assert client.post("/inspect", content=(FOLDER / "pairs.csv").read_bytes(), headers=CSV).status_code == 200
    assert server.calibrate("tickets", sentences(400))["status"] == "succeeded"
    server.stop()


def openvino() -> None:
    server = serve_with(FOLDER, [], model_store=FOLDER / "store", encoder="tiny", engine="openvino", local_worker=False)
    assert server.client.post("/similarity", json={"pairs": [sentences(2)]}).status_code == 200
    server.stop()


def worker() -> None:
    redis = RedisServer(FOLDER)
    redis.start()
    given: dict[str, Any] = {"model_store": FOLDER / "store", "encoder": "tiny", "redis_url": redis.url}
    log = FOLDER / "worker.log"
    running = [Process(start(["worker"], log, **given), log)]
    server = serve_with(FOLDER, running, **given, local_worker=False)
    assert server.calibrate("tickets", sentences(400))["status"] == "succeeded"
    for process in running:
        process.stop()
    redis.kill()


def look_up() -> None:
    """Shows that a look-up is noticed."""
    with contextlib.suppress(socket.gaierror):
        socket.getaddrinfo("example.com", 443)


def main(use: str, *words: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as wire:
        wire.bind(("wire", 0))
        wire.setblocking(False)
        ours = {"serve": serve, "openvino": openvino, "worker": worker, "look_up": look_up}
        if use in ours:
            ours[use]()
        else:
            given = os.environ | {"ISOSIM_MODEL_STORE": str(FOLDER / "store"), "ISOSIM_ENCODER": "tiny"}
            subprocess.run([sys.executable, "-m", "isosim.cli", use, *words], env=given, check=True)
        with contextlib.suppress(BlockingIOError):
            while packet := wire.recv(4096):
                print("sent:", packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
