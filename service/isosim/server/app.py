"""The ASGI application: routes and middleware, which use the parts that `composition` builds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from isosim import __version__
from isosim.api import errors, operations, pages
from isosim.api.calibration import calibrate, files
from isosim.api.compatible import inference_protocol, openai, rerank, tei
from isosim.api.domains import archive, domains, migration, thresholds
from isosim.api.matches import check, matches
from isosim.api.middleware import Envelope, cors
from isosim.api.scoring import similarity
from isosim.api.state import Service
from isosim.errors import IsosimError, Unavailable
from isosim.server import documentation
from isosim.server.composition import build
from isosim.settings import Settings


class Application(FastAPI):
    """A FastAPI application that passes each request to `middleware.Envelope` first."""

    envelope: ASGIApp

    def build_middleware_stack(self) -> ASGIApp:
        """FastAPI's stack without ServerErrorMiddleware, because the envelope answers unexpected errors."""
        outermost = super().build_middleware_stack()
        assert isinstance(outermost, ServerErrorMiddleware)  # noqa: S101 - as Starlette builds it
        return outermost.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.envelope(scope, receive, send)


def create_app(settings: Settings) -> Application:
    """Builds the ASGI application; its lifespan starts and stops the server's parts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Service]]:
        async with AsyncExitStack() as stack:
            try:
                service = await stack.enter_async_context(build(settings))
            except IsosimError as error:  # uvicorn logs its message alone
                raise Unavailable(errors.in_words(error)) from error
            app.state.service = service
            yield {"service": service}

    app = Application(
        title="isosim",
        version=__version__,
        summary="Calibrated sentence similarity: one threshold that means the same in every domain.",
        lifespan=lifespan,
        openapi_url=None,  # FastAPI builds the document on the event loop, which takes 0.2 s
        docs_url=None,  # FastAPI's page loads files from the internet; the page in api/pages.py does not
        redoc_url=None,
        generate_unique_id_function=documentation.operation_id,
        # FastAPI's own telemetry would export paths, queries and exception messages; observability/otlp.py does not.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    errors.install(app)
    documentation.install(app)
    routers = (  # in the order of the documentation
        similarity.router,
        calibrate.router,
        files.router,
        check.router,  # before the routes below /matches/{job}
        matches.router,
        domains.router,
        thresholds.router,
        archive.router,
        migration.router,
        rerank.router,
        tei.tokens,
        openai.scoring,
        openai.router,
        inference_protocol.router,
        tei.router,
        operations.router,
    )
    for router in (*routers, pages.router):
        app.include_router(router)
    app.router.routes.extend(pages.FILES)
    app.envelope = Envelope(partial(FastAPI.__call__, app), app.routes)
    if settings.cors_origins:
        app.envelope = CORSMiddleware(app.envelope, **cors(settings.cors_origins))
    return app
