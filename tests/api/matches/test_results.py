"""The store of results: a half-written result is not read, and an unused one is removed."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from isosim.api.matches.results import until
from isosim.api.matches.writing import harmless
from isosim.errors import CallerLeft, CorruptArtifact, InvalidInput, NotFound
from isosim.jobs.job import Job, JobRequest, MatchInput, Status
from isosim.jobs.matches import PREFIX, Found, MatchStore, Side, place_of
from isosim.matching import candidates
from isosim.scoring.calibration import DomainModel
from isosim.store.blobs import Blobs
from tests.core.scoring.references import MAP, REFERENCE
from tests.store.machines import Watched

ROWS = [[1, "a", ["x"]], [2, "b", ["y"]], [4, "a", [""]], [5, "c", ["z"]]]
MODEL = DomainModel(REFERENCE, probability=MAP)
UNIT = np.eye(3, 8, dtype=np.float32)
FOUND = Found(candidates.find(UNIT), np.zeros((3, 4), np.float32), (Side(np.array([0, 1, 3]), np.array([0, 1, 0, 2])),))
REQUEST = JobRequest("default", "d", "tiny", match=MatchInput("posted", (4,), (("note",),)))
JOB = Job("f" * 32, REQUEST, Status.SUCCEEDED, owner="anna", report={"candidates": len(FOUND.candidates.left)})


@pytest.fixture
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("posted") / "rows"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    return path


def cuts(blobs: Blobs, rows: Path) -> Iterator[int]:
    """Publishes with a death at each write, until a publication needs no more."""
    for at in range(20):
        writes = count()

        def dies(operation: str, *_: object) -> None:
            if operation in ("write", "upload") and next(writes) == at:  # noqa: B023
                raise KeyboardInterrupt

        try:
            store: Any = Watched(blobs, dies)
            MatchStore(store, 60).publish(JOB, [rows], FOUND, MODEL, UNIT)
        except KeyboardInterrupt:
            yield at
        else:
            return


def published(blobs: Blobs, job: Job) -> bool:
    return f"{place_of(job)}state.json" in [entry.key for entry in blobs.list(PREFIX)]


def test_a_result_is_whole_or_not_there_wherever_its_writer_dies(blobs: Blobs, rows: Path) -> None:
    store, deaths = MatchStore(blobs, 60), 0
    for _ in cuts(blobs, rows):
        deaths += 1
        assert not published(blobs, JOB)
        with pytest.raises(NotFound, match="removed"), store.opened(JOB):
            pass
    assert (deaths, published(blobs, JOB)) == (5, True)
    with store.opened(JOB, vectors=True) as result:
        assert [tuple(result.files[0][place]) for place in (3, 0, 2)] == [tuple(ROWS[place]) for place in (3, 0, 2)]
        for name, value in vars(FOUND.candidates).items():
            np.testing.assert_array_equal(getattr(result.found.candidates, name), value)
        assert result.found.left.counts.tolist() == [2, 1, 1]
        rates = MODEL.reference.false_match_rate(np.array([0.3, 0.9])) if MODEL.reference else None
        assert result.model.reference is not None
        np.testing.assert_array_equal(result.model.reference.false_match_rate(np.array([0.3, 0.9])), rates)
        assert result.vectors is not None
        np.testing.assert_array_equal(result.vectors, UNIT)


def test_an_error_of_a_reader_is_not_taken_for_damage(blobs: Blobs, rows: Path) -> None:
    store = MatchStore(blobs, 60)
    store.publish(JOB, [rows], FOUND, MODEL, None)
    for mistake in (ValueError("mine"), KeyError("mine"), FileNotFoundError("mine")):
        with pytest.raises(type(mistake), match="mine"), store.opened(JOB):
            raise mistake
    blobs.write(f"{place_of(JOB)}lines", b'[1, "a", []]\nnot JSON\n')
    with store.opened(JOB) as result:
        assert result.files[0][0].text == "a"
        for row in (1, 3):
            with pytest.raises(CorruptArtifact, match=f"row {row} of a posted file"):
                result.files[0][row]
    blobs.write(f"{place_of(JOB)}candidates.npz", b"not a .npz")
    with pytest.raises(CorruptArtifact, match="cannot be read"), store.opened(JOB):
        pass


def test_judgements_add_up_and_the_last_one_counts(blobs: Blobs, rows: Path) -> None:
    store = MatchStore(blobs, 60)
    store.publish(JOB, [rows], FOUND, MODEL, None)
    store.judge(JOB, {0: 1, 1: 0})
    assert store.judge(JOB, {1: 1, 2: 0, 0: None}).labels == {1: 1, 2: 0}
    with store.opened(JOB) as result:
        assert [one.tolist() for one in result.judged] == [[1, 2], [1, 0]]
    with pytest.raises(InvalidInput, match="no pair 3"):
        store.judge(JOB, {3: 1})
    assert store.judge(JOB, {0: 1, 2: 1}, [0, 2]).named == [0, 2]
    assert store.judge(JOB, {1: 0, 2: 0}).named == [0]  # 2 was judged again, by its number


def test_a_pair_that_a_person_chose_tells_nothing_of_others_until_it_is_drawn(blobs: Blobs, rows: Path) -> None:
    store = MatchStore(blobs, 60)
    store.publish(JOB, [rows], FOUND, MODEL, None)
    for labels, picked, chosen in (
        ({0: 1}, [], []), ({0: 0, 1: 1, 2: 1}, [0, 1, 2], [1, 2]),  # one that was drawn stays so
        ({1: 0}, [1], [1, 2]), ({1: 1}, [], [2]), ({2: None}, [], []), ({2: 1}, [2], [2]),
    ):  # fmt: skip
        assert store.judge(JOB, labels, (), picked).chosen == chosen
    with store.opened(JOB) as result:
        assert [[part.tolist() for part in one] for one in (result.judged, result.drawn, result.chosen)] == [
            [[0, 1, 2], [0, 1, 1]], [[0, 1], [0, 1]], [[2], [1]],
        ]  # fmt: skip


def test_what_nobody_uses_is_gone_and_what_is_used_stays(blobs: Blobs, rows: Path) -> None:
    other = replace(JOB, id="e" * 32, owner="bert")
    kept, brief = MatchStore(blobs, 3600), MatchStore(blobs, 0.01)
    for job in (JOB, other):
        kept.publish(job, [rows], FOUND, MODEL, None)
    assert kept.held("anna") == kept.held("bert") > rows.stat().st_size
    kept.sweep()
    kept.judgements(JOB)
    time.sleep(1.1)  # times are of whole seconds
    for use in (brief.judgements, lambda job: brief.judge(job, {0: 1})):
        with pytest.raises(NotFound, match="not used for too long"):
            use(JOB)
    kept.remove(JOB)
    assert (kept.held("anna"), published(blobs, other)) == (0, True)
    for job in (JOB, other):
        blobs.write(f"jobs/{job.id}.json", b"")
    MatchStore(blobs, -1000).sweep()
    assert [entry.key for entry in blobs.list("")] == [f"jobs/{JOB.id}.json"]
    with pytest.raises(NotFound, match="removed"):
        kept.judge(other, {0: 1})


def test_rows_that_are_skipped_end_too_when_the_caller_leaves() -> None:
    left, read = threading.Event(), 0

    def rows() -> Iterator[int]:
        nonlocal read
        for read in range(1000):
            if read == 10:
                left.set()
            yield read

    with pytest.raises(CallerLeft):
        list(islice(until(left, rows()), 900, None))
    assert read == 10


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("ok ;=cmd|'/c calc'!A1", "ok ;'=cmd|'/c calc'!A1"),
        ("pay; =HYPERLINK(1)", "pay; '=HYPERLINK(1)"),
        ("a\t@SUM(1)", "a\t'@SUM(1)"),
        ("-5", "-5"),
        ("5; -5 or; - none", "5; -5 or; - none"),
        (3, 3),
    ],
)
def test_no_cell_of_a_csv_is_a_formula_whatever_separates_the_cells(cell: object, safe: object) -> None:
    assert harmless(cell) == safe


def test_pairs_are_shown_shortened_until_the_job_has_ended(blobs: Blobs, tmp_path: Path) -> None:
    store, path = MatchStore(blobs, 60), tmp_path / "long"
    path.write_bytes(b"".join(orjson.dumps([n + 5, "é" * (n * 999), []]) + b"\n" for n in range(3)))
    running = replace(JOB, status=Status.RUNNING)
    assert store.best(running) is None
    store.show(running, [path], np.array([0, 1]), np.array([1, 2]))
    assert store.best(running) == [
        {"row_a": 5, "row_b": 6, "a": "", "b": "é" * 300}, {"row_a": 6, "row_b": 7, "a": "é" * 300, "b": "é" * 300},
    ]  # fmt: skip
    assert store.best(replace(running, status=Status.SUCCEEDED)) is None
    assert not published(blobs, running)
