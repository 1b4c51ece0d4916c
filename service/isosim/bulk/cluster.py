"""Connects to a Ray cluster, or starts a local Ray for one command, and distributes work to engines on it."""

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from isosim.errors import BackendFailure, Unavailable

OBJECTS = 128 * 2**20  # size in bytes of a local Ray's object store, which only holds the small results of parts
AHEAD = 2  # number of parts assigned to an engine at a time, including the one it is processing
MOST_BLOCKS = 10_000  # maximum number of Ray blocks; if there are more parts, several share a block
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise calls to Ray during cleanup would start it again
}


@dataclass(frozen=True)
class Engines:
    """Number of engines that run at a time, and the resources of each."""

    count: int
    cores: int  # cores per engine
    gpu: bool  # whether each engine has a GPU
    local: bool = True  # whether the engines run on a local Ray instead of a cluster


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
        import ray.data  # noqa: PLC0415
        from ray._private.node import Node  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable("bulk work needs Ray: pip install 'isosim[ray]'") from error
    logging.getLogger("ray.data").setLevel("CRITICAL")  # Ray would log errors that `map_items` already reports
    # Even if dashboard and usage reports are off, Ray starts the dashboard's process, which asks the metadata services
    # of three clouds whether it runs there. No option prevents this.
    Node.start_api_server = start_nothing  # type: ignore[assignment, method-assign]
    own = None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        # A short name: Ray creates sockets in this folder, and a socket's path may have at most 107 bytes.
        own = tempfile.mkdtemp(prefix="isosim-ray-")
        os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))  # Ray would make one and write it to the home folder
        options |= {"address": "local", "num_cpus": cores, "object_store_memory": OBJECTS, "_temp_dir": own}
    else:
        options = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            failed = "Ray does not start on this machine" if address is None else f"no Ray cluster answers at {address}"
            raise Unavailable(f"{failed}: {error}") from error
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        yield ray
    finally:
        ray.shutdown()
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def start_nothing(node: Any, **_: object) -> None:
    """Replaces the method of Ray's `Node` that starts the dashboard."""
    node._webui_url = None


def engines(ray: Any, *, gpu: bool, cores: int, most: int, local: bool) -> Engines:
    """Plans one engine for each GPU (`gpu`), or one for every `cores` CPU cores. At most `most` engines (0: no limit).

    Raises:
        Unavailable: the cluster has too few resources for one engine.
    """
    resources: Mapping[str, float] = ray.cluster_resources()
    there = int(resources.get("GPU", 0)) if gpu else int(resources.get("CPU", 0)) // cores
    if not there:
        have = ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
        raise Unavailable(
            f"no engine fits on this cluster ({have}); an engine needs {'a GPU' if gpu else f'{cores} cores'}"
        )
    return Engines(min(there, most or there), cores, gpu, local)


def map_items(
    ray: Any, items: Sequence[str], worker: type, arguments: Mapping[str, Any], wanted: Engines
) -> Generator[dict[str, Any]]:
    """Lets workers on the cluster process the items, and yields their results as they complete, in any order.

    A worker is called with {"item": [one item]}. It returns a dictionary: name -> list with one value. The number of
    items in progress is limited, so that results do not pile up. Close the generator before the `with` block of
    `cluster` ends.

    Raises:
        BackendFailure: Ray stopped with an error.
    """
    data = ray.data.from_items(list(items), override_num_blocks=min(len(items), MOST_BLOCKS))
    # A local Ray must not restart an engine: the engine would probably fail again for the same reason. A cluster
    # restarts the engines of a lost node on other nodes. `ray_remote_args_fn` is deprecated, and Ray 2.64 removes it
    # without a replacement, so constraints.txt pins an earlier version.
    once = (lambda: {"max_restarts": 0, "max_task_retries": 0}) if wanted.local else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        done = data.map_batches(
            worker,
            fn_constructor_kwargs=dict(arguments),
            batch_size=1,
            batch_format="numpy",
            num_cpus=0 if wanted.gpu else wanted.cores,
            num_gpus=1 if wanted.gpu else 0,
            compute=ray.data.ActorPoolStrategy(size=min(wanted.count, len(items)), max_tasks_in_flight_per_actor=AHEAD),
            ray_remote_args_fn=once,
        )
    batches = iter(done.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0))
    try:
        for batch in batches:
            for row in range(len(next(iter(batch.values())))):
                yield {name: column[row] for name, column in batch.items()}
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise BackendFailure(
            f"Ray stopped with an error ({reason}); finished parts are kept: run the command again to continue"
        ) from error
    finally:
        batches.close()  # also ends the engines
