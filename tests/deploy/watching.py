"""A real Prometheus with a real Alertmanager behind it, and whoever is to be told."""

import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.processes import Process, free_port, wait_until

SECOND = "1s"


@dataclass
class Told:
    """A webhook that keeps what it is sent."""

    alerts: list[dict[str, Any]] = field(default_factory=list)

    def of(self, alert: str, status: str) -> list[dict[str, Any]]:
        return [a for a in list(self.alerts) if a["labels"]["alertname"] == alert and a["status"] == status]

    @contextmanager
    def listening(self) -> Iterator[int]:
        told = self

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                told.alerts.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing on the tests' output."""

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def running(log: Path, *command: str | Path) -> Iterator[None]:
    binary = shutil.which(str(command[0]))
    assert binary, f"{command[0]} is missing; make test-all installs it"
    with log.open("wb") as file:
        process = Process(
            subprocess.Popen(
                [binary, *command[1:]], stdout=file, stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True
            ),
            log,
        )
    try:
        yield
    finally:
        process.kill()


@dataclass
class Prometheus:
    client: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Raises HTTPStatusError where it is no PromQL."""
        found = self.client.get("/api/v1/query", params={"query": expression}).raise_for_status().json()
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def rules(self) -> Iterator[dict[str, Any]]:
        for group in self.client.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]:
            yield from group["rules"]


@contextmanager
def watched(folder: Path, targets: list[str], rules: Mapping[str, Any]) -> Iterator[tuple[Prometheus, Told]]:
    """Scraping and judging every second; what fires arrives at a webhook."""
    told, here = Told(), "127.0.0.1"
    with told.listening() as webhook:
        alertmanager, prometheus = f"{here}:{free_port()}", f"{here}:{free_port()}"
        (folder / "alertmanager.yml").write_text(yaml.safe_dump({
            "route": {"receiver": "webhook", "group_by": ["alertname"], "group_wait": "0s", "group_interval": SECOND},
            "receivers": [{"name": "webhook", "webhook_configs": [{"url": f"http://{here}:{webhook}/"}]}],
        }))  # fmt: skip
        (folder / "alerts.yaml").write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yml").write_text(yaml.safe_dump({
            "global": {"scrape_interval": SECOND, "scrape_timeout": SECOND, "evaluation_interval": SECOND},
            "rule_files": ["alerts.yaml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [{"job_name": "isosim", "static_configs": [{"targets": targets}]}],
        }))  # fmt: skip
        first = (
            "prometheus-alertmanager", "--config.file=alertmanager.yml", f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address={alertmanager}", "--cluster.listen-address=",
        )  # fmt: skip
        second = (
            "prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={prometheus}", "--rules.alert.resend-delay=1s",
        )  # fmt: skip
        with (
            running(folder / "alertmanager.log", *first),
            running(folder / "prometheus.log", *second),
            httpx.Client(base_url=f"http://{prometheus}", timeout=30) as client,
        ):
            wait_until(lambda: client.get("/-/ready").status_code == 200)
            wait_until(lambda: httpx.get(f"http://{alertmanager}/-/ready").status_code == 200)
            yield Prometheus(client), told
