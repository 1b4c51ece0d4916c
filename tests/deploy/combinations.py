"""Values that together turn on every template, and a rendering of all of them."""

from typing import Any

from tests.deploy.chart import (
    ALONE,
    ANYBODY,
    IMAGE,
    KEYS,
    OWN_REDIS,
    Manifest,
    Values,
    ask_helm,
    manifests,
    merged,
    values_file,
)

EXTERNAL_REDIS: Values = {
    "redis": {"mode": "external", "external": {"urlSecret": {"name": "redis"}}},
    "networkPolicy": {"redis": {"peers": [{"ipBlock": {"cidr": "10.0.3.7/32"}}]}},
}
TLS: Values = {"redis": {"external": {"passwordSecret": {"name": "redis"}, "caSecret": {"name": "redis-ca"}}}}
REMOTE: Values = {
    "encoder": "bge-m3",
    "remoteEncoder": {"url": "http://tei.models.svc:8080/v1/", "model": "BAAI/bge-m3"},
    "networkPolicy": {
        "remoteEncoder": {
            "peers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "models"}}}], "port": 8080,
        }
    },
}  # fmt: skip
ITS_KEY: Values = {"remoteEncoder": {"prompt": "query: ", "maxLength": 512, "keySecret": {"name": "encoder"}}}
BUCKET: Values = {
    "modelStore": {"bucket": {"url": "s3://models/similarity"}},
    "networkPolicy": {"bucket": {"peers": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}},
}
ITS_ENDPOINT: Values = {
    "modelStore": {
        "bucket": {
            "endpoint": "https://minio.storage.svc:9000", "region": "eu-central-1", "cacheSize": "1Gi",
            "credentialsSecret": {"name": "bucket"}, "caSecret": {"name": "storage-ca"},
        }
    },
    "networkPolicy": {"bucket": {"port": 9000}},
}  # fmt: skip
CONFINED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
WAITING = {
    "name": "wait", "image": "registry.example.com/wait@sha256:" + "0" * 64, "imagePullPolicy": "Always",
    "securityContext": CONFINED,
    "resources": {key: {"cpu": "50m", "memory": "32Mi"} for key in ("requests", "limits")},
}  # fmt: skip
PROBED = {probe: {"exec": {"command": ["true"]}} for probe in ("livenessProbe", "readinessProbe")}


def own_pod(container: str) -> Values:
    """What respected charts have a value for each, as one: fields of the pod in Kubernetes' own form."""
    return {
        "metadata": {"labels": {"team": "search"}, "annotations": {"a": "b"}},
        "spec": {
            "priorityClassName": "high", "runtimeClassName": "nvidia", "schedulerName": "bin-packer",
            "nodeSelector": {"pool": "scoring"}, "tolerations": [{"operator": "Exists"}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
            "hostAliases": [{"ip": "10.0.3.9", "hostnames": ["models"]}],
            "securityContext": {"supplementalGroups": [5000]},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}
                        ]
                    }
                }
            },
            "topologySpreadConstraints": [
                {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}},
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
            ],
            "initContainers": [WAITING],
            "containers": [
                WAITING | PROBED | {"name": "proxy"},
                {
                    "name": container, "livenessProbe": {"timeoutSeconds": 9},
                    "env": [{"name": "TZ", "value": "UTC"}], "envFrom": [{"secretRef": {"name": "traces"}}],
                    "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True}],
                },
            ],
        },
    }  # fmt: skip


