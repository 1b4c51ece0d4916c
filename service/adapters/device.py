"""What the machine offers, and how the encoder is fed on it."""

import os
from dataclasses import dataclass
from pathlib import Path

from service.adapters.onnx_engine import on_gpu
from service.core.batching import BatchingPlan

MOST_RUNS = 8  # more cores than that share a run: a single text should not be slow on a large machine
CPU_TOKENS = 128  # padded; measured on 2 cores: larger batches are no faster, and longer
GPU_TOKENS = 16384


@dataclass(frozen=True)
class Execution:
    """Threads of one encoder run, of one that has the device to itself, and the batches beside and behind it."""

    threads: int
    threads_alone: int  # 0: no run ever has it
    plan: BatchingPlan


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: its affinity, and what a container's limit leaves of it (cgroup version 2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no limit reads `max`; another system has no such file
        return cores


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
    alone: bool,
) -> Execution:
    """Fills in what is 0. On a processor a run a core: one thread each needs no barriers (loadtest/README.md)."""
    gpu = on_gpu(providers)
    runs = runs or (1 if gpu else min(cores, MOST_RUNS))
    alone = alone and not gpu and runs > 1
    plan = BatchingPlan(
        runs=runs,
        ahead=1 if gpu else 0,
        alone=alone,
        max_batch_tokens=max_batch_tokens or (GPU_TOKENS if gpu else CPU_TOKENS),
        max_batch_texts=max_batch_texts or (256 if gpu else 64),
        max_queued_texts=max_queued_texts,
        max_wait=max_wait,
    )
    return Execution(threads or max(1, cores // runs), cores if alone else 0, plan)
