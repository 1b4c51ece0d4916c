"""`isosim doctor` through the real entry point: each fault is found, and a remedy given."""

import contextlib
import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from isosim.commands.diagnosis import machine, packages, redis_server
from isosim.domains.domain import EncoderAliases
from isosim.encoders.store import EncoderArtifact
from isosim.settings import Settings
from tests.commands.conftest import Run
from tests.processes import RedisServer, Serve, free_port, wait_until
from tests.stores import domains_of, files_of, record_of


def examined(run: Run, *words: str, code: int = 0, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """Findings by check."""
    done = run("doctor", "--json", *words, **{"port": free_port()} | settings)
    report = json.loads(done.stdout)
    assert done.returncode == code, report
    assert report["ok"] is (code == 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in report["checks"]:
        found.setdefault(finding["check"], []).append(finding)
        assert (finding["state"] == "ok") == (finding["remedy"] is None), finding
    return found


def one(found: dict[str, list[dict[str, Any]]], check: str) -> dict[str, Any]:
    (finding,) = found[check]
    return finding


def test_a_sound_set_up_has_no_fault(run: Run) -> None:
    found = examined(run)
    assert {"onnxruntime", "training", "store", "disk", "encoder", "providers", "parity",
            "default", "port", "cores", "redis", "exposure"} <= found.keys()  # fmt: skip
    assert one(found, "parity")["state"] == "ok"
    assert one(found, "default")["found"] == "default@1"
    assert one(found, "encoder")["found"].endswith("licence of the weights: not stated")
    for line in run("doctor", port=free_port()).stdout.splitlines():
        assert line.split("\t")[0] in {"ok", "WARNING"}


def test_a_changed_encoder_file_is_found_by_its_hash(run: Run, own_store: Path) -> None:
    (graph,) = own_store.glob("encoders/tiny/*/model.onnx")  # serving reads it never, a bundle does
    graph.write_bytes(graph.read_bytes() + b"x")
    finding = one(examined(run, code=1, model_store=own_store), "encoder")
    assert finding["state"] == "fault"
    assert "model.onnx does not match" in finding["found"]


def test_a_missing_encoder_or_store_says_how_to_make_it(run: Run, tmp_path: Path) -> None:
    found = examined(run, code=1, model_store=tmp_path / "nowhere")
    assert "isosim export" in one(found, "encoder")["remedy"]
    assert "ISOSIM_MODEL_STORE" in one(found, "store")["remedy"]


def test_without_onnxruntime_this_is_said_and_settings_are_checked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['onnxruntime'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '.')}")
    found = examined(run, code=1)
    assert one(found, "onnxruntime")["state"] == one(found, "store")["state"] == "fault"
    assert one(found, "settings")["state"] == "ok"


def test_a_missing_default_calibration_is_a_warning(run: Run, store: Path) -> None:
    finding = one(examined(run, model_store=store), "default")
    assert finding["state"] == "warning"
    assert "isosim calibrate" in finding["remedy"]


def test_a_broken_champion_is_named(run: Run, own_store: Path) -> None:
    broken = files_of(own_store, "tickets", 2) / "weights.safetensors"
    broken.write_bytes(b"")
    finding = one(examined(run, code=1, model_store=own_store), "domain")
    assert "weights.safetensors" in finding["found"]
    assert "rollback tickets" in finding["remedy"]


def test_the_remedy_for_a_broken_champion_is_one_that_the_store_allows(
    run: Run, own_store: Path, tiny: EncoderArtifact
) -> None:
    domains = domains_of(own_store)
    (files_of(own_store, "tickets", 2) / "weights.safetensors").write_bytes(b"")

    def remedy() -> str:
        found: str = one(examined(run, code=1, model_store=own_store), "domain")["remedy"]
        return found

    domains.change("tickets", lambda domain: replace(domain, aliases={tiny.digest: EncoderAliases(champion=2)}))
    assert "isosim domains promote tickets 1" in remedy()
    (files_of(own_store, "tickets", 1) / "report.json").write_text("{")
    assert "rollback" not in remedy()
    assert "isosim calibrate FILE --domain tickets" in remedy()
    record_of(own_store, "tickets").write_text("{")
    assert remedy() == "isosim store repair tickets"


def test_a_misspelt_setting_names_the_nearest(run: Run) -> None:
    found = examined(run, code=1, api_key_file="/keys", colour_of_the_door="red")
    states = {finding["found"].split()[0]: finding for finding in found["variables"]}
    assert states["ISOSIM_API_KEY_FILE"]["state"] == "fault"
    assert "ISOSIM_API_KEYS_FILE" in states["ISOSIM_API_KEY_FILE"]["remedy"]
    assert states["ISOSIM_COLOUR_OF_THE_DOOR"]["state"] == "warning"


def test_a_setting_out_of_range_is_a_fault(run: Run) -> None:
    assert "ISOSIM_PORT" in one(examined(run, code=1, port=70_000), "settings")["found"]
    linked = one(examined(run, code=1, port="tcp://10.0.0.1:8000"), "settings")
    assert "enableServiceLinks" in linked["remedy"]


def test_a_taken_port_is_a_fault_unless_it_is_ours(run: Run, serve: Serve, own_store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = one(examined(run, code=1, port=taken.getsockname()[1]), "port")
        assert "ISOSIM_PORT" in finding["remedy"]
    server = serve(model_store=own_store, encoder="tiny")
    assert "isosim is serving" in one(examined(run, port=server.url.rsplit(":", 1)[1]), "port")["found"]


@pytest.mark.parametrize(
    ("lines", "mode", "state", "said"),
    [
        ("a" * 64 + " read,admin domains=* me\n", 0o600, "ok", "1 keys"),
        ("a" * 64 + " read domains=*\n", 0o644, "warning", "chmod 600"),
        ("a" * 64 + " read domains=*\n", 0o666, "fault", "and so add keys"),
        ("# one\n" + "z" * 64 + " read domains=*\n", 0o600, "fault", "line 2"),
        ("a" * 64 + " everything\n", 0o600, "fault", "line 1"),
    ],
)
def test_the_keys_file_is_looked_at(run: Run, tmp_path: Path, lines: str, mode: int, state: str, said: str) -> None:
    file = tmp_path / "keys"
    file.write_text(lines)
    file.chmod(mode)
    finding = one(examined(run, code=int(state == "fault"), api_keys_file=file), "keys")
    assert finding["state"] == state
    assert said in f"{finding['found']} {finding['remedy']}"


def test_a_provider_that_is_not_installed_is_a_fault(run: Run) -> None:
    finding = one(examined(run, code=1, providers='["NoSuchProvider"]'), "providers")
    assert "NoSuchProvider" in finding["found"]


def test_an_open_address_without_keys_is_a_fault(run: Run) -> None:
    assert one(examined(run, code=1, host="0.0.0.0"), "exposure")["state"] == "fault"  # noqa: S104


def test_redis_is_asked_what_it_is(run: Run, redis_server: RedisServer) -> None:
    found = examined(run, redis_url=redis_server.url)
    assert one(found, "redis")["found"].startswith("version ")
    assert one(found, "redis latency")["found"].startswith("ping ")
    assert one(found, "redis eviction")["state"] == "warning"  # as installed: no bound


def test_a_redis_that_refuses_every_lookup_is_a_fault(run: Run, redis_server: RedisServer) -> None:
    with Redis.from_url(redis_server.url) as redis:
        redis.execute_command("ACL", "SETUSER", "default", "-mget")
    finding = one(examined(run, code=1, redis_url=redis_server.url), "redis lookup")
    assert finding["state"] == "fault"
    assert "mget" in finding["found"]


def test_a_replica_is_a_fault(run: Run, redis_server: RedisServer) -> None:
    with Redis.from_url(redis_server.url) as redis:
        redis.replicaof("127.0.0.1", free_port())
    assert "replica" in one(examined(run, code=1, redis_url=redis_server.url), "redis role")["found"]


def test_a_sentinel_is_a_fault(run: Run, redis_server: RedisServer, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(f"port {port}\nsentinel monitor one 127.0.0.1 {redis_server.port} 1\n")
    with subprocess.Popen(
        ["redis-server", str(tmp_path / "sentinel.conf"), "--sentinel"], stdout=subprocess.DEVNULL
    ) as it:
        try:
            with Redis(port=port) as sentinel:
                wait_until(lambda: answers(sentinel))
            finding = one(examined(run, code=1, redis_url=f"redis://127.0.0.1:{port}/0"), "redis role")
        finally:
            it.kill()
    assert "is a Sentinel" in str(finding)


def answers(redis: Redis) -> bool:
    with contextlib.suppress(ConnectionError, RedisError):
        return bool(redis.ping())
    return False


def test_a_redis_that_is_away_is_a_fault(run: Run) -> None:
    assert one(examined(run, code=1, redis_url=f"redis://127.0.0.1:{free_port()}/0"), "redis")["state"] == "fault"
    refused = one(examined(run, code=1, redis_url="http://somewhere"), "settings")
    assert (refused["state"], "ISOSIM_REDIS_URL" in refused["found"]) == ("fault", True)


def test_what_redis_evicts_and_how_fast_it_is() -> None:
    gib = 2**30
    assert redis_server.eviction("allkeys-lru", gib, 0).state == "ok"
    assert redis_server.eviction("volatile-lru", 0, 0).state == "warning"
    assert redis_server.eviction("noeviction", gib, gib - 1).state == "warning"
    assert redis_server.eviction("noeviction", gib, gib).state == "fault"
    assert redis_server.eviction("volatile-lru", gib, gib).state == "ok"
    assert redis_server.latency([0.06] * 20, 0.05).state == "fault"
    assert redis_server.latency([0.001] * 19 + [0.04], 0.05).state == "warning"


def test_a_containers_limits_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000")
    (tmp_path / "memory.max").write_text(str(256 * 2**20))
    assert machine.cores(tmp_path).state == "warning"
    assert machine.memory(tmp_path).state == "warning"
    (tmp_path / "cpu.max").write_text("max 100000")
    (tmp_path / "memory.max").write_text("max")
    assert machine.cores(tmp_path).state == machine.memory(tmp_path).state == "ok"


def test_calibrations_that_may_take_more_than_the_memory_limit_leaves_are_a_warning(
    tmp_path: Path, calibrated_store: Path
) -> None:
    (tmp_path / "memory.max").write_text(str(2**30))
    for given, state in ((0, "ok"), (2**28, "ok"), (2**30, "warning")):
        settings = Settings(model_store=calibrated_store, encoder="tiny", resident_bytes=given)
        (found,) = machine.calibrations(settings, tmp_path)
        assert found.state == state, given


def test_packages_that_are_there_are_well() -> None:
    states = {finding.check: finding.state for finding in packages.look()}
    assert states["onnxruntime"] == states["training"] == "ok"
