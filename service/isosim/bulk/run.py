"""Runs a bulk job from its plan until it writes `_SUCCESS`: keeps finished parts and computes the others."""

import hashlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from isosim.bulk.cluster import Engines, cluster, engines, map_items
from isosim.bulk.engine import Engine, Outcome
from isosim.bulk.places import Place
from isosim.bulk.plan import DONE, PLAN, SUCCESS, Plan
from isosim.domains.store import DomainStore
from isosim.encoders.store import JOINED, EncoderStore
from isosim.errors import BackendFailure, Conflict, CorruptArtifact, IsosimError
from isosim.store.artifacts import MANIFEST, from_facts
from isosim.store.blobs import opened, remote

Report = Callable[[str, float | None], None]


@dataclass(frozen=True)
class RunOptions:
    """Where and how a job runs; no option changes the output."""

    store: Path
    address: str | None  # address of a Ray cluster; None: start a local Ray
    local_cores: int  # cores that a local Ray may use
    cores: int  # cores per engine
    most: int  # largest number of engines; 0: as many as fit
    lenient: bool  # whether unusable rows get null results; otherwise they end the job
    seed: Path | None = None  # second store, with encoders that the first may lack

    def engines(self, ray: Any, *, gpu: bool) -> Engines:
        """Engines that fit on the cluster. Raises Unavailable if none fits."""
        return engines(ray, gpu=gpu, cores=self.cores, most=self.most, local=self.address is None)


@dataclass(frozen=True)
class Summary:
    """Counts of a finished job."""

    rows: int
    parts: int
    failed: dict[str, int]  # reason -> number of rows that have no result for this reason
    bytes: int
    computed: int  # rows computed in this run; the other rows were finished in earlier runs
    sentences: int  # distinct texts encoded in this run
    tokens: int  # tokens encoded in this run
    seconds: float  # from the start of the first part computed in this run to the end of the last
    engines: int
    nodes: int

    @property
    def rate(self) -> float:
        """Rows computed per second."""
        return self.computed / self.seconds if self.seconds else 0.0


def read_outcomes(output: Place, plan: Plan) -> dict[int, Outcome]:
    """Part number -> outcome of each finished part. A part is finished if its file has the size that `_done` states
    for the part."""
    files = output.names()
    outcomes_by_part = {}
    for name in output.names(DONE):
        try:
            outcome = from_facts(Outcome, orjson.loads(output.read(f"{DONE}/{name}")))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise CorruptArtifact(
                f"{output.address}/{DONE}/{name} is not readable: {error}; delete this file"
            ) from error
        if outcome.number < len(plan.parts) and files.get(plan.name(plan.parts[outcome.number])) == outcome.bytes:
            outcomes_by_part[outcome.number] = outcome
    return outcomes_by_part


