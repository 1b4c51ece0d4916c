"""Host cost: processor time of the API process per pair, without the encoder's computation.

The host cost determines how many cores a GPU needs. The encoder waits instead of computing (waiting_encoder.py). For
comparison, each round also measures a bare FastAPI route.
"""

import itertools
from collections.abc import Iterator
from statistics import median

from loadtest import servers, texts
from loadtest.measuring import Line, Result, Setup, divided, each_round, fill, in_turn

CONNECTIONS = 64
CACHED = 1000  # pairs that are sent repeatedly
BARE = "bare route"


def new_pairs(pairs: list[texts.Pair]) -> Iterator[bytes]:
    """Requests with one pair each. No text is cached, because each text ends with a new number."""
    for number, (a, b) in enumerate(itertools.cycle(pairs)):
        yield from texts.in_requests([(f"{a} {number}", f"{b} {number}")])


def measure(setup: Setup) -> Result:
    again = texts.in_requests(setup.pairs[:CACHED])
    settings = {"runs": 1, "max_batch_tokens": 16384}  # as on a GPU
    with (
        servers.bare_route() as bare,
        servers.own_isosim(setup.store, setup.encoder, "loadtest.waiting_encoder", **settings) as service,
    ):
        fill(service, again)
        contestants = {
            BARE: (bare, itertools.cycle(again)),
            "uncached": (service, new_pairs(setup.pairs)),
            "cached": (service, itertools.cycle(again)),
        }
        rounds = [in_turn(contestants, CONNECTIONS, setup.seconds) for _ in range(setup.rounds)]
    costs = each_round(rounds, lambda load: load.server_cpu / len(load.statuses))
    return {
        "microseconds": {name: [round(1e6 * one, 1) for one in found] for name, found in costs.items()},
        "rates": each_round(rounds, lambda load: load.rate),
        "ratios": {name: divided(costs[name], costs[BARE]) for name in ("uncached", "cached")},
    }


def lines(result: Result) -> list[Line]:
    uncached, cached = (median(result["ratios"][name]) for name in ("uncached", "cached"))
    spent = median(result["microseconds"]["uncached"])
    return [
        Line("host cost of an uncached pair / processor time of a bare FastAPI request", uncached, 2.5, at_most=True),
        Line("host cost of a cached pair / the same", cached, 1.25, at_most=True, note="cost at 0.8 of the bare rate"),
        Line("host cost of an uncached pair", spent, 1000, at_most=True, unit=" µs", note="no bar"),
    ]
