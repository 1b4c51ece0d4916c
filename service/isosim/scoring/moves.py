"""Migration of a domain to another encoder: which encoder a request uses, and which requests both encoders score.

>>> is_chosen("tickets", "user-1", share=1.0), is_chosen("tickets", "user-1", share=0.0)
(True, False)
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

State = Literal["shadow", "split", "finished"]


@dataclass(frozen=True)
class Migration:
    """An operator's settings for a domain. `old` and `new` are digests of encoders; `old_id` and `new_id` are their ids
    for display."""

    old: str
    old_id: str
    new: str
    new_id: str
    share: float = 0.0  # 0–1: share of scoring requests that use the new encoder
    shadow: float = 0.0  # 0–1: share of the old encoder's requests that the new encoder scores too
    finished: bool = False  # whether all requests use the new encoder
    started: str = ""  # ISO 8601, UTC
    changed: str = ""
    revision: int = 1  # counts the changes of this record

    @property
    def state(self) -> State:
        if self.finished:
            return "finished"
        return "split" if self.share > 0 else "shadow"


def is_chosen(domain: str, key: str, share: float) -> bool:
    """Whether requests with this key use the new encoder.

    The result depends only on domain, key and share, so all replicas agree. When the share rises, chosen keys stay
    chosen. Each domain chooses different keys.
    """
    digest = hashlib.blake2b(f"{domain}\0{key}".encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64
