"""Runs a job: makes the blocks whose files are missing, on a Ray cluster or on this machine's own Ray."""

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from isosim.bulk.cluster import cluster, distribute
from isosim.bulk.engine import Engine, Outcome
from isosim.bulk.inputs import Input
from isosim.bulk.job import Job, Where, differing, manifest_of, present
from isosim.errors import Conflict, EmptyInput
from isosim.store.artifacts import json_bytes
from isosim.store.blobs import opened, remote

SUCCESS = "_SUCCESS"

Report = Callable[[str, float | None], None]


@dataclass
class Summary:
    """Counts of a finished job."""

    rows: int
    files: int
    computed: int = 0  # rows of this run; the files of the others were there
    failed: Counter[str] = field(default_factory=Counter)  # reason -> number of rows of this run without a result
    seconds: float = 0.0  # from the start of the first block to the end of the last

    def add(self, outcome: Outcome) -> None:
        self.computed += outcome.rows
        self.failed += outcome.failed


def run(job: Job, rows: Input, output: str, where: Where, report: Report) -> Summary:
    """Writes the missing files of a job.

    Raises:
        EmptyInput: the input has no rows.
        Unavailable: Ray is missing or does not start.
        BackendFailure: Ray stopped with an error.
        IsosimError, OSError: a worker raised it; finished files are kept.
    """
    target, size = opened(output), job.options.rows
    total = rows.count()
    if not total:
        raise EmptyInput(f"{rows.address}: no rows")
    blocks = range(-(-total // size))
    names = present(target)
    missing = {block for block in blocks if job.name(block) not in names}
    summary = Summary(total, len(blocks))
    if missing:
        with cluster(where.address, where.cores) as ray:
            began = None
            work = (one for one in enumerate(rows.blocks(size)) if one[0] in missing)
            folder = output if remote(output) else str(Path(output).resolve())  # workers have another current folder
            gpu, local = job.options.device == "gpu", where.address is None
            done = total - sum(min(size, total - block * size) for block in missing)
            for outcome in distribute(ray, BlockWorker, (job, folder, where), work, gpu=gpu, local=local):
                began = began or time.perf_counter() - outcome.seconds
                summary.add(outcome)
                summary.seconds = time.perf_counter() - began
                report(f"{done + summary.computed:,} rows", (done + summary.computed) / total)
    target.write(SUCCESS, json_bytes({"rows": total, "files": len(blocks)}))
    return summary


class BlockWorker:
    """Makes blocks and writes their files, in a process of Ray."""

    def __init__(self, job: Job, output: str, where: Where) -> None:
        # By default, a tokenizer starts a thread for each core of the machine.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.job, self.output, self.where = job, opened(output), where

    def make(self, block: int, table: Any) -> Outcome:
        """Writes the file of a block, as a whole or not at all. Raises the errors of `Engine`, and Conflict if OUTPUT
        on this node is not the folder of the job."""
        content, outcome = self.engine(block, table)
        self.output.write(self.job.name(block), content)
        return outcome

    @cached_property
    def engine(self) -> Engine:  # opened with the first block: Ray does not pass on what __init__ raises
        if differing(manifest_of(self.output) or {}, orjson.loads(json_bytes(self.job.facts))):
            raise Conflict(
                f"{self.output.address} is a different folder on node {os.uname().nodename}; give a folder that all "
                "nodes of the cluster share, or object storage"
            )
        return Engine(self.job, self.where)
