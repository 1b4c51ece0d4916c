"""Requests that a web page of somebody else's sends, by the browser of somebody who may use this server."""

import ipaddress
from collections.abc import Collection, Sequence
from typing import Any

from starlette.types import Scope

from service.core.errors import Forbidden

HARMLESS = {"GET", "HEAD", "OPTIONS"}


def check_origin(scope: Scope, *, anonymous: bool, allowed: Collection[str] = ()) -> None:
    """Protects a server without keys, which the browser on the same machine can reach like any other.

    `anonymous`: everybody may ask, whatever the server is called. `allowed`: origins of pages that may ask.

    Raises:
        Forbidden: a browser says that another site sent this; or the server was asked for by a name that only the
            owner of a domain could have pointed at this machine (DNS rebinding).
    """
    site = host = origin = b""
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            site = value
        elif name == b"host":
            host = value
        elif name == b"origin":
            origin = value
    crossing = site == b"cross-site" and scope["method"] not in HARMLESS
    if crossing and origin.decode("latin-1") not in allowed:
        raise Forbidden("requests from other sites need an API key")
    if not anonymous and not is_local(host.decode("latin-1")):
        raise Forbidden(
            "a server without keys answers to an address or a name of this machine alone; "
            "behind a proxy that asks who somebody is, set ISOSIM_ALLOW_ANONYMOUS=true"
        )


def cors(origins: Sequence[str]) -> dict[str, Any]:
    """Starlette's CORSMiddleware for exact origins. Keys travel in a header, so no credentials of the browser's."""
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "POST", "PUT", "DELETE"],
        "allow_headers": ["authorization", "content-type", "idempotency-key", "x-request-id"],
        "expose_headers": [
            "location", "retry-after", "x-compute-tokens", "x-isosim-domain", "x-isosim-encoder", "x-isosim-ignored",
            "x-isosim-version", "x-request-id", "x-should-retry",
        ],
        "max_age": 600,
    }  # fmt: skip


def is_local(host: str) -> bool:
    """Whether nobody on the internet could own this name: an address, or a name without a dot."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.endswith(".localhost")
    return True
