"""Tasks that talk to Redis, ended for certain."""

import asyncio

AGAIN = 0.1  # s


async def end(task: "asyncio.Task[None] | None") -> None:
    """Cancels until it has ended: redis-py can take a cancellation for a time-out of its own, and the task goes on."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
