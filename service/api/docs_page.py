"""GET /docs: all routes in Swagger UI, out of a package and not from a content delivery network."""

from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.pages import CSS, HTML, SCRIPT, STRICT, Page

router = APIRouter(prefix="/docs", include_in_schema=False)

# Swagger UI's style sheet carries its icons as data: addresses, and the page sets style attributes.
POLICY = STRICT.replace("img-src 'self'", "img-src 'self' data:").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)
PAGE = Page(
    files("fastapi_offline") / "static",
    {"swagger-ui-bundle.js": SCRIPT, "swagger-ui.css": CSS},
    POLICY,
)
INDEX = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>isosim: all routes</title>
<link rel="icon" href="console/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# Without null, Swagger UI would send the schema's address to its authors' validator.
START = b"""SwaggerUIBundle({
  url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, layout: "BaseLayout",
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""


@router.head("")
@router.get("")
def docs(request: Request) -> Response:
    """The page itself."""
    return PAGE.respond(request, INDEX, HTML)


@router.get("/start.js")
def start(request: Request) -> Response:
    """What would be an inline script elsewhere."""
    return PAGE.respond(request, START, SCRIPT)


@router.get("/{name}")
def docs_file(request: Request, name: str) -> Response:
    """A file of Swagger UI."""
    return PAGE.answer(request, name)
