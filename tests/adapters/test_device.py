"""How many cores there are to use, and how the encoder is fed on them."""

import os
from pathlib import Path

import pytest

from service.adapters.device import CPU_TOKENS, GPU_TOKENS, MOST_RUNS, Execution, plan_execution, usable_cores

CPU, GPU = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1)])
def test_a_containers_limit_counts(tmp_path: Path, limit: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path) == (cores or len(os.sched_getaffinity(0)))


def test_a_limit_above_the_cores_there_are_is_none(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000000 100000")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0)) == usable_cores(tmp_path / "absent")


def plan(providers: list[str], cores: int, **given: int) -> Execution:
    wanted = {"runs": 0, "threads": 0, "max_batch_tokens": 0, "max_batch_texts": 0} | given
    return plan_execution(providers, cores, **wanted, max_queued_texts=10, max_wait=1.0, alone=True)


@pytest.mark.parametrize("cores", [1, 2, 5, 8, 16, 64])
def test_on_a_processor_all_cores_and_no_more_are_used(cores: int) -> None:
    made = plan(CPU, cores)
    assert made.plan.runs == min(cores, MOST_RUNS)
    assert 1 <= made.plan.runs * made.threads <= cores
    assert made.plan.alone == (cores > 1)
    assert made.threads_alone == (cores if cores > 1 else 0)
    assert (made.plan.ahead, made.plan.max_batch_tokens) == (0, CPU_TOKENS)


def test_on_a_gpu_one_batch_runs_while_one_is_prepared() -> None:
    made = plan(GPU, 16)
    assert (made.plan.runs, made.plan.ahead, made.plan.alone) == (1, 1, False)
    assert (made.plan.max_batch_tokens, made.threads_alone) == (GPU_TOKENS, 0)


def test_what_is_given_is_taken() -> None:
    made = plan(CPU, 8, runs=2, threads=3, max_batch_tokens=99, max_batch_texts=7)
    assert (made.plan.runs, made.threads, made.plan.max_batch_tokens, made.plan.max_batch_texts) == (2, 3, 99, 7)
