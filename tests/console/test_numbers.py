"""What the page computes itself: distributions, shares in words, labels out of tables, and pairs drawn to be judged."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from isosim.fitting.reference import build, sample_pairs
from isosim.jobs.labels import parse_pairs
from isosim.scoring.advice import rarity
from tests.console.conftest import Site

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(browser: Any, site: Site) -> Iterator[Run]:
    """Calls a script in the page: the names of a module's functions, the script's body, and its argument `given`."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site.server.url}/console")

    def call(module: str, names: str, body: str, given: Any = None) -> Any:
        script = f"async (given) => {{ const {{ {names} }} = await import('/console/{module}.js'); {body} }}"
        return page.evaluate(script, given)

    yield call
    context.close()


def test_the_histogram_read_off_a_curve_is_that_of_the_pairs(run: Run) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(1500, 24)) * np.linspace(2, 0.2, 24) + 0.4).astype(np.float32)
    pairs = sample_pairs([(vectors, np.arange(len(vectors)))], rng)
    reference = build(pairs, rng)
    edges = np.linspace(-0.9, 1.0, 61)
    body = "return histogram(...given);"
    found = run("distribution", "histogram", body, [reference.curve(), edges.tolist()])
    counted = np.histogram(pairs.similarities, edges)[0] / len(pairs.similarities)
    assert np.abs(np.array(found) - counted).max() < 0.02 * counted.max()
    assert abs(sum(found) - 1) < 1e-3

    rates = [0.9, 0.5, 0.1, 0.01, 0.001, 0.0001]
    body = "return given[1].map((rate) => similarityAt(given[0], rate)).map((at) => [at, rateAt(given[0], at)]);"
    for rate, (similarity, back) in zip(
        rates, run("distribution", "similarityAt, rateAt", body, [reference.curve(), rates]), strict=True
    ):
        assert abs(similarity - reference.threshold(rate)) < 0.005
        assert abs(back / rate - 1) < 1e-6


def test_shares_are_written_no_finer_than_the_data_support_and_without_exponents(run: Run) -> None:
    body = """return [
        percentile(1 - 1e-9, true, 11175), percentile(1 - 5e-4, true, 11175), percentile(0.975, false, 11175),
        percentile(1 - 1e-9, true, 2000000), percentile(null, null, null), roughly(0.264), roughly(0.9999),
        roughly(0.001), ...[1e-9, 0.5, 0.0123, 1].map(percent)];"""
    assert run("format", "percentile, roughly, percent", body) == [
        "above 99.991 %", "above 99.91 %", "97.5 %", "above 99.99995 %", "–", "26 %", "above 99 %", "below 1 %",
        "0.0000001 %", "50 %", "1.2 %", "100 %",
    ]  # fmt: skip
    rates = [1e-9, 4e-7, 3e-6, 1e-5, 1 / 1234, 0.4]
    said = run("format", "oneIn", "return given.map((rate) => oneIn(1 - rate, 2_000_000));", rates)
    assert said == [rarity(1 - rate, 2_000_000) for rate in rates]  # as the command line says it


PARSE = ("labels", "parsePairs, pastedRows", "return parsePairs(pastedRows(given), true);")


@pytest.mark.parametrize(
    "text",
    [
        "1\tred car\tcrimson car\n0\tred car\tslow boat\n",
        "red car\tcrimson car\t1\r\n\r\nred car\tslow boat\t0.25",
        "label\ta\tb\n1\tred car\t7\n",
        "1984\ta novel\t1\nred car\tslow boat\t0\n",
        "1\ta novel\t1984\n+0\tred car\tseven\n",
        "id\tb\ta\tlabel\tcomment\n1\t7\t5\t0\tsee 3\n",
        "label\tweight\ta\tb\n1\t12.5\tred car\tcrimson car\n0\t1\tred car\tslow boat\n",
        "",
    ],
)
def test_labelled_pairs_are_read_as_the_command_line_reads_them(run: Run, text: str) -> None:
    lines = ((number, line.split("\t")) for number, line in enumerate(text.splitlines(), 1) if line)
    pairs = [{"a": a, "b": b, "label": label, "weight": weight} for _, (a, b, label, weight) in parse_pairs(lines)]
    assert run(*PARSE, text) == {"pairs": pairs, "faults": []}


def test_lines_that_are_no_labelled_pairs_are_named(run: Run) -> None:
    found = run(*PARSE, "label\tone\tother\n1\ta b\tc\n\n2\tonly two\n7\tx\ty\n1\t \ty\nno\tnumber\there")
    assert found["pairs"] == [{"a": "a b", "b": "c", "label": 1, "weight": 1}]
    assert [fault.split(":")[0] for fault in found["faults"]] == ["line 4", "line 5", "line 6", "line 7"]
    weighted = run(*PARSE, "label\ta\tb\tweight\n1\tx\ty\t0\n0\tx\tz\t3")
    assert weighted["faults"] == ["line 2: the weight must be a number above 0"]
    assert weighted["pairs"] == [{"a": "x", "b": "z", "label": 0, "weight": 3}]


DRAWING = ("drawing", "cosines, draw, effective, generator, untilPrecision, weightsOf")
# 80 sentences, 3,160 pairs; the higher a pair's similarity, the likelier it is a match.
POPULATION = """
const COUNT = 80;
const random = generator(7);
const similarities = new Float32Array(COUNT * (COUNT - 1) / 2).map(() => random() ** 4);
const matches = Array.from(similarities, (similarity) => Number(random() < 0.9 * similarity ** 2));
const placeOf = ({ i, j }) => i * COUNT - i * (i + 1) / 2 + j - i - 1;
"""


