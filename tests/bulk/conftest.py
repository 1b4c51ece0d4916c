"""A store with a calibrated domain, texts in a file, and jobs on them."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.bulk.engine import Engine
from isosim.bulk.inputs import Input
from isosim.bulk.job import Job, Options, Where, prepare
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.store.blobs import opened
from tests.stores import calibrate
from tests.text import sentences

ROWS = 900
TEXTS = sentences(ROWS)
RAW = {"space": "raw", "normalize": False}


@pytest.fixture(scope="session")
def bulk_store(tiny_store: Path, tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder and `tickets@1`, soft whitening."""
    store = tmp_path_factory.mktemp("bulk") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    calibrate(store, EncoderStore.at(store).find(tiny.id), "tickets", "soft")
    return store


@pytest.fixture(scope="session")
def texts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of 900 texts in row groups of 400, with two more columns."""
    file = tmp_path_factory.mktemp("texts") / "texts.parquet"
    other = [TEXTS[(row + 1) % ROWS] for row in range(ROWS)]
    table = pa.table({"id": [f"t{row}" for row in range(ROWS)], "text": TEXTS, "other": other})
    pq.write_table(table, file, row_group_size=400)
    return file


def prepared(
    output: Path | str, store: Path, source: Path | str, task: str = "embed", domain: str = "tickets",
    encoder: str = "tiny", **given: object,
) -> tuple[Job, Input, Calibration]:  # fmt: skip
    """A job on the tiny store, in blocks of 100 rows."""
    columns = ("text",) if task == "embed" else ("text", "other")
    known = {
        "task": task, "columns": columns, "max_characters": 10_000, "device": "cpu",
        "batch_tokens": 256, "rows": 100,
    }  # fmt: skip
    options = Options(**known | given)  # type: ignore[arg-type]
    return prepare(options, str(source), str(output), encoder, DomainRef.parse(domain), Where(store))


def make(output: Path | str, store: Path, source: Path | str, **given: object) -> tuple[Job, Calibration]:
    """All files of a job, from one engine without Ray."""
    job, rows, calibration = prepared(output, store, source, **given)  # type: ignore[arg-type]
    engine = Engine(job, Where(store))
    for number, block in enumerate(rows.blocks(job.options.rows)):
        opened(str(output)).write(job.name(number), engine(number, block)[0])
    return job, calibration
