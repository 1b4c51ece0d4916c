"""What `auto` chooses: soft whitening where a space shows its text's surface, else nothing; and what labels change."""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.arrays import Vectors
from isosim.fitting import evidence, gate, recognition, scripts
from isosim.fitting.gate import FLOW_SENTENCES, Labels, Rule, candidates
from isosim.fitting.methods import fit
from isosim.fitting.report import candidate_facts
from isosim.scoring.method import IDENTITY, Method
from isosim.scoring.similarity import cosine
from tests.text import sentences

DIM = 64
COUNT = gate.SENTENCES_FULL  # enough for the full strength


@pytest.fixture(autouse=True)
def no_flows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows cost seconds; one test looks at them."""
    if "flows" not in request.node.name:
        monkeypatch.setattr(gate, "FLOW_SENTENCES", 10 * COUNT)


@cache
def embedded(count: int, raw: float, seed: int = 0) -> Vectors:
    """A bag of random word vectors off-centre; `raw` adds directions that count words, letters and marks."""
    rng = np.random.default_rng(seed)
    texts = sentences(count)
    tokens = [scripts.TOKEN.findall(text.lower()) for text in texts]
    table = {token: rng.standard_normal(DIM) for token in sorted({token for row in tokens for token in row})}
    words = np.array([np.mean([table[token] for token in row], axis=0) for row in tokens])
    words = (words - words.mean(0)) / words.std()
    surface = evidence.surface_basis(evidence.surface_features(texts)) * np.sqrt(count)
    shown = surface @ rng.standard_normal((surface.shape[1], DIM))
    x: Vectors = (words + raw * shown + min(raw, 1) * 1.5 * rng.standard_normal(DIM)).astype(np.float32)
    return x


def by_looks(texts: list[str]) -> Vectors:
    """Each sentence's disguises are nearer to other sentences in the same one, as raw encoders have it."""
    rng = np.random.default_rng(1)
    looks = 10 * rng.standard_normal((len(recognition.DISGUISES) + 1, DIM))
    count = len(texts) // len(looks)
    own = rng.standard_normal((count, DIM))
    plain, others = own + looks[0], (own[:, None] + looks[1:]).reshape(-1, DIM)
    return np.concatenate([plain, others]).astype(np.float32)


def by_meaning(texts: list[str]) -> Vectors:
    """Each sentence has one vector, whatever it looks like."""
    count = len(texts) // (len(recognition.DISGUISES) + 1)
    own = np.random.default_rng(2).standard_normal((count, DIM))
    return np.concatenate([own, np.repeat(own, len(recognition.DISGUISES), axis=0)]).astype(np.float32)


class Choice(NamedTuple):
    method: Method
    rule: Rule | None
    labels: evidence.LabelTest | None


def choose(*given: Any, **options: Any) -> Choice:
    return Choice(*gate.choose(*given, **options))


def rule_of(choice: Choice) -> Rule:
    assert choice.rule is not None
    return choice.rule


def chosen(count: int, raw: float, labels: Labels | None = None) -> Choice:
    return choose(sentences(count), embedded(count, raw), by_looks, labels=labels)


def labelled(
    count: int, better: str | None, kind: str = "grades", noise: float = 0.05, raw: float = 0.0, seed: int = 7
) -> Labels:
    """Pairs of the domain, graded by the cosine that the method `better` gives (None: by chance)."""
    x, rng = embedded(COUNT, raw), np.random.default_rng(seed)
    left, right = rng.integers(COUNT, size=(2, count))
    right = np.where(left == right, (right + 1) % COUNT, right)
    if better is None:
        grades = rng.standard_normal(count)
    else:
        y = fit(Method.parse(better), x, x[:0], 0)(x)
        grades = cosine(y[left], y[right]) + noise * rng.standard_normal(count)
    values = grades if kind == "grades" else (grades > np.median(grades)).astype(np.float64)
    return Labels(x[left], x[right], values.astype(np.float64))


def test_a_space_collapsed_onto_one_direction_is_whitened_though_it_shows_no_surface() -> None:
    x = embedded(COUNT, 0.0).copy()
    x[:, 5] += 30 * np.random.default_rng(1).standard_normal(COUNT).astype(np.float32)
    choice = choose(sentences(COUNT), x, by_looks)
    assert (rule_of(choice).rawness or 0) < gate.RAW_OFF
    assert choice.method.name == "soft"


