"""The Helm chart renders, is valid, and refuses what would fail later. By Helm, Kubernetes' schemas and checkov."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from isosim.commands import encoders
from isosim.encoders.embeddings_api import checked_url
from isosim.encoders.store import Endpoint
from isosim.store.blobs import opened
from tests.deploy.chart import (
    ALONE,
    ANYBODY,
    CHART,
    IMAGE,
    KEYS,
    OWN_REDIS,
    ROOT,
    TOOLS,
    Manifest,
    Values,
    ask_helm,
    manifests,
    merged,
    named,
    render,
    values_file,
)
from tests.deploy.combinations import (
    BUCKET,
    COMBINATIONS,
    EXTERNAL_REDIS,
    ITS_ENDPOINT,
    ITS_KEY,
    REMOTE,
    ROLE,
    environment,
    pods,
)
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.processes import wait_until

CUSTOM = {"HTTPRoute", "PrometheusRule", "ScaledObject", "ServiceMonitor"}  # Kubernetes' own schemas do not know them


def test_lint_finds_nothing_however_strict() -> None:
    for name, report in zip(COMBINATIONS, ask_helm([{"lint": v} for v in COMBINATIONS.values()]), strict=True):
        found = [message for message in report["messages"] if message["severity"] > 1]  # 1: an icon is recommended
        assert found == report["errors"] == [], name


def test_every_template_is_rendered_by_some_combination() -> None:
    texts = ask_helm([{"render": values} for values in COMBINATIONS.values()])
    seen = {
        template for found in texts for template, text in found.items() if yaml.safe_load_all(text) and text.strip()
    }
    templates = {
        f"isosim/{path.relative_to(CHART)}"
        for path in (CHART / "templates").rglob("*")
        if path.suffix in {".yaml", ".txt"} and path.name != "refusals.yaml"
    }
    assert templates <= seen, templates - seen


@pytest.mark.parametrize("version", ["1.27.0", "1.37.0"])  # the chart's oldest, and the newest there is a schema for
def test_kubernetes_knows_every_field(rendered: dict[str, list[Manifest]], version: str, tmp_path: Path) -> None:
    texts = {yaml.safe_dump(m) for found in rendered.values() for m in found if m["kind"] not in CUSTOM}

    def judged(manifest: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "rendered.yaml"
        file.write_text(manifest)
        command: list[Any] = [TOOLS / "kubernetes-validate", "--strict", "--kubernetes-version", version, file]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    every = judged("---\n".join(sorted(texts)))
    assert every.returncode == 0, every.stdout + every.stderr
    deployment = next(text for text in texts if "enableServiceLinks" in text)
    assert judged(deployment.replace("enableServiceLinks", "enableServiceLink")).returncode != 0


EVERY_POD = {"api", "worker", "test", "redis", "init"}
ARGUED = {  # checkov's check: the pods it may find something about, and why it stays
    "CKV_K8S_8": ({"test"}, "liveness: the test runs once"),
    "CKV_K8S_9": ({"test", "worker"}, "readiness: neither serves anything"),
    "CKV_K8S_11": ({"redis"}, "processor limit: it has one thread; throttled, it would answer lookups after the 50 ms "
        "that they may take"),
    "CKV_K8S_15": (EVERY_POD, "pull policy Always makes the registry a condition of every "
        "restart; tags are versions, and digests can be given"),
    "CKV_K8S_35": (EVERY_POD | {"backup"}, "secrets as files: the service takes the address and password of Redis and "
        "a bucket's key from its environment; Redis' own password is a file, but own_pod adds a variable"),
    "CKV_K8S_40": (EVERY_POD, "user above 10000: of `assigned` alone, where the cluster gives "
        "one; a test of every pod's ids has the others"),
    "CKV_K8S_43": (EVERY_POD, "digests: of images that the operator builds; image.digests"),
}  # fmt: skip


def test_checkov_finds_nothing_that_is_not_argued(rendered: dict[str, list[Manifest]], tmp_path: Path) -> None:
    for name, found in rendered.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(found))
    where = ["--directory", tmp_path, "--framework", "kubernetes", "--skip-download"]
    command: list[Any] = [TOOLS / "checkov", *where, "--output", "json", "--compact"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 2000, report["summary"]
    assert report["summary"]["parsing_errors"] == 0
    failed = {
        (check["check_id"], check["resource"].removesuffix("-1").rsplit("-", 1)[1])  # init-1: of the first revision
        for check in report["results"]["failed_checks"]
    }
    argued = {(check, component) for check, (components, _) in ARGUED.items() for component in components}
    assert failed == argued, failed ^ argued  # an exception that is no longer needed goes


REFUSALS: dict[str, tuple[Values, str]] = {
    "no image": (merged(KEYS, OWN_REDIS), "image.repository is required"),
    "a tag without effect": (
        merged(IMAGE, KEYS, OWN_REDIS, {"image": {"tag": "1.0.1", "digests": {"cpu": "sha256:" + "0" * 64}}}),
        "image.tag 1.0.1 has no effect",
    ),
    "a label that selects": (
        merged(IMAGE, KEYS, OWN_REDIS, {"commonLabels": {"app.kubernetes.io/component": "nlp"}}),
        "app.kubernetes.io/component",
    ),
    "nobody chosen": (merged(IMAGE, OWN_REDIS), "choose who may call"),
    "keys and anybody": (merged(IMAGE, OWN_REDIS, KEYS, ANYBODY), "contradict"),
    "a Redis without a password": (merged(IMAGE, KEYS), "redis.own.passwordSecret.name is required"),
    "external without an address": (merged(IMAGE, KEYS, {"redis": {"mode": "external"}}), "urlSecret.name is required"),
    "an authority for nobody": (
        merged(IMAGE, KEYS, OWN_REDIS, {"redis": {"external": {"caSecret": {"name": "ca"}}}}), "redis.mode=external",
    ),
    "external behind a closed door": (
        merged(IMAGE, KEYS, EXTERNAL_REDIS, {"networkPolicy": {"redis": {"peers": []}}}), "networkPolicy.redis.peers",
    ),
    "several without a shared store": (merged(IMAGE, KEYS, ALONE, {"api": {"replicas": 2}}), "a store of its own"),
    "scaled without a shared store": (
        merged(IMAGE, KEYS, ALONE, {"autoscaling": {"kind": "hpa"}}), "a store of its own",
    ),
    "several stores": (merged(IMAGE, KEYS, OWN_REDIS, {"modelStore": {"ephemeral": True}}), "a store of its own"),
    "one node's volume": (
        merged(IMAGE, KEYS, OWN_REDIS, {"modelStore": {"accessMode": "ReadWriteOnce"}}), "need ReadWriteMany",
    ),
    "two stores": (
        merged(IMAGE, KEYS, ALONE, {"modelStore": {"existingClaim": "models"}}), "ephemeral and existingClaim",
    ),
    "a bucket and a claim": (
        merged(IMAGE, KEYS, OWN_REDIS, BUCKET, {"modelStore": {"existingClaim": "models"}}), "bucket.url contradicts",
    ),
    "a bucket and a folder of the pod": (merged(IMAGE, KEYS, ALONE, BUCKET), "bucket.url contradicts"),
    "a bucket without an address": (
        merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ITS_ENDPOINT, {"modelStore": {"bucket": {"url": ""}}}),
        "set modelStore.bucket.url",
    ),
    "a bucket that is not an address": (
        merged(IMAGE, KEYS, OWN_REDIS, BUCKET, {"modelStore": {"bucket": {"url": "https://s3.example.com/models"}}}),
        "url",
    ),
    "a bucket behind a closed door": (
        merged(IMAGE, KEYS, OWN_REDIS, BUCKET, {"networkPolicy": {"bucket": {"peers": []}}}),
        "networkPolicy.bucket.peers is required",
    ),
    "an authority for a bucket without TLS": (
        merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ITS_ENDPOINT, {"modelStore": {"bucket": {"endpoint": "http://m:9000"}}}),
        "caSecret is for an endpoint with TLS",
    ),
    "a key and a role": (
        merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ITS_ENDPOINT, ROLE), "the Secret's key would be used",
    ),
    "scaled workers that are off": (
        merged(IMAGE, KEYS, OWN_REDIS, {"worker": {"enabled": False, "autoscaling": {"enabled": True}}}),
        "worker.enabled=true",
    ),
    "fewest workers above most": (
        merged(IMAGE, KEYS, OWN_REDIS, {"worker": {"autoscaling": {"enabled": True, "minReplicas": 9}}}),
        "worker.autoscaling.minReplicas is larger",
    ),
    "no worker at times": (
        merged(IMAGE, KEYS, OWN_REDIS, {"worker": {"autoscaling": {"enabled": True, "minReplicas": 0}}}), "minReplicas",
    ),
    "a backup without a place": (
        merged(IMAGE, KEYS, OWN_REDIS, {"backup": {"schedule": "15 3 * * *"}}), "give both schedule and destination",
    ),
    "a backup behind a closed door": (
        merged(IMAGE, KEYS, OWN_REDIS, {"backup": {"schedule": "15 3 * * *", "destination": "s3://backups/"}}),
        "networkPolicy.bucket.peers is required",
    ),
    "a backup into one file": (
        merged(IMAGE, KEYS, OWN_REDIS, {"backup": {"schedule": "15 3 * * *", "destination": "/backups/all.tar"}}),
        "backup.destination must end with a slash",
    ),
    "a test's key where requests need none": (
        merged(IMAGE, ANYBODY, OWN_REDIS, {"access": {"testKeySecret": {"name": "key"}}}), "requests need no key",
    ),
    "a sidecar without an image": (
        merged(IMAGE, KEYS, OWN_REDIS, {"worker": {"podTemplate": {"spec": {"containers": [{"name": "api"}]}}}}),
        "the container api has no image; the chart's own is called worker",
    ),
    "a field beside the pod's": (
        merged(IMAGE, KEYS, OWN_REDIS, {"api": {"podTemplate": {"tolerations": []}}}), "tolerations",
    ),
    "least above most": (
        merged(IMAGE, KEYS, OWN_REDIS, {"autoscaling": {"kind": "hpa", "minReplicas": 9}}), "minReplicas is larger",
    ),
    "an ingress without a host": (merged(IMAGE, KEYS, OWN_REDIS, {"ingress": {"enabled": True}}), "ingress.hosts"),
    "a route without a gateway": (merged(IMAGE, KEYS, OWN_REDIS, {"httpRoute": {"enabled": True}}), "parentRefs"),
    "an ingress behind a closed door": (
        merged(IMAGE, KEYS, OWN_REDIS, {"ingress": {"enabled": True, "hosts": ["a.b.example"]}}), "clients is required",
    ),
    "a load balancer behind a closed door": (
        merged(IMAGE, KEYS, OWN_REDIS, {"service": {"type": "LoadBalancer"}}), "clients is required with service.type",
    ),
    "no pod less and no pod more": (
        merged(IMAGE, KEYS, OWN_REDIS, {"api": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 0}}}),
        "cannot both be 0",
    ),
    "a Redis without room": (
        merged(IMAGE, KEYS, OWN_REDIS, {"redis": {"own": {"maxmemory": "4gb"}}}), "leaves too little of the limit",
    ),
    "names looked up everywhere": (merged(IMAGE, KEYS, OWN_REDIS, {"networkPolicy": {"dns": []}}), "dns"),
    "no time to finish": (merged(IMAGE, KEYS, OWN_REDIS, {"api": {"drain": {"seconds": 0.5}}}), "seconds"),
    "an alert of an unknown name": (
        merged(IMAGE, KEYS, OWN_REDIS, {"prometheusRule": {"disabled": ["IsosimFast"]}}), "no alert IsosimFast",
    ),
    "an override of none": (
        merged(IMAGE, KEYS, OWN_REDIS, {"prometheusRule": {"overrides": {"IsosimFast": {}}}}), "no alert IsosimFast",
    ),
    "a bound of latency that no bucket has": (
        merged(IMAGE, KEYS, OWN_REDIS, {"prometheusRule": {"slo": {"latency": {"within": 0.25}}}}), "within",
    ),
    "a remote encoder without a model": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"remoteEncoder": {"model": ""}}), "remoteEncoder.model is required",
    ),
    "a remote encoder without an address": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"remoteEncoder": {"url": ""}}), "set remoteEncoder.url",
    ),
    "a key for nobody": (merged(IMAGE, KEYS, OWN_REDIS, ITS_KEY), "set remoteEncoder.url"),
    "a password in the address": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"remoteEncoder": {"url": "http://me:secret@models/v1"}}), "url",
    ),
    "a remote encoder without a name": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"encoder": ""}), "encoder is required with remoteEncoder.url",
    ),
    "a remote encoder's digest": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"encoder": "bge-m3@9f57"}), "without a digest",
    ),
    "a remote encoder that nobody registers": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"worker": {"enabled": False}}), "needs worker.enabled=true",
    ),
    "a remote encoder without a shared store": (merged(IMAGE, KEYS, ALONE, REMOTE), "needs worker.enabled=true"),
    "a remote encoder on one node's volume": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"modelStore": {"accessMode": "ReadWriteOnce"}}), "need ReadWriteMany",
    ),
    "a remote encoder behind a closed door": (
        merged(IMAGE, KEYS, OWN_REDIS, REMOTE, {"networkPolicy": {"remoteEncoder": {"peers": []}}}),
        "networkPolicy.remoteEncoder.peers",
    ),
    "a misspelt value": (merged(IMAGE, KEYS, OWN_REDIS, {"api": {"replica": 3}}), "replica"),
    "a misspelt setting": (merged(IMAGE, KEYS, OWN_REDIS, {"settings": {"max_wiat": 0.3}}), "max_wiat"),
    "a setting the chart decides": (merged(IMAGE, KEYS, OWN_REDIS, {"settings": {"port": 9000}}), "port"),
    "a setting out of range": (merged(IMAGE, KEYS, OWN_REDIS, {"settings": {"max_wait": 0}}), "max_wait"),
    "a setting of another type": (merged(IMAGE, KEYS, OWN_REDIS, {"settings": {"runs": "all"}}), "runs"),
    "a tag in the name": (merged(KEYS, OWN_REDIS, {"image": {"repository": "example.com/isosim:1"}}), "repository"),
    "no replica": (merged(IMAGE, KEYS, OWN_REDIS, {"api": {"replicas": 0}}), "replicas"),
    "another device": (merged(IMAGE, KEYS, OWN_REDIS, {"device": "tpu"}), "device"),
}  # fmt: skip


def test_what_would_fail_later_is_refused_with_a_reason() -> None:
    answers = ask_helm([{"render": values} for values, _ in REFUSALS.values()])
    for (case, (_, reason)), found in zip(REFUSALS.items(), answers, strict=True):
        assert reason in found.get("refused", "it was rendered"), (case, found.get("refused"))


def test_the_schema_refuses_unknown_names_everywhere() -> None:
    """An object without listed properties is Kubernetes' own, or a map of the operator's names."""
    open_ends = []

    def look(schema: Any, place: str) -> None:
        if isinstance(schema, dict):
            if (
                schema.get("type") == "object"
                and "properties" in schema
                and schema.get("additionalProperties") is not False
            ):
                open_ends.append(place)
            for name, part in schema.items():
                look(part, f"{place}/{name}")

    look(json.loads((CHART / "values.schema.json").read_text()), "")
    assert open_ends == []


def test_the_default_values_fit_the_schema_and_name_all_of_it() -> None:
    """What can be set is in values.yaml, with what it means."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = values_file("values.yaml")

    def names(part: Any, known: Any, place: str) -> None:
        listed = part.get("properties")
        if listed and known is not None and place != "/settings":
            assert set(known) == set(listed) - {"global"}, place
            for name, below in listed.items():
                names(below, known.get(name), f"{place}/{name}")

    names(schema, values, "")


