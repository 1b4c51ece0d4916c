"""The protocol class over a transport whose buffer the test sets; tests/security/test_connections.py has real ones."""

import asyncio

import uvicorn
from uvicorn.server import ServerState

from isosim.server.http_protocol import ConnectionLimits, guarded

LIMITS = ConnectionLimits(header_timeout=10, body_timeout=20, keep_alive=75, max_connections=8)


class Transport(asyncio.Transport):
    waits = 0  # bytes

    def get_write_buffer_size(self) -> int:
        return self.waits


async def check_reading() -> None:
    transport = Transport()
    config = uvicorn.Config(lambda: None, http=guarded(LIMITS), log_config=None)
    protocol = guarded(LIMITS)(config, ServerState(), {})
    protocol.connection_made(transport)
    for begun in (0.0, 15.0, 30.0):  # three answers of the same size, each read in 15 s
        transport.waits = 400_000
        protocol.pause_writing()
        assert not protocol._is_left_unread(begun)
        transport.waits = 100_000
        assert not protocol._is_left_unread(begun + 14)
        transport.waits = 16_000
        protocol.resume_writing()
    transport.waits = 400_000  # the next one is not read
    protocol.pause_writing()
    assert not protocol._is_left_unread(45.0)
    assert not protocol._is_left_unread(64.0)
    assert protocol._is_left_unread(66.0)
    protocol.connection_lost(OSError())


def test_a_client_that_reads_one_answer_after_the_other_is_not_taken_for_one_that_does_not_read() -> None:
    """However many answers follow each other: what waits does not shrink when each gives way to the next."""
    asyncio.run(check_reading())
