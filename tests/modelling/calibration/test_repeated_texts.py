"""Texts that the encoder cannot tell apart: what a reference, a threshold and a report make of them."""

import numpy as np
import pytest

from evaluation.calibrated import false_match_rate
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting.evidence import repeated
from isosim.fitting.job import calibrate_job
from isosim.fitting.publication import off_by
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Posted
from isosim.scoring.advice import Target, advise, rounded
from isosim.scoring.calibration import DomainModel
from isosim.scoring.equating import USUAL_RATES, equate, table
from tests.modelling.calibration.domains import COUNT, pairs_of, reference_of, texts_with, without_ties
from tests.stores import domains_of
from tests.text import sentences

FACTOR = 1.25


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.003, 0.001])
@pytest.mark.parametrize("shares", [(), (0.05,), (0.1,), (0.2,), (0.1, 0.1), (0.3, 0.02)])
def test_a_threshold_keeps_its_rate_where_texts_repeat_or_is_refused_with_one_that_does(
    shares: tuple[float, ...], rate: float
) -> None:
    x = texts_with(*shares)
    model = DomainModel(reference_of(x))
    try:
        asked, threshold = rate, advise(model, "mails", Target(fmr=rate)).similarity
    except InvalidInput as error:
        assert shares, "nothing ties"
        asked = float(str(error).split()[-3 if str(error).endswith("or more") else -1])
        assert asked > rate
        assert f"{asked:g}" in str(error)
        threshold = advise(model, "mails", Target(fmr=asked)).similarity
    assert 1 / FACTOR <= false_match_rate(x, threshold) / asked <= FACTOR


def test_a_rate_between_two_ties_is_refused_with_those_on_both_sides() -> None:
    """Two notices: pairs of one of each tie below 1, and no threshold divides them."""
    x = texts_with(0.15, 0.15)
    x[112:224] += 2 * x[:112]
    scale = reference_of(x)
    between, top = scale.gaps
    assert scale.tied[0] < 0.95
    with pytest.raises(InvalidInput, match=rf"reaches are {between[0]:.3g} and {rounded(between[1]):g}"):
        advise(DomainModel(scale), "mails", Target(fmr=float(between.mean())))
    assert (
        scale.smallest_rate == pytest.approx(2 * 112 * 111 / (COUNT * (COUNT - 1)), rel=1e-3) == pytest.approx(top[1])
    )


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
def test_equal_texts_score_with_the_rate_of_all_pairs_that_tie_up_to_rounding(share: float) -> None:
    x = texts_with(share)
    equal = round(share * COUNT)
    expected = equal * (equal - 1) / (COUNT * (COUNT - 1))
    scores = np.array([1.0, 1 - 6e-8, 1 - 1.2e-7], np.float32)
    np.testing.assert_allclose(reference_of(x).false_match_rate(scores), expected, rtol=1e-3)


@pytest.mark.parametrize("equal", [5, 12, 40])
def test_a_tie_too_rare_for_the_quantiles_is_counted_from_ten_pairs_on(equal: int) -> None:
    x = texts_with(equal / 2000, count=2000)
    scale = reference_of(x)
    pairs = equal * (equal - 1) / 2
    assert scale.smallest_rate == pytest.approx(pairs / scale.pairs, rel=1e-3)
    at = [*np.linspace(scale.threshold(1e-3), 0.999, 20)]
    counted = [false_match_rate(x, similarity) for similarity in at]
    rates = scale.false_match_rate(np.array(at))
    assert (np.abs(np.log(rates / np.maximum(counted, 1e-12)))[np.array(counted) * scale.pairs > 100] < 0.25).all()


def test_a_scale_that_knows_its_ties_is_judged_better_than_one_that_lost_them() -> None:
    x, others = texts_with(0.2), pairs_of(texts_with(0.2, seed=1))
    assert off_by(reference_of(x), others) < 0.1 < off_by(without_ties(x), others)


def test_a_threshold_is_carried_over_only_to_a_rate_that_the_new_scale_has() -> None:
    plain, mails = reference_of(texts_with(), intervals=True), reference_of(texts_with(0.2), intervals=True)
    assert [one.fmr for one in table(plain, mails)] == pytest.approx([0.1, 0.05])
    assert len(table(plain, plain)) == len(USUAL_RATES)
    with pytest.raises(InvalidInput, match="which no threshold of the new version reaches"):
        equate(plain, mails, plain.threshold(0.001))


def test_groups_of_equal_vectors_are_found_whatever_lies_between_them() -> None:
    x = texts_with(0.1, 0.03, 2 / COUNT)
    order = np.random.default_rng(1).permutation(COUNT)
    groups = repeated(x[order])
    assert [len(rows) for rows in groups] == [74, 22, 2]
    assert sorted(order[groups[0]].tolist()) == list(range(74))
    assert all((np.diff(rows) > 0).all() for rows in groups)
    assert repeated(texts_with()) == []


def test_a_report_names_the_lines_of_repeated_texts_and_never_a_text(
    tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory
) -> None:
    domains = domains_of(tmp_path_factory.mktemp("repeated"))
    plain = sentences(300)
    texts = [*plain[:10], plain[0], *(text.upper() for text in plain[:5]), *plain[10:]]  # the tokenizer is uncased
    asked = JobRequest("mails", tiny.digest, tiny.id, "identity", sentences=len(texts))
    made = calibrate_job(asked, Posted(texts, []), tiny, domains, lambda _, __: None, threads=1)
    facts = made.report["repeated"]
    assert (facts["texts"], facts["vectors"]) == (10, 5)
    assert facts["groups"][:2] == [{"texts": 2, "lines": [1, 12]}, {"texts": 2, "lines": [2, 13]}]
