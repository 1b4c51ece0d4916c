"""Pairs for people to judge: drawn with known probabilities, so that weighted labels stand for all pairs."""

from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Visit
from tests.processes import Server

# 80 sentences, 3,160 pairs; the higher a pair's similarity, the likelier it is a match.
POPULATION = """
const { draw, effective, generator, weightsOf } = await import("/console/drawing.js");
const COUNT = 80;
const random = generator(7);
const similarities = new Float32Array(COUNT * (COUNT - 1) / 2).map(() => random() ** 4);
const matches = Array.from(similarities, (similarity) => Number(random() < 0.9 * similarity ** 2));
const placeOf = ({ i, j }) => i * COUNT - i * (i + 1) / 2 + j - i - 1;
"""


@pytest.fixture
def page(visit: Visit, tiny_server: Server) -> Analyst:
    return visit(tiny_server)


def run(analyst: Analyst, script: str) -> Any:
    return analyst.page.evaluate("async () => {" + POPULATION + script + "}")


@pytest.mark.parametrize(("judged", "skipped"), [(20, 0), (37, 0), (60, 0.2)])
def test_weighted_counts_of_judged_pairs_are_those_of_all_pairs_on_average(
    page: Analyst, judged: int, skipped: float
) -> None:
    """Pairs, and matches among them, above thresholds that are no edges of strata; the judging stops in a round."""
    found = run(
        page,
        """
        const above = [0, 0.2, 0.6, 0.95];
        const skip = generator(3);
        const estimates = [];
        for (let seed = 0; seed < 1500; seed += 1) {
          const { strata, queue } = draw(similarities, COUNT, { seed });
          const taken = queue.slice(0, JUDGED).filter(() => skip() >= SKIPPED);
          if (strata.some((_, index) => !taken.some(({ stratum }) => stratum === index))) continue;
          const weights = weightsOf(strata, taken.map(({ stratum }) => stratum));
          const weightOf = (wanted) => (total, pair, k) => total + (wanted(pair) ? weights[k] : 0);
          const sum = (wanted) => taken.reduce(weightOf(wanted), 0) / taken.length;
          estimates.push(above.flatMap((floor) => [
            sum(({ similarity }) => similarity >= floor),
            sum((pair) => pair.similarity >= floor && matches[placeOf(pair)]),
          ]));
        }
        const truth = above.flatMap((floor) => [
          similarities.filter((similarity) => similarity >= floor).length / similarities.length,
          matches.filter((match, k) => match && similarities[k] >= floor).length / similarities.length,
        ]);
        return { estimates, truth };
        """.replace("JUDGED", str(judged)).replace("SKIPPED", str(skipped)),
    )
    assert len(found["estimates"]) > 600
    for estimates, truth in zip(zip(*found["estimates"], strict=True), found["truth"], strict=True):
        count = len(estimates)
        mean = sum(estimates) / count
        deviation = (sum((one - mean) ** 2 for one in estimates) / (count - 1)) ** 0.5
        assert abs(mean - truth) <= 4 * deviation / count**0.5 + 1e-12


def test_each_pair_of_a_stratum_is_drawn_as_often_as_its_weight_says(page: Analyst) -> None:
    found = run(
        page,
        """
        const times = new Array(similarities.length).fill(0);
        const probability = new Array(similarities.length).fill(0);
        for (let seed = 0; seed < 2000; seed += 1) {
          const { strata, queue } = draw(similarities, COUNT, { seed });
          const opened = strata.map(({ opening }) => opening);
          for (const pair of queue.slice(0, opened.reduce((a, b) => a + b))) times[placeOf(pair)] += 1;
          if (seed) continue;
          similarities.forEach((similarity, k) => {
            const stratum = strata.findLastIndex(({ floor }) => similarity >= floor);
            probability[k] = opened[stratum] / strata[stratum].size;
          });
        }
        return { times, probability, drawings: 2000 };
        """,
    )
    drawings = found["drawings"]
    away = [
        (times - drawings * p) / (drawings * p * (1 - p)) ** 0.5
        for times, p in zip(found["times"], found["probability"], strict=True)
        if p < 1
    ]
    assert max(map(abs, away)) < 5.5
    assert 0.9 < sum(one**2 for one in away) / len(away) < 1.1


