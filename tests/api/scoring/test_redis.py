"""A Redis that cannot be the cache of a server."""

import socket
from pathlib import Path

from redis import Redis

from tests.faults.load import metric
from tests.processes import RedisServer, Serve, command, free_port, wait_until
from tests.text import sentences


class RedisCluster(RedisServer):
    """A cluster of one node that holds all slots."""

    def options(self) -> list[str]:
        return [*super().options(), "--cluster-enabled", "yes", "--cluster-port", str(free_port())]

    def start(self) -> None:
        super().start()
        with Redis.from_url(self.url) as redis:
            redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: b"cluster_state:ok" in self.asked(b"CLUSTER INFO"))

    def asked(self, command: bytes) -> bytes:
        with socket.create_connection((self.address, self.port), 5) as connection:
            connection.sendall(command + b"\r\n")
            return connection.recv(65536)


def test_a_cluster_that_takes_the_place_of_redis_is_not_called_up_and_refused_at_a_start(
    serve: Serve, store: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    """It answers PING and refuses every lookup: scores stay right, and the metric and the log say what is wrong."""
    server = serve(model_store=store, encoder="tiny", redis_url=f"{redis_server.url}?socket_timeout=1")
    wait_until(lambda: metric(server, "isosim_redis_up ") == 1)
    body = {"pairs": [sentences(2)]}
    scored = server.client.post("/similarity", json=body).json()
    redis_server.kill()
    cluster = RedisCluster(tmp_path, redis_server.port)
    cluster.start()
    try:
        wait_until(lambda: "it refuses the command" in server.log.read_text(), 60)
        wait_until(lambda: metric(server, "isosim_redis_up ") == 0, 60)
        assert server.client.post("/similarity", json=body).json() == scored
        assert server.client.get("/readyz").status_code == 200
        done = command("serve", model_store=store, encoder="tiny", redis_url=cluster.url, port=free_port())
        assert done.returncode == 1
        assert "cluster_enabled:1" in done.stderr
        assert "without cluster mode" in done.stderr
    finally:
        cluster.kill()
