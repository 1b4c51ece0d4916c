"""Rights of an API key: scopes, domains, rate of texts, last day.

>>> grant = parse_grant("a1", ["read", "domains=reuters,sts-*", "rate=100/s", "search", "team"])
>>> grant.name, grant.may_use("sts-b"), grant.may_use("tickets")
('search team', True, False)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fnmatch import translate
from functools import cached_property
from typing import Literal, get_args

from isosim.errors import Action, Forbidden, Unauthorized

Scope = Literal["read", "calibrate", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

RATE = re.compile(r"(?P<texts>[1-9][0-9]{0,8})/(?P<period>[smh])")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
SECONDS = {"s": 1, "m": 60, "h": 3600}
PERIODS = {1: "a second", 60: "a minute", 3600: "an hour"}
# Options of a line in the keys file: their values' form, and an example for messages. The pattern of `domains` has
# names with the wildcards * and ?.
OPTIONS = {
    "domains": (re.compile(r"[a-z0-9._*?-]+(,[a-z0-9._*?-]+)*"), "domains=reuters,sts-*"),
    "rate": (RATE, "rate=100/s (100 texts per second; /m: per minute, /h: per hour)"),
    "until": (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "until=2027-01-31 (the last day, UTC)"),
}


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
    until: date | None = None  # last day (UTC) on which the key is accepted; None: no end
    name: str = ""

    @cached_property
    def _domains(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(pattern) for pattern in self.patterns or ()))

    def may_use(self, domain: str) -> bool:
        return self.patterns is None or self._domains.match(domain) is not None

    def check_date(self) -> None:
        """Raises Unauthorized after the key's last day."""
        if self.until is not None and datetime.now(UTC).date() > self.until:
            raise Unauthorized(f"the API key was valid until {self.until}; ask the server's operator for a new one")

    def check_scope(self, scope: Scope) -> None:
        """Raises Forbidden if the key lacks the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"the API key lacks the scope {scope!r}").with_remedy(Action.NEW_KEY, scope=scope)

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

    `domains=` is required, and no word may contain another key's hash: a line that was cut off, or that the next line
    was appended to, must not grant more than the whole line did.

    Raises:
        ValueError: a word is wrong; the message repeats no part of the line that could be a key.
    """
    scopes = frozenset(words[0].split(",")) if words else frozenset()
    if not scopes or not scopes <= set(SCOPES):
        raise ValueError(f"give one or more of the scopes {', '.join(SCOPES)}, with commas between them")
    if any(SHA256.search(word) for word in words):
        raise ValueError("a second key's hash follows; begin a new line before it")
    options: dict[str, str] = {}
    name = []
    for word in words[1:]:
        option, is_option, value = word.partition("=")
        if not is_option:
            name.append(word)
            continue
        if option not in OPTIONS:
            raise ValueError(f"an option must be one of {', '.join(OPTIONS)}; a key's name cannot contain '='")
        pattern, example = OPTIONS[option]
        if option in options or not pattern.fullmatch(value):
            raise ValueError(f"{option}= must be given once and look like {example}")
        options[option] = value
    if "domains" not in options:
        raise ValueError("domains= is missing; write domains=* for all domains, or names like domains=reuters,sts-*")
    rate = RATE.fullmatch(options.get("rate", ""))
    return Grant(
        id=key_id,
        scopes=scopes,
        patterns=None if options["domains"] == "*" else tuple(options["domains"].split(",")),
        rate=None if rate is None else Rate(int(rate["texts"]), SECONDS[rate["period"]]),
        until=date.fromisoformat(options["until"]) if "until" in options else None,
        name=" ".join(name),
    )