def test_the_same_seed_draws_the_same_pairs_and_another_one_others(page: Analyst) -> None:
    one, same, other = run(
        page, "return [5, 5, 6].map((seed) => draw(similarities, COUNT, { seed }).queue.map(placeOf).join())"
    )
    assert one == same
    assert one != other


def test_no_pair_is_drawn_twice_and_the_strata_hold_all_pairs(page: Analyst) -> None:
    found = run(
        page,
        """
        const { strata, queue } = draw(similarities, COUNT, { seed: 1 });
        return {
          sizes: strata.map(({ size }) => size), above: strata.map(({ above }) => above),
          places: queue.map(placeOf), inside: queue.every(({ stratum, similarity }) =>
            similarity >= strata[stratum].floor && !(similarity >= strata[stratum + 1]?.floor)),
        };
        """,
    )
    assert sum(found["sizes"]) == 3160
    assert min(found["sizes"]) > 0
    assert found["above"] == sorted(found["above"], reverse=True)
    assert found["above"][:3] == [1, pytest.approx(0.1, abs=0.001), pytest.approx(0.01, abs=0.001)]
    assert len(set(found["places"])) == len(found["places"])
    assert found["inside"]


@pytest.mark.parametrize("power", [0.5, 4, 40])
def test_the_first_twenty_labels_are_worth_ten_equal_ones(page: Analyst, power: float) -> None:
    """The server refuses labels that are worth fewer."""
    least = run(
        page,
        """
        const least = [];
        for (let seed = 0; seed < 50; seed += 1) {
          const values = similarities.map((similarity) => similarity ** POWER);
          const { strata, queue } = draw(values, COUNT, { seed });
          least.push(effective(weightsOf(strata, queue.slice(0, 20).map(({ stratum }) => stratum))));
        }
        return Math.min(...least);
        """.replace("POWER", str(power)),
    )
    assert least >= 10


def test_more_pairs_are_drawn_beside_the_wanted_rate(page: Analyst) -> None:
    strata = run(page, "return draw(similarities, COUNT, { near: 0.01 }).strata")
    assert [stratum["share"] for stratum in strata] == [1, 2, 2, *[1] * (len(strata) - 3)]


def test_similarities_that_are_all_alike_are_one_stratum(page: Analyst) -> None:
    found = run(page, "return draw(new Float32Array(3160).fill(0.5), COUNT)")
    assert [stratum["size"] for stratum in found["strata"]] == [3160]
    assert len(found["queue"]) > 20


def test_cosines_are_those_of_all_pairs_in_order(page: Analyst) -> None:
    found = run(
        page,
        """
        const { cosines } = await import("/console/drawing.js");
        return Array.from(await cosines(new Float32Array([1, 0, 0, 1, 0.6, 0.8]), 3));
        """,
    )
    assert found == pytest.approx([0, 0.6, 0.8])


def test_labels_still_needed_for_a_precision(page: Analyst) -> None:
    """The two highest labels are matches. A round of five labels adds one above them; eight are missing."""
    found = run(
        page,
        """
        const { untilPrecision } = await import("/console/drawing.js");
        const strata = [{ share: 2 }, { share: 3 }];
        const labels = (rows) => rows.map(([similarity, label, stratum]) =>
          ({ similarity, label, stratum, weight: 1 }));
        const upper = labels([[0.9, 1, 0], [0.8, 1, 0], [0.7, 0, 0], [0.6, 0, 0]]);
        const lower = labels([[0.3, 0, 1], [0.2, 0, 1], [0.1, 0, 1]]);
        const ten = labels(Array.from({ length: 10 }, (_, k) => [0.9 + k / 100, Number(k > 0), 0]));
        return [
          untilPrecision(strata, [...lower, ...upper], 0.9),
          untilPrecision(strata, lower, 0.9),
          untilPrecision(strata, [...lower, ...ten], 0.9),
          untilPrecision(strata, [...lower, ...ten], 0.95),
        ];
        """,
    )
    assert found == [
        {"reached": 0, "more": 40},
        {"reached": 0, "more": None},
        {"reached": 0.9, "more": 0},
        {"reached": 0.9, "more": 3},
    ]
