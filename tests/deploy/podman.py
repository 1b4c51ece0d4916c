"""Pods as real containers: `podman kube play`, in a storage of its own, each command bounded in time."""

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart import Manifest

# The host may have no systemd, and lower limits than podman asks for.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_config_dir = "{folder}/networks"
"""
REFERENCE = re.compile(r"\$\((\w+)\)")


def expanded(text: str, known: Mapping[str, str]) -> str:
    return REFERENCE.sub(lambda found: known[found[1]], text)


def ready_to_play(
    manifest: Manifest, secrets: Mapping[str, Mapping[str, str]], hosts: Mapping[str, str] | None = None
) -> Manifest:
    """What a cluster does and this podman does not: Secrets in variables, $(NAME) in values, names of Services."""
    played = copy.deepcopy(manifest)
    spec = played["spec"]["template"]["spec"] if "template" in played["spec"] else played["spec"]
    spec["hostAliases"] = [{"ip": ip, "hostnames": [name]} for name, ip in (hosts or {}).items()]
    for container in spec["containers"]:
        known: dict[str, str] = {}
        for variable in container.get("env", ()):
            if source := variable.pop("valueFrom", None):
                variable["value"] = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            known[variable["name"]] = variable["value"] = expanded(variable["value"], known)
        if "args" in container:
            container["args"] = [expanded(word, known) for word in container["args"]]
        container.pop("ports", None)  # it would publish them on every address of this machine
    return played


@dataclass
class Podman:
    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "networks").mkdir()
        (self.folder / "containers.conf").write_text(CONFIGURATION.format(folder=self.folder))

    def run(self, *words: str | Path, check: bool = True, timeout: float = 120, **options: Any) -> str:
        """Standard output; on failure all of it is in the message."""
        binary = shutil.which("podman")
        assert binary, "podman is missing; make test-all installs it"
        command = [binary, "--root", self.folder / "root", "--runroot", self.folder / "run", *words]
        environment = os.environ | {"CONTAINERS_CONF": str(self.folder / "containers.conf")}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False, **options
        )
        assert done.returncode == 0 or not check, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def load(self, root: Path, image: str) -> None:
        """An image out of a root file system."""
        archive = self.folder / "image.tar"
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True, timeout=120)
        self.run("import", "--quiet", "--change", "ENV PATH=/usr/local/bin", archive, image)
        archive.unlink()

    def secret(self, name: str, data: Mapping[str, str]) -> None:
        """Not base64: this podman mounts what stands there."""
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": dict(data)}
        file = self.folder / "secret.yaml"
        file.write_text(yaml.safe_dump(manifest))
        self.run("secret", "create", name, file)

    def volume(self, name: str, content: Path, owner: int) -> None:
        """What a claim stands for, filled."""
        self.run("volume", "create", name)
        (place,) = json.loads(self.run("volume", "inspect", name))
        shutil.copytree(content, place["Mountpoint"], dirs_exist_ok=True)
        subprocess.run(["chown", "-R", f"{owner}:{owner}", place["Mountpoint"]], check=True)

    def play(self, *manifests: Manifest) -> None:
        file = self.folder / "play.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        self.run("kube", "play", file)

    def inspect(self, container: str) -> dict[str, Any]:
        (found,) = json.loads(self.run("container", "inspect", container))
        return dict(found)

    def address(self, container: str) -> str:
        """Of the pod, which is that of its first container."""
        pod = self.inspect(container)["Pod"]
        found = json.loads(self.run("pod", "inspect", pod))
        networks = self.inspect(found["InfraContainerID"])["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def python(self, container: str, code: str) -> str:
        return self.run("exec", container, "python", "-c", code)

    def clean(self) -> None:
        """Pods, their network's bridge, and all that was stored."""
        self.run("pod", "rm", "--all", "--force", "--time", "0", check=False)
        for network in (self.folder / "networks").glob("*.conflist"):
            bridge = json.loads(network.read_text())["plugins"][0]["bridge"]
            subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)
        self.run("system", "reset", "--force", check=False)
