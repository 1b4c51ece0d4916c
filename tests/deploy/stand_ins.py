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
COPY default.tmpl email.tmpl /usr/share/prometheus/alertmanager/
RUN mv /bin/prometheus-alertmanager /bin/alertmanager \
    && install --directory --owner 65534 --group 65534 /alertmanager
USER 65534
ENTRYPOINT ["/bin/alertmanager"]
"""


def image(engine: Engine, wanted: str, folder: Path, dockerfile: str, *needed: str) -> str:
    """The wanted image, or one of our own that has the same commands in it, and the files that they need."""
    if engine.has(wanted):
        return wanted
    folder.mkdir()
    for name in needed:
        found = shutil.which(name) or name
        assert Path(found).is_file(), f"{name} is missing; make test-all installs it"
        shutil.copy(found, folder)
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
    templates = [f"/usr/share/prometheus/alertmanager/{name}.tmpl" for name in ("default", "email")]  # Debian's place
    needed = ("prometheus-alertmanager", "amtool", *templates)
    return image(engine, wanted, folder / "alertmanager", ALERTMANAGER, *needed)
