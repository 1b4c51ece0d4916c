"""Images of others that cannot be pulled where the tests run, made out of Debian's packages."""

import shutil
from pathlib import Path

from tests.deploy.engine import ROOT, Engine

# Made by the engine's set-up where there is no registry; its redis lacks the folder that the real image has.
REDIS = """
FROM redis:7-alpine
USER root
RUN install --directory --owner 999 --group 1000 /data
WORKDIR /data
"""
PROMETHEUS = """
FROM debian:bookworm-slim
COPY prometheus promtool /bin/
RUN install --directory --owner 65534 --group 65534 /prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
"""


ALERTMANAGER = """
FROM debian:bookworm-slim
COPY prometheus-alertmanager amtool /bin/
RUN mv /bin/prometheus-alertmanager /bin/alertmanager \
    && install --directory --owner 65534 --group 65534 /alertmanager
USER 65534
ENTRYPOINT ["/bin/alertmanager"]
"""


def image(engine: Engine, wanted: str, folder: Path, dockerfile: str, *commands: str) -> str:
    """The wanted image, or one of our own that has the same command in it."""
    if engine.has(wanted):
        return wanted
    folder.mkdir()
    for command in commands:
        found = shutil.which(command)
        assert found, f"{command} is missing; make test-all installs it"
        shutil.copy(found, folder / command)
    (folder / "Dockerfile").write_text(dockerfile)
    tag = f"{engine.name}-{folder.name}:stand-in"
    engine.docker("build", "--quiet", "--tag", tag, str(folder))
    return tag


def default(variable: str) -> str:
    """What docker-compose.yml takes where a variable is not set."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    return text.split("${" + variable + ":-", 1)[1].split("}", 1)[0]


def redis(engine: Engine, folder: Path) -> str:
    return image(engine, default("REDIS_IMAGE"), folder / "redis", REDIS)


def prometheus(engine: Engine, folder: Path) -> str:
    wanted = default("PROMETHEUS_IMAGE")
    return image(engine, wanted, folder / "prometheus", PROMETHEUS, "prometheus", "promtool")


def alertmanager(engine: Engine, folder: Path) -> str:
    wanted = default("ALERTMANAGER_IMAGE")
    return image(engine, wanted, folder / "alertmanager", ALERTMANAGER, "prometheus-alertmanager", "amtool")
