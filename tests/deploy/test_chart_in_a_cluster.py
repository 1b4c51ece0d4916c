"""What the rendered chart means in a cluster: settings, rights, network, scaling, alerts."""

import json
import re
from typing import Any

from isosim.settings import Settings, unread
from tests.deploy.chart import CHART, IMAGE, KEYS, OWN_REDIS, ROOT, Manifest, Values, merged, named, render
from tests.deploy.combinations import CONFINED, REMOTE, WAITING, environment, own_pod, pods, template_of
from tests.deploy.rules import alerts as alerts_of_the_files
from tests.deploy.rules import recordings

VARIABLE = re.compile(r"\bISOSIM_[A-Z][A-Z_]*[A-Z]\b")
NO_SETTINGS = {
    "ISOSIM_REQUIRE_ALL",
    "ISOSIM_RECORD",
    "ISOSIM_DATA",
    "ISOSIM_URL",
    "ISOSIM_KEY",
}  # of the tests and the clients


def test_every_variable_of_the_chart_is_a_setting(rendered: dict[str, list[Manifest]]) -> None:
    """pydantic-settings passes over a misspelt one in silence."""
    names = set()
    for found in rendered.values():
        for spec in pods(found).values():
            for container in (*spec["containers"], *spec.get("initContainers", ())):
                names |= {name for name in environment(container) if name.startswith("ISOSIM_")}
        for manifest in found:
            if manifest["kind"] == "ConfigMap":
                names |= {name for name in manifest.get("data", ()) if name.startswith("ISOSIM_")}
    assert unread(names) == {}
    assert {"ISOSIM_MAX_WAIT", "ISOSIM_REDIS_URL", "ISOSIM_API_KEYS_FILE"} <= names


