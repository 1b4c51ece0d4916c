"""Rendered releases as real containers, one of each pod: what an installation is without a cluster, from the job that
makes the store to a backup that is restored. Their Services' names lead to one network, which all of them share."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy import stand_ins
from tests.deploy.chart import ANYBODY, KEYS, OWN_REDIS, Manifest, Values, merged, named, render, values_file
from tests.deploy.combinations import ASSIGNED, BUCKET, EXTERNAL_REDIS, ITS_ENDPOINT, TLS, environment, pods
from tests.deploy.engine import Container, Engine
from tests.objects import start_objects
from tests.processes import wait_until
from tests.security.conftest import bearer, key_line
from tests.security.redis_guarded import PASSWORD, GuardedRedis
from tests.text import sentences

KEY = "the-operators-key"
ODD = 'a "quoted" \\ one\'s $HOME `x`\\t'  # a password
ASSIGNED_ID = 1000650000  # as OpenShift gives one, with the group 0
ON_A_VOLUME = merged(
    values_file("values-cpu.yaml"), KEYS, OWN_REDIS,
    {
        "access": {"testKeySecret": {"name": "test"}}, "autoscaling": {"kind": "hpa"},
        "backup": {"schedule": "15 3 * * *", "destination": "/backups/"},
        "api": {
            "podTemplate": {
                "spec": {
                    "volumes": [{"name": "backups", "persistentVolumeClaim": {"claimName": "backups"}}],
                    "containers": [{"name": "api", "volumeMounts": [{"name": "backups", "mountPath": "/backups"}]}],
                }
            }
        },
    },
)  # fmt: skip
IN_A_BUCKET = merged(
    ANYBODY, EXTERNAL_REDIS, TLS, BUCKET, ITS_ENDPOINT, ASSIGNED,
    {
        "modelStore": {"bucket": {"caSecret": {"name": ""}}},
        "backup": {"schedule": "15 3 * * *", "destination": "s3://models/backups/"},
    },
)  # fmt: skip


@dataclass
class Release:
    """Its pods as `docker run` starts them: with the rights, limits, variables and files of their manifests."""

    network: Container
    folder: Path
    rendered: list[Manifest]
    secrets: dict[str, dict[str, str]]

    def words(self, component: str) -> list[str]:
        spec = pods(self.rendered)[component]
        (container,), context = spec["containers"], spec["securityContext"]
        user, group = context.get("runAsUser", ASSIGNED_ID), context.get("runAsGroup", 0)
        files = context.get("fsGroup", ASSIGNED_ID)
        limit = container["resources"]["limits"]["memory"].removesuffix("i")
        words = [
            "--network", f"container:{self.network.id}", "--user", f"{user}:{group}", "--group-add", str(files),
            "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", limit,
        ]  # fmt: skip
        given = environment(container)
        for one in container.get("env", ()):
            if (secret := one.get("valueFrom", {}).get("secretKeyRef")) is not None:
                given[one["name"]] = self.secrets[secret["name"]][secret["key"]]
        for source in container.get("envFrom", ()):
            given = named(self.rendered, "ConfigMap", source["configMapRef"]["name"])["data"] | given
        for name, value in given.items():
            words += ["--env", f"{name}={value}"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            place = self.prepared(component, volumes[mount["name"]], files)
            words += ["--volume", f"{place}:{mount['mountPath']}{':ro' * mount.get('readOnly', False)}"]
        program, *arguments = container["command"] + container.get("args", [])
        return [*words, "--entrypoint", program, container["image"], *arguments]

    def prepared(self, component: str, volume: Any, group: int) -> Path:
        """A volume as the kubelet prepares it."""
        claim, secret = volume.get("persistentVolumeClaim"), volume.get("secret")
        place = self.folder / (claim["claimName"] if claim else f"{component}-{volume['name']}")
        place.mkdir(exist_ok=True)
        os.chown(place, 0, group)
        place.chmod(0o755 if secret else 0o2770 if claim else 0o777)
        for key, value in self.secrets[secret["secretName"]].items() if secret else ():
            paths = {item["key"]: item["path"] for item in secret.get("items", ())}
            file = place / paths.get(key, key)
            file.write_text(value)
            os.chown(file, 0, group)
            file.chmod(secret.get("defaultMode", 0o644))
        return place

    def job(self, component: str) -> str:
        return self.network.engine.docker("run", "--rm", *self.words(component))

    @contextlib.contextmanager
    def pod(self, component: str) -> Iterator[Container]:
        """It runs, and each of its probes succeeds."""
        (container,) = pods(self.rendered)[component]["containers"]
        with self.network.engine.container(*self.words(component)) as found:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                found.wait_until(partial(self.succeeds, found, container.get(probe, {})), 60)
            yield found

    def succeeds(self, container: Container, probe: Any) -> bool:
        if (asked := probe.get("exec")) is not None:
            command = ["docker", "exec", container.id, *asked["command"]]
            done = subprocess.run(command, env=container.engine.environment, capture_output=True, check=False)
            return done.returncode == 0
        with contextlib.suppress(httpx.TransportError):
            return "httpGet" not in probe or httpx.get(self.network.url + probe["httpGet"]["path"]).is_success
        return False


def secrets(guarded: GuardedRedis) -> dict[str, dict[str, str]]:
    return {
        "similarity-keys": {"api-keys": key_line(KEY, "read,calibrate,admin")}, "test": {"key": KEY},
        "similarity-redis": {"password": ODD},
        "bucket": {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"},
        "redis": {"url": f"{guarded.url}?ssl_ca_certs=/etc/isosim/redis/ca.crt", "password": PASSWORD},
        "redis-ca": {"ca.crt": guarded.ca.read_text()},
    }  # fmt: skip


@pytest.mark.parametrize("values", [ON_A_VOLUME, IN_A_BUCKET], ids=["on a volume", "in a bucket"])
def test_a_release_scores_calibrates_comes_back_from_its_backup_and_changes_its_precision(
    values: Values, engine: Engine, cpu: str, worker: str, tmp_path: Path
) -> None:
    redis = stand_ins.redis(engine, tmp_path)
    for image, target in ((cpu, "cpu"), (worker, "worker")):
        engine.docker("tag", image, f"{engine.name}:played-{target}")
    names = ("--add-host", "similarity-isosim:127.0.0.1", "--add-host", "similarity-isosim-redis:127.0.0.1")
    pause = ("--publish", "127.0.0.1::8000", "--entrypoint", "python", cpu, "-c", "import signal; signal.pause()")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(engine.container(*names, *pause))
        objects = start_objects(tmp_path, engine.inspect(network.id)["NetworkSettings"]["Gateway"])
        stack.callback(objects.kill)
        httpx.put(f"{objects.url}/models").raise_for_status()
        guarded = GuardedRedis(tmp_path / "guarded")
        ours: Values = {
            "image": {"repository": engine.name, "tag": "played"}, "service": {"port": 8000},
            "redis": {"own": {"image": redis}},
        }  # fmt: skip
        if values is IN_A_BUCKET:
            ours["modelStore"] = {"bucket": {"endpoint": objects.url}}
            mounted = ("--user", "0", "--volume", f"{guarded.folder}:{guarded.folder}", "--entrypoint", "redis-server")
            shared = ("--network", f"container:{network.id}")
            stack.enter_context(engine.container(*shared, *mounted, redis, *guarded.options()))
        release = Release(network, tmp_path, render(values, ours), secrets(guarded))
        if values is ON_A_VOLUME:
            own = stack.enter_context(release.pod("redis"))
            assert engine.docker("exec", own.id, "cat", "/proc/1/comm").strip() == "redis-server"  # it gets the signals
            assert "quoted" not in engine.docker("exec", own.id, "cat", "/proc/1/cmdline")
            asked = engine.docker("exec", own.id, "redis-cli", "-a", ODD, "config", "get", "maxmemory*")
            assert {"volatile-lru", str(512 * 2**20)} <= set(asked.split())
            (tmp_path / "redis-password" / "password").write_text("another")
            assert not release.succeeds(own, pods(release.rendered)["redis"]["containers"][0]["readinessProbe"])
        release.job("init")
        trainer, api = stack.enter_context(release.pod("worker")), stack.enter_context(release.pod("api"))
        with httpx.Client(base_url=network.url, headers=bearer(KEY), timeout=60) as client:
            assert "similarity" in release.job("test")
            posted = {"domain": "news", "texts": sentences(300), "method": "identity"}
            job = client.post("/calibrate", json=posted).raise_for_status().json()["job"]
            ended = wait_until(lambda: (now := client.get(f"/calibrate/{job}").json())["finished"] and now, 120)
            assert ended["promoted"], ended
            assert "isosim_redis_up 1" in client.get("/metrics").text
            client.put("/domains/news/thresholds/duplicates", json={"fmr": 0.1}).raise_for_status()
            archive = release.job("backup").split(": ")[0]
            client.delete("/domains/news").raise_for_status()
            engine.docker("exec", api.id, "isosim", "domains", "import", archive, "--promote", "--yes")
            wait_until(lambda: client.post("/similarity", json={"pairs": [sentences(2)], "domain": "news"}).is_success)
            if values is ON_A_VOLUME:
                engine.docker("exec", trainer.id, "isosim", "export", "--precision", "fp16")
                words = ("calibrate", "-", "--domain", "news", "--encoder", "minilm-fp16", "--promote", "always")
                calibrate = ("docker", "exec", "--interactive", trainer.id, "isosim", *words, "--method", "identity")
                engine.run(*calibrate, input="\n".join(sentences(300)))
                api.stop(30)
                release.rendered = render(values, ours, {"encoder": "minilm-fp16"})
                stack.enter_context(release.pod("api"))
                assert 'id="minilm-fp16"' in client.get("/metrics").text
                body = {"pairs": [sentences(2)], "domain": "news", "threshold": "duplicates"}
                assert len(client.post("/similarity", json=body).raise_for_status().json()["match"]) == 1