def run(plan: Plan, output: Place, options: RunOptions, report: Report) -> Summary:
    """Computes the missing parts and marks the job as done.

    Raises:
        BackendFailure: a part failed.
        Unavailable: Ray is missing, or no engine fits on the cluster.
        CorruptArtifact: the job is finished, but one of its files is missing.
    """
    there = output.names()
    if SUCCESS in there:
        facts = orjson.loads(output.read(SUCCESS))
        lost = sorted(facts["files"].keys() - there.keys())
        if lost:
            raise CorruptArtifact(f"{output.address}: {lost[0]} is missing; delete {SUCCESS} and run the command again")
        return from_success(facts)
    done = read_outcomes(output, plan)
    missing = [part.number for part in plan.parts if part.number not in done]
    before = len(done)
    rows = sum(outcome.rows for outcome in done.values())
    seconds, count = 0.0, 0
    if missing:
        with cluster(options.address, options.local_cores) as ray:
            wanted = options.engines(ray, gpu=plan.device == "gpu")
            shipped = None
            if options.address is not None and not remote(options.store):
                files = pack(options, plan.encoder, plan.digest, plan.domain, plan.version)
                # If the argument were a reference, Ray would send the files to every worker. From a reference inside a
                # list, Ray sends nothing: `store_here` fetches the files on nodes that lack the store.
                shipped = [ray.put(files)]
            arguments = {
                "output": output.address, "store": str(options.store), "seed": options.seed, "threads": options.cores,
                "shipped": shipped, "lenient": options.lenient, "plan": hashlib.sha256(output.read(PLAN)).hexdigest(),
            }  # fmt: skip
            began = None
            report("starting", rows / plan.rows)
            with closing(map_items(ray, [str(n) for n in missing], PartWorker, arguments, wanted)) as results:
                for outcome in outcomes(results):
                    began = began or time.perf_counter() - outcome.seconds
                    done[outcome.number] = outcome
                    rows += outcome.rows
                    seconds = time.perf_counter() - began
                    report(f"{rows:,} rows", rows / plan.rows)
            count = wanted.count
    made = [done[number] for number in missing]
    summary = summarize(plan, [done[part.number] for part in plan.parts], made, seconds, count)
    facts = asdict(summary) | {"resumed_parts": before}
    facts["files"] = {plan.name(part): done[part.number].sha256 for part in plan.parts}
    output.write(SUCCESS, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")
    output.remove(DONE)
    return summary


def outcomes(results: Iterable[dict[str, Any]]) -> Iterable[Outcome]:
    """Yields the outcomes in the workers' results. Raises BackendFailure with the message of the first failed part."""
    for result in results:
        facts = orjson.loads(result["outcome"])
        if "failure" in facts:
            raise BackendFailure(facts["failure"])
        yield Outcome(**facts)


def summarize(plan: Plan, every: list[Outcome], made: list[Outcome], seconds: float, count: int) -> Summary:
    failed: Counter[str] = Counter()
    for outcome in every:
        failed.update(outcome.failed)
    return Summary(
        rows=plan.rows,
        parts=len(plan.parts),
        failed=dict(sorted(failed.items())),
        bytes=sum(outcome.bytes for outcome in every),
        computed=sum(outcome.rows for outcome in made),
        sentences=sum(outcome.sentences for outcome in made),
        tokens=sum(outcome.tokens for outcome in made),
        seconds=round(seconds, 3),
        engines=count,
        nodes=len({outcome.node for outcome in made}),
    )


def from_success(facts: dict[str, Any]) -> Summary:
    """The summary of a job that was already finished."""
    kept = {name: facts[name] for name in ("rows", "parts", "failed", "bytes")}
    return Summary(**kept, computed=0, sentences=0, tokens=0, seconds=0.0, engines=0, nodes=0)


class PartWorker:
    """Computes the part of a given number, writes its file, and returns its outcome.

    A failure is returned and not raised, because Ray would retry after an exception. The part's file is written first,
    then its record in `_done`. If the worker dies in between, the part is computed again, and gives the same bytes.
    """

    def __init__(
        self, output: str, store: str, seed: Path | None, threads: int, shipped: Any, *, lenient: bool, plan: str
    ) -> None:
        # By default, a tokenizer starts a thread for each core of the machine, even if the worker may use only one.
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        self.output, self.lenient = Place(output), lenient
        self.failure: str | None = None
        try:
            content = self._plan(plan)
            self.plan = Plan.from_json(content)
            version = f"{self.plan.domain}-{self.plan.version}"
            seen = store_here(Path(store), self.plan.encoder, self.plan.digest, version, shipped)
            self.engine = Engine(self.plan, seen, threads, seed)
        except (IsosimError, OSError) as error:
            self.failure = str(error)

    def _plan(self, expected: str) -> bytes:
        """Content of the plan. Raises Conflict if OUTPUT on this node is not the folder in which the job started."""
        try:
            content = self.output.read(PLAN)
        except FileNotFoundError:
            content = b""
        if hashlib.sha256(content).hexdigest() != expected:
            raise Conflict(
                f"{self.output.address} is a different folder on node {os.uname().nodename}; "
                "give a folder that all nodes of the cluster share, or object storage"
            )
        return content

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        if self.failure is not None:
            return failure_columns(self.failure)
        part = self.plan.parts[int(batch["item"][0])]
        try:
            content, outcome = self.engine(part, lenient=self.lenient)
            self.output.write(self.plan.name(part), content)
            facts = orjson.dumps(asdict(replace(outcome, node=node())))
            self.output.write(f"{DONE}/{part.number:06}.json", facts)
        except (IsosimError, OSError) as error:
            return failure_columns(str(error))
        return {"outcome": [facts]}


def failure_columns(failure: str) -> dict[str, list[bytes]]:
    return {"outcome": [orjson.dumps({"failure": failure})]}


def node() -> str:
    """Id of the Ray node that runs this worker."""
    import ray  # noqa: PLC0415 - an optional package, which is installed wherever workers run

    return str(ray.get_runtime_context().get_node_id())


Files = dict[str, bytes]


def pack(options: RunOptions, encoder: str, digest: str, domain: str, version: int) -> Files:
    """Path -> content of the files in the store that an engine reads: files of the encoder and of the domain version.
    Version 0 (`default@0`) is built in and has no files."""
    artifact = EncoderStore.at(options.store, options.seed).find(f"{encoder}@{digest}")
    place, files = f"encoders/{artifact.id}/{artifact.digest}", artifact.folder.iterdir()
    packed = {f"{place}/{file.name}": file.read_bytes() for file in files if file.name != JOINED}
    if version:
        domains = DomainStore(opened(options.store))
        packed |= {key: domains.blobs.read(key)[0] for key in domains.keys(domain, version)}
    return packed


def store_here(store: Path, encoder: str, digest: str, version: str, shipped: Any) -> Path:
    """The store, if this node can read the encoder in it; otherwise a local copy of the shipped files.

    Args:
        version: domain and version number (`DOMAIN-NUMBER`), part of the copy's name.
        shipped: list with a reference to the packed files in Ray's object store; None if no files were sent.
    """
    if shipped is None or remote(store) or (store / "encoders" / encoder / digest / "manifest.json").is_file():
        return store
    import ray  # noqa: PLC0415 - an optional package, which is installed wherever workers run

    files: Files = ray.get(shipped[0])
    # The copy's name contains a hash of the encoder's manifest. The manifest of a remote encoder contains the address
    # of the encoder's server. If this address changes, the name changes too, and an old copy is not used.
    mark = hashlib.sha256(files[f"encoders/{encoder}/{digest}/{MANIFEST}"]).hexdigest()[:8]
    place = Path(tempfile.gettempdir()) / f"isosim-{os.getuid()}-{digest[:16]}-{mark}-{version}"
    if place.is_dir() and place.stat().st_uid == os.getuid():
        return place
    making = Path(tempfile.mkdtemp(prefix="isosim-"))
    for name, content in files.items():
        (making / name).parent.mkdir(parents=True, exist_ok=True)
        (making / name).write_bytes(content)
    try:
        making.rename(place)
    except OSError:  # `place` exists: another engine made it meanwhile, or it belongs to another user
        return making
    return place
