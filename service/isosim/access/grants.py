"""Rights of an API key: scopes, domains, rate of texts, concurrent requests. Also counts texts and requests per key.

>>> grant = parse_grant("a1", ["read", "domains=reuters,sts-*", "rate=100/s", "search", "team"])
>>> grant.name, grant.may_use("sts-b"), grant.may_use("tickets")
('search team', True, False)
"""

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from typing import Literal, Protocol, get_args

from isosim.errors import Forbidden, Overloaded, Unauthorized

Scope = Literal["read", "calibrate", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PATTERNS = re.compile(r"[a-z0-9._*?-]+(,[a-z0-9._*?-]+)*")  # domain names with the wildcards * and ?
RATE = re.compile(r"(?P<texts>[1-9][0-9]{0,8})/(?P<period>[smh])")
COUNT = re.compile(r"[1-9][0-9]{0,5}")
SECONDS = {"s": 1, "m": 60, "h": 3600}
PERIODS = {1: "a second", 60: "a minute", 3600: "an hour"}


@dataclass(frozen=True)
class Rate:
    """The number of texts that a key may send in a period of `seconds`, all at once or spread over the period."""

    texts: int
    seconds: int

    @property
    def per_second(self) -> float:
        return self.texts / self.seconds

    def __str__(self) -> str:
        return f"{self.texts} texts {PERIODS[self.seconds]}"


@dataclass(frozen=True)
class Grant:
    """One key's rights. `id` distinguishes keys in the counters; it contains no part of the key."""

    id: str
    scopes: frozenset[str]
    patterns: tuple[str, ...] | None = None  # globs of the permitted domains; None permits all
    rate: Rate | None = None
    concurrent: int | None = None  # maximum number of requests under way at the same time; None: no limit
    name: str = ""

    @cached_property
    def _domains(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(pattern) for pattern in self.patterns or ()))

    @property
    def limited(self) -> bool:
        return self.rate is not None or self.concurrent is not None

    def may_use(self, domain: str) -> bool:
        return self.patterns is None or self._domains.match(domain) is not None

    def check_scope(self, scope: Scope) -> None:
        """Raises Forbidden if the key lacks the scope."""
        if scope not in self.scopes:
            raise Forbidden(
                f"the API key lacks the scope {scope!r}; ask the server's operator for a key with it: isosim keys new "
                f"--scopes {scope} --add FILE"
            )

    def check_domain(self, domain: str) -> None:
        """Raises Forbidden if the key may not use the domain. The message does not reveal whether the domain exists."""
        if not self.scopes:  # only NOBODY, the grant of callers without a key, has no scopes
            raise Unauthorized("an API key is needed")
        if not self.may_use(domain):
            error = Forbidden(f"the API key may not use the domain {domain!r}")
            error.domain = domain
            raise error


NOBODY = Grant("nobody", frozenset())
ANYBODY = Grant("anybody", frozenset(SCOPES))  # the rights of all callers if the server has no keys


def parse_grant(key_id: str, words: Sequence[str]) -> Grant:
    """Parses the words after the hash in a line of the keys file: `<scope,scope> domains=… [option=value …] [name]`.

    `domains=` is required, so that a line that was cut off does not grant all domains.

    Raises:
        ValueError: a word is wrong; the message repeats no part of the line that could be a key.
    """
    scopes = frozenset(words[0].split(",")) if words else frozenset()
    if not scopes or not scopes <= set(SCOPES):
        raise ValueError(f"give one or more of the scopes {', '.join(SCOPES)}, with commas between them")
    options: dict[str, str] = {}
    name = []
    for word in words[1:]:
        option, is_option, value = word.partition("=")
        if not is_option:
            name.append(word)
        elif option not in READ:
            raise ValueError(
                f"an option must be one of {', '.join(f'{known}=' for known in READ)}; a key's name cannot contain '='"
            )
        elif option in options:
            raise ValueError(f"{option}= is given twice")
        elif not READ[option].fullmatch(value):
            raise ValueError(f"{option}= must look like {EXAMPLES[option]}")
        else:
            options[option] = value
    if "domains" not in options:
        raise ValueError("domains= is missing; write domains=* for all domains, or names like domains=reuters,sts-*")
    rate = RATE.fullmatch(options.get("rate", ""))
    return Grant(
        id=key_id,
        scopes=scopes,
        patterns=None if options["domains"] == "*" else tuple(options["domains"].split(",")),
        rate=None if rate is None else Rate(int(rate["texts"]), SECONDS[rate["period"]]),
        concurrent=int(options["concurrent"]) if "concurrent" in options else None,
        name=" ".join(name),
    )


READ = {"domains": PATTERNS, "rate": RATE, "concurrent": COUNT}
EXAMPLES = {
    "domains": "domains=reuters,sts-*",
    "rate": "rate=100/s (100 texts per second; /m: per minute, /h: per hour)",
    "concurrent": "concurrent=8",
}


