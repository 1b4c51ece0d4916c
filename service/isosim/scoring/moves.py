"""The move of a domain to another encoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Migration:
    """A domain's switch: `new` answers its requests in place of `old`.

    `old` and `new` are digests of encoders, `old_id` and `new_id` their ids for display. `since` is the time of the
    switch, ISO 8601 in UTC.
    """

    old: str
    old_id: str
    new: str
    new_id: str
    since: str
