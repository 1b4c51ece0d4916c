"""GET /console: the analysts' page, and what it must know of this server before the first key."""

from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from service import __version__
from service.api.pages import CSS, HTML, SCRIPT, SVG, Page
from service.api.requests import documented
from service.api.schemas import ConsoleEncoder, ConsoleFacts, ConsoleLimits
from service.api.state import ServiceDep
from service.core.calibration import DOMAIN_NAME
from service.core.jobs import METHODS, NORMALIZATIONS, PROMOTIONS
from service.core.requirements import STEADY_FLOW, fewest_sentences

router = APIRouter(prefix="/console", tags=["operations"])

MODULES = (
    "main", "api", "dom", "format", "alerts", "dialogs", "domains", "report", "pictures", "figure", "advisor",
    "distribution", "calibrate", "intake", "labels", "job", "jobs", "compare", "versions",
    "listing",
)  # fmt: skip
PAGE = Page(
    files("service") / "console",
    {
        "index.html": HTML,
        "console.css": CSS,
        "icon.svg": SVG,
        "vendor/chart.umd.min.js": SCRIPT,
        **{f"{name}.js": SCRIPT for name in MODULES},
    },
)


@router.head("", include_in_schema=False)
@router.get("", include_in_schema=False)
def console(request: Request) -> Response:
    """The page itself."""
    return PAGE.answer(request, "index.html")


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
def console_with_slash() -> Response:
    """The page's own addresses are relative to the one without a slash."""
    return RedirectResponse("../console", 308)


@router.get("/server.json", responses={503: documented()[503]})
def console_facts(service: ServiceDep) -> ConsoleFacts:
    """What the page must know to explain itself: limits, methods, whether a key is needed. Itself it needs none."""
    settings, encoder = service.settings, service.servings.first.encoder
    return ConsoleFacts(
        version=__version__,
        encoder=ConsoleEncoder(id=encoder.id, digest=encoder.digest, dim=encoder.spec.dim),
        keys=settings.api_keys_file is not None,
        limits=ConsoleLimits(
            characters=settings.max_characters,
            sentences=settings.max_calibration_sentences,
            bytes=settings.max_calibration_bytes,
            pairs=settings.max_pairs,
        ),
        fewest={method: fewest_sentences(method, encoder.spec.dim) for method in METHODS},
        steady_flow=STEADY_FLOW,
        promotions=list(PROMOTIONS),
        normalizations=list(NORMALIZATIONS),
        domain_pattern=DOMAIN_NAME,
    )


@router.head("/{name:path}", include_in_schema=False)
@router.get("/{name:path}", include_in_schema=False)
def console_file(request: Request, name: str) -> Response:
    """A file the page is made of."""
    return PAGE.answer(request, name)