@given(st.floats(0, 1), st.floats(0.001, 1), st.floats(1, 400), st.floats(1, 400), st.floats(1.0, 4.0))
def test_the_strength_grows_with_surface_and_sentences(
    share: float, reference: float, directions: float, expected: float, factor: float
) -> None:
    surface = evidence.Surface(share, reference, directions, expected)
    weaker = gate.strength(surface, COUNT)
    assert 0 <= weaker <= gate.STRONGEST
    assert gate.strength(replace(surface, share=share * factor), COUNT) >= weaker
    assert gate.strength(surface, int(COUNT / factor)) <= weaker
    assert gate.strength(surface, gate.FEWEST_SENTENCES) == 0
    if surface.rawness <= gate.RAW_OFF and surface.directions_ratio >= gate.DIRECTIONS_OFF:
        assert weaker == 0
    if surface.rawness >= gate.RAW_FULL:
        assert weaker == gate.STRONGEST


def test_a_space_that_shows_its_surface_is_whitened_softly_unless_sentences_are_found_again_in_other_looks() -> None:
    texts, x = sentences(COUNT), embedded(COUNT, 1.0)
    raw, tuned = choose(texts, x, by_looks), choose(texts, x, by_meaning)
    strength = rule_of(raw).strength
    assert strength > 0.5
    assert str(raw.method) == f"soft:{strength:.3f}"
    assert rule_of(raw).recognition == pytest.approx(0, abs=0.1)
    assert rule_of(tuned).recognition == 1
    assert tuned.method == IDENTITY


def test_looks_are_asked_for_only_where_the_space_seems_raw() -> None:
    def refuse(_: list[str]) -> Vectors:
        raise AssertionError

    assert choose(sentences(COUNT), embedded(COUNT, 0.0), refuse).method == IDENTITY


@pytest.mark.parametrize("count", [1, 2, 20, 60])
def test_any_number_of_sentences_has_a_choice(count: int) -> None:
    assert chosen(count, 1.0).method == IDENTITY


def test_a_space_in_which_most_vectors_are_equal_is_left_alone() -> None:
    x = embedded(COUNT, 1.0).copy()
    x[: int(0.8 * COUNT)] = x[0]
    choice = choose(sentences(COUNT), x, by_looks, labels=labelled(200, "whitening"))
    assert (choice.method, rule_of(choice).surface, choice.labels) == (IDENTITY, None, None)


def test_the_same_input_and_seed_give_the_same_choice_to_the_last_figure() -> None:
    one, again = (chosen(COUNT, 1.0, labelled(100, None)) for _ in range(2))
    assert one.rule == again.rule
    assert one.labels is not None and again.labels is not None
    assert candidate_facts(one.labels) == candidate_facts(again.labels)


def test_candidates_come_in_a_fixed_order_and_flows_only_where_there_is_text_for_them() -> None:
    simple = [
        "identity",
        "centring",
        "mean-direction:0.5",
        "mean-direction",
        "sn",
        "nulling:1",
        "nulling:3",
        "tempered",
        "whitening",
    ]
    ruled = Method("soft", 0.6)
    few = [str(method) for method in candidates(IDENTITY, FLOW_SENTENCES - 1, 64)]
    many = [str(method) for method in candidates(ruled, 10 * COUNT, 300)]
    assert few == [*simple, "soft:1"]
    assert many == [*simple, "whitening-k:256", "soft:0.600", "soft:1", "flow", "soft-flow:0.600"]


def test_flows_are_tried_on_labels() -> None:
    choice = chosen(650, 1.0, labelled(40, None))
    assert choice.labels is not None
    assert {"flow", "soft-flow"} <= {method.name for method in choice.labels.scores}


@pytest.mark.parametrize(
    ("raw", "better", "kind"),
    [(0.0, "whitening", "zeros and ones"), (1.0, "nulling:3", "grades"), (1.0, "identity", "zeros and ones")],
)
def test_many_labels_overrule_the_rule_where_they_are_sure(raw: float, better: str, kind: str) -> None:
    without, choice = chosen(COUNT, raw), chosen(COUNT, raw, labelled(COUNT, better, kind, raw=raw))
    assert choice.method != without.method
    assert choice.labels is not None
    assert choice.labels.scores[choice.method] == max(choice.labels.scores.values())
    best = max(candidate_facts(choice.labels), key=lambda one: float(one["score"]))
    assert best["method"] == str(choice.method)
    assert best["interval"][0] <= best["gain"] <= best["interval"][1]


@pytest.mark.parametrize(("raw", "count"), [(0.0, 500), (1.0, 100)])
def test_labels_by_chance_do_not_overrule_the_rule(raw: float, count: int) -> None:
    """At a level of 5 %, which one seed in twenty passes by chance."""
    choice = chosen(COUNT, raw, labelled(count, None, raw=raw, seed=8))
    assert choice.method == chosen(COUNT, raw).method


def test_too_few_labels_of_a_kind_are_not_heard() -> None:
    sure = labelled(COUNT, "whitening", noise=0)
    choice = chosen(COUNT, 0.0, Labels(sure.left, sure.right, (np.arange(COUNT) < 9).astype(np.float64)))
    assert (choice.method, choice.labels) == (IDENTITY, None)
