"""An engine as Ray runs it: takes a part, writes its file, then says that it is done."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson

from service.bulk.engine import Engine
from service.bulk.places import Place
from service.bulk.plan import DONE, PLAN, Plan
from service.bulk.shipping import store_here
from service.core.errors import Conflict, IsosimError


class PartWorker:
    """Numbers of parts in, outcomes out. A failure is an outcome too: Ray would try a part again that fails each time.

    The part's file comes first and the mark in `_done` after it: whoever is killed between the two leaves a part that
    is made again, with the same bytes.
    """

    def __init__(self, output: str, store: str, threads: int, shipped: Any, *, lenient: bool, plan: str) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"  # as many threads as an engine has
        self.output, self.lenient = Place(output), lenient
        self.failure: str | None = None
        try:
            content = self._plan(plan)
            self.plan = Plan.parsed(content)
            version = f"{self.plan.domain}-{self.plan.version}"
            seen = store_here(Path(store), self.plan.encoder, self.plan.digest, version, shipped)
            self.engine = Engine(self.plan, seen, threads)
        except (IsosimError, OSError) as error:
            self.failure = str(error)

    def _plan(self, expected: str) -> bytes:
        """Raises Conflict where this node's OUTPUT is not the one the job was begun in."""
        try:
            content = self.output.read(PLAN)
        except FileNotFoundError:
            content = b""
        if hashlib.sha256(content).hexdigest() != expected:
            raise Conflict(
                f"{self.output.address} is another folder on node {os.uname().nodename}; "
                "a cluster needs one that all nodes share, or object storage"
            )
        return content

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        if self.failure is not None:
            return told(self.failure)
        part = self.plan.parts[int(batch["item"][0])]
        try:
            content, outcome = self.engine(part, lenient=self.lenient)
            self.output.write(self.plan.name(part), content)
            facts = orjson.dumps(asdict(replace(outcome, node=node())))
            self.output.write(f"{DONE}/{part.number:06}.json", facts)
        except (IsosimError, OSError) as error:
            return told(str(error))
        return {"outcome": [facts]}


def told(failure: str) -> dict[str, list[bytes]]:
    return {"outcome": [orjson.dumps({"failure": failure})]}


def node() -> str:
    import ray  # noqa: PLC0415 - a worker has it

    return str(ray.get_runtime_context().get_node_id())
