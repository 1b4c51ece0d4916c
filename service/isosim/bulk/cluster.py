"""Connects to a Ray cluster, or starts a local Ray for one command, and distributes blocks to workers on it."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from isosim.errors import BackendFailure, Unavailable

OBJECTS = 256 * 2**20  # bytes of a local Ray's object store, which only holds the rows of blocks in progress
AHEAD = 2  # blocks that a worker has at a time, so that it never waits for the next one
LOST = 3  # how often a cluster starts a worker again, on another node, after its node was lost; unmeasured
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise calls to Ray during cleanup would start it again
}


@contextmanager
def cluster(address: str | None, cores: int) -> Iterator[Any]:
    """Connects to the Ray cluster at `address`, or starts a local Ray if `address` is None. Yields the package `ray`.

    At the end of the block, Ray is disconnected; a local Ray is stopped and its folder is deleted.

    Raises:
        Unavailable: Ray is not installed, a local Ray does not start, or no cluster answers at the address.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    try:
        import ray  # noqa: PLC0415 - an optional package that takes a second to import
        from ray._private.node import Node  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable("bulk work needs Ray: pip install 'isosim[ray]'") from error
    # Even if dashboard and usage reports are off, Ray starts the dashboard's process, which asks the metadata services
    # of three clouds whether it runs there. No option prevents this.
    Node.start_api_server = start_nothing  # type: ignore[assignment, method-assign]
    own = None
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        # A short name: Ray creates sockets in this folder, and a socket's path may have at most 107 bytes.
        own = tempfile.mkdtemp(prefix="isosim-ray-")
        os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))  # Ray would make one and write it to the home folder
        options |= {"address": "local", "num_cpus": cores, "object_store_memory": OBJECTS, "_temp_dir": own}
    try:
        try:
            ray.init(**options)
        except Exception as error:
            failed = "Ray does not start on this machine" if address is None else f"no Ray cluster answers at {address}"
            raise Unavailable(f"{failed}: {error}") from error
        yield ray
    finally:
        ray.shutdown()
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def start_nothing(node: Any, **_: object) -> None:
    """Replaces the method of Ray's `Node` that starts the dashboard."""
    node._webui_url = None


def distribute(
    ray: Any, worker: type, arguments: Sequence[Any], blocks: Iterable[tuple[int, Any]], *, gpu: bool, local: bool
) -> Iterator[Any]:
    """Lets workers on the cluster make blocks; yields their results as they complete, in any order.

    There is at most one worker for each GPU (`gpu`) or CPU core. A block is read when a worker is free, so that memory
    does not depend on the size of the input.

    Args:
        worker: class with the method `make(number, rows)`; a worker is made from `arguments`.
        blocks: number and rows of each block.
        local: whether Ray runs on this machine only. Its workers are not started again: they would fail again.

    Raises:
        Unavailable: the cluster has no core, or no GPU.
        BackendFailure: Ray stopped with an error.
        IsosimError, OSError: a worker raised it.
    """
    kind = "GPU" if gpu else "CPU"
    most = int(ray.cluster_resources().get(kind, 0))
    if not most:
        raise Unavailable(f"this Ray cluster has no {kind}")
    retries = 0 if local else LOST
    actor = ray.remote(worker).options(
        num_cpus=0 if gpu else 1, num_gpus=1 if gpu else 0, max_restarts=retries, max_task_retries=retries
    )
    workers: list[Any] = []
    running: dict[Any, Any] = {}  # result to come -> its worker
    try:
        for block in blocks:
            if len(workers) < most:
                workers.append(actor.remote(*arguments))
                free = workers[-1]
            elif len(running) < AHEAD * most:
                free = workers[len(running) % most]
            else:
                (done,), _ = ray.wait(list(running))
                free = running.pop(done)
                yield ray.get(done)
            running[free.make.remote(*block)] = free
        while running:
            (done,), _ = ray.wait(list(running))
            del running[done]
            yield ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise BackendFailure(
            f"Ray stopped with an error ({reason}); finished files are kept: run the command again to continue"
        ) from error