@pytest.mark.parametrize(("judged", "skipped"), [(20, 0), (60, 0.2)])
def test_weighted_counts_of_judged_pairs_are_those_of_all_pairs_on_average(
    run: Run, judged: int, skipped: float
) -> None:
    """Pairs above thresholds that are no edges of strata, matches and early pairs; the judging stops in a round."""
    body = """
        const [above, EARLY] = [[0, 0.2, 0.6, 0.95], 800];
        const skip = generator(3);
        const estimates = [];
        for (let seed = 0; seed < 1500; seed += 1) {
          const { strata, queue } = draw(similarities, COUNT, { seed });
          const taken = queue.slice(0, given[0]).filter(() => skip() >= given[1]);
          if (strata.some((_, index) => !taken.some(({ stratum }) => stratum === index))) continue;
          const weights = weightsOf(strata, taken.map(({ stratum }) => stratum));
          const weightOf = (wanted) => (total, pair, k) => total + (wanted(pair) ? weights[k] : 0);
          const sum = (wanted) => taken.reduce(weightOf(wanted), 0) / taken.length;
          estimates.push(above.flatMap((floor) => [
            sum(({ similarity }) => similarity >= floor),
            sum((pair) => pair.similarity >= floor && matches[placeOf(pair)]),
            sum((pair) => pair.similarity >= floor && placeOf(pair) < EARLY),
          ]));
        }
        const truth = above.flatMap((floor) => [
          similarities.filter((similarity) => similarity >= floor).length / similarities.length,
          matches.filter((match, k) => match && similarities[k] >= floor).length / similarities.length,
          similarities.slice(0, EARLY).filter((similarity) => similarity >= floor).length / similarities.length,
        ]);
        return { estimates, truth };"""
    found = run(*DRAWING, POPULATION + body, [judged, skipped])
    estimates = np.array(found["estimates"])
    assert len(estimates) > 600
    error = estimates.std(axis=0, ddof=1) / len(estimates) ** 0.5
    assert (np.abs(estimates.mean(axis=0) - found["truth"]) <= 4 * error + 1e-12).all()


def test_a_drawing_is_repeatable_and_draws_each_pair_once_from_strata_that_hold_all_pairs(run: Run) -> None:
    body = """
        const { strata, queue } = draw(similarities, COUNT, { seed: 1 });
        return {
          orders: [5, 5, 6].map((seed) => draw(similarities, COUNT, { seed }).queue.map(placeOf).join()),
          sizes: strata.map(({ size }) => size), above: strata.map(({ above }) => above),
          places: queue.map(placeOf), inside: queue.every(({ stratum, similarity }) =>
            similarity >= strata[stratum].floor && !(similarity >= strata[stratum + 1]?.floor)),
          near: draw(similarities, COUNT, { near: 0.01 }).strata.map(({ share }) => share),
          alike: draw(new Float32Array(3160).fill(0.5), COUNT).strata.map(({ size }) => size),
          cosines: Array.from(await cosines(new Float32Array([1, 0, 0, 1, 0.6, 0.8]), 3)),
        };"""
    found = run(*DRAWING, POPULATION + body)
    one, same, other = found["orders"]
    assert one == same != other
    assert sum(found["sizes"]) == 3160
    assert min(found["sizes"]) > 0
    assert found["above"] == sorted(found["above"], reverse=True)
    assert found["above"][:3] == [1, pytest.approx(0.1, abs=0.001), pytest.approx(0.01, abs=0.001)]
    assert len(set(found["places"])) == len(found["places"])
    assert found["inside"]
    assert found["near"] == [1, 2, 2, *[1] * (len(found["near"]) - 3)]  # more beside the wanted rate
    assert found["alike"] == [3160]
    assert found["cosines"] == pytest.approx([0, 0.6, 0.8])


@pytest.mark.parametrize("power", [0.5, 4, 40])
def test_the_first_twenty_labels_are_worth_ten_equal_ones(run: Run, power: float) -> None:
    """The server refuses labels that are worth fewer."""
    body = """
        const values = similarities.map((similarity) => similarity ** given);
        return Math.min(...Array.from({ length: 50 }, (_, seed) => {
          const { strata, queue } = draw(values, COUNT, { seed });
          return effective(weightsOf(strata, queue.slice(0, 20).map(({ stratum }) => stratum)));
        }));"""
    assert run(*DRAWING, POPULATION + body, power) >= 10


def test_labels_still_needed_for_a_precision(run: Run) -> None:
    """The two highest labels are matches. A round of five labels adds one above them; eight are missing."""
    body = """
        const strata = [{ share: 2 }, { share: 3 }];
        const labels = (rows) => rows.map(([similarity, label, stratum]) =>
          ({ similarity, label, stratum, weight: 1 }));
        const upper = labels([[0.9, 1, 0], [0.8, 1, 0], [0.7, 0, 0], [0.6, 0, 0]]);
        const lower = labels([[0.3, 0, 1], [0.2, 0, 1], [0.1, 0, 1]]);
        const ten = labels(Array.from({ length: 10 }, (_, k) => [0.9 + k / 100, Number(k > 0), 0]));
        const cases = [[[...lower, ...upper], 0.9], [lower, 0.9], [ten, 0.9], [[...lower, ...ten], 0.95]];
        return cases.map((asked) => untilPrecision(strata, ...asked));"""
    assert run(*DRAWING, body) == [
        {"reached": 0, "more": 40}, {"reached": 0, "more": None},
        {"reached": 0.9, "more": 0}, {"reached": 0.9, "more": 3},
    ]  # fmt: skip
