"""Names of domains and versions; saved targets: what they may be, and which pairs match for them."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.errors import InvalidInput
from isosim.scoring.advice import (
    MOST_DECISIONS,
    DecisionThreshold,
    Target,
    advise,
    decide,
    decision_threshold,
    in_single_precision,
    targets_in,
)
from isosim.scoring.calibration import Calibration, DomainModel, DomainRef
from isosim.scoring.similarity import Scores
from tests.core.scoring.references import MAP, REFERENCE

FMR = Target(fmr=0.01)


def scores(similarities: list[float] | np.ndarray[Any, Any], unreadable: list[bool] | None = None) -> Scores:
    """Of a version whose percentiles are those of REFERENCE."""
    columns = np.asarray(similarities, np.float32)
    blind = None if unreadable is None else np.array(unreadable)
    percentile = REFERENCE.percentile(columns)
    if blind is not None:
        percentile[blind] = 0
    return Scores(columns, columns, percentile, None, None, None, blind)


def matched(decision: DecisionThreshold, found: Scores) -> list[bool]:
    matches = decision.matches(found)
    assert matches is not None
    return [bool(match) for match in matches]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give one of them"),
        ({"fmr": 0.1, "precision": 0.9}, "give one of them"),
        ({"fmr": 1.0}, "fmr: 1; it must be a share, at least 1e-07 and less than 1"),
        ({"fmr": float("nan")}, "fmr: nan"),
        ({"fmr": 1e-8}, "fmr: 1e-08"),
        ({"fmr": 0.01, "gallery": 10}, "gallery"),
        ({"precision": 0.0}, "precision: 0; it must be more than 0 and less than 1"),
        ({"false_hit_rate": 0.0, "gallery": 10}, "false_hit_rate: 0; it must be at least 1e-06"),
        ({"false_hit_rate": 0.1}, "give both"),
        ({"false_hit_rate": 0.1, "gallery": 0}, "gallery: 0; the number of entries must be 1 to"),
    ],
)
def test_a_target_out_of_its_range_is_refused_with_the_range(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Target(**given)


def test_stored_facts_are_read_back_and_what_is_no_target_is_left_out() -> None:
    good = {"a": {"fmr": 0.01}, "b": {"precision": 0.9}, "c": {"false_hit_rate": 0.01, "gallery": 100}}
    bad: dict[str, Any] = {
        "d": None, "e": {}, "f": {"fmr": "0.1"}, "g": {"fmr": True}, "h": {"fmr": 7}, "i": [0.1], "j": {"margin": 0.1},
        "k": {"false_hit_rate": 0.01, "gallery": 2.5}, "l": {"fmr": 10**400}, "m": {"fmr": 0.1, "later": 1},
    }  # fmt: skip
    found = targets_in(json.loads(json.dumps(bad | good)))
    assert {name: target.facts for name, target in found.items()} == good
    assert list(found) == sorted(found)
    nothing: list[object] = [None, [], "x", 7]
    for damaged in nothing:
        assert targets_in(damaged) == {}


@given(st.floats(-1, 1))
def test_a_threshold_is_the_next_float32_upwards(similarity: float) -> None:
    found = in_single_precision(similarity)
    exact = np.float32(found)
    assert float(exact) >= similarity > float(np.nextafter(exact, np.float32(-2)))
    assert found == json.loads(orjson.dumps(exact, option=orjson.OPT_SERIALIZE_NUMPY))  # as similarities are written


@given(st.floats(-1, 1), st.integers(-2, 2))
def test_a_caller_who_compares_the_answers_own_digits_finds_the_same_matches(threshold: float, steps: int) -> None:
    decision = DecisionThreshold(FMR, in_single_precision(threshold))
    near = np.float32(decision.similarity)
    for _ in range(abs(steps)):
        near = np.nextafter(near, np.float32(2 * np.sign(steps)))
    written = orjson.dumps(
        {"similarity": np.array([near]), "threshold": decision.similarity}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    read = json.loads(written)
    assert matched(decision, scores([float(near)])) == [read["similarity"][0] >= read["threshold"]] == [steps >= 0]


@given(st.floats(1e-7, 0.99))
def test_what_matches_for_a_false_match_rate_keeps_it(rate: float) -> None:
    decision = decide(DomainModel(REFERENCE), "news", Target(fmr=rate))
    assert decision.similarity is not None
    kept = REFERENCE.false_match_rate(np.array([np.float32(decision.similarity)]))[0]
    assert kept <= rate * (1 + 1e-9)
    assert decision.similarity == advise(DomainModel(REFERENCE), "news", Target(fmr=rate)).similarity
    assert decision.similarity == float(str(np.float32(decision.similarity)))  # as similarities are written


def test_a_pair_with_an_unreadable_text_never_matches() -> None:
    decision = decide(DomainModel(REFERENCE), "news", FMR)
    assert matched(decision, scores([1.0, 1.0], [True, False])) == [False, True]


@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        (DomainModel(), FMR, "has no reference"),
        (DomainModel(REFERENCE), Target(precision=0.9), "was given no labels"),
        (DomainModel(REFERENCE, probability=MAP), Target(precision=0.99), "it must be between 0.50 and 0.90"),
        (DomainModel(REFERENCE), Target(false_hit_rate=0.01, gallery=9), "did not count false hits of searches"),
    ],
)
def test_a_target_that_a_version_cannot_reach_matches_nothing_and_says_why(
    model: DomainModel, target: Target, said: str
) -> None:
    decision = decide(model, "news", target)
    assert (decision.reached, decision.matches(scores([1.0])), decision.similarity) == (False, None, None)
    assert said in str(decision.notice)


def test_a_tie_that_no_threshold_divides_is_a_target_that_is_not_reached() -> None:
    tied = replace(REFERENCE, tied=np.array([0.4]), tied_rates=np.array([0.015]))
    decision = decide(DomainModel(tied), "news", Target(fmr=0.012))
    assert (decision.reached, decision.matches(scores([1.0]))) == (False, None)
    assert "fmr: 0.012 cannot be reached in 'news'" in str(decision.notice)


def test_a_version_computes_a_threshold_once_and_remembers_a_bounded_number() -> None:
    one, other = (Calibration("news", version, "identity", "e", model=DomainModel(REFERENCE)) for version in (1, 2))
    assert decision_threshold(one, FMR) is decision_threshold(one, Target(fmr=0.01))
    assert decision_threshold(other, FMR) is not decision_threshold(one, FMR)
    for number in range(3 * MOST_DECISIONS):
        decision_threshold(one, Target(fmr=0.1 + number / 1000))
        assert len(one.decisions) <= MOST_DECISIONS


@given(st.floats(-1, 1, width=32))
def test_a_labelled_pair_that_a_precisions_threshold_lies_on_passes_by_the_digits_it_is_written_with(at: float) -> None:
    table = np.full(len(MAP.precisions), at)  # as float64 it was above these digits
    labelled = replace(MAP, thresholds=table, interval_low=table, interval_high=table)
    advice = advise(DomainModel(REFERENCE, probability=labelled), "news", Target(precision=float(MAP.precisions[0])))
    written = json.loads(orjson.dumps(np.array([at], np.float32), option=orjson.OPT_SERIALIZE_NUMPY))[0]
    assert written >= advice.similarity
    assert advice.interval[0] <= advice.similarity <= advice.interval[1]


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("default", "default", "champion"),
        ("news@3", "news", 3),
        ("news@0", "news", 0),
        ("news@previous", "news", "previous"),
        ("news@champion", "news", "champion"),
        ("0", "0", "champion"),
        ("a.b_c-d", "a.b_c-d", "champion"),
        ("a" * 64 + "@999999999", "a" * 64, 999_999_999),
    ],
)
def test_a_name_and_a_version(text: str, name: str, version: int | str) -> None:
    assert DomainRef.parse(text) == DomainRef(name, version)


@pytest.mark.parametrize(
    "text",
    [
        "", "@", "@3", "news@", "news@03", "news@-1", "news@1.5", "news@latest", "news@3@4", "news@1000000000",
        "News", "NEWS", "news@Previous", "nëws", "новости", "news@٣", "ｎews",
        "..", ".", ".hidden", "-x", "_x", "../etc", "a/b", "a\\b", "/etc/passwd", "a/../../b", "a%2fb",
        "a b", " a", "a ", "a\n", "a\0", "a" * 65,
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="domain"):
        DomainRef.parse(text)


@given(st.text())
def test_whatever_is_taken_is_safe_as_a_folders_name(text: str) -> None:
    try:
        ref = DomainRef.parse(text)
    except InvalidInput as error:
        assert len(str(error)) < 400  # a long text is not sent back whole
        return
    assert ref.name.isascii()
    assert not set(ref.name) & set("/\\@ \0\n")
    assert not ref.name.startswith(".")


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True), st.integers(0, 999_999_999))
def test_a_written_reference_is_read_back(name: str, version: int) -> None:
    assert DomainRef.parse(f"{name}@{version}") == DomainRef(name, version)
