"""Checks of Redis: reachable, fast enough, and configured as a cache."""

import statistics
import time
from collections.abc import Iterator

from redis import Redis
from redis.exceptions import RedisError

from isosim.commands.diagnosis import Finding, fault, ok, warning
from isosim.encoders.cache import PROBED
from isosim.redis_connection import CLUSTER, CLUSTER_REMEDY, is_cluster, why
from isosim.settings import Settings

PINGS = 20


def look(settings: Settings) -> Iterator[Finding]:
    if settings.redis_address is None:
        yield ok("redis", "not set: cache and limits in the memory of each process")
        return
    try:
        redis: Redis = Redis.from_url(settings.redis_address, socket_timeout=2, socket_connect_timeout=2)
    except ValueError as error:
        yield fault("redis", f"ISOSIM_REDIS_URL: {error}", "redis://host:6379/0")
        return
    with redis:
        try:
            facts = {**redis.info("server"), **redis.info("memory"), **redis.info("replication")}
            times = [ping(redis) for _ in range(PINGS)]
            cluster = is_cluster(redis)
        except (RedisError, OSError) as error:
            yield fault("redis", f"cannot be used: {why(error)}", "start it, or correct ISOSIM_REDIS_URL")
            return
        yield ok("redis", f"version {facts['redis_version']}")
        if cluster:
            yield fault("redis cluster", CLUSTER, CLUSTER_REMEDY)
            return
        if facts.get("redis_mode") == "sentinel":
            yield fault(
                "redis role", "is a Sentinel, which stores nothing", "give the address of the primary that it watches"
            )
            return
        if facts.get("role") == "slave":
            yield fault(
                "redis role",
                "is a replica, which takes no vectors",
                "give the address of its primary, or promote it",
            )
        yield lookup(redis)
        yield latency(times, settings.redis_timeout)
        limit, used = int(facts.get("maxmemory", 0)), int(facts.get("used_memory", 0))
        yield eviction(str(facts.get("maxmemory_policy", "?")), limit, used)


def ping(redis: Redis) -> float:  # duration in s
    begun = time.perf_counter()
    redis.ping()
    return time.perf_counter() - begun


def lookup(redis: Redis) -> Finding:
    """Checks MGET, the command with which a request reads vectors from the cache. Redis's access rules may forbid this
    command although they allow others."""
    try:
        redis.mget(PROBED)
    except RedisError as error:
        return fault(
            "redis lookup", f"every lookup is a miss: {error}", "grant isosim's user the rights that SECURITY.md lists"
        )
    return ok("redis lookup", "answered")


def latency(times: list[float], timeout: float) -> Finding:
    """Compares ping times (s) with `timeout` (s). A cache lookup that takes longer than `timeout` counts as a miss."""
    typical, worst = statistics.median(times), max(times)
    summary = f"ping {1e3 * typical:.2f} ms (slowest of {PINGS}: {1e3 * worst:.1f} ms)"
    if typical > timeout:
        return fault(
            "redis latency",
            f"{summary}: every lookup is a miss",
            "run Redis nearer to isosim, or wait longer: socket_timeout=0.2 in ISOSIM_REDIS_URL",
        )
    if worst > timeout / 2:
        return warning(
            "redis latency",
            summary,
            f"a lookup is given up after {1e3 * timeout:.0f} ms; run Redis nearer to isosim",
        )
    return ok("redis latency", summary)


def eviction(policy: str, limit: int, used: int) -> Finding:
    """Checks that Redis limits its memory, and may evict vectors, all of which have a time to live.

    `limit` and `used` are in bytes. If `limit` is 0, Redis has no memory limit.
    """
    summary = f"{policy}, maxmemory {limit / 2**20:,.0f} MiB" if limit else f"{policy}, maxmemory not set"
    if not limit:
        return warning(
            "redis eviction",
            f"{summary}: memory use grows until vectors expire (ISOSIM_REDIS_TTL)",
            "set maxmemory, and maxmemory-policy volatile-lru",
        )
    if policy == "noeviction" and used >= limit:
        return fault("redis eviction", f"{summary}: full, new vectors are refused", "maxmemory-policy volatile-lru")
    if policy == "noeviction":
        return warning(
            "redis eviction", f"{summary}: once full, new vectors are refused", "maxmemory-policy volatile-lru"
        )
    return ok("redis eviction", summary)
