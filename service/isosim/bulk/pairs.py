"""Finds near-duplicates: all pairs of rows that reach the threshold for a false-match rate or a precision."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from isosim.arrays import Vectors
from isosim.bulk.places import Place
from isosim.bulk.plan import DONE, PLAN, SUCCESS, Plan, check_same
from isosim.bulk.search import MARGIN, CellIndex, index_of
from isosim.bulk.writing import UNREADABLE, VECTOR, to_bytes
from isosim.errors import Conflict, InvalidInput
from isosim.scoring.advice import Advice, Target, advise
from isosim.scoring.calibration import Calibration
from isosim.scoring.similarity import normalized, score
from isosim.store.artifacts import from_facts

FORMAT = 1
VECTORS = "_vectors"
BLOCK = 4096  # rows in a block; a block's output file has the pairs (row of the block, earlier row)
EXACT_UP_TO = 100_000  # up to this many rows, all pairs are compared (4 · 10¹² operations, under a minute on two cores)
RECALL = 0.99  # default recall of the index for more than EXACT_UP_TO rows

Report = Callable[[str, float | None], None]


@dataclass(frozen=True)
class PairSearch:
    """The requested false-match rate or precision, and the limits of the search."""

    fmr: float  # false-match rate: the requested one, or the one at the threshold for `precision`
    write: str  # format of the output
    exact_up_to: int = EXACT_UP_TO  # up to this many rows, all pairs are compared
    recall: float = RECALL
    seed: int = 0
    # Maximum number of pairs. If there are more pairs, usually because of many exact copies, the search fails.
    most: int = 50_000_000
    block: int = BLOCK
    clusters: bool = False  # whether to write a file of clusters as well
    precision: float | None = None  # requested precision; None: `fmr` was requested instead


@dataclass(frozen=True)
class PairSearchResult:
    """Counts, files and threshold of a search."""

    rows: int
    without_text: int
    pairs: int
    files: dict[str, str]  # name -> SHA-256
    threshold: float
    extrapolated: bool
    reference_pairs: int
    recall: dict[str, Any] | None  # fields of class Recall (search.py); None for an exact search
    # Estimated number of false pairs. If a precision was requested: (1 − precision) × number of pairs found. Otherwise:
    # false-match rate × N (N − 1) / 2, which assumes that all N rows are unrelated.
    expected_false: float = 0.0
    clusters: int | None = None  # number of clusters; None: not requested
    # 95 % interval. None if no precision was requested, or if the version is from a release that stored no interval.
    expected_false_interval: tuple[float, float] | None = None


def threshold_of(calibration: Calibration, fmr: float, precision: float | None = None) -> Advice:
    """The similarity threshold for `precision` if it is given, otherwise for the false-match rate.

    Raises:
        Conflict: the version lacks labelled pairs for a precision, or random pairs for a false-match rate.
        InvalidInput: the rate is out of range, the rate is so low that identical texts would not match, or no threshold
            reaches the precision.
    """
    model = calibration.model
    if precision is not None:
        return advise(model, calibration.domain, Target(precision=precision))
    advice = advise(model, calibration.domain, Target(fmr=fmr))
    assert model.reference is not None  # noqa: S101 - `advise` checks this
    identical = float(model.reference.false_match_rate(np.ones(1))[0])
    if identical > fmr:
        raise InvalidInput(
            f"fmr: {fmr:g} is too low: even a threshold of 1, the similarity of identical texts, has a false-match "
            f"rate of {identical:.1e} in {calibration.domain!r}; give a larger rate"
        )
    return advice


def load(vectors: Place, plan: Plan, keep: Sequence[str]) -> tuple[Any, Vectors, pa.Table]:
    """Indices (N,) of the rows that have a readable text, the vectors (N, D) of these rows, and the columns to copy."""
    rows, parts, kept = [], [], []
    for part in plan.parts:
        table = pq.read_table(io.BytesIO(vectors.read(plan.name(part))))
        table = table.filter(pc.is_valid(table[VECTOR]))
        table = table.filter(pc.invert(table[UNREADABLE]))  # the vector of an unreadable text says little about it
        array = table[VECTOR].combine_chunks()
        rows.append(table["row"].to_numpy())
        parts.append(np.asarray(array.flatten(), np.float32).reshape(len(table), array.type.list_size))
        kept.append(table.select(list(keep)))
    return np.concatenate(rows), np.concatenate(parts), pa.concat_tables(kept)


def find(
    output: Place,
    vectors: Place,
    plan: Plan,
    calibration: Calibration,
    search: PairSearch,
    threads: int,
    report: Report,
) -> PairSearchResult:
    """Searches pairs, scores them as /similarity does, and writes a file for every block of rows.

    Raises:
        Conflict: OUTPUT belongs to another plan.
        InvalidInput: there are more pairs than `search.most`.
    """
    advice = threshold_of(calibration, search.fmr, search.precision)
    facts = {
        "format": FORMAT, "task": "pairs", "wanted": asdict(search), "input": [asdict(one) for one in plan.input],
        "columns": plan.options.columns, "keep": plan.options.keep, "digest": plan.digest, "domain": plan.domain,
        "version": plan.version, "software": plan.software,
    }  # fmt: skip
    names = output.names()
    if PLAN in names:
        check_same(orjson.loads(output.read(PLAN)), facts, output.address)
    elif names:
        raise Conflict(f"{output.address} holds {sorted(names)[0]} but no {PLAN}; give an empty or a new folder")
    else:
        output.create(PLAN, orjson.dumps(facts) + b"\n")
    report("reading vectors", None)
    rows, pooled, kept = load(vectors, plan, plan.options.keep)
    if SUCCESS in names:
        return from_facts(PairSearchResult, orjson.loads(output.read(SUCCESS)))
    report("indexing", None)
    unit = in_blocks(calibration, pooled)
    radius = advice.similarity - MARGIN
    index = index_of(
        unit, radius, exact_up_to=search.exact_up_to, wanted=search.recall, seed=search.seed, threads=threads
    )
    bare = replace(calibration, model=replace(calibration.model, domain_test=None))
    files: dict[str, str] = {}
    count = 0
    done = output.names(DONE)
    for number, start in enumerate(range(0, len(unit), search.block)):
        stop = min(start + search.block, len(unit))
        mark = f"{number:06}.json"
        name = f"part-{number:06}.{search.write}"
        told = orjson.loads(output.read(f"{DONE}/{mark}")) if mark in done else None
        if told is not None and names.get(name) == told["bytes"]:
            index.pass_over(start, stop)
        else:
            block = []
            for left, right in index.pairs(start, stop, radius):
                block.append(score_pairs(bare, pooled, left, right, search, advice.similarity))
                if count + sum(len(one["i"]) for one in block) > search.most:
                    raise InvalidInput(
                        f"more than {search.most:,} pairs among the first {stop:,} of {len(unit):,} rows; give a "
                        "lower --fmr, or remove exact copies first"
                    )
            told = write(output, name, mark, block, rows, kept, plan, search)
        count += told["pairs"]
        files[name] = told["sha256"]
        report(f"{count:,} pairs", stop / len(unit))
    recall = asdict(index.recall) if isinstance(index, CellIndex) else None
    clusters = None
    if search.clusters:
        report("clustering", None)
        clusters, name, digest = write_clusters(output, sorted(files), rows, kept, plan, search)
        files[name] = digest
    expected, interval = expected_false(search, advice, len(rows), count)
    result = PairSearchResult(
        plan.rows, plan.rows - len(rows), count, files, advice.similarity, advice.extrapolated, advice.pairs, recall,
        expected, clusters, interval,
    )  # fmt: skip
    output.write(SUCCESS, orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    if output.names(DONE):
        output.remove(DONE)
    return result


def expected_false(
    search: PairSearch, advice: Advice, rows: int, found: int
) -> tuple[float, tuple[float, float] | None]:
    """Expected number of false pairs among the `found` pairs, and the 95 % interval of this number.

    The interval is None if no precision was requested, or if the version is from a release that stored no interval.
    """
    if search.precision is None:
        return search.fmr * rows * (rows - 1) / 2, None
    interval = None
    if (shares := advice.facts.get("precision_interval")) is not None:
        interval = ((1 - shares[1]) * found, (1 - shares[0]) * found)
    return (1 - search.precision) * found, interval


def write_clusters(
    output: Place, names: Sequence[str], every: Any, kept: pa.Table, plan: Plan, search: PairSearch
) -> tuple[int, str, str]:
    """Writes the clusters: sets of rows that are connected through pairs.

    The file has a line for each row that is in a pair: the row's number, the cluster's id (its lowest row number), the
    cluster's size, and the kept columns.

    Args:
        every: sorted numbers of the rows in `kept`.

    Returns:
        The number of clusters, the file's name and its SHA-256.
    """
    ends = [read_ends(output.read(name), search.write) for name in names]
    i, j = np.concatenate([np.empty((2, 0), np.int64), *ends], axis=1)
    rows, places = np.unique(np.concatenate([i, j]), return_inverse=True)
    left, right = np.split(places, 2)
    joined = coo_array((np.ones(len(left)), (left, right)), shape=(len(rows), len(rows)))
    count, group = connected_components(joined, directed=False)
    lowest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(lowest, group, rows)
    columns = {"row": rows, "cluster": lowest[group], "size": np.bincount(group, minlength=count)[group]}
    facts = plan.provenance() | {"isosim.task": "clusters", "isosim.space": "", "isosim.fmr": f"{search.fmr:g}"}
    table = pa.table(
        {name: pa.array(values, pa.int64()) for name, values in columns.items()}
        | {name: kept[name].take(np.searchsorted(every, rows)) for name in kept.column_names if name not in columns}
    )
    name, content = f"clusters.{search.write}", to_bytes(table, search.write, facts)
    output.write(name, content)
    return int(count), name, hashlib.sha256(content).hexdigest()


def read_ends(content: bytes, form: str) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":  # (2, pairs)
    """The columns i and j of a file of pairs, as the two rows of an array."""
    names = ["i", "j"]
    if form == "jsonl":
        lines = [orjson.loads(line) for line in content.splitlines()]
        return np.array([[line[name] for line in lines] for name in names], np.int64).reshape(2, len(lines))
    if form == "parquet":
        table = pq.read_table(io.BytesIO(content), columns=names)
    else:
        table = csv.read_csv(
            io.BytesIO(content),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.int64())),
        )
    return np.array([table[name].to_numpy() for name in names], np.int64).reshape(2, len(table))


def in_blocks(calibration: Calibration, pooled: Vectors) -> Vectors:
    """Calibrated vectors (N, D), scaled to unit length; computed in blocks to save memory."""
    unit = np.empty_like(pooled)
    for start in range(0, len(pooled), BLOCK):
        unit[start : start + BLOCK] = normalized(calibration.latents(pooled[start : start + BLOCK]))
    return unit


def score_pairs(
    calibration: Calibration, pooled: Vectors, left: Any, right: Any, search: PairSearch, threshold: float
) -> dict[str, Any]:
    """Scores pairs as /similarity does, and returns columns with the pairs at or above the threshold."""
    needed, places = np.unique(np.concatenate([left, right]), return_inverse=True)
    a, b = np.split(places.astype(np.intp), 2)
    if not len(needed):
        return {"i": left, "j": right, **dict.fromkeys(("similarity", "cosine", "percentile"), np.empty(0))}
    scores = score(calibration, [], pooled[needed], a, b)
    assert scores.percentile is not None  # noqa: S101 - the domain has a reference
    reached = scores.similarity >= threshold if search.precision is not None else 1.0 - scores.percentile <= search.fmr
    columns = {
        "i": left, "j": right, "similarity": scores.similarity, "cosine": scores.cosine,
        "percentile": scores.percentile,
    }  # fmt: skip
    if scores.probability is not None:
        columns["probability"] = scores.probability
    return {name: column[reached] for name, column in columns.items()}


def write(
    output: Place, name: str, mark: str, block: list[dict[str, Any]], rows: Any, kept: pa.Table, plan: Plan,
    search: PairSearch,
) -> dict[str, Any]:  # fmt: skip
    """Writes a file of pairs, sorted by i and j. Then writes a record, which marks the file as finished. Returns the
    record."""
    filled = [one for one in block if len(one["i"])] or block[:1]
    columns = {key: np.concatenate([one[key] for one in filled]) for key in filled[0]}
    order = np.lexsort((columns["j"], columns["i"]))
    i, j = columns.pop("i")[order], columns.pop("j")[order]
    types = {"similarity": pa.float32(), "cosine": pa.float32()}
    table = {"i": pa.array(rows[i], pa.int64()), "j": pa.array(rows[j], pa.int64())}
    table |= {key: pa.array(values[order], types.get(key, pa.float64())) for key, values in columns.items()}
    for column in kept.column_names:
        table |= {f"{column}_i": kept[column].take(i), f"{column}_j": kept[column].take(j)}
    facts = plan.provenance() | {"isosim.task": "pairs", "isosim.space": "", "isosim.fmr": f"{search.fmr:g}"}
    content = to_bytes(pa.table(table), search.write, facts)
    output.write(name, content)
    told = {"pairs": len(i), "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    output.write(f"{DONE}/{mark}", orjson.dumps(told))
    return told
