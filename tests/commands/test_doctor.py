"""`isosim doctor`: each fault is found, and a remedy given."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from redis import Redis

from isosim.commands import doctor
from isosim.commands.doctor import Finding
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import Unavailable
from isosim.settings import Settings
from tests.commands.conftest import Run
from tests.processes import RedisServer, Serve, free_port
from tests.stores import files_of, record_of

FACTS = {"redis_version": "8.0.0", "maxmemory": 2**30, "maxmemory_policy": "volatile-lru"}


def look_at(check: str, settings: Settings) -> Iterator[Finding]:
    look, remedy = doctor.CHECKS[check]
    return doctor.tried(check, lambda: look(settings), remedy)


def the(state: str, findings: Iterable[Finding]) -> str:
    """The only finding that is no `ok`: it has the state and a remedy."""
    (finding,) = [one for one in findings if one.state != "ok"]
    assert finding.state == state, finding
    return f"{finding.found}; remedy: {finding.remedy}"


def test_a_sound_set_up_has_no_fault(run: Run, serve: Serve, own_store: Path) -> None:
    server = serve(model_store=own_store, encoder="tiny")
    given = {"model_store": own_store, "port": server.port}
    found = dict(line.split("\t")[1:3] for line in run("doctor", **given).stdout.splitlines())
    report = json.loads(run("doctor", "--json", **given).stdout)
    assert (report["ok"], report["faults"], report["warnings"]) == (True, 0, 0)
    assert found == {check["check"]: check["found"] for check in report["checks"]}
    assert found.keys() == {"settings", "onnxruntime", "access", "server", "store", "encoder", "domains",
                            "redis"}  # fmt: skip
    assert f"{server.port} is ready, with encoder" in found["server"]
    assert found["encoder"].endswith("licence of the weights: not stated")
    assert found["domains"].startswith("2 of 2")


def test_without_onnxruntime_the_rest_is_checked_because_no_encoder_is_loaded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['onnxruntime'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '.')}")
    done = run("doctor", port=free_port())
    states = {line.split("\t")[1]: line.split("\t")[0] for line in done.stdout.splitlines()}
    assert done.returncode == 1
    assert (states.pop("onnxruntime"), set(states.values())) == ("FAULT", {"ok"})


def test_settings_that_are_misspelt_or_out_of_range_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOSIM_REQUIRE_ALL", raising=False)
    monkeypatch.setenv("ISOSIM_API_KEY_FILE", "/keys")
    monkeypatch.setenv("ISOSIM_COLOUR_OF_THE_DOOR", "red")
    monkeypatch.setenv("ISOSIM_PORT", "70000")
    misspelt, unknown, invalid = doctor.examine()
    assert (misspelt.state, misspelt.remedy) == ("fault", "did you mean ISOSIM_API_KEYS_FILE?")
    assert (unknown.state, unknown.remedy) == ("warning", "unset ISOSIM_COLOUR_OF_THE_DOOR")
    assert (invalid.state, "ISOSIM_PORT: Input should be" in invalid.found) == ("fault", True)


def test_an_engine_that_is_not_installed_is_a_fault(tiny: EncoderArtifact, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search("has no CUDA.*'isosim\\[gpu\\]'", the("fault", look_at("onnxruntime", Settings(engine="cuda"))))
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    found = the("fault", look_at("onnxruntime", Settings(engine="openvino")))
    assert re.search("not installed.*'isosim\\[openvino\\]'", found)
    reduced = replace(tiny, spec=replace(tiny.spec, precision="bf16-openvino"))
    monkeypatch.setattr(EncoderStore, "find", lambda *_: reduced)
    with pytest.raises(Unavailable, match="tiny needs OpenVINO: pip install"):
        [*doctor.encoder(Settings(), "tiny", [])]


@pytest.mark.parametrize(
    ("lines", "mode", "state", "said"),
    [
        ("a" * 64 + " read domains=*\n", 0o644, "warning", "chmod 600"),
        ("a" * 64 + " read domains=*\n", 0o666, "fault", "and so add keys"),
        ("# one\n" + "z" * 64 + " read domains=*\n", 0o600, "fault", "line 2"),
        ("", 0o600, "warning", "has no key"),
    ],
)
def test_the_key_file_is_read(tmp_path: Path, lines: str, mode: int, state: str, said: str) -> None:
    file = tmp_path / "keys"
    assert "No such file" in the("fault", look_at("access", Settings(api_keys_file=file)))
    file.write_text(lines)
    file.chmod(mode)
    assert said in the(state, look_at("access", Settings(api_keys_file=file)))


def test_an_address_that_others_reach_without_keys_is_found() -> None:
    assert "set ISOSIM_API_KEYS_FILE" in the("fault", look_at("access", Settings(host="10.1.2.3")))
    assert "may do everything" in the("warning", look_at("access", Settings(host="10.1.2.3", allow_anonymous=True)))


@contextmanager
def answering(status: int, readyz: str) -> Iterator[Settings]:
    """Settings of a server that gives this answer to `/readyz`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(readyz.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Settings(port=server.server_port)
        finally:
            server.shutdown()
            thread.join()


def test_the_running_server_is_asked_for_its_state() -> None:
    ready = '{"status": "ready", "encoder": "0123456789abcdef"}'
    with answering(503, readyz='{"error": "the server is starting"}') as settings:
        assert "is not ready: the server is starting" in the("fault", look_at("server", settings))
    with answering(200, readyz=ready) as settings:
        assert [one.state for one in doctor.server(settings)] == ["ok"]
    with answering(200, readyz="<html>") as settings:
        assert re.search("is not isosim; remedy: .* or set ISOSIM_PORT", the("fault", look_at("server", settings)))
    assert next(doctor.server(settings)).found.startswith("none runs at ")


Look = Callable[[Path], Iterator[Finding]]


@pytest.fixture
def look() -> Look:
    return lambda store: look_at("store", Settings(model_store=store, encoder="tiny"))


def test_a_missing_store_or_encoder_says_how_to_make_it(look: Look, own_store: Path, tmp_path: Path) -> None:
    assert "isosim export" in the("fault", look(tmp_path / "nowhere"))
    other = Settings(model_store=own_store, encoder="other")
    assert "remedy: isosim export --encoder other" in the("fault", look_at("store", other))


def test_a_full_disk_needs_room_and_a_lost_store_its_backup(
    look: Look, own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "isosim domains import ARCHIVE" in the("fault", look(tmp_path))
    monkeypatch.setattr(doctor, "check", lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    assert "No space left on device; remedy: enlarge the volume" in the("fault", look(own_store))


def test_a_changed_encoder_file_is_found_by_its_hash(look: Look, own_store: Path) -> None:
    (graph,) = own_store.glob("encoders/tiny/*/encoder.onnx")
    graph.write_bytes(graph.read_bytes() + b"x")
    assert "encoder.onnx does not match" in the("fault", look(own_store))


def test_a_domain_without_a_champion_for_the_encoder_is_a_warning(look: Look, own_store: Path) -> None:
    """As for every domain that was forgotten when the encoder changed: its requests are answered 409."""
    assert "no champion" not in str(list(look(own_store)))
    facts = json.loads(record_of(own_store, "tickets").read_text())
    facts["aliases"] = {"f" * 64: facts["aliases"].popitem()[1]}
    record_of(own_store, "tickets").write_text(json.dumps(facts))
    assert "tickets has no champion for tiny, so that requests for it are answered 409" in the(
        "warning", look(own_store)
    )


def test_a_missing_default_calibration_is_a_warning(look: Look, store: Path) -> None:
    assert "isosim calibrate FILE --domain default" in the("warning", look(store))


def test_a_broken_champion_and_a_broken_record_are_faults_with_a_remedy(look: Look, own_store: Path) -> None:
    (files_of(own_store, "tickets", 2) / "weights.safetensors").write_bytes(b"")
    found = the("fault", look(own_store))
    assert "weights.safetensors" in found
    assert "remedy: isosim domains promote tickets 1 --encoder tiny, or isosim calibrate FILE" in found
    record_of(own_store, "tickets").write_text("{")
    assert the("fault", look(own_store)).endswith("isosim store repair tickets")


def test_redis_is_asked_what_it_is(redis_server: RedisServer) -> None:
    settings = Settings(redis_url=redis_server.url)
    assert "maxmemory not set" in the("warning", look_at("redis", settings))  # as installed
    with Redis.from_url(redis_server.url) as redis:
        redis.execute_command("ACL", "SETUSER", "default", "-mget")
        assert "mget" in the("fault", look_at("redis", settings))
        redis.replicaof("127.0.0.1", free_port())
        assert "is a replica" in the("fault", look_at("redis", settings))
    redis_server.kill()
    assert "the connection is refused; remedy: start it" in the("fault", look_at("redis", settings))


def test_a_cache_has_to_be_fast_and_to_evict() -> None:
    assert doctor.fitness(FACTS, 0.001, 0.05).state == "ok"
    assert "?socket_timeout=" in the("fault", [doctor.fitness(FACTS, 0.06, 0.05)])
    for facts in ({"maxmemory": 0}, {"maxmemory_policy": "noeviction"}):
        assert "volatile-lru" in the("warning", [doctor.fitness(FACTS | facts, 0.001, 0.05)])
