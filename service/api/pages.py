"""Web pages made of a fixed set of files, which a browser may load from this host alone."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from fastapi import Request
from fastapi.responses import Response

from service.core.errors import NotFound

HTML, CSS, SCRIPT, SVG, PNG = "text/html", "text/css", "text/javascript", "image/svg+xml", "image/png"

# Nothing from elsewhere, nothing inline, in no frame; the pages ask for less where they need less.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Page:
    """Files of one folder and their media types. They need no key: what they show comes from routes that do."""

    folder: Traversable
    types: Mapping[str, str]
    policy: str = STRICT

    def answer(self, request: Request, name: str) -> Response:
        """A file, or 304 where the browser has it already.

        Raises:
            NotFound: the page has no such file.
        """
        if name not in self.types:
            raise NotFound(f"no route {request.method} {request.url.path}")
        return self.respond(request, self.folder.joinpath(name).read_bytes(), self.types[name])

    def respond(self, request: Request, content: bytes, kind: str) -> Response:
        """The content with the page's headers; for what is no file, too."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {
            "etag": tag,
            "cache-control": "no-cache",  # kept, and asked for again each time: a new release shows at once
            "content-security-policy": self.policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        known = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
        if tag in known:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)
