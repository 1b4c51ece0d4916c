"""Traces, as a collector receives them."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observability.collector import Collector, Span, collecting
from tests.observability.conftest import event
from tests.processes import Serve, environment, free_port
from tests.text import sentences

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PAIR = {"pairs": [sentences(2)]}
SERVER = 2  # kind of a span in the protocol


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Receives the traces of the processes that a test starts."""
    with collecting() as made:
        monkeypatch.setenv(ENDPOINT, made.url)
        yield made


def traceparent(sampled: bool, trace: str = TRACE) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-0{int(sampled)}"}


def test_a_request_is_a_span_below_its_callers_with_the_facts_of_the_log(
    serve: Serve, store: Path, collector: Collector
) -> None:
    server = serve(model_store=store, encoder="tiny")
    client = server.client
    before = time.time_ns()
    client.post("/similarity", json=PAIR, headers=traceparent(True) | {"x-request-id": "traced"})
    client.post("/similarity", json=PAIR, headers=traceparent(True))
    client.post("/similarity", json={"pairs": []}, headers=traceparent(True))
    client.get("/domains/default", headers={"traceparent": "nonsense"})
    client.post("/similarity", json=PAIR, headers=traceparent(False, "9" * 32))
    client.get("/readyz", headers=traceparent(True))
    assert event(server.log, request_id="traced")["trace_id"] == TRACE
    server.stop()

    new, cached, refused = sorted(collector.named("POST /similarity"), key=lambda span: span.begin)
    assert (new.trace, new.parent, new.kind, new.service) == (TRACE, PARENT, SERVER, "isosim")
    known = {"http.request.method": "POST", "http.route": "/similarity", "http.response.status_code": 200}
    known |= {"isosim.request_id": "traced", "isosim.domain": "default", "isosim.version": 0, "isosim.texts": 2}
    assert known.items() <= new.attributes.items()
    assert before <= new.begin < new.end <= time.time_ns()
    assert new.attributes["isosim.inference_ms"] > 0 == cached.attributes["isosim.inference_ms"]
    assert cached.attributes["isosim.memory_hits"] == 2
    assert (refused.failed, refused.attributes["isosim.error_type"]) == (False, "Empty")
    assert not any(below(collector, span) for span in (new, cached, refused))
    (listed,) = collector.named("GET /domains/{domain}")
    assert listed.trace != TRACE and not listed.parent  # no traceparent that could be read: a trace of its own
    assert {span.trace for span in collector.spans} == {TRACE, listed.trace}  # not what was not sampled, and no probe


def below(collector: Collector, parent: Span) -> list[Span]:
    return sorted((span for span in collector.spans if span.parent == parent.id), key=lambda span: span.begin)


def test_a_fault_is_a_failed_span_and_no_text_and_no_key_is_sent(
    indiscreet: Callable[..., Any], store: Path, collector: Collector
) -> None:
    server = indiscreet(model_store=store, encoder="tiny")
    key = {"authorization": "Bearer zanzibar"}
    for path in ("/fail/RuntimeError", "/fail/pydantic", "/aside", "/similarity", "/zanzibar?q=zanzibar"):
        server.client.post(path, content="zanzibar", headers=key)
    server.client.post("/similarity", json={"pairs": [["zanzibar", "b"]]}, headers=key)
    server.client.request("ZANZIBAR", "/similarity")
    server.stop()
    failed = [span for span in collector.named("POST /fail/{kind}") if span.failed]
    assert [span.attributes["error.type"] for span in failed] == ["Internal", "Internal"]
    assert not re.search(b"zanzibar", b"".join(collector.raw), re.I)


def test_the_standard_variables_hold(
    store: Path, collector: Collector, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "similarity")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # would send paths and the words of exceptions
    server = serve(model_store=store, encoder="tiny")
    server.client.post("/similarity?q=zanzibar", json=PAIR)
    server.client.post("/similarity?q=zanzibar", json=PAIR, headers=traceparent(True))
    server.stop()
    (span,) = collector.named("POST /similarity")
    assert (span.service, span.trace) == ("similarity", TRACE)
    assert b"zanzibar" not in b"".join(collector.raw)


@pytest.mark.parametrize("collector_is", ["away", "silent"])
def test_a_collector_that_does_not_answer_holds_up_neither_requests_nor_the_end(
    serve: Serve, store: Path, collector_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if collector_is == "silent":
            silent.listen()
        port = silent.getsockname()[1] if collector_is == "silent" else free_port()
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{port}")
        server = serve(model_store=store, encoder="tiny", drain_seconds=2)
        for _ in range(20):
            assert server.client.post("/similarity", json=PAIR).status_code == 200
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 2 + 5  # s: drain, and a generous rest
    assert event(server.log, message="stopped")["aborted"] == 0


def test_the_sdk_is_not_loaded_where_nothing_is_traced(store: Path) -> None:
    code = (
        "import sys, isosim.server.app, isosim.worker.supervisor\n"
        "from isosim.observability.traces import tracing\n"
        "assert tracing('isosim') is None\n"
        # redis-py itself looks for the SDK's metrics
        "loaded = ('opentelemetry.sdk.trace', 'opentelemetry.exporter')\n"
        "print([name for name in sys.modules if name.startswith(loaded)])"
    )
    done = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment(model_store=store))
    assert done.strip() == "[]"


def test_packages_that_are_missing_are_named_at_the_start(store: Path, tmp_path: Path) -> None:

    shadow = tmp_path / "sitecustomize.py"
    shadow.write_text("import sys\nsys.modules['opentelemetry.exporter.otlp.proto.http.trace_exporter'] = None\n")
    log = tmp_path / "log"
    given = environment(model_store=store, encoder="tiny", port=0) | {ENDPOINT: "http://127.0.0.1:1"}
    path = f"{tmp_path}:{given.get('PYTHONPATH', '.')}"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "isosim.cli", "serve"], stdout=file, stderr=file, timeout=60, check=False,
            env=given | {"PYTHONPATH": path},
        )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'isosim[tracing]'" in event(log, level="critical")["message"]
