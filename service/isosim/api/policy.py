"""The policy of each route, and the checks that need no body: size, origin, key, scope, query."""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import Scope as Asgi

from isosim.access.grants import Scope
from isosim.api.parameters import check_query
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.domains.history import Author, author
from isosim.errors import Forbidden, NotReady, TooLarge, UnsupportedMedia

# Maximum length of a content-type. Libraries split it in a time that grows with the square: 4 s for 60 kB.
MOST_TYPE = 1000
SMALL_BODY = 16_384  # maximum size, in bytes, of a body that holds only a few fields
# A refused body costs its key one text for this many bytes or fewer. Refusing 10 kB keeps the event loop at most 0.5 ms
# (2 MB: 100 ms, loadtest/stall.py), about as long as an uncached text does (loadtest/README.md).
BYTES_A_TEXT = 10_000


def head_of(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Headers by name; of several headers with one name, the first."""
    return dict(reversed(headers))


def text_of(head: Mapping[bytes, bytes], name: bytes) -> str:
    """A header's value; empty if the request does not have it."""
    value = head.get(name)
    return "" if value is None else value.decode("latin-1")


@dataclass(frozen=True)
class Policy:
    """What a route asks of a request, and how much of the server a request may use."""

    scope: Scope | None = None  # scope that the key needs
    key: bool = True  # whether the request needs a key at all
    texts: int = 1  # texts that a request costs; with 0, the route itself charges its texts
    body: Literal["small", "json", "file", "files"] = "small"  # kind of the largest body
    json: bool = False  # whether the body must be JSON
    timed: bool = False  # whether ISOSIM_REQUEST_TIMEOUT applies; False for routes that change or stream something
    probe: bool = False  # whether the route answers even while the server starts or stops

    async def __call__(self) -> None:
        """Does nothing: FastAPI calls it as a dependency of the route, and `admit` has checked the policy before."""

    def largest(self, service: Service, kind: str = "") -> int:
        """The largest body of a media type that the route accepts, in bytes. JSON is parsed as a whole, so it has the
        same limit on all routes."""
        settings = service.settings
        if self.body in ("file", "files") and is_json(kind):
            return settings.max_body_bytes
        if self.body == "files":
            return 2 * settings.max_calibration_bytes + SMALL_BODY  # the form around two files
        if self.body == "file":
            brought = service.encoder.artifact.kind == "vectors"
            return settings.max_vector_bytes if brought else settings.max_calibration_bytes
        return settings.max_body_bytes if self.body == "json" else min(SMALL_BODY, settings.max_body_bytes)


UNKNOWN = Policy(texts=0)  # paths and methods without a route
SCORING = Policy("read", texts=0, body="json", json=True, timed=True)


def needs(scope: Scope, **rest: Any) -> Any:  # FastAPI types a dependency as Any
    """Declares the policy of a route whose callers need a key with this scope; `rest`: see `Policy`."""
    return Depends(Policy(scope, **rest))


OPEN_PAGE = Policy(key=False, texts=0, timed=True)  # a page without data of its own
OPEN = Depends(OPEN_PAGE)
PROBE = Depends(Policy(key=False, texts=0, timed=True, probe=True))


def policy_of(route: BaseRoute) -> Policy:
    """The policy that the route declares. Raises TypeError if it declares none, so that the server does not start."""
    declared = getattr(route, "policy", None) or getattr(getattr(route, "app", None), "policy", None)
    given = route.dependencies if isinstance(route, APIRoute) else ()
    declared = declared or next((one.dependency for one in given if isinstance(one.dependency, Policy)), None)
    if not isinstance(declared, Policy):
        raise TypeError(f"the route {getattr(route, 'path', route)!r} declares no policy")
    return declared


async def admit(scope: Asgi, head: Mapping[bytes, bytes], policy: Policy, service: Service, trace: Trace) -> int:
    """Authenticates the request and applies the checks that do not need its body. Returns the largest body's size.

    Only this function reads a key. Which domains the key permits is checked later, in `resolve` and `permitted_job`.

    Raises:
        TooLarge: the announced length of the body exceeds the route's largest.
        Forbidden: a web page of another site sent the request (`check_origin`), or the key lacks the scope.
        NotReady: the server is starting or stopping.
        Unauthorized: the key is missing or wrong.
        InvalidInput: the query has a parameter that the route does not take.
        Overloaded: the key's rate is used up. A request with a large body is
            refused before the body is read, even if the route itself charges its texts.
        UnsupportedMedia: the body is compressed, or is not JSON although the route needs it; or the content-type is
            too long.
    """
    settings, kind = service.settings, media_type(text_of(head, b"content-type"))
    limit = policy.largest(service, kind)
    declared = head.get(b"content-length", b"")
    size = int(declared) if declared.isdigit() else 0
    if size > limit:
        if limit < policy.largest(service):
            raise TooLarge(
                f"the JSON body is larger than {limit} bytes; send its entries as application/x-ndjson, one in each "
                "line, with the options in the query"
            )
        raise TooLarge(f"the body has {size} bytes, at most {limit} are taken")
    if settings.api_keys_file is None:
        check_origin(scope["method"], head, anonymous=settings.allow_anonymous, allowed=settings.cors_origins)
    if not service.taking_work and not policy.probe:
        raise NotReady("the server is starting or stopping")
    if policy.key:
        trace.grant = service.keys.identify(text_of(head, b"authorization"))
    if policy.scope is not None:
        trace.grant.check_scope(policy.scope)
        if policy.scope != "read":
            author.set(Author(trace.grant.id, request=trace.request_id))
    if scope["query_string"]:
        check_query(scope)
    if policy.texts:
        await service.limits.admit(trace.grant, policy.texts)
    elif trace.grant.rate is not None and (size > BYTES_A_TEXT or b"transfer-encoding" in head):
        await service.limits.admit(trace.grant, 0)
    if b"content-encoding" in head and (encoding := text_of(head, b"content-encoding").strip().lower()) != "identity":
        raise UnsupportedMedia(f"content-encoding {encoding[:80]!r} is not supported; send the body uncompressed")
    if policy.json:
        check_json(kind)
    return limit


SLIPS = {  # start of the error message for content types that are sent by mistake
    "": "the request has no content-type",
    "multipart/form-data": "content-type 'multipart/form-data' (curl -F sends it) is a form",
    "application/x-www-form-urlencoded": "content-type 'application/x-www-form-urlencoded' (curl -d alone sends it) is "
    "a form",
}


def media_type(header: str) -> str:
    """A content type without its parameters. Raises UnsupportedMedia if it is too long."""
    if len(header) > MOST_TYPE:
        raise UnsupportedMedia(f"the content-type has more than {MOST_TYPE} characters")
    return header.partition(";")[0].strip().lower()


def sent_as(kind: str) -> str:
    """Start of the error message for an unsupported media type."""
    return SLIPS.get(kind, f"content-type {kind[:80]!r} is not read here")


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def check_json(kind: str) -> None:
    """Raises UnsupportedMedia if a media type is not JSON."""
    if not is_json(kind):
        raise UnsupportedMedia(f"{sent_as(kind)}; this route reads JSON, content-type: application/json")


HARMLESS = {"GET", "HEAD", "OPTIONS"}
OWN = {"same-origin", "none"}  # harmless values of the header Sec-Fetch-Site; none: the user typed the address


def check_origin(method: str, head: Mapping[bytes, bytes], *, anonymous: bool, allowed: Collection[str] = ()) -> None:
    """Protects a server without keys from web pages that use the user's browser to reach it.

    Args:
        anonymous: accept any host name (ISOSIM_ALLOW_ANONYMOUS).
        allowed: origins of pages that may send requests (ISOSIM_CORS_ORIGINS).

    Raises:
        Forbidden: another site's page sent the request; or the Host header is a public name, which an attacker could
            have pointed at this machine (DNS rebinding).
    """
    host, origin, site = text_of(head, b"host"), text_of(head, b"origin"), text_of(head, b"sec-fetch-site")
    if (site or origin) and method not in HARMLESS and is_foreign(site, origin, host) and origin not in allowed:
        raise Forbidden("requests from other sites need an API key, or their origin in ISOSIM_CORS_ORIGINS")
    if not anonymous and not is_local(host):
        raise Forbidden(
            "a server without keys answers only requests whose Host is an address or a local name; "
            "behind a proxy that authenticates callers, set ISOSIM_ALLOW_ANONYMOUS=true"
        )


def is_foreign(site: str, origin: str, host: str) -> bool:
    """Whether a page of another origin sent the request. Another port of this machine is another origin too.

    Origin decides if Sec-Fetch-Site is missing: some browsers leave it out (plain http to another machine, Safari
    before 16.4), but send Origin with all methods except GET and HEAD. Clients that are not browsers send neither
    header; their requests are not foreign.
    """
    if site:
        return site not in OWN
    return bool(origin) and authority(origin.partition("://")[2]) != authority(host)


def authority(host: str) -> str:
    """Host in lower case, without the port if this is 80 or 443. Either may be the default port: the scheme is unknown,
    because TLS may end at a proxy."""
    return host.lower().removesuffix(":80").removesuffix(":443")


# Top-level names that cannot be registered, so that no attacker's DNS server answers for them: RFC 6761 (localhost,
# test), RFC 6762 (local), RFC 8375 (home.arpa), ICANN's resolution of 29 July 2024 (internal).
RESERVED = (".localhost", ".test", ".local", ".home.arpa", ".internal")


@lru_cache(maxsize=256)
def is_local(host: str) -> bool:
    """Whether a Host header cannot be a public DNS name: it is an address, a name without a dot, or a RESERVED one."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.endswith(RESERVED)
    return True
