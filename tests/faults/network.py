"""A Redis on a machine of its own: a network namespace, with a cable that can be cut."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import RedisServer


class OtherMachine:
    """Needs root, iproute2 and iptables. A context manager."""

    def __init__(self, folder: Path) -> None:
        for tool, package in (("ip", "iproute2"), ("iptables", "iptables"), ("redis-server", "redis-server")):
            assert shutil.which(tool), f"{tool} is missing; make test-all installs it ({package})"
        self.namespace = f"isosim-{os.getpid()}"
        self.cable = f"iso{os.getpid()}"
        net = f"10.213.{os.getpid() % 250}"
        self.near, self.far = f"{net}.1", f"{net}.2"
        self.redis = RedisServer(folder, address=self.far, inside=("ip", "netns", "exec", self.namespace))

    def __enter__(self) -> "OtherMachine":
        run(f"ip netns add {self.namespace}")
        run(f"ip link add {self.cable} type veth peer name inside netns {self.namespace}")
        run(f"ip addr add {self.near}/30 dev {self.cable}")
        run(f"ip link set {self.cable} up")
        run(f"ip -n {self.namespace} addr add {self.far}/30 dev inside")
        run(f"ip -n {self.namespace} link set inside up")
        self.redis.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.kill()
        run(f"ip netns del {self.namespace}")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Packets vanish in both directions."""
        inside = f"ip netns exec {self.namespace} iptables"
        for chain in ("INPUT", "OUTPUT"):
            run(f"{inside} -A {chain} -j DROP")
        yield
        for chain in ("INPUT", "OUTPUT"):
            run(f"{inside} -F {chain}")


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)
