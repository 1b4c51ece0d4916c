"""The machine's cores and memory. Plans batches, threads and the memory for calibrations."""

import os
from pathlib import Path

from isosim.encoders.batching import BatchingPlan
from isosim.encoders.remote import REQUEST_TEXTS, REQUEST_TOKENS, REQUESTS
from isosim.encoders.spec import BUCKET, Engine

MOST_RUNS = 8  # maximum number of parallel runs; if there are more cores, each run uses several of them
CPU_TOKENS = 128  # padded tokens per batch; larger batches take longer without higher throughput (measured on 2 cores)
GPU_TOKENS = 16384  # padded tokens per batch on a GPU
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes of memory
# Bytes of memory that a process uses besides weights, cache and calibrations. Measured: 220 MiB under load, plus 85 MiB
# with many domains; rounded up.
PROCESS = 320 * 2**20
GPU_PROCESS = 2**30  # PROCESS with CUDA's libraries: 700 MiB under load on an NVIDIA H200, and 85 MiB for many domains
GROWTH = 1.25  # bytes by which the process grows for each byte of the calibrations' arrays (loadtest/README.md)
RESIDENT = 2**30  # maximum bytes of calibrations if the process has no memory limit
LEAST_RESIDENT = (
    32 * 2**20
)  # minimum bytes of memory for calibrations; with less, requests would load them again and again


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of cores that this process may use: the cores in its CPU affinity, or the container's limit (cgroup
    version 2) if that is lower. At least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    # OSError: there is no such file, for example without cgroup version 2. ValueError: the quota is `max` (no limit).
    except (OSError, ValueError):
        return cores


def memory_limit(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Memory limit of the container in bytes: the smallest limit of its cgroup and of the groups that contain it. None
    if no limit is below the machine's memory."""
    return min((limit for _, limit in memory_limits(root, own)), default=None)


def memory_left(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Bytes of memory left to the container, with cached files counted as free, because the kernel can free them; None
    if it has no memory limit."""
    left = []
    for group, limit in memory_limits(root, own):
        used = sum(int(line) for line in lines_of(group / "memory.current") if line.isdigit())
        stats = dict(line.split(" ", 1) for line in lines_of(group / "memory.stat"))
        left.append(limit - used + int(stats.get("inactive_file", 0)))
    return min(left, default=None)


def memory_limits(root: Path, own: Path) -> list[tuple[Path, int]]:
    """The cgroups (version 2) that limit this process's memory, with their limits in bytes.

    The file `own` contains the path of the process's cgroup below `root`. In a container, this path may exist only on
    the host, and the container's group is `root`.
    """
    path = next((line.removeprefix("0::") for line in lines_of(own) if line.startswith("0::")), "")
    group = root / path.strip("/")
    groups = {root} | {around for around in (group, *group.parents) if around.is_relative_to(root)}
    limits = [(around, line) for around in groups for line in lines_of(around / "memory.max")]
    return [(around, int(line)) for around, line in limits if line.isdigit() and int(line) < MACHINE]


def lines_of(path: Path) -> list[str]:
    """Lines of a file; an empty list if it cannot be read, for example with another cgroup version."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def plan_resident(limit: int | None, held: int, *, gpu: bool = False, jobs: bool = False) -> int:
    """Maximum bytes of calibrations that this process may keep in memory.

    Args:
        limit: memory limit of the container in bytes; None if it has no limit.
        held: bytes of weights and caches.
        jobs: True: half of the remaining memory is left to the calibration jobs in this container.
    """
    room = (limit or MACHINE) - held - (GPU_PROCESS if gpu else PROCESS)
    budget = max(LEAST_RESIDENT, int(room / GROWTH / (2 if jobs else 1)))
    return min(budget, RESIDENT) if limit is None else budget


def plan_remote(*, runs: int, max_batch_tokens: int, max_wait: float, hung_after: float) -> BatchingPlan:
    """The plan for a remote encoder, whose runs are requests to its server. Settings that are 0 get their defaults."""
    return BatchingPlan(
        runs=runs or REQUESTS,
        remote=True,
        max_batch_tokens=max_batch_tokens or REQUEST_TOKENS,
        max_batch_texts=REQUEST_TEXTS,
        max_wait=max_wait,
        hung_after=hung_after,
    )


def plan_execution(
    engine: Engine,
    cores: int,
    *,
    runs: int,
    threads: int,
    max_batch_tokens: int,
    max_wait: float,
) -> BatchingPlan:
    """The plan for an encoder in this process. Settings that are 0 get the defaults for the device.

    On a CPU, the default is one run per core, up to MOST_RUNS: a run with one thread never waits for other threads
    (loadtest/README.md).
    """
    gpu = engine == "cuda"
    runs = runs or (1 if gpu else min(cores, MOST_RUNS))
    return BatchingPlan(
        runs=runs,
        threads=threads or max(1, cores // runs),
        threads_alone=cores if not gpu and runs > 1 else 0,
        ahead=1 if gpu else 0,
        same_length=BUCKET if engine == "openvino" else 0,
        max_batch_tokens=max_batch_tokens or (GPU_TOKENS if gpu else CPU_TOKENS),
        max_batch_texts=256 if gpu else 64,
        max_wait=max_wait,
    )