ASSIGNED: Values = {"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
ROLE: Values = {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/similarity"}}}
EVERYTHING: Values = {
    "fullnameOverride": "similarity",
    "image": {
        "digests": dict.fromkeys(("cpu", "worker"), "sha256:" + "0" * 64), "pullSecrets": ["registry"],
        "pullPolicy": "Always",
    },
    "encoder": "minilm@9f5731ee66d8",
    "settings": {"max_wait": 0.3, "memory_cache_bytes": 67108864, "log_level": "warning"},
    "api": {
        "engine": "onnxruntime", "podTemplate": own_pod("api"),
    },
    "worker": {
        "podTemplate": own_pod("worker"),
        "autoscaling": {"enabled": True},
    },
    "redis": {"own": {"podTemplate": own_pod("redis"), "image": "registry.example.com/redis:7.2"}},
    "modelStore": {"storageClass": "nfs", "annotations": {"a": "b"}},
    "backup": {
        "schedule": "15 3 * * *", "destination": "s3://backups/similarity/", "serviceAccountName": "backups",
    },
    "commonLabels": {"owner": "search", "release": "prometheus"},
    "commonAnnotations": {"contact": "search"},
    "extraObjects": [
        {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-added", "namespace": "{{ .Release.Namespace }}"},
        }
    ],
    "service": {"annotations": {"a": "b"}},
    "ingress": {
        "enabled": True, "className": "nginx", "annotations": {"a": "b"}, "hosts": ["similarity.example.com"],
        "tls": [{"hosts": ["similarity.example.com"], "secretName": "tls"}],
    },
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["similarity.example.com"]},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
        "bucket": {"peers": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},
        "extraEgress": [{"ports": [{"port": 4318, "protocol": "TCP"}], "to": [{"podSelector": {}}]}],
    },
    "serviceMonitor": {
        "enabled": True, "labels": {"release": "prometheus"},
        "endpoint": {"interval": "30s", "relabelings": [{"targetLabel": "cluster", "replacement": "one"}]},
    },
    "autoscaling": {"trigger": {"authenticationRef": {"name": "prometheus"}}},
    "prometheusRule": {
        "enabled": True, "labels": {"release": "prometheus"}, "disabled": ["IsosimRestarting"],
        "overrides": {"IsosimRedisDown": {"for": "30m", "labels": {"severity": "info"}}},
        "runbookBase": "https://example.com/runbooks",
    },
    "dashboard": {"enabled": True},
    "serviceAccount": {"annotations": {"a": "b"}},
}  # fmt: skip
COMBINATIONS: dict[str, Values] = {
    "keys": merged(IMAGE, KEYS, OWN_REDIS),
    "anybody": merged(IMAGE, ANYBODY, OWN_REDIS),
    "alone": merged(IMAGE, KEYS, ALONE),
    "external-redis": merged(IMAGE, KEYS, EXTERNAL_REDIS, TLS, {"modelStore": {"existingClaim": "models"}}),
    "cpu": merged(values_file("values-cpu.yaml"), IMAGE, KEYS, OWN_REDIS),
    "gpu": merged(values_file("values-gpu.yaml"), IMAGE, KEYS, OWN_REDIS),
    "bf16": merged(values_file("values-bf16.yaml"), IMAGE, KEYS, OWN_REDIS),
    "gpu-shared": merged(values_file("values-gpu-shared.yaml"), IMAGE, KEYS, OWN_REDIS),
    "mig": merged(values_file("values-mig.yaml"), IMAGE, KEYS, OWN_REDIS, {"autoscaling": {"kind": "keda"}}),
    "hpa": merged(IMAGE, KEYS, OWN_REDIS, EVERYTHING, {"autoscaling": {"kind": "hpa"}}),
    "keda": merged(IMAGE, ANYBODY, OWN_REDIS, EVERYTHING, {"autoscaling": {"kind": "keda"}}),
    "remote": merged(IMAGE, KEYS, OWN_REDIS, REMOTE),
    "remote-key": merged(IMAGE, ANYBODY, EXTERNAL_REDIS, TLS, REMOTE, ITS_KEY),
    "bucket": merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ITS_ENDPOINT),
    "bucket-role": merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ROLE),
    "bucket-alone": merged(IMAGE, KEYS, ALONE, BUCKET, {"modelStore": {"ephemeral": False}}),
    "assigned": merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ASSIGNED),
    "remote-own": merged(
        IMAGE, KEYS, OWN_REDIS, REMOTE, {part: {"podTemplate": own_pod(part)} for part in ("api", "worker")},
        {"access": {"testKeySecret": {"name": "similarity-test"}}},
    ),
    "bucket-remote": merged(IMAGE, KEYS, OWN_REDIS, BUCKET, ITS_ENDPOINT, REMOTE),
    "bare": merged(
        IMAGE, ANYBODY, ALONE,
        {
            "modelStore": {"ephemeral": False, "accessMode": "ReadWriteOnce"}, "networkPolicy": {"enabled": False},
            "api": {"podDisruptionBudget": False, "podTemplate": {"spec": {"affinity": None}}},
            "serviceAccount": {"create": False},
        },
    ),
}  # fmt: skip


def render_all() -> dict[str, list[Manifest]]:
    found = ask_helm([{"render": values} for values in COMBINATIONS.values()])
    for name, texts in zip(COMBINATIONS, found, strict=True):
        assert "refused" not in texts, (name, texts)
    return {name: list(manifests(texts)) for name, texts in zip(COMBINATIONS, found, strict=True)}


def pods(found: list[Manifest]) -> dict[str, Any]:
    """The pods' specs by the component they are."""
    specs = {}
    for manifest in found:
        if (template := template_of(manifest)) is not None:
            specs[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template["spec"]
    return specs


def template_of(manifest: Manifest) -> Any:
    """The pod that a manifest describes."""
    spec = manifest.get("spec", {})
    return manifest if manifest["kind"] == "Pod" else spec.get("jobTemplate", {}).get("spec", spec).get("template")


def environment(container: Any) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container.get("env", ())}