SHARED = ("image", "imagePullPolicy", "securityContext", "envFrom", "env", "resources", "volumeMounts")


def test_a_worker_may_finish_its_job_before_it_is_killed(rendered: dict[str, list[Manifest]]) -> None:
    spec = pods(rendered["keys"])["worker"]
    assert "livenessProbe" in spec["containers"][0]
    drain = int(environment(spec["containers"][0])["ISOSIM_DRAIN_SECONDS"])
    assert drain + 10 < spec["terminationGracePeriodSeconds"]


def test_a_worker_registers_the_remote_encoder_before_it_starts(rendered: dict[str, list[Manifest]]) -> None:
    """By a command that the command line takes, with the rights and the folders of the worker itself."""
    add = typer.main.get_command(encoders.app).commands["add"]  # type: ignore[attr-defined]
    given = {"name": "bge-m3", "url": "http://tei.models.svc:8080/v1/", "model": "BAAI/bge-m3"}
    for name, more in (("remote", {"max_length": 8192}), ("remote-key", {"max_length": 512, "prompt": "query: "})):
        worker = pods(rendered[name])["worker"]
        (registration,) = worker["initContainers"]
        for part in SHARED:
            assert registration[part] == worker["containers"][0][part], (name, part)
        isosim, encoder, subcommand, *words = registration["command"]
        assert (isosim, encoder, subcommand) == ("isosim", "encoder", "add")
        assert ("--key-file" in words) is (name == "remote-key")
        if name == "remote-key":
            file = words.index("--key-file") + 1
            assert words[file] == "/etc/isosim/encoder/api-key"
            words[file] = __file__  # one that is there
        taken = add.make_context("add", words).params
        assert taken.items() >= (given | more).items()


