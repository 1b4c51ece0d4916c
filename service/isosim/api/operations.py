"""Probes and metrics; they need no key and call no other service."""

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from isosim.api.policy import PROBE
from isosim.api.state import Service, ServiceDep
from isosim.errors import NotFound, NotReady

router = APIRouter(tags=["operations"])


def check_alive(service: Service) -> None:
    """Raises NotReady if the encoder's thread is dead or hangs, which only a restart cures."""
    if not service.encoder.embedder.batcher.alive:
        raise NotReady("the encoder's thread has died or hangs")


def check_ready(service: Service) -> None:
    """Raises NotReady while the server cannot answer."""
    check_alive(service)
    if service.encoder.fault is not None:
        raise NotReady(service.encoder.fault)
    if not service.ready:
        raise NotReady("the server is starting or stopping")


@router.head("/livez", dependencies=[PROBE], include_in_schema=False)
@router.get("/livez", dependencies=[PROBE])
async def livez(service: ServiceDep) -> dict[str, str]:
    """Succeeds while the process and its encoder thread are alive. After a failure only a restart helps."""
    check_alive(service)
    return {"status": "alive"}


@router.head("/readyz", dependencies=[PROBE], include_in_schema=False)
@router.get("/readyz", dependencies=[PROBE])
async def readyz(service: ServiceDep) -> dict[str, str]:
    """Succeeds once the encoder is loaded, until the server begins to drain or stop."""
    check_ready(service)
    return {"status": "ready", "encoder": service.encoder.digest}


@router.head("/metrics", dependencies=[PROBE], include_in_schema=False)
@router.get("/metrics", dependencies=[PROBE], response_class=Response)
async def metrics(service: ServiceDep) -> Response:
    """Metrics in Prometheus' text format. Not here if the server has a port of their own (ISOSIM_METRICS_PORT)."""
    port = service.settings.metrics_port
    if port is not None:
        raise NotFound(f"metrics are on port {port}")
    return await exposition(service)


async def exposition(service: Service) -> Response:
    """All metrics. One request at a time computes them, because scrapers need no key and 30 of them at once would take
    all threads; in a thread, because the drift of a domain takes 0.3 ms."""
    async with service.scraping:
        content = await service.scoring(generate_latest, service.metrics.registry)
    return Response(content, media_type=CONTENT_TYPE_LATEST)
