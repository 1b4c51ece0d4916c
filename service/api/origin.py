"""Requests that a web page of somebody else's sends, by the browser of somebody who may use this server."""

import ipaddress
from collections.abc import Collection, Sequence
from typing import Any

from starlette.types import Scope

from service.core.errors import Forbidden

HARMLESS = {"GET", "HEAD", "OPTIONS"}
OWN = {"same-origin", "none"}  # Sec-Fetch-Site, which no page can set; none: the user's doing and no page's


def check_origin(scope: Scope, *, anonymous: bool, allowed: Collection[str] = ()) -> None:
    """Protects a server without keys, which the browser on the same machine can reach like any other.

    `anonymous`: everybody may ask, whatever the server is called. `allowed`: origins of pages that may ask.

    Raises:
        Forbidden: a browser says that another site sent this; or the server was asked for by a name that only the
            owner of a domain could have pointed at this machine (DNS rebinding).
    """
    site = host = origin = ""
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            site = value.decode("latin-1")
        elif name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1")
    if scope["method"] not in HARMLESS and is_foreign(site, origin, host) and origin not in allowed:
        raise Forbidden("requests from other sites need an API key, or their origin in ISOSIM_CORS_ORIGINS")
    if not anonymous and not is_local(host):
        raise Forbidden(
            "a server without keys answers to an address or a name of this machine alone; "
            "behind a proxy that asks who somebody is, set ISOSIM_ALLOW_ANONYMOUS=true"
        )


def cors(origins: Sequence[str]) -> dict[str, Any]:
    """Starlette's CORSMiddleware for exact origins. Keys travel in a header, so no credentials of the browser's."""
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "POST", "PUT", "DELETE"],
        "allow_headers": ["authorization", "content-type", "idempotency-key", "x-isosim-split-key", "x-request-id"],
        "expose_headers": [
            "location", "retry-after", "x-compute-tokens", "x-isosim-domain", "x-isosim-encoder", "x-isosim-flags",
            "x-isosim-ignored", "x-isosim-version", "x-request-id", "x-should-retry",
        ],
        "max_age": 600,
    }  # fmt: skip


def is_foreign(site: str, origin: str, host: str) -> bool:
    """Whether a page that is not this server's sent this, another port's of the same machine included.

    A browser that leaves out Sec-Fetch-Site (plain http to another machine, Safari before 16.4) still names the page's
    origin with whatever is no GET; clients that are no browsers send neither.
    """
    if site:
        return site not in OWN
    return bool(origin) and authority(origin.partition("://")[2]) != authority(host)


def authority(host: str) -> str:
    """Without a default port, of either scheme: TLS may end at a proxy."""
    return host.lower().removesuffix(":80").removesuffix(":443")


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
