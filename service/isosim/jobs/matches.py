"""Results of matches: what a job has found, and how people have judged it. They are kept until they have not been used
for a while, and belong to the API key that posted the texts.

    matches/<owner>/<job>/lines, second      the rows of the first and of the second file (`posted.py`)
    matches/<owner>/<job>/candidates.npz     `Found`
    matches/<owner>/<job>/vectors.npy        calibrated vectors of one file's texts in float16, for clusters
    matches/<owner>/<job>/scale.npz          the domain model that gives percentiles and thresholds
    matches/<owner>/<job>/best               the most similar pairs so far, while the job runs
    matches/<owner>/<job>/state.json         the record `Judgements`; written last: without it there is no result
"""

import logging
import mmap
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from isosim.arrays import Rows, Vectors
from isosim.errors import Conflict, CorruptArtifact, InvalidInput, IsosimError, NotFound
from isosim.jobs.job import Job
from isosim.jobs.posted import LINES, SECOND
from isosim.jobs.store import ABANDONED, owner_name
from isosim.matching.candidates import Candidates
from isosim.scoring.calibration import DomainModel
from isosim.store.blobs import Blobs
from isosim.store.records import Records

PREFIX, CANDIDATES, SCALE, UNIT, STATE = "matches/", "candidates.npz", "scale.npz", "vectors.npy", "state"
BEST = "best"
MOST_SHOWN = 300  # characters of a text of `best`; each event repeats all pairs
TOUCH = 600.0  # s: a use is recorded only if the last recorded one is older, so that most reads write nothing
MOST_LABELS = 100_000  # judgements on one result

log = logging.getLogger(__name__)


class Row(NamedTuple):
    """A row of a posted file."""

    number: int  # of the line or row in the file, counted from 1
    text: str
    cells: list[str]  # of the other columns


@dataclass(frozen=True)
class Side:
    """The distinct texts of a file. `first` (N,) has the index of the row where each text appears first; `text_of` (R,)
    the text of each row, −1 if it is unreadable."""

    first: Rows
    text_of: Rows

    @property
    def counts(self) -> Rows:
        """Number of rows with each text. (N,)"""
        return np.bincount(self.text_of[self.text_of >= 0], minlength=len(self.first))


@dataclass(frozen=True)
class Found:
    """The candidates of a match; `left` and `right` are distinct texts of the sides, one side if there is one file."""

    candidates: Candidates
    features: npt.NDArray[np.float32]  # (P, F) of the candidates' texts, see `scoring/pair_features.py`
    sides: tuple[Side, ...]

    @property
    def left(self) -> Side:
        return self.sides[0]

    @property
    def right(self) -> Side:
        return self.sides[-1]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """`from_arrays` is the inverse."""
        own = {name: np.asarray(value) for name, value in vars(self.candidates).items()} | {"features": self.features}
        for number, side in enumerate(self.sides):
            own |= {f"{name}{number}": array for name, array in vars(side).items()}
        return own

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Found":
        """Raises KeyError if an array is missing."""
        names = Candidates.__dataclass_fields__
        facts: dict[str, Any] = {name: arrays[name] if arrays[name].ndim else arrays[name].item() for name in names}
        count = sum(name.startswith("first") for name in arrays)
        sides = (Side(arrays[f"first{number}"], arrays[f"text_of{number}"]) for number in range(count))
        return cls(Candidates(**facts), arrays["features"], tuple(sides))


@dataclass(frozen=True)
class Judgements:
    """What people said of candidates: number of the candidate -> 1 (a match) or 0. `named`: those whose label was given
    with their texts; why these pairs were judged is unknown. `chosen`: those that a person picked because of what
    they say. `used`: when the result was last used, ISO 8601 in UTC.
    """

    used: str
    labels: dict[int, int] = field(default_factory=dict)
    named: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)


