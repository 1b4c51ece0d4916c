"""The ASGI application: routes and middleware, which use the parts that `composition` builds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.middleware.cors import CORSMiddleware

from isosim import __version__
from isosim.api import operations, pages
from isosim.api.calibration import calibrate, files
from isosim.api.compatible import cohere, inference_protocol, openai, rerank, tei
from isosim.api.domains import domains, thresholds
from isosim.api.matches import check, posting, results
from isosim.api.middleware import Envelope, cors
from isosim.api.scoring import similarity
from isosim.api.state import Service
from isosim.server import documentation
from isosim.server.composition import build
from isosim.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Builds the ASGI application; its lifespan starts and stops the server's parts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Service]]:
        async with AsyncExitStack() as stack:
            try:
                service = await stack.enter_async_context(build(settings))
            except Exception as error:
                app.state.failure = error  # `isosim serve` reports it
                raise
            app.state.service = service
            yield {"service": service}

    app = FastAPI(
        title="isosim",
        version=__version__,
        summary="Calibrated sentence similarity: one threshold that means the same in every domain.",
        lifespan=lifespan,
        openapi_url=None,  # FastAPI builds the document on the event loop, which takes 0.2 s
        docs_url=None,  # FastAPI's page loads files from the internet; the page in api/pages.py does not
        redoc_url=None,
        generate_unique_id_function=documentation.operation_id,
        responses=documentation.ERRORS,
        # FastAPI's own telemetry would export paths, queries and exception messages; observability/otlp.py does not.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.failure = None
    documentation.install(app)
    routers = (  # in the order of the documentation
        similarity.router,
        calibrate.router,
        files.router,
        check.router,  # before the routes below /matches/{job}
        posting.router,
        results.router,
        domains.router,
        thresholds.router,
        rerank.router,
        tei.tokens,
        openai.scoring,
        cohere.router,
        openai.router,
        inference_protocol.router,
        tei.router,
        operations.router,
    )
    for router in (*routers, pages.router):
        app.include_router(router)
    app.router.routes.extend(pages.FILES)
    # FastAPI's other layers only turn exceptions into answers, which the envelope does.
    app.middleware_stack = Envelope(AsyncExitStackMiddleware(app.router), app.routes)
    if settings.cors_origins:
        app.middleware_stack = CORSMiddleware(app.middleware_stack, **cors(settings.cors_origins))
    return app
