"""What the page computes itself: distributions out of a report's curve, and how it reads text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.adapters.jobs.spool import Spool
from service.api.calibration.intake import Intake, Limits
from service.core.jobs.labels import parse_pairs
from service.core.scoring.advice import rarity
from service.modelling.calibration.reference import build, sample_pairs
from tests.console.conftest import Visit
from tests.processes import Server

LIMITS = {"characters": 50, "bytes": 1_000_000, "sentences": 1000}
TOO_LONG = "x" * 51
ODD = f"\ufeffOne sentence.\r\n\r\n  Two  \n\t \nOne sentence.\n{'🙂' * 49}\n{TOO_LONG}\n\u2003\nlast, without an end"


def imported(visit: Visit, server: Server, script: str, argument: Any) -> Any:
    return visit(server).page.evaluate(script, argument)


def test_the_histogram_read_off_a_curve_is_that_of_the_pairs(visit: Visit, tiny_server: Server) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(1500, 24)) * np.linspace(2, 0.2, 24) + 0.4).astype(np.float32)
    pairs = sample_pairs([(vectors, np.arange(len(vectors)))], rng)
    reference = build(pairs, rng)
    edges = np.linspace(-0.9, 1.0, 61)
    found = imported(
        visit,
        tiny_server,
        "async ([curve, edges]) => (await import('./console/distribution.js')).histogram(curve, edges)",
        [reference.curve(), edges.tolist()],
    )
    counted = np.histogram(pairs.similarities, edges)[0] / len(pairs.similarities)
    assert np.abs(np.array(found) - counted).max() < 0.02 * counted.max()
    assert abs(sum(found) - 1) < 1e-3


def test_a_rate_and_its_threshold_belong_together(visit: Visit, tiny_server: Server) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(800, 16)).astype(np.float32) + 0.3
    reference = build(sample_pairs([(vectors, np.arange(len(vectors)))], rng), rng)
    rates = [0.9, 0.5, 0.1, 0.01, 0.001, 0.0001]
    found = imported(
        visit,
        tiny_server,
        """async ([curve, rates]) => {
            const { similarityAt, rateAt } = await import('./console/distribution.js');
            return rates.map((rate) => [similarityAt(curve, rate), rateAt(curve, similarityAt(curve, rate))]);
        }""",
        [reference.curve(), rates],
    )
    for rate, (similarity, back) in zip(rates, found, strict=True):
        assert abs(similarity - reference.threshold(rate)) < 0.005
        assert abs(back / rate - 1) < 1e-6


def test_rarity_is_said_as_the_command_line_says_it(visit: Visit, tiny_server: Server) -> None:
    rates = [1e-9, 4e-7, 3e-6, 1e-5, 1 / 1234, 0.4]
    found = imported(
        visit,
        tiny_server,
        """async ([rates, pairs]) => {
            const { oneIn } = await import('./console/format.js');
            return rates.map((rate) => oneIn(1 - rate, pairs));
        }""",
        [rates, 2_000_000],
    )
    assert found == [rarity(1 - rate, 2_000_000) for rate in rates]


def read(visit: Visit, server: Server, text: str) -> Any:
    return imported(
        visit,
        server,
        """async ([text, limits]) => {
            const { understand } = await import('./console/intake.js');
            return understand(new Blob([text]), limits);
        }""",
        [text, LIMITS],
    )


def test_text_is_understood_as_the_server_does(visit: Visit, tiny_server: Server, tmp_path: Path) -> None:
    found = read(visit, tiny_server, ODD)
    assert (found["lines"], found["sentences"], found["distinct"]) == (9, 5, 4)
    assert (found["empty"], found["tooLong"], found["places"], found["duplicates"]) == (3, 1, [7], 1)
    assert (found["longest"], found["longestLine"]) == (51, 7)
    with Spool(tmp_path) as spool:
        intake = Intake(spool, Limits(sentences=1000, characters=50, dim=32, size=1_000_000))
        intake.feed(ODD.replace(TOO_LONG + "\n", "").encode())
        intake.close()
    assert (intake.sentences, intake.distinct) == (found["sentences"], found["distinct"])


def test_what_is_too_long_is_left_out_of_the_body(visit: Visit, tiny_server: Server) -> None:
    body = imported(
        visit,
        tiny_server,
        """async ([text, limits]) => {
            const { understand, bodyOf } = await import('./console/intake.js');
            const blob = new Blob([text]);
            const pairs = [{ a: "x", b: "y", label: 1 }];
            const { body, type } = await bodyOf(blob, limits, await understand(blob, limits), pairs);
            return [type, await body.text()];
        }""",
        ["one\n" + TOO_LONG + '\n\n"two"\n', LIMITS],
    )
    assert body == ["application/x-ndjson", '"one"\n"\\"two\\""\n{"a":"x","b":"y","label":1}']


def test_lines_that_are_no_labelled_pairs_are_named(visit: Visit, tiny_server: Server) -> None:
    text = "label\tone\tother\n1\ta b\tc\r\n0.5\td\te\n\n2\tonly two\n7\tx\ty\n1\t \ty\nno\tnumber\there"
    found = imported(visit, tiny_server, "async (text) => (await import('./console/labels.js')).parsePairs(text)", text)
    assert found["pairs"] == [{"a": "a b", "b": "c", "label": 1}, {"a": "d", "b": "e", "label": 0.5}]
    assert [fault.split(":")[0] for fault in found["faults"]] == ["line 5", "line 6", "line 7", "line 8"]
    weighted = "label\ta\tb\tweight\n1\tx\ty\t0\n0\tx\tz\t3"
    script = "async (text) => (await import('./console/labels.js')).parsePairs(text)"
    found = imported(visit, tiny_server, script, weighted)
    assert found["faults"] == ["line 2: the weight must be a number above 0"]
    assert found["pairs"] == [{"a": "x", "b": "z", "label": 0, "weight": 3}]


@pytest.mark.parametrize(
    "text",
    [
        "1\tred car\tcrimson car\n0\tred car\tslow boat\n",
        "red car\tcrimson car\t1\r\n\r\nred car\tslow boat\t0.25",
        "label\ta\tb\n1\tred car\t7\n",
        "1984\ta novel\t1\nred car\tslow boat\t0\n",
        "1\ta novel\t1984\n+0\tred car\t7\n",
        "label\ta\tb\n",
        "label\tweight\ta\tb\n1\t12.5\tred car\tcrimson car\n0\t1\tred car\tslow boat\n",
        "",
    ],
)
def test_labelled_pairs_are_read_as_the_command_line_reads_them(visit: Visit, tiny_server: Server, text: str) -> None:
    script = "async (text) => (await import('./console/labels.js')).parsePairs(text)"
    lines = ((number, line.split("\t")) for number, line in enumerate(text.splitlines(), 1) if line)
    assert imported(visit, tiny_server, script, text) == {
        "pairs": [
            {"a": a, "b": b, "label": label} | ({} if weight == 1 else {"weight": weight})
            for a, b, label, weight in parse_pairs(lines, "labels.tsv")
        ],
        "faults": [],
    }
