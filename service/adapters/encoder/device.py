"""The machine's cores and memory: how batches and threads are planned, and how many bytes of calibrations fit."""

import os
from dataclasses import dataclass
from pathlib import Path

from service.adapters.encoder.onnx_engine import on_gpu
from service.adapters.encoder.remote import REQUEST_TEXTS, REQUEST_TOKENS, REQUESTS
from service.core.encoding.batching import BatchingPlan

MOST_RUNS = 8  # with more cores, each run gets several: a single text should not be slow on a large machine
CPU_TOKENS = 128  # padded; measured on 2 cores: larger batches have no higher throughput and take longer
GPU_TOKENS = 16384
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes
PROCESS = 320 * 2**20  # bytes without weights, cache and calibrations: 220 MiB under load, plus 85 for many domains
GPU_PROCESS = 2 * 2**30  # the same with CUDA's libraries and buffers; unmeasured
GROWTH = 1.25  # growth of the process per byte of calibrations as they are counted (loadtest/resident.py)
RESIDENT = 2**30  # bytes of calibrations, at most, if the process has no memory limit
LEAST_RESIDENT = 32 * 2**20  # bytes; with less, some calibrations would be loaded repeatedly


@dataclass(frozen=True)
class Execution:
    """Threads of one encoder run, threads of a run that has the device to itself, and the batching plan."""

    threads: int
    threads_alone: int  # 0: no run has the device to itself
    plan: BatchingPlan


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: its CPU affinity, reduced to the container's limit (cgroup version 2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # without a limit the file says `max`; other systems have no such file
        return cores


def memory_limit(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Memory limit of the container in bytes: the smallest limit of its cgroup and the enclosing ones.

    None without a limit, or if it is not below the machine's memory: cgroup version 1 writes a number like 2**63 for
    no limit. A container usually sees its own group as the root; without a cgroup namespace, version 1 names a path
    that exists only on the host.
    """
    return min((limit for _, _, limit in memory_limits(root, own)), default=None)


def memory_left(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Bytes that the container may still take, its cached files aside; None without a limit."""
    left = []
    for name, folder, limit in memory_limits(root, own):
        usage, cached = USAGE[name]
        used = sum(int(line) for line in lines_of(folder / usage) if line.isdigit())
        stats = dict(line.split(" ", 1) for line in lines_of(folder / "memory.stat"))
        left.append(limit - used + int(stats.get(cached, 0)))
    return min(left, default=None)


USAGE = {  # by the name of the limit: the file of what is used, and what of it the kernel frees when it is needed
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}


def memory_limits(root: Path, own: Path) -> list[tuple[str, Path, int]]:
    """Limits of this process's cgroup and those around it: the name of the file, its folder, bytes."""
    files = {"memory.max": root, "memory.limit_in_bytes": root / "memory"}
    places = set(files.items())
    for line in lines_of(own):
        controllers, _, path = line.partition(":")[2].partition(":")
        name = "memory.max" if not controllers else "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            group = files[name] / path.strip("/")
            places |= {(name, around) for around in (group, *group.parents) if around.is_relative_to(files[name])}
    limits = [(name, folder, line) for name, folder in places for line in lines_of(folder / name)]
    return [(name, folder, int(line)) for name, folder, line in limits if line.isdigit() and int(line) < MACHINE]


def lines_of(path: Path) -> list[str]:
    """Lines of a file; an empty list if it does not exist, as with another cgroup version or another system."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def plan_resident(limit: int | None, held: int, *, gpu: bool = False, jobs: bool = False) -> int:
    """Bytes of calibrations that fit into the container's `limit` next to `held` bytes of weights and caches.

    With `jobs`, calibration jobs run in this container too; half of the remaining memory is left to them.
    """
    room = (limit or MACHINE) - held - (GPU_PROCESS if gpu else PROCESS)
    budget = max(LEAST_RESIDENT, int(room / GROWTH / (2 if jobs else 1)))
    return min(budget, RESIDENT) if limit is None else budget


def plan_remote(
    *, runs: int, max_batch_tokens: int, max_batch_texts: int, max_queued_texts: int, max_wait: float, hung_after: float
) -> Execution:
    """Replaces settings that are 0 by defaults for a remote encoder, whose runs are requests to its server."""
    plan = BatchingPlan(
        runs=runs or REQUESTS,
        remote=True,
        max_batch_tokens=max_batch_tokens or REQUEST_TOKENS,
        max_batch_texts=max_batch_texts or REQUEST_TEXTS,
        max_queued_texts=max_queued_texts,
        max_wait=max_wait,
        hung_after=hung_after,
    )
    return Execution(1, 0, plan)


def plan_execution(
    providers: list[str],
    cores: int,
    *,
    runs: int,
    threads: int,
    max_batch_tokens: int,
    max_batch_texts: int,
    max_queued_texts: int,
    max_wait: float,
    exclusive: bool,
) -> Execution:
    """Replaces settings that are 0 by defaults for the device.

    On a CPU there is one run per core, up to MOST_RUNS: with one thread each, no run waits at barriers
    (loadtest/README.md).
    """
    gpu = on_gpu(providers)
    runs = runs or (1 if gpu else min(cores, MOST_RUNS))
    exclusive = exclusive and not gpu and runs > 1
    plan = BatchingPlan(
        runs=runs,
        ahead=1 if gpu else 0,
        exclusive=exclusive,
        max_batch_tokens=max_batch_tokens or (GPU_TOKENS if gpu else CPU_TOKENS),
        max_batch_texts=max_batch_texts or (256 if gpu else 64),
        max_queued_texts=max_queued_texts,
        max_wait=max_wait,
    )
    return Execution(threads or max(1, cores // runs), cores if exclusive else 0, plan)
