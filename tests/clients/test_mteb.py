"""mteb's wrapper for OpenAI-like servers, on STS-B."""

import csv
import os
from pathlib import Path
from typing import Any

import datasets
import mteb
import pytest
from mteb.models import OpenAIAPIEncodeWrapper


class LocalStsb(type(mteb.get_task("STSBenchmark"))):  # type: ignore[misc]
    """mteb's own task on some of its pairs; mteb would download all of them."""

    def load_data(self, **_: Any) -> None:
        with (Path(os.environ["ISOSIM_STS"]) / "stsb" / "test.tsv").open(encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        columns = {
            "sentence1": [row[1] for row in rows],
            "sentence2": [row[2] for row in rows],
            "score": [float(row[0]) for row in rows],
        }
        self.dataset = {"test": datasets.Dataset.from_dict(columns)}
        self.data_loaded = True


def test_stsb_gives_the_spearman_that_isosim_evaluate_gives() -> None:
    model = OpenAIAPIEncodeWrapper(
        os.environ["ISOSIM_OPEN_URL"], "isosim", modalities=["text"], use_chat_template=False
    )
    task = LocalStsb()
    task.load_data()
    found = task.evaluate(model, "test", encode_kwargs={"batch_size": 32})
    spearman = 100 * found["default"]["cosine_spearman"]
    assert spearman == pytest.approx(float(os.environ["ISOSIM_STSB_SPEARMAN"]), abs=0.05)
