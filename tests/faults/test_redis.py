"""Redis is killed, hung, full, emptied or damaged: requests go on, and their scores are the same."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from isosim.encoders.cache import PREFIX
from tests.faults.load import KNOWN, Load, metric, scores
from tests.processes import Process, RedisServer, Server, serve_with, wait_until
from tests.text import sentences

HITS = 'isosim_cache_lookups_total{cache="redis",result="hit"}'
SLOWEST = 5.0  # s; without timeouts a request would wait for as long as Redis does


@dataclass
class Cached:
    """A server that keeps vectors in Redis alone."""

    server: Server
    redis: RedisServer

    def client(self) -> Redis:
        return Redis.from_url(self.redis.url)

    def is_used_again(self) -> None:
        """Entries are stored and found."""
        before = metric(self.server, HITS)

        def found() -> bool:
            assert scores(self.server.client, KNOWN, "default").status_code == 200
            return metric(self.server, HITS) >= before + 8

        wait_until(found, 30)


@pytest.fixture(scope="module")
def cached(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cached]:
    folder = tmp_path_factory.mktemp("cached")
    shutil.copytree(tiny_store / "encoders", folder / "store" / "encoders")
    running: list[Process] = []
    server = RedisServer(folder)
    server.start()
    settings: dict[str, Any] = {
        "model_store": folder / "store",
        "encoder": "tiny",
        "redis_url": f"{server.url}?socket_timeout=0.2",
        "memory_cache_bytes": 0,
        "local_worker": False,
    }
    yield Cached(serve_with(folder, running, **settings), server)
    for process in running:
        process.kill()
    server.kill()


@contextmanager
def killed(cached: Cached) -> Iterator[None]:
    cached.redis.kill()
    yield
    cached.redis.start()  # empty


@contextmanager
def hung(cached: Cached) -> Iterator[None]:
    assert cached.redis.popen is not None
    os.kill(cached.redis.popen.pid, signal.SIGSTOP)
    yield
    os.kill(cached.redis.popen.pid, signal.SIGCONT)


@contextmanager
def full(cached: Cached) -> Iterator[None]:
    with cached.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def emptied(cached: Cached) -> Iterator[None]:
    with cached.client() as client:
        client.flushall()
    yield


@contextmanager
def damaged(cached: Cached) -> Iterator[None]:
    """A number of every vector has another exponent."""
    with cached.client() as client:
        for key in client.keys(PREFIX + b"*"):
            client.setrange(key, 43, bytes([client.getrange(key, 43, 43)[0] ^ 0x02]))
        yield


@contextmanager
def swapped(cached: Cached) -> Iterator[None]:
    """Every key has another one's entry."""
    with cached.client() as client:
        keys = client.keys(PREFIX + b"*")
        entries = client.mget(keys)
        for key, entry in zip(keys, [*entries[1:], entries[0]], strict=True):
            client.set(key, entry)
        yield


FAULTS: dict[str, Callable[[Cached], AbstractContextManager[None]]] = {
    "killed, and back empty": killed,
    "hung": hung,
    "full": full,
    "emptied": emptied,
    "entries damaged": damaged,
    "entries swapped": swapped,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_redis_does_requests_go_on_with_equal_scores_and_it_is_used_again(cached: Cached, fault: str) -> None:
    """Tests of broken connections and of invalid answers are in tests/adapters/redis."""
    cached.is_used_again()
    with Load(cached.server) as load:
        load.answered(20)
        with FAULTS[fault](cached):
            load.answered(60)
        cached.is_used_again()
        load.answered(20)
    load.nothing_was_lost(SLOWEST)


def test_what_a_full_redis_holds_is_still_found(cached: Cached) -> None:
    cached.is_used_again()
    with full(cached):
        new = [f"{text} {number}" for number, text in enumerate(sentences(1500))]  # each is to be stored and refused
        assert cached.server.client.post("/embed", json={"inputs": new}).status_code == 200
        cached.is_used_again()


def test_calibrations_posted_while_redis_hangs_are_accepted_and_hold_nobody_up(cached: Cached) -> None:
    """Redis only tells workers of them, and is given up after its time."""
    posts = 30
    large = [[f"{n} {text}", text] for n, text in enumerate(sentences(100))]
    body = {"domain": "d", "texts": sentences(300)}

    def calibrate(_: int) -> int:
        return client.post("/calibrate", json=body).status_code

    client = httpx.Client(base_url=cached.server.url, timeout=60, limits=httpx.Limits(max_connections=None))
    with client, hung(cached), ThreadPoolExecutor(posts) as pool:
        waiting = [pool.submit(calibrate, n) for n in range(posts)]
        spent = []
        while not all(future.done() for future in waiting):
            started = time.monotonic()
            assert scores(cached.server.client, large, "default").status_code == 200
            spent.append(time.monotonic() - started)
        assert {future.result() for future in waiting} == {202}
    assert max(spent) < SLOWEST
    cached.is_used_again()
