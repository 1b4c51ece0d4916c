"""Simulated users of the service, for locust. Prints the time that requests spend in each stage of the service.

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000 --users 16 --run-time 2m SimilarityUser

Class names, for example SimilarityUser, choose the kinds of users. By default, all four kinds run. The run fails if it
exceeds `--most-p99` or `--most-failures`. See loadtest/README.md.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, between, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.stats import RequestStats, print_stats

STAGES = ("tokenization", "queue", "inference", "total")  # headers x-…-time, ms
WHO = ("A driver", "The old editor", "Her neighbour", "Nobody here", "A team of nurses", "The second player")
DOES = ("sells", "repairs", "has never seen", "writes about", "is afraid of", "was paid for", "collects")
WHAT = ("a red bicycle", "cheap flights", "the quarterly report", "two goals", "an unknown song", "winter wheat")
ENDS = ("in the rain", "for a living", "since last year", "without asking", "at the market", "on television")

stages = RequestStats()


@events.init_command_line_parser.add_listener
def options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("isosim")
    parser.add_argument(
        "--api-key", env_var="ISOSIM_API_KEY", default="", is_secret=True, help="sent as a bearer token"
    )
    group.add_argument("--domain", default="default", help="domain to send requests to")
    group.add_argument("--sentences", default="", help="file with one sentence per line; default: generated sentences")
    group.add_argument("--fresh", type=float, default=0.3, help="share of texts that are new, so not cached")
    group.add_argument("--calibrate-every", type=float, default=120.0, help="seconds between calibrations")
    group.add_argument("--most-p99", type=float, default=0.0, help="ms; the run fails if a route's p99 is higher")
    group.add_argument("--most-failures", type=float, default=0.0, help="share of requests that may fail")


class Texts:
    """Sentences, some repeated and some new."""

    def __init__(self, file: str, fresh: float) -> None:
        made = (f"{a} {b} {c} {d}." for a, b, c, d in itertools.product(WHO, DOES, WHAT, ENDS))
        self.known = Path(file).read_text().splitlines() if file else list(made)
        self.fresh = fresh
        self.random = random.Random()  # noqa: S311 - unseeded, so that users send different texts

    def one(self) -> str:
        text = self.random.choice(self.known)
        if self.random.random() < self.fresh:
            return f"{text} {self.random.randrange(10**9)}"
        return text

    def some(self, most: int) -> list[str]:
        return [self.one() for _ in range(self.random.randint(1, most))]


class Caller(FastHttpUser):
    """Base class of all users: key, texts, and evaluation of the timing headers."""

    abstract = True
    network_timeout = 30.0

    def on_start(self) -> None:
        given: Any = self.environment.parsed_options
        self.domain = given.domain
        self.texts = Texts(given.sentences, given.fresh)
        self.key = {"authorization": f"Bearer {given.api_key}"} if given.api_key else {}

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Sends a scoring request and records the times of its stages."""
        with self.client.post(path, json=body, headers=self.key, catch_response=True) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return None
            for stage in STAGES:
                value = response.headers.get(f"x-{stage}-time")
                if value is None:
                    response.failure(f"no x-{stage}-time")
                else:
                    stages.log_request("stage", f"{path} {stage}", float(value), 0)
            return response.json()


class Scoring(Caller):
    """Scoring requests as other services send them."""

    abstract = True

    def similarity(self) -> None:
        pairs = [[self.texts.one(), self.texts.one()] for _ in self.texts.some(8)]
        self.ask("/similarity", {"pairs": pairs, "domain": self.domain})

    def embed(self) -> None:
        self.ask("/embed", {"inputs": self.texts.some(8), "domain": self.domain})

    def openai(self) -> None:
        self.ask("/v1/embeddings", {"input": self.texts.some(8), "model": f"isosim/{self.domain}"})

    def rerank(self) -> None:
        self.ask("/rerank", {"query": self.texts.one(), "texts": self.texts.some(16), "domain": self.domain})


class SimilarityUser(Scoring):
    """Scores pairs without pauses."""

    wait_time = constant(0)

    @task
    def score(self) -> None:
        self.similarity()


class EmbedUser(Scoring):
    """Requests vectors without pauses."""

    wait_time = constant(0)

    @task
    def vectors(self) -> None:
        self.embed()


class MixedUser(Scoring):
    """Sends all kinds of requests, with pauses."""

    wait_time = between(0.05, 0.5)

    @task(6)
    def score(self) -> None:
        self.similarity()

    @task(2)
    def vectors(self) -> None:
        self.embed()

    @task(1)
    def embeddings(self) -> None:
        self.openai()

    @task(2)
    def ranking(self) -> None:
        self.rerank()

    @task(1)
    def threshold(self) -> None:
        url = f"/domains/{self.domain}/threshold"
        self.client.get(f"{url}?fmr=0.01", name="/domains/{domain}/threshold", headers=self.key)


class AnalystUser(Caller):
    """A single user that calibrates a domain, waits for the job, scores a pair, and pauses for `--calibrate-every`."""

    fixed_count = 1
    wait_time = constant(1)
    numbers: Iterator[int] = itertools.count()

    @task
    def calibrate(self) -> None:
        given: Any = self.environment.parsed_options
        rng = random.Random()  # noqa: S311 - a load
        texts = [f"{rng.choice(self.texts.known)} {rng.randrange(10**6)}" for _ in range(600)]
        domain = f"load-{next(self.numbers) % 4}"
        body = {"domain": domain, "texts": texts, "promote": "always"}
        with self.client.post("/calibrate", json=body, headers=self.key, catch_response=True) as response:
            if response.status_code != 202:
                response.failure(f"status {response.status_code}")
                return
            job = response.json()["job"]
        while self.status(job) in ("queued", "running", "publishing"):
            gevent.sleep(2.0)
        self.ask("/similarity", {"pairs": [[self.texts.one(), self.texts.one()]], "domain": domain})
        gevent.sleep(given.calibrate_every)

    def status(self, job: str) -> str:
        name = "/calibrate/{job}"
        with self.client.get(f"/calibrate/{job}", name=name, headers=self.key, catch_response=True) as response:
            state = response.json() if response.status_code == 200 else {"status": f"HTTP {response.status_code}"}
            if state["status"] not in ("queued", "running", "publishing", "succeeded"):
                response.failure(f"{state['status']}: {state.get('error')}")
        found: str = state["status"]
        return found


@events.quitting.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """Prints the stages, and sets exit code 1 if the run exceeded a limit."""
    given = environment.parsed_options
    if given is None or environment.process_exit_code:
        return
    if stages.entries:
        print("\nTime by stage, from the answers' headers (ms)")
        print_stats(stages, current=False)
    total = environment.stats.total
    faults = []
    if not total.num_requests:
        faults.append("no request was answered")
    if total.fail_ratio > given.most_failures:
        faults.append(f"{total.fail_ratio:.4%} of the requests failed (limit {given.most_failures:.4%})")
    for (name, method), entry in environment.stats.entries.items():
        p99 = entry.get_response_time_percentile(0.99)
        if given.most_p99 and method == "POST" and name != "/calibrate" and p99 > given.most_p99:
            faults.append(f"p99 of {name} is {p99:.0f} ms (limit {given.most_p99:.0f})")
    print(json.dumps({"requests": total.num_requests, "failures": total.num_failures, "faults": faults}))
    environment.process_exit_code = 1 if faults else 0