def test_every_variable_that_the_documents_name_is_a_setting() -> None:
    documents = (page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md")  # which names what is gone
    pages = [*documents, *(ROOT / "docs").rglob("*.md"), *CHART.glob("*.yaml")]
    images = [*ROOT.glob("*compose*.y*ml"), *(ROOT / "docker").rglob("*.y*ml"), *ROOT.glob("Dockerfile*")]
    for page in (*pages, *images):
        names = set(VARIABLE.findall(page.read_text(encoding="utf-8"))) - NO_SETTINGS
        assert unread(names) == {}, page


def test_settings_reach_the_pods_as_the_service_reads_them(rendered: dict[str, list[Manifest]]) -> None:
    """67108864 and not 6.7108864e+07."""
    data = named(rendered["hpa"], "ConfigMap", "similarity")["data"]
    settings = Settings(**{name.removeprefix("ISOSIM_").lower(): value for name, value in data.items()})
    assert (settings.memory_cache_bytes, settings.max_wait) == (67108864, 0.3)
    assert environment(pods(rendered["gpu"])["api"]["containers"][0])["ISOSIM_ENGINE"] == "cuda"


def test_a_changed_setting_is_a_new_pod() -> None:
    def stamp(settings: Values) -> str:
        found = render(IMAGE, KEYS, OWN_REDIS, {"settings": settings})
        annotations = named(found, "Deployment", "-api")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/settings"])

    assert stamp({"max_wait": 0.3}) != stamp({"max_wait": 0.4})


def test_every_pod_is_confined_as_the_restricted_standard_asks_and_its_ids_are_the_charts_or_the_clusters(
    rendered: dict[str, list[Manifest]],
) -> None:
    for name, found in rendered.items():
        for component, spec in pods(found).items():
            assert spec["enableServiceLinks"] is False  # one named isosim would set ISOSIM_PORT to an address
            assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
            for volume in spec.get("volumes", ()):
                assert volume.keys() & {"emptyDir", "persistentVolumeClaim", "secret"}, (name, component)
            for container in (*spec["containers"], *spec.get("initContainers", ())):
                assert container["securityContext"] == CONFINED, (name, component)
            context = spec["securityContext"]
            assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
            if name == "assigned":
                assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup"}, component
            else:
                assert min(context["runAsUser"], context["runAsGroup"]) > 10000, (name, component)
                assert component == "redis" or context["fsGroup"] == 10001


def test_every_image_can_come_from_a_registry_of_the_operators(rendered: dict[str, list[Manifest]]) -> None:
    """For a cluster that reaches no other: own names, digests, and the Secret to pull with."""
    for component, spec in pods(rendered["hpa"]).items():
        assert spec["imagePullSecrets"] == [{"name": "registry"}], component
        images = {container["image"] for container in spec["containers"] + spec.get("initContainers", [])}
        assert {image.partition("/")[0] for image in images} == {"registry.example.com"}, images
        assert component == "redis" or all("@sha256:" in image for image in images), images


def test_the_operators_fields_are_merged_into_the_charts_pods(rendered: dict[str, list[Manifest]]) -> None:
    """Maps by key, entries by name; others stand beside the chart's own, init containers before them."""
    for component in ("api", "worker", "redis"):
        (template,) = [
            template_of(m)
            for m in rendered["hpa"]
            if m["metadata"]["name"].endswith(f"-{component}") and template_of(m)
        ]
        own, spec = own_pod(component), template["spec"]
        for place in ("labels", "annotations"):
            assert own["metadata"][place].items() <= template["metadata"][place].items()
        assert template["metadata"]["labels"]["owner"] == "search"  # of commonLabels
        for field in (
            "priorityClassName",
            "runtimeClassName",
            "schedulerName",
            "nodeSelector",
            "tolerations",
            "dnsConfig",
        ):
            assert spec[field] == own["spec"][field]
        assert spec["hostAliases"] == own["spec"]["hostAliases"]
        assert spec["securityContext"].items() > own["spec"]["securityContext"].items()
        main, proxy = spec["containers"]
        assert (main["name"], proxy["name"], spec["initContainers"]) == (component, "proxy", [WAITING])
        assert main["livenessProbe"].items() > {"timeoutSeconds": 9}.items()
        assert {"name": "TZ", "value": "UTC"} in main["env"]
        assert main["envFrom"][-1] == {"secretRef": {"name": "traces"}}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["tmp"] == {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
        assert {mount["name"] for mount in main["volumeMounts"]} == set(volumes)
    api = pods(rendered["hpa"])["api"]
    assert api["affinity"].keys() == {"nodeAffinity", "podAntiAffinity"}
    zones, racks = api["topologySpreadConstraints"]
    assert (zones["maxSkew"], zones["whenUnsatisfiable"], racks["topologyKey"]) == (2, "DoNotSchedule", "rack")
    assert zones["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "api"
    assert "affinity" not in pods(rendered["bare"])["api"]  # null


def test_words_are_added_to_a_command_and_null_removes_the_source_of_a_volume() -> None:
    volume: Values = {"name": "tmp", "emptyDir": None, "ephemeral": {"volumeClaimTemplate": {}}}
    spec = {"volumes": [volume], "containers": [{"name": "api", "command": ["--help"]}]}
    api = pods(render(IMAGE, KEYS, OWN_REDIS, {"api": {"podTemplate": {"spec": spec}}}))["api"]
    assert api["containers"][0]["command"] == ["isosim", "serve", "--help"]
    assert api["volumes"][0] == {"name": "tmp", "ephemeral": volume["ephemeral"]}


def test_the_charts_init_containers_see_what_the_operator_gives_the_main_one(
    rendered: dict[str, list[Manifest]],
) -> None:
    for component, name in (("api", "await-encoder"), ("worker", "register-encoder")):
        spec = pods(rendered["remote-own"])[component]
        wait, own = spec["initContainers"]
        assert (wait["name"], own["name"]) == ("wait", name)
        for field in ("env", "envFrom", "volumeMounts"):
            assert own[field] == spec["containers"][0][field]


def test_jobs_of_the_chart_are_the_apis_pod_with_another_command(rendered: dict[str, list[Manifest]]) -> None:
    """The one that makes the store, and the backup: what the operator gives the API, they have too."""
    specs = pods(rendered["hpa"])
    api = specs["api"]["containers"][0]
    commands = {"init": ["store", "init"], "backup": ["domains", "export", "--all", "-o", "s3://backups/similarity/"]}
    for component, command in commands.items():
        (container,) = specs[component]["containers"]
        assert container["command"] == ["isosim", *command]
        for field in ("image", "env", "envFrom", "volumeMounts", "securityContext"):
            assert container[field] == api[field], (component, field)
        for field in ("volumes", "initContainers", "tolerations", "nodeSelector", "securityContext"):
            assert specs[component][field] == specs["api"][field], (component, field)
        assert not container.keys() & {"livenessProbe", "readinessProbe", "startupProbe", "ports"}
    own = {"spec": {"initContainers": [{"name": "mesh", "image": "mesh", "restartPolicy": "Always"}]}}
    with_remote = pods(render(IMAGE, KEYS, OWN_REDIS, REMOTE, {"api": {"podTemplate": own}}))
    assert [one["name"] for one in with_remote["api"]["initContainers"]] == ["mesh", "await-encoder"]
    assert [one["name"] for one in with_remote["init"]["initContainers"]] == ["mesh"]
    assert {"name": "similarity-added", "namespace": "scoring"} in [m["metadata"] for m in rendered["hpa"]]
    assert named(rendered["hpa"], "PersistentVolumeClaim")["metadata"]["annotations"]["a"] == "b"


def test_the_service_account_is_of_those_who_use_the_store(rendered: dict[str, list[Manifest]]) -> None:
    """A bucket's role may be bound to it."""
    accounts = {component: spec.get("serviceAccountName") for component, spec in pods(rendered["hpa"]).items()}
    ours = dict.fromkeys(("api", "worker", "init"), "similarity")
    assert accounts == ours | {"backup": "backups", "redis": None, "test": None}


def test_every_object_and_pod_has_the_common_labels_and_annotations(rendered: dict[str, list[Manifest]]) -> None:
    for manifest in rendered["hpa"]:
        if manifest["metadata"]["name"] != "similarity-added":  # of extraObjects
            for place in (manifest, template_of(manifest) or manifest):
                assert place["metadata"]["labels"]["owner"] == "search", manifest
                assert place["metadata"]["annotations"]["contact"] == "search", manifest


def test_the_test_runs_where_the_apis_image_does(rendered: dict[str, list[Manifest]]) -> None:
    found = pods(rendered["hpa"])
    for field in ("nodeSelector", "runtimeClassName", "tolerations", "schedulerName", "hostAliases", "dnsConfig"):
        assert found["test"][field] == found["api"][field], field
    assert found["test"]["activeDeadlineSeconds"] == 600  # the image of a GPU is pulled


def test_a_new_version_of_the_chart_does_not_restart_redis(rendered: dict[str, list[Manifest]]) -> None:
    """Its vectors would be lost."""
    template = named(rendered["keys"], "StatefulSet")["spec"]["template"]
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & template["metadata"]["labels"].keys()


def test_workers_follow_the_jobs_that_wait_and_run(rendered: dict[str, list[Manifest]]) -> None:
    scaler, worker = named(rendered["hpa"], "ScaledObject", "-worker"), named(rendered["hpa"], "Deployment", "-worker")
    assert "replicas" not in worker["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert scaler["spec"]["minReplicaCount"] == 1  # calibrations wait without a worker
    (trigger,) = scaler["spec"]["triggers"]
    assert 'status=~"queued|running|publishing"' in trigger["metadata"]["query"]
    assert named(rendered["keys"], "Deployment", "-worker")["spec"]["replicas"] == 1


def test_secrets_are_named_and_never_written(rendered: dict[str, list[Manifest]]) -> None:
    assert not [m for found in rendered.values() for m in found if m["kind"] == "Secret"]
    api = pods(rendered["keys"])["api"]
    (keys,) = [volume for volume in api["volumes"] if volume["name"] == "keys"]
    assert keys["secret"]["secretName"] == "similarity-keys"
    (mount,) = [mount for mount in api["containers"][0]["volumeMounts"] if mount["name"] == "keys"]
    assert "subPath" not in mount  # changes of the Secret would not arrive
    assert environment(api["containers"][0])["ISOSIM_API_KEYS_FILE"] == f"{mount['mountPath']}/api-keys"


def test_a_draining_pod_is_given_the_time_it_needs() -> None:
    api = pods(render(IMAGE, KEYS, OWN_REDIS, {"api": {"drain": {"delay": 7.5, "seconds": 20}}}))["api"]
    asked = environment(api["containers"][0])
    assert (asked["ISOSIM_DRAIN_DELAY"], asked["ISOSIM_DRAIN_SECONDS"]) == ("7.5", "20")
    assert api["terminationGracePeriodSeconds"] >= 7.5 + 20 + 10


def test_one_process_is_replaced_and_several_overlap(rendered: dict[str, list[Manifest]]) -> None:
    """On a volume of one node the second pod might not start while the first one lives."""
    strategies = {name: named(found, "Deployment", "-api")["spec"]["strategy"] for name, found in rendered.items()}
    assert strategies["bare"] == {"type": "Recreate"}
    assert (
        strategies["keys"]["rollingUpdate"]
        == strategies["alone"]["rollingUpdate"]
        == {"maxSurge": 1, "maxUnavailable": 0}
    )
    assert strategies["gpu"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}  # there is no spare GPU


def test_an_autoscaler_and_the_deployment_do_not_fight(rendered: dict[str, list[Manifest]]) -> None:
    for name, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        deployment, scaler = named(rendered[name], "Deployment", "-api"), named(rendered[name], kind, "-api")
        assert "replicas" not in deployment["spec"]
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert named(rendered["keys"], "Deployment", "-api")["spec"]["replicas"] == 2


def test_autoscalers_follow_the_expected_wait(rendered: dict[str, list[Manifest]]) -> None:
    (metric,) = named(rendered["hpa"], "HorizontalPodAutoscaler", "-api")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "isosim_expected_wait_seconds"
    assert metric["pods"]["target"]["averageValue"] == "100m"  # s: a quantity of Kubernetes has no small fractions
    (trigger,) = named(rendered["keda"], "ScaledObject", "-api")["spec"]["triggers"]
    assert "avg_over_time(isosim_expected_wait_seconds{" in trigger["metadata"]["query"]
    assert (trigger["metadata"]["threshold"], trigger["authenticationRef"]) == ("0.1", {"name": "prometheus"})


def test_an_encoder_at_bf16_runs_where_the_cpu_has_it(rendered: dict[str, list[Manifest]]) -> None:
    for component in ("api", "worker"):
        assert pods(rendered["bf16"])[component]["nodeSelector"] == {
            "feature.node.kubernetes.io/cpu-cpuid.AVX512BF16": "true"
        }
    assert environment(pods(rendered["bf16"])["api"]["containers"][0])["ISOSIM_ENGINE"] == "openvino"


def test_gpus_and_slices_are_asked_for(rendered: dict[str, list[Manifest]]) -> None:
    for name, resource in (("gpu", "nvidia.com/gpu"), ("mig", "nvidia.com/mig-1g.10gb")):
        api, worker = pods(rendered[name])["api"], pods(rendered[name])["worker"]
        assert api["containers"][0]["resources"]["limits"][resource] == "1"
        assert api["containers"][0]["image"].endswith("-gpu")
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in api["tolerations"]
        assert api["nodeSelector"]
        assert resource not in worker["containers"][0]["resources"]["limits"]
        assert worker["containers"][0]["image"].endswith("-worker")


def selects(selector: Any, labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    listed = all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ()))
    return bool(wanted and listed)


def test_the_network_lets_through_what_is_needed_and_nothing_else(rendered: dict[str, list[Manifest]]) -> None:
    found = rendered["hpa"]
    labels = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template["metadata"]["labels"]
        for manifest in found
        if (template := template_of(manifest))
    }
    assert labels.keys() == {"api", "worker", "redis", "test", "init", "backup"}
    policies = [manifest["spec"] for manifest in found if manifest["kind"] == "NetworkPolicy"]
    everything = [p for p in policies if all(selects(p["podSelector"], these) for these in labels.values())]
    assert [p["policyTypes"] for p in everything] == [["Ingress", "Egress"]]
    assert not everything[0].keys() & {"ingress", "egress"}  # deny

    def way(source: str, target: str, port: str) -> bool:
        out = [r for p in policies if selects(p["podSelector"], labels[source]) for r in p.get("egress", ())]
        into = [r for p in policies if selects(p["podSelector"], labels[target]) for r in p.get("ingress", ())]

        def names(peer: Any, other: dict[str, str]) -> bool:
            return "namespaceSelector" not in peer and "podSelector" in peer and selects(peer["podSelector"], other)

        def allows(rules: list[Any], side: str, other: dict[str, str]) -> bool:
            open_ports = [rule for rule in rules if port in [p["port"] for p in rule["ports"]]]
            return any(names(peer, other) for rule in open_ports for peer in rule[side])

        return allows(out, "to", labels[target]) and allows(into, "from", labels[source])

    pairs = {(a, b) for a in labels for b in labels for port in ("http", "redis") if way(a, b, port)}
    assert pairs == {("api", "redis"), ("worker", "redis"), ("test", "api")}
    for component in ("api", "worker", "test"):  # names
        rules = [r for p in policies if selects(p["podSelector"], labels[component]) for r in p.get("egress", ())]
        assert any({53, 5353} == {port["port"] for port in rule["ports"]} for rule in rules), component


def test_the_monitor_finds_the_service_and_the_service_the_pods(rendered: dict[str, list[Manifest]]) -> None:
    found = rendered["hpa"]
    service, monitor = named(found, "Service", "similarity"), named(found, "ServiceMonitor")
    deployment = named(found, "Deployment", "-api")
    assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
    assert not selects(monitor["spec"]["selector"], named(found, "Service", "-redis")["metadata"]["labels"])
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    # The alerts ask for job="isosim", whatever the chart is called.
    (endpoint,) = monitor["spec"]["endpoints"]
    job, cluster = endpoint["relabelings"]
    assert job == {"targetLabel": "job", "replacement": "isosim"}
    assert (cluster["targetLabel"], endpoint["interval"]) == ("cluster", "30s")  # the operator's
    assert "jobLabel" not in monitor["spec"]


def test_every_route_is_published_but_probes_and_metrics(rendered: dict[str, list[Manifest]]) -> None:
    """/metrics needs no key, and names domains."""
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    ingress = named(rendered["hpa"], "Ingress")["spec"]["rules"][0]["http"]["paths"]
    route = [
        match["path"] for rule in named(rendered["hpa"], "HTTPRoute")["spec"]["rules"] for match in rule["matches"]
    ]
    published = {(entry["path"], entry["pathType"]) for entry in ingress}
    assert published == {(entry["value"], entry["type"].removeprefix("Path")) for entry in route}

    def reached(path: str) -> bool:
        return any(path == p or (kind == "Prefix" and path.startswith(f"{p}/")) for p, kind in published)

    assert {path for path in paths if not reached(path)} == {"/livez", "/readyz", "/metrics"}
    assert reached("/console/main.js") and reached("/console/docs.js") and reached("/openapi.json")


def test_alerts_are_overridden_left_out_and_linked(rendered: dict[str, list[Manifest]]) -> None:
    alerts = {rule["alert"]: rule for rule in rules_of(rendered["hpa"]) if "alert" in rule}
    before = alerts_of_the_files()
    assert before.keys() - alerts.keys() == {"IsosimRestarting"}
    changed, name = alerts["IsosimRedisDown"], "IsosimRedisDown"
    assert (changed["for"], changed["labels"]["severity"], changed["expr"]) == ("30m", "info", before[name]["expr"])
    assert changed["annotations"]["runbook_url"] == "https://example.com/runbooks#isosimredisdown"
    assert alerts["IsosimDown"]["annotations"]["description"] == before["IsosimDown"]["annotations"]["description"]


def rules_of(found: list[Manifest]) -> list[Manifest]:
    return [rule for group in named(found, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]


def test_objectives_are_those_of_the_file_unless_values_choose_others() -> None:
    """The defaults stand in values.yaml and, for those without the chart, in the file."""
    base = merged(IMAGE, KEYS, OWN_REDIS, {"prometheusRule": {"enabled": True}})
    slo = {
        "availability": {"objective": 0.9995, "countRefused": False},
        "latency": {"objective": 0.95, "within": 1},
        "freshness": {"objective": 0.99, "within": 4.5},
    }
    plain, chosen = (
        [rule for rule in rules_of(render(base, values)) if "record" in rule]
        for values in ({}, {"prometheusRule": {"slo": slo}})
    )
    assert plain == recordings()
    changed = {
        (rule["record"], rule.get("labels", {}).get("slo")): (before["expr"], rule["expr"])
        for before, rule in zip(plain, chosen, strict=True)
        if before != rule
    }
    before, without = changed.pop(("isosim:slo_refusals:rate5m", None))
    assert without == f"0 * ({before})"
    before, within = changed.pop(("isosim:slo_bad_events:rate5m", "latency"))
    assert within == before.replace('le="0.5"', 'le="1.0"') != before  # as the bucket is labelled
    before, within = changed.pop(("isosim:slo_bad_events:rate5m", "freshness"))
    assert within == before.replace("> bool 10)", "> bool 4.5)") != before
    objective = "isosim:slo_objective:ratio"
    assert changed == {
        (objective, "availability"): ("vector(0.999)", "vector(0.9995)"),
        (objective, "latency"): ("vector(0.99)", "vector(0.95)"),
        (objective, "freshness"): ("vector(0.999)", "vector(0.99)"),
    }


def test_the_dashboard_is_carried_as_it_is(rendered: dict[str, list[Manifest]]) -> None:
    board = named(rendered["hpa"], "ConfigMap", "-dashboard")["data"]["isosim.json"]
    assert json.loads(board) == json.loads((CHART / "files" / "dashboard.json").read_text())
