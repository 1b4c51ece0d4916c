"""Vectors shared by two servers through Redis."""

from pathlib import Path

import pytest
from redis import Redis

from tests.conftest import RedisServer, Serve, wait_until
from tests.faults.load import metric
from tests.text import sentences


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_score_from_redis_is_the_computed_one_bit_for_bit(
    serve: Serve, store: Path, redis_server: RedisServer, precision: str
) -> None:
    settings = {"model_store": store, "encoder": "tiny", "redis_url": redis_server.url, "cache_precision": precision}
    settings["redis_timeout"] = 5  # a look-up that is given up would be a miss
    first, second = serve(**settings), serve(**settings)
    body = {"pairs": [sentences(2), sentences(4)[2:]]}
    computed = first.client.post("/similarity", json=body)
    assert int(computed.headers["x-compute-tokens"]) > 0
    with Redis.from_url(redis_server.url) as redis:
        wait_until(lambda: redis.dbsize() == 4)  # stored after the answer
    shared = second.client.post("/similarity", json=body)
    assert shared.headers["x-compute-tokens"] == "0"
    assert shared.content == computed.content
    assert metric(second, 'isosim_cache_lookups_total{cache="redis",result="hit"}') > 0
