"""A domain's way from one encoder to another: who answers meanwhile, and which requests try the new one."""

import hashlib
from dataclasses import dataclass
from typing import Literal

State = Literal["shadow", "split", "finished"]


@dataclass(frozen=True)
class Migration:
    """What an operator has decided for a domain. Encoders are digests; their ids are for people."""

    old: str
    old_id: str
    new: str
    new_id: str
    share: float = 0.0  # 0–1: of the requests for scores that the new encoder answers
    shadow: float = 0.0  # 0–1: of those the old one answers, that the new one scores as well
    finished: bool = False  # the new one answers all
    started: str = ""  # ISO 8601, UTC
    changed: str = ""
    revision: int = 1  # counts the changes of this record

    @property
    def state(self) -> State:
        if self.finished:
            return "finished"
        return "split" if self.share > 0 else "shadow"


def is_chosen(domain: str, key: str, share: float) -> bool:
    """Whether the new encoder answers requests of this key: the same on every replica and after every restart.

    A key stays chosen when the share rises, and in another domain the chosen are others.
    """
    digest = hashlib.blake2b(f"{domain}\0{key}".encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64