def test_the_key_of_the_remote_encoder_is_a_file_for_those_who_ask_it(rendered: dict[str, list[Manifest]]) -> None:
    found = pods(rendered["remote-key"])
    for component in ("api", "worker"):
        (volume,) = [volume for volume in found[component]["volumes"] if volume["name"] == "encoder-key"]
        assert volume["secret"] == {"secretName": "encoder", "defaultMode": 0o440, "optional": False}
        mounts = found[component]["containers"][0]["volumeMounts"]
        assert {"name": "encoder-key", "mountPath": "/etc/isosim/encoder", "readOnly": True} in mounts
    assert "encoder-key" not in json.dumps([found["test"], found.get("redis"), rendered["remote"]])


@pytest.mark.parametrize("url", ["http://tei.models.svc:8080/v1/", "https://models.example.com/v1/embeddings"])
def test_an_api_pod_waits_until_its_encoder_is_registered_at_this_address(url: str, tmp_path: Path) -> None:
    values = merged(IMAGE, KEYS, OWN_REDIS, REMOTE, ITS_KEY, {"remoteEncoder": {"url": url}})
    (texts,) = ask_helm([{"render": values}])
    api = pods(list(manifests(texts)))["api"]
    (waiting,) = api["initContainers"]
    assert (waiting["image"], waiting["command"]) == (api["containers"][0]["image"], ["python", "-c"])
    assert waiting["resources"]["requests"] == waiting["resources"]["limits"]
    assert waiting["volumeMounts"] == api["containers"][0]["volumeMounts"]

    def registered(export: str, endpoint: Endpoint | None) -> None:
        folder = tmp_path / "encoders" / "bge-m3" / export
        folder.mkdir(parents=True, exist_ok=True)
        facts = {} if endpoint is None else {"remote": dataclasses.asdict(endpoint)}
        (folder / "manifest.json").write_text(json.dumps(facts))

    at, key = checked_url(url), "/etc/isosim/encoder/api-key"
    with awaiting(waiting, tmp_path, tmp_path / "log") as (process, log):
        wait_until(lambda: b"waiting" in log.read_bytes())
        registered("0f", None)  # exported under this name
        registered("1f", Endpoint("http://another:8080/v1", "BAAI/bge-m3", key))
        registered("2f", Endpoint(at, "BAAI/bge-m3"))  # without the key
        registered(".building-3f", Endpoint(at, "BAAI/bge-m3", key))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)  # it looks every 2 s
        registered("1f", Endpoint(at, "BAAI/bge-m3", key))
        assert process.wait(30) == 0


