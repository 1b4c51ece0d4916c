"""What lives as long as the server does, and how a route reaches it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderArtifact
from service.adapters.job_store import JobStore
from service.adapters.tokenizer import FastTokenizer
from service.api.auth import Keys
from service.core.drift import DriftMonitor
from service.core.embedding import Embedder
from service.core.jobs import JobRunner
from service.core.rate_limit import Limits
from service.core.registry import Registry
from service.metrics import Metrics
from service.settings import Settings


@dataclass
class Service:
    """Built by the composition root. `ready` and the count of streams are all that changes."""

    settings: Settings
    metrics: Metrics
    keys: Keys
    limits: Limits
    encoder: EncoderArtifact
    tokenizer: FastTokenizer
    embedder: Embedder
    registry: Registry
    domains: DomainStore
    jobs: JobStore
    runner: JobRunner
    drift: DriftMonitor
    ready: bool = False
    event_streams: int = 0  # open now


def service_of(request: Request) -> Service:
    service: Service = request.scope["state"]["service"]
    return service


async def provide(request: Request) -> Service:
    return service_of(request)


ServiceDep = Annotated[Service, Depends(provide)]