class RowFile:
    """The rows of a file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.flatnonzero(np.frombuffer(self._content, np.uint8) == ord("\n"))
        self._begins, self._ends = np.concatenate([[0], ends[:-1] + 1]), ends

    def __getitem__(self, row: int) -> Row:
        """Raises CorruptArtifact if the row cannot be read."""
        try:
            return Row(*orjson.loads(self._content[self._begins[row] : self._ends[row]]))
        except (IndexError, TypeError, ValueError) as error:
            raise CorruptArtifact(f"row {row} of a posted file cannot be read: {error}") from error


@dataclass(frozen=True)
class Result:
    """A result that was opened for reading."""

    job: Job
    found: Found
    files: tuple[RowFile, ...]
    model: DomainModel
    judgements: Judgements
    vectors: Vectors | None  # (N, D) calibrated vectors of length 1 of one file's texts; None for two files

    @property
    def judged(self) -> tuple[Rows, Rows]:
        """The candidates that were judged, in ascending order, and their labels. (L,), (L,)"""
        return self._labels(self.judgements.labels)

    @property
    def drawn(self) -> tuple[Rows, Rows]:
        """Those of them that were not chosen by a person: their labels tell of the others. (N,), (N,)"""
        return self._labels(self.judgements.labels.keys() - set(self.judgements.chosen))

    @property
    def chosen(self) -> tuple[Rows, Rows]:
        """Those that a person chose: their labels tell of themselves only. (C,), (C,)"""
        return self._labels(self.judgements.chosen)

    def _labels(self, pairs: Iterable[int]) -> tuple[Rows, Rows]:
        rising, labels = sorted(pairs), self.judgements.labels
        return np.array(rising, np.intp), np.array([labels[pair] for pair in rising], np.intp)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class MatchStore:
    """Results in a folder or a bucket. Thread-safe."""

    def __init__(self, blobs: Blobs, keep: float) -> None:
        """`keep`: seconds after the last use until a result is removed."""
        self.blobs, self.keep = blobs, timedelta(seconds=keep)

    def _records(self, job: Job) -> Records[Judgements]:
        return Records(self.blobs, Judgements, place_of(job))

    def show(self, job: Job, files: Sequence[Path], left: Rows, right: Rows) -> None:
        """Shows the pairs of these rows of the first and of the last file while the job runs."""
        one, other = RowFile(files[0]), RowFile(files[-1])
        ends = ((one[a], other[b]) for a, b in zip(left.tolist(), right.tolist(), strict=True))
        pairs = [
            {"row_a": a.number, "row_b": b.number, "a": a.text[:MOST_SHOWN], "b": b.text[:MOST_SHOWN]} for a, b in ends
        ]
        with suppress(IsosimError, OSError):  # the job goes on without
            self.blobs.write(place_of(job) + BEST, orjson.dumps(pairs))

    def best(self, job: Job) -> list[dict[str, Any]] | None:
        """What was shown last; None if nothing was, or if the job does not run any more."""
        if job.status.ended:
            return None
        try:
            shown: list[dict[str, Any]] = orjson.loads(self.blobs.read(place_of(job) + BEST)[0])
        except FileNotFoundError:
            return None
        return shown

    def publish(
        self, job: Job, files: Collection[Path], found: Found, model: DomainModel, vectors: Vectors | None
    ) -> None:
        """Writes a result. Repeated after an interruption, it replaces what was written."""
        place = place_of(job)
        for name, path in zip((LINES, SECOND), files, strict=False):
            self.blobs.upload(place + name, path)
        parts = model.arrays().items()
        scale = {f"{part}/{name}": array for part, arrays in parts for name, array in arrays.items()}
        writers: dict[str, Callable[[BinaryIO], object]] = {
            CANDIDATES: lambda file: np.savez(file, allow_pickle=False, **found.arrays()),
            SCALE: lambda file: np.savez(file, allow_pickle=False, **scale),
        }
        if vectors is not None:
            writers[UNIT] = lambda file: np.save(file, vectors.astype(np.float16), allow_pickle=False)
        for name, write in writers.items():
            with tempfile.NamedTemporaryFile(prefix="isosim-") as file:
                write(cast(BinaryIO, file))
                file.flush()
                self.blobs.upload(place + name, Path(file.name))
        self._records(job).create(STATE, Judgements(now()))
        self.blobs.delete([place + BEST])

    def judgements(self, job: Job) -> Judgements:
        """Records a use of the result. Raises NotFound if it was removed, or not used for too long."""

        def step(there: Judgements) -> Judgements:
            return replace(there, used=now()) if self._unused(there.used).total_seconds() > TOUCH else there

        return self._change(job, step)

    def seen(self, job: Job) -> Judgements | None:
        """The judgements, for lists; does not count as a use of the match. None if they cannot be read."""
        with suppress(IsosimError, OSError):
            return self._records(job).read(STATE)
        return None

    def judge(
        self,
        job: Job,
        labels: Mapping[int, int | None],
        named: Collection[int] = (),
        chosen: Collection[int] = (),
    ) -> Judgements:
        """Adds judgements to those that are there; a later one on the same candidate replaces the earlier, None removes
        it. `named`: those of them that were given with texts. `chosen`: those that a person picked. A candidate that
        was judged without being chosen stays one of those, and a chosen one becomes one when it is judged so.

        Raises:
            InvalidInput: there is no such candidate, or there are more than MOST_LABELS judgements.
            NotFound: the result was removed.
        """
        count = (job.report or {}).get("candidates", 0)
        if outside := [pair for pair in labels if not 0 <= pair < count]:
            raise InvalidInput(f"labels: there is no pair {outside[0]}; the pairs are 0 to {count - 1}")

        def step(there: Judgements) -> Judgements:
            every = {pair: label for pair, label in {**there.labels, **labels}.items() if label is not None}
            if len(every) > MOST_LABELS:
                raise InvalidInput(f"labels: a match takes at most {MOST_LABELS:,} judgements")
            kept = {pair for pair in there.named if pair not in labels}
            still = {pair for pair in there.chosen if pair not in labels}
            picked = every.keys() & still.union(set(chosen) - (there.labels.keys() - set(there.chosen)))
            return Judgements(now(), every, sorted(kept.union(named)), sorted(picked))

        return self._change(job, step)

    def _change(self, job: Job, step: Callable[[Judgements], Judgements]) -> Judgements:
        def there(record: Judgements | None) -> Judgements:
            if record is None or self._unused(record.used) > self.keep:
                raise gone(job)
            return step(record)

        return self._records(job).change(STATE, there)

    def until(self, judgements: Judgements) -> str:
        """When the result will be removed unless it is used again; ISO 8601 in UTC."""
        return (datetime.fromisoformat(judgements.used) + self.keep).isoformat(timespec="seconds")

    @staticmethod
    def _unused(used: str) -> timedelta:
        return datetime.now(UTC) - datetime.fromisoformat(used)

    @contextmanager
    def opened(self, job: Job, *, vectors: bool = False) -> Iterator[Result]:
        """A result, with `vectors` if they are asked for, until the context ends.

        Raises:
            NotFound: it was removed.
            CorruptArtifact: it is damaged.
        """
        judgements = self.judgements(job)
        names = [LINES, SECOND][: len(job.request.match.rows if job.request.match else ())]
        unit = [UNIT] if len(names) == 1 and vectors else []
        with ExitStack() as stack:
            try:
                place = self.blobs.files(place_of(job), [*names, CANDIDATES, SCALE, *unit])
                folder = stack.enter_context(place)
                with np.load(folder / CANDIDATES, allow_pickle=False) as arrays:
                    found = Found.from_arrays(dict(arrays))
                with np.load(folder / SCALE, allow_pickle=False) as arrays:
                    parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
                    for name, array in arrays.items():
                        part, _, own = name.partition("/")
                        parts.setdefault(part, {})[own] = array
                files = tuple(RowFile(folder / name) for name in names)
                mapped = np.load(folder / UNIT, mmap_mode="r", allow_pickle=False) if unit else None
                result = Result(job, found, files, DomainModel.from_arrays(parts), judgements, mapped)
            except FileNotFoundError:
                raise gone(job) from None
            except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
                raise CorruptArtifact(f"the result of match {job.id} cannot be read: {error}") from error
            yield result  # outside of `try`: an error of the reader is no damage of the result

    def remove(self, job: Job) -> None:
        """Removes a result; does nothing if there is none."""
        self._remove(place_of(job))

    def _remove(self, place: str) -> None:
        state = f"{place}{STATE}.json"
        keys = [entry.key for entry in self.blobs.list(place)]
        self.blobs.delete([state])  # first: without it, the rest is no result
        self.blobs.delete(key for key in keys if key != state)

    def held(self, owner: str) -> int:
        """Bytes of the results that belong to the API key with this id."""
        return sum(entry.size for entry in self.blobs.list(f"{PREFIX}{owner_name(owner)}/"))

    def sweep(self) -> None:
        """Removes results that were not used for too long, with their jobs' records, and what killed processes have
        left."""
        places: dict[str, float] = {}
        whole = set()
        for entry in self.blobs.list(PREFIX):
            folder, _, name = entry.key.rpartition("/")
            places[f"{folder}/"] = max(places.get(f"{folder}/", 0.0), entry.modified)
            whole |= {f"{folder}/"} if name == f"{STATE}.json" else set()
        for place, modified in places.items():
            # The record changes at each recorded use, so that `modified` is the last of them.
            patience = (
                self.keep.total_seconds() + TOUCH if place in whole else min(ABANDONED, self.keep.total_seconds())
            )
            if datetime.now(UTC).timestamp() - modified > patience:
                with suppress(IsosimError, OSError):
                    self._remove(place)
                    self.blobs.delete([f"jobs/{place.split('/')[2]}.json"] if place in whole else [])
                    log.info("a result of a match was removed, because it was not used for %s", self.keep)


def place_of(job: Job) -> str:
    return f"{PREFIX}{owner_name(job.owner)}/{job.id}/"


def gone(job: Job) -> NotFound:
    return NotFound(f"the result of match {job.id} was removed, or not used for too long; post the texts again")


def check_ended(job: Job) -> None:
    """Raises Conflict if a job has no result (yet)."""
    if job.status.value != "succeeded":
        raise Conflict(f"match {job.id} is {job.status}; it has no result{'' if job.status.ended else ' yet'}")