@contextlib.contextmanager
def awaiting(container: Any, store: Path, log: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """The init container's script at work on a store, and what it says."""
    script, *words = container["args"]
    assert script.strip() == (CHART / "files" / "await_encoder.py").read_text().strip()
    with log.open("wb") as file:
        given = os.environ | {"ISOSIM_MODEL_STORE": str(store)}
        process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=file, env=given, cwd=ROOT)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def test_an_api_pod_looks_for_its_encoder_in_the_bucket(
    rendered: dict[str, list[Manifest]],
    objects: Objects,  # noqa: F811
    tmp_path: Path,
) -> None:
    (waiting,) = pods(rendered["bucket-remote"])["api"]["initContainers"]
    assert "model-store" not in json.dumps(waiting)
    bucket = objects.bucket()
    with awaiting(waiting, bucket, tmp_path / "log") as (process, log):
        wait_until(lambda: b"waiting" in log.read_bytes())
        facts = {"remote": {"url": "http://tei.models.svc:8080/v1", "key_file": None}}
        opened(bucket).write("encoders/bge-m3/0f/encoder.onnx", b"{}")
        opened(bucket).write("encoders/bge-m3/0f/manifest.json", json.dumps(facts).encode())
        (most,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        assert process.wait(30) == 0
    assert int(most) * 1024 < int(waiting["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20


@pytest.mark.parametrize(
    ("name", "peer", "port", "callers"),
    [
        ("remote", "remoteEncoder", 8080, {"api", "worker"}),
        ("bucket", "bucket", 9000, {"api", "worker", "jobs"}),
        ("hpa", "bucket", 443, {"api", "worker", "jobs"}),  # a volume, and backups in a bucket
    ],
)
def test_the_way_to_a_server_elsewhere_is_open_for_those_who_ask_it(
    rendered: dict[str, list[Manifest]], name: str, peer: str, port: int, callers: set[str]
) -> None:
    door = {
        "ports": [{"port": port, "protocol": "TCP"}],
        "to": COMBINATIONS[name]["networkPolicy"][peer]["peers"],
    }
    policies = {m["metadata"]["name"]: m["spec"] for m in rendered[name] if m["kind"] == "NetworkPolicy"}
    assert {name.rpartition("-")[2] for name, spec in policies.items() if door in spec.get("egress", ())} == callers


BUCKETS = [name for name in COMBINATIONS if name.startswith("bucket")]


@pytest.mark.parametrize("name", BUCKETS)
def test_with_a_bucket_no_pod_needs_a_volume_that_it_shares(rendered: dict[str, list[Manifest]], name: str) -> None:
    """What a pod has of its own: fetched encoders, bounded."""
    found = rendered[name]
    assert not re.search("persistentvolumeclaim|/model_store", json.dumps(found), re.I)
    for component in {"api", "worker"} & pods(found).keys():
        spec = pods(found)[component]
        (cache,) = [volume for volume in spec["volumes"] if volume["name"] == "cache"]
        size = COMBINATIONS[name]["modelStore"]["bucket"].get("cacheSize", "2Gi")
        assert cache["emptyDir"]["sizeLimit"] == size
        mounted = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        assert mounted["cache"] == f"{environment(spec['containers'][0])['HOME']}/.cache"
    assert named(found, "Deployment", "-api")["spec"]["strategy"]["type"] == "RollingUpdate"


def test_a_bucket_is_trusted_by_its_authority_and_reached_by_the_role(rendered: dict[str, list[Manifest]]) -> None:
    settings = named(rendered["bucket"], "ConfigMap", "similarity-isosim")["data"]
    assert settings["AWS_DEFAULT_REGION"] == "eu-central-1"
    folder, _, file = settings["AWS_CA_BUNDLE"].rpartition("/")
    assert file == "ca.crt"
    for component in ("api", "worker"):
        mounts = pods(rendered["bucket"])[component]["containers"][0]["volumeMounts"]
        assert {"name": "bucket-ca", "mountPath": folder, "readOnly": True} in mounts
    role = named(rendered["bucket-role"], "ServiceAccount")["metadata"]
    assert role["annotations"] == ROLE["serviceAccount"]["annotations"]
    for component in ("api", "worker"):
        assert pods(rendered["bucket-role"])[component]["serviceAccountName"] == role["name"]
    assert "AWS_" not in json.dumps([rendered["bucket-role"], rendered["keys"]])


def test_a_store_is_made_by_an_installation_alone(rendered: dict[str, list[Manifest]]) -> None:
    for name, found in rendered.items():
        specs = pods(found)
        commands = {one: spec["containers"][0].get("command") for one, spec in specs.items()}
        if name == "alone":  # a pod that has a store of its own
            assert commands["api"] == ["isosim", "serve", "--init"]
            assert "init" not in specs
            continue
        assert (commands["api"], commands["init"]) == (["isosim", "serve"], ["isosim", "store", "init"]), name
        init, api = specs["init"], specs["api"]
        assert init["serviceAccountName"] == api["serviceAccountName"]
        assert init["containers"][0]["envFrom"] == api["containers"][0]["envFrom"]
        stored = {"tmp", "model-store", "cache", "jobs", "bucket-ca"}
        assert stored & {one["name"] for one in api["volumes"]} <= {one["name"] for one in init["volumes"]}
    after_a_loss, never = ({"modelStore": {"init": when}} for when in ("always", "never"))
    base = COMBINATIONS["bucket"]
    lost = {"upgrade": merged(base, after_a_loss)}
    texts, once, again, gitops = ask_helm(
        [{"upgrade": base}, lost, lost | {"revision": 5}, {"render": merged(base, never)}]
    )
    jobs = [named(list(found), "Job") for found in (rendered["bucket"], manifests(once), manifests(again))]
    # Another name each time: Kubernetes neither runs a Job twice nor changes its image.
    assert [job["metadata"]["name"] for job in jobs] == [f"similarity-isosim-init-{revision}" for revision in (1, 2, 5)]
    assert all(job["spec"]["ttlSecondsAfterFinished"] for job in jobs)
    assert "init" not in pods(list(manifests(gitops)))
    assert "init" not in pods(list(manifests(texts)))
    assert not any(re.search("-(init|jobs)", manifest["metadata"]["name"]) for manifest in manifests(texts))


@pytest.mark.parametrize(("port", "name"), [(None, "http"), (9090, "metrics")])
def test_prometheus_reaches_the_port_of_the_metrics_alone(port: int | None, name: str) -> None:
    settings = {} if port is None else {"settings": {"metrics_port": port}}
    found = render(IMAGE, KEYS, OWN_REDIS, {"serviceMonitor": {"enabled": True}}, settings)
    ports = named(found, "Deployment", "-api")["spec"]["template"]["spec"]["containers"][0]["ports"]
    exposed = {one["name"]: one["containerPort"] for one in ports}
    assert exposed == {"http": 8000} | ({} if port is None else {"metrics": port})
    assert {
        one["name"]: one["targetPort"] for one in named(found, "Service", "similarity-isosim")["spec"]["ports"]
    } == {one: one for one in exposed}
    (endpoint,) = named(found, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == name
    callers, prometheus = named(found, "NetworkPolicy", "-api")["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in (callers, prometheus)] == ["http", name]
