"""What lives as long as the server does, and how a route reaches it."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from fastapi import Depends, Request

from service.adapters.domains.store import DomainStore
from service.adapters.jobs.store import JobStore
from service.adapters.key_file import Keys
from service.api.access_log import Observer
from service.api.listing import Listings
from service.core.jobs.job import JobRunner
from service.core.limits.rate_limit import Limits
from service.core.scoring.drift import DriftMonitor
from service.migration.encoders import Encoders
from service.migration.shadow import Shadow
from service.observability.metrics import Metrics
from service.settings import Settings


class Phase(Enum):
    """Of a server's life, in this order."""

    STARTING = "starting"  # nothing is answered but probes and metrics
    SERVING = "serving"
    DRAINING = "draining"  # no longer ready, so that callers are led elsewhere; who comes all the same is served
    STOPPING = "stopping"  # new work is refused, what is in flight is finished


@dataclass
class Service:
    """Built by the composition root. `phase`, the count of streams and the lock are all that changes."""

    settings: Settings
    metrics: Metrics
    keys: Keys
    limits: Limits
    encoders: Encoders
    shadow: Shadow
    domains: DomainStore
    jobs: JobStore
    runner: JobRunner
    drift: DriftMonitor
    observer: Observer
    listings: Listings
    phase: Phase = Phase.STARTING
    event_streams: int = 0  # open now
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)  # of calibrations: counted and taken one by one

    @property
    def ready(self) -> bool:
        """Whether callers should be sent here."""
        return self.phase is Phase.SERVING

    @property
    def taking_work(self) -> bool:
        return self.phase in (Phase.SERVING, Phase.DRAINING)

    @property
    def leaving(self) -> bool:
        """Whether an answer should be a connection's last."""
        return self.phase in (Phase.DRAINING, Phase.STOPPING)


def service_of(request: Request) -> Service:
    service: Service = request.scope["state"]["service"]
    return service


async def provide(request: Request) -> Service:
    return service_of(request)


ServiceDep = Annotated[Service, Depends(provide)]
