"""What the page computes itself: distributions out of a report's curve, and how it reads labels."""

from typing import Any

import numpy as np
import pytest

from isosim.fitting.reference import build, sample_pairs
from isosim.jobs.labels import parse_pairs
from isosim.scoring.advice import rarity
from tests.console.conftest import Visit
from tests.processes import Server


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


PARSED = """async (text) => {
    const { parsePairs, pastedRows } = await import('./console/labels.js');
    return parsePairs(pastedRows(text), true);
}"""


def test_lines_that_are_no_labelled_pairs_are_named(visit: Visit, tiny_server: Server) -> None:
    text = "label\tone\tother\n1\ta b\tc\r\n0.5\td\te\n\n2\tonly two\n7\tx\ty\n1\t \ty\nno\tnumber\there"
    found = imported(visit, tiny_server, PARSED, text)
    assert found["pairs"] == [
        {"a": "a b", "b": "c", "label": 1, "weight": 1},
        {"a": "d", "b": "e", "label": 0.5, "weight": 1},
    ]
    assert [fault.split(":")[0] for fault in found["faults"]] == ["line 5", "line 6", "line 7", "line 8"]
    weighted = "label\ta\tb\tweight\n1\tx\ty\t0\n0\tx\tz\t3"
    found = imported(visit, tiny_server, PARSED, weighted)
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
        "id\tb\ta\tlabel\tcomment\n1\t7\t5\t0\tsee 3\n",
        "label\tweight\ta\tb\n1\t12.5\tred car\tcrimson car\n0\t1\tred car\tslow boat\n",
        "",
    ],
)
def test_labelled_pairs_are_read_as_the_command_line_reads_them(visit: Visit, tiny_server: Server, text: str) -> None:
    lines = ((number, line.split("\t")) for number, line in enumerate(text.splitlines(), 1) if line)
    assert imported(visit, tiny_server, PARSED, text) == {
        "pairs": [
            {"a": a, "b": b, "label": label, "weight": weight}
            for _, (a, b, label, weight) in parse_pairs(lines, "labels.tsv")
        ],
        "faults": [],
    }
