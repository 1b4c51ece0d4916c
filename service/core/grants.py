"""What an API key lets its holder do: scopes, domains, texts a minute, requests at once; and the counting of both."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from typing import Literal, Protocol, get_args

from service.core.errors import Forbidden, Overloaded, Unauthorized

Scope = Literal["read", "calibrate", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PATTERNS = re.compile(r"[a-z0-9._*?-]+(,[a-z0-9._*?-]+)*")  # globs over the characters a domain's name may have
RATE = re.compile(r"(?P<texts>[1-9][0-9]{0,8})/(?P<period>[smh])")
COUNT = re.compile(r"[1-9][0-9]{0,5}")
SECONDS = {"s": 1, "m": 60, "h": 3600}
PERIODS = {1: "a second", 60: "a minute", 3600: "an hour"}


@dataclass(frozen=True)
class Rate:
    """Texts in a period of seconds; a whole period's texts may come at once."""

    texts: int
    seconds: int

    @property
    def per_second(self) -> float:
        return self.texts / self.seconds

    def __str__(self) -> str:
        return f"{self.texts} texts {PERIODS[self.seconds]}"


@dataclass(frozen=True)
class Grant:
    """One key's rights. `id` tells keys apart where they are counted; it is no part of the key itself."""

    id: str
    scopes: frozenset[str]
    patterns: tuple[str, ...] | None = None  # globs of domains; None: all
    rate: Rate | None = None
    concurrent: int | None = None  # requests under way
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
        """Raises Forbidden."""
        if scope not in self.scopes:
            raise Forbidden(
                f"the API key lacks the scope {scope!r}; ask for a key with it: isosim keys new --scopes {scope}"
            )

    def check_domain(self, domain: str) -> None:
        """Raises Forbidden, in the same words whether the domain exists or not."""
        if not self.scopes:
            raise Unauthorized("an API key is needed")  # a route asks before it has checked the key: nobody gets in
        if not self.may_use(domain):
            raise Forbidden(f"the API key may not use the domain {domain!r}")


NOBODY = Grant("nobody", frozenset())
ANYBODY = Grant("anybody", frozenset(SCOPES))  # of a server without keys


def parse_grant(key_id: str, words: Sequence[str]) -> Grant:
    """What stands after the hash in a line of the keys file: `<scope,scope> [option=value …] [name]`.

    Raises:
        ValueError: saying what is wrong; nothing of the line that could be a key is repeated.
    """
    scopes = frozenset(words[0].split(",")) if words else frozenset()
    if not scopes or not scopes <= set(SCOPES):
        raise ValueError(f"the scopes must be some of {', '.join(SCOPES)}, with commas between them")
    options: dict[str, str] = {}
    name = []
    for word in words[1:]:
        option, is_option, value = word.partition("=")
        if not is_option:
            name.append(word)
        elif option not in READ:
            raise ValueError(f"an option must be one of {', '.join(f'{known}=' for known in READ)}; a name has no '='")
        elif option in options:
            raise ValueError(f"{option}= is given twice")
        elif not READ[option].fullmatch(value):
            raise ValueError(f"{option}= must look like {EXAMPLES[option]}")
        else:
            options[option] = value
    rate = RATE.fullmatch(options.get("rate", ""))
    return Grant(
        id=key_id,
        scopes=scopes,
        patterns=tuple(options["domains"].split(",")) if "domains" in options else None,
        rate=None if rate is None else Rate(int(rate["texts"]), SECONDS[rate["period"]]),
        concurrent=int(options["concurrent"]) if "concurrent" in options else None,
        name=" ".join(name),
    )


READ = {"domains": PATTERNS, "rate": RATE, "concurrent": COUNT}
EXAMPLES = {
    "domains": "domains=reuters,sts-*",
    "rate": "rate=100/s (or /m, /h: texts)",
    "concurrent": "concurrent=8",
}


# Ends the count of a request. The future, where there is one, is done once every process knows of it: an answer waits
# for it, so that a caller who asks again at once finds his place free.
Release = Callable[[], asyncio.Future[None] | None]
Limit = Literal["rate", "concurrent"]


def nothing() -> None:
    """The release of a request that holds nothing."""


class Limits(Protocol):
    """Counts what a key uses: in this process, or in Redis for all of them."""

    async def admit(self, grant: Grant, texts: int) -> Release:
        """Takes the texts out of the key's rate and counts the request; the release ends its count.

        Raises:
            Overloaded: the key has used up its rate, or has too many requests under way; nothing was taken.
        """

    async def owe(self, grant: Grant, texts: int) -> None:
        """Takes texts whatever the key has left; they are paid off before its next request. Negative: gives back.

        For what a request turns out to cost once it has been admitted.
        """


def too_fast(rate: Rate, wait: float) -> Overloaded:
    seconds = max(1, math.ceil(wait))
    return Overloaded(f"the API key's rate of {rate} is used up; try again in {seconds} s", retry_after=seconds)


def too_many(concurrent: int) -> Overloaded:
    requests = f"{concurrent} request{'s' * (concurrent > 1)}"
    return Overloaded(f"the API key has {requests} under way, as many as it may have")


class TokenBucket:
    """Holds one period's texts and fills again at the key's rate.

    A request of more texts than it ever holds passes when it is full, and is paid off afterwards: every request of
    a permitted size can be answered, and the mean rate still holds.
    """

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate, self.tokens, self.at = rate, float(rate.texts), now

    def take(self, texts: int, now: float) -> float:
        """0 where the texts were taken, else the seconds until they could be."""
        capacity, per_second = self.rate.texts, self.rate.per_second
        self.fill(now)
        missing = min(texts, capacity) - self.tokens
        if missing > 1e-9:  # what rounding leaves of a bucket that is full again
            return missing / per_second
        self.tokens -= texts
        return 0.0

    def owe(self, texts: int, now: float) -> None:
        """Takes the texts whether or not they are there."""
        self.fill(now)
        self.tokens = min(self.rate.texts, self.tokens - texts)

    def fill(self, now: float) -> None:
        """With what the time since the last look has earned."""
        self.tokens = min(self.rate.texts, self.tokens + max(0.0, now - self.at) * self.rate.per_second)
        self.at = now


@dataclass
class Usage:
    """What one key uses now."""

    bucket: TokenBucket | None = None
    under_way: set[object] = field(default_factory=set)


class LocalLimits:
    """The limits of one process. Lives on one event loop; never waits."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_refused: Callable[[Limit], None] = lambda _: None
    ) -> None:
        self.clock, self.on_refused = clock, on_refused
        self._usage: dict[str, Usage] = {}  # by the keys' ids: as many as the file has held

    async def admit(self, grant: Grant, texts: int) -> Release:
        return self.take(grant, texts) if grant.limited else nothing

    async def owe(self, grant: Grant, texts: int) -> None:
        if grant.rate is not None and texts:
            self._bucket(self._usage.setdefault(grant.id, Usage()), grant.rate).owe(texts, self.clock())

    def _bucket(self, usage: Usage, rate: Rate) -> TokenBucket:
        if usage.bucket is None or usage.bucket.rate != rate:  # the file gives the key another rate now
            usage.bucket = TokenBucket(rate, self.clock())
        return usage.bucket

    def take(self, grant: Grant, texts: int) -> Release:
        """`admit` for callers that cannot wait."""
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
