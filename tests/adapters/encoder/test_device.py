"""How many cores there are to use, and how the encoder is fed on them."""

import os
from pathlib import Path

import pytest

from isosim.encoders.batching import BatchingPlan
from isosim.encoders.device import (
    CPU_TOKENS,
    GPU_TOKENS,
    GROWTH,
    LEAST_RESIDENT,
    MOST_RUNS,
    PROCESS,
    RESIDENT,
    memory_left,
    memory_limit,
    plan_execution,
    plan_resident,
    usable_cores,
)
from isosim.encoders.spec import Engine


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", None), ("100000000 100000", None), ("50000 100000", 1)])
def test_a_containers_limit_counts(tmp_path: Path, limit: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path) == (cores or len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "absent") == len(os.sched_getaffinity(0))


GIB = 2**30


def group(folder: Path, own: str, files: dict[str, int | str]) -> tuple[Path, Path]:
    """A process's group and its files, as Linux lays them out for cgroup version 2."""
    for name, content in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    (folder / "self").write_text(own + "\n")
    return folder / "cgroup", folder / "self"


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"memory.max": GIB}, GIB),  # a container's own group is the root it sees
        ("0::/", {"memory.max": "max"}, None),
        ("0::/", {}, None),  # the root of a machine has no such file
        ("0::/a/b/c", {"a/memory.max": GIB, "a/b/memory.max": 3 * GIB, "a/b/c/memory.max": "max"}, GIB),
        ("0::/a/b/c", {"a/memory.max": "max", "a/b/c/memory.max": 2 * GIB, "other/memory.max": GIB}, 2 * GIB),
        ("0::/../../kubepods/x", {"memory.max": GIB}, GIB),
        ("not a cgroup's line", {"memory.max": "?"}, None),
        ("4:memory:/\n0::/x", {"x/memory.max": GIB}, GIB),  # other controllers are those of version 1
        ("0::/x", {"memory.max": 2**50}, None),  # more than any machine has would be a room without end
        ("0::/x", {"memory.max": 2**50, "x/memory.max": GIB}, GIB),
    ],
)
def test_a_memory_limit_is_the_smallest_of_a_group_and_those_around_it(
    tmp_path: Path, own: str, files: dict[str, int | str], limit: int | None
) -> None:
    assert memory_limit(*group(tmp_path, own, files)) == limit


def test_another_system_has_no_memory_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "absent", tmp_path / "neither") is None
    assert memory_left(tmp_path / "absent", tmp_path / "neither") is None


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": 8 * GIB, "memory.current": 3 * GIB, "memory.stat": f"anon 1\ninactive_file {GIB}"}, 6 * GIB),
        (
            {
                "memory.max": 4 * GIB, "memory.current": 2 * GIB, "memory.stat": "inactive_file 0",
                "pod/memory.max": 3 * GIB, "pod/memory.current": GIB, "pod/memory.stat": "inactive_file 0",
            },
            2 * GIB,
        ),
        ({"memory.max": "max", "memory.current": GIB}, None),
    ],
)  # fmt: skip
def test_what_a_container_may_still_take_leaves_out_cached_files(
    tmp_path: Path, files: dict[str, int | str], left: int | None
) -> None:
    assert memory_left(*group(tmp_path, "0::/pod", files)) == left


@pytest.mark.parametrize("limit", [GIB, 2 * GIB, 8 * GIB])
def test_calibrations_get_what_the_limit_leaves(limit: int) -> None:
    held = 240 * 2**20  # two copies of the default encoder, and the memory cache
    found = plan_resident(limit, held)
    assert found * GROWTH + held + PROCESS == pytest.approx(limit)
    assert plan_resident(limit, held, jobs=True) == pytest.approx(found / 2, abs=1)
    assert plan_resident(limit, held, gpu=True) <= found


def test_a_small_container_keeps_some_calibrations_and_without_a_limit_there_is_a_gib_at_most() -> None:
    assert plan_resident(300 * 2**20, 200 * 2**20) == LEAST_RESIDENT
    assert LEAST_RESIDENT <= plan_resident(None, 0) <= RESIDENT


def plan(engine: Engine, cores: int, **given: int) -> BatchingPlan:
    wanted = {"runs": 0, "threads": 0, "max_batch_tokens": 0} | given
    return plan_execution(engine, cores, **wanted, max_wait=1.0)


@pytest.mark.parametrize("cores", [1, 2, 5, 8, 16, 64])
def test_on_a_processor_all_cores_and_no_more_are_used(cores: int) -> None:
    made = plan("onnxruntime", cores)
    assert made.runs == min(cores, MOST_RUNS)
    assert 1 <= made.runs * made.threads <= cores
    assert made.threads_alone == (cores if cores > 1 else 0)
    assert (made.ahead, made.max_batch_tokens) == (0, CPU_TOKENS)


def test_on_a_gpu_one_batch_runs_while_one_is_prepared() -> None:
    made = plan("cuda", 16)
    assert (made.runs, made.ahead) == (1, 1)
    assert (made.max_batch_tokens, made.threads_alone) == (GPU_TOKENS, 0)


def test_what_is_given_is_taken() -> None:
    made = plan("onnxruntime", 8, runs=2, threads=3, max_batch_tokens=99)
    assert (made.runs, made.threads, made.max_batch_tokens) == (2, 3, 99)