# Called when a request ends; lowers the key's count of requests under way. If the count is in Redis, the call returns a
# future that completes when Redis has lowered the count. The response is sent only then. Otherwise the client's next
# request could be refused, because the ended request would still be counted.
Release = Callable[[], asyncio.Future[None] | None]
Limit = Literal["rate", "concurrent"]
AdmissionResult = Literal["admitted", "refused"]


def nothing() -> None:
    """Does nothing; used as the release of a request that is not counted."""


class Limits(Protocol):
    """Counts what a key uses: in this process, or in Redis for all processes."""

    async def admit(self, grant: Grant, texts: int) -> Release:
        """Charges `texts` to the key's rate, and counts the request as under way until the returned release is called.
        With 0 texts, charges nothing, but refuses a key that could not send one text now.

        Raises:
            Overloaded: the key has used up its rate, or has too many requests under way; nothing was charged.
        """

    async def owe(self, grant: Grant, texts: int) -> None:
        """Charges texts even if the key's rate permits fewer texts now.

        The key's next requests are then refused for a longer time. Used for costs that are known only after admission.
        A negative number gives texts back.
        """


class CountedLimits:
    """Admits requests as `limits` does. Calls `on_texts` for each request, admitted or refused, with the key's name,
    the result and the number of texts."""

    def __init__(self, limits: Limits, on_texts: Callable[[str, AdmissionResult, int], None]) -> None:
        self.limits, self.on_texts = limits, on_texts

    async def admit(self, grant: Grant, texts: int) -> Release:
        try:
            release = await self.limits.admit(grant, texts)
        except Overloaded:
            self.on_texts(grant.name, "refused", texts)
            raise
        self.on_texts(grant.name, "admitted", texts)
        return release

    async def owe(self, grant: Grant, texts: int) -> None:
        await self.limits.owe(grant, texts)


def too_fast(rate: Rate, wait: float) -> Overloaded:
    seconds = max(1, math.ceil(wait))
    return Overloaded(f"the API key's rate of {rate} is used up; try again in {seconds} s", retry_after=seconds)


def too_many(concurrent: int) -> Overloaded:
    requests = f"{concurrent} request{'s' * (concurrent > 1)}"
    return Overloaded(f"the API key has {requests} under way, which is its limit; wait until one has ended")


class TokenBucket:
    """Rate limiter of a key: counts the texts that the key may still send.

    With 100 texts per second, the count rises by 100 per second, up to 100: the bucket is then full. If the bucket is
    full, even a request with 250 texts passes, and the count becomes −150. Further requests are refused until the count
    has risen again.
    """

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate, self.tokens, self.at = rate, float(rate.texts), now

    def take(self, texts: int, now: float) -> float:
        """Takes the texts and returns 0 if the bucket holds enough, at least one text. Otherwise takes none and returns
        the wait in seconds."""
        capacity, per_second = self.rate.texts, self.rate.per_second
        self.fill(now)
        missing = min(max(texts, 1), capacity) - self.tokens
        if missing > 1e-9:  # more than a rounding error
            return missing / per_second
        self.tokens -= texts
        return 0.0

    def owe(self, texts: int, now: float) -> None:
        """Takes the texts even if the bucket goes below zero."""
        self.fill(now)
        self.tokens = min(self.rate.texts, self.tokens - texts)

    def fill(self, now: float) -> None:
        """Adds the texts that the rate allows for the time since the last call."""
        self.tokens = min(self.rate.texts, self.tokens + max(0.0, now - self.at) * self.rate.per_second)
        self.at = now


@dataclass
class Usage:
    """Current usage of one key."""

    bucket: TokenBucket | None = None
    under_way: set[object] = field(default_factory=set)


class LocalLimits:
    """The limits of one process. Lives on one event loop; never waits."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_refused: Callable[[Limit], None] = lambda _: None
    ) -> None:
        self.clock, self.on_refused = clock, on_refused
        self._usage: dict[str, Usage] = {}  # by key id; at most one entry per key that was ever in the keys file

    async def admit(self, grant: Grant, texts: int) -> Release:
        return self.take(grant, texts) if grant.limited else nothing

    async def owe(self, grant: Grant, texts: int) -> None:
        if grant.rate is not None and texts:
            self._bucket(self._usage.setdefault(grant.id, Usage()), grant.rate).owe(texts, self.clock())

    def _bucket(self, usage: Usage, rate: Rate) -> TokenBucket:
        if usage.bucket is None or usage.bucket.rate != rate:  # new key, or its rate was changed
            usage.bucket = TokenBucket(rate, self.clock())
        return usage.bucket

    def take(self, grant: Grant, texts: int) -> Release:
        """Does the same as `admit`, but is not a coroutine."""
        usage = self._usage.setdefault(grant.id, Usage())
        if grant.concurrent is not None and len(usage.under_way) >= grant.concurrent:
            self.on_refused("concurrent")
            raise too_many(grant.concurrent)
        if grant.rate is not None:
            wait = self._bucket(usage, grant.rate).take(texts, self.clock())
            if wait:
                self.on_refused("rate")
                raise too_fast(grant.rate, wait)
        if grant.concurrent is None:
            return nothing
        request = object()
        usage.under_way.add(request)
        return lambda: usage.under_way.discard(request)
