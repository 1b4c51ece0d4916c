"""What an API key lets its holder do: scopes, domains, how much and how many at once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import Literal, get_args

from service.core.errors import Forbidden, Unauthorized

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
            raise Forbidden(f"the API key lacks the scope {scope!r}")

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
