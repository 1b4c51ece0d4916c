"""The experiment with labels in the flow's objective: its loss, what it holds out, and that labels weigh at all."""

import numpy as np
import pytest
import torch

from service.modelling.evidence import labelled_score
from service.modelling.methods import fit
from service.modelling.quality import labelled_flow as quality
from service.modelling.quality.sources import Embedded, Pairs

DIM = 16


def labelled(count: int, seed: int = 0) -> quality.Labelled:
    """Pairs whose grade is the cosine of their first four dimensions; the rest is noise of six times the strength."""
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((2, count, DIM)).astype(np.float32)
    a, b = left[:, :4], right[:, :4]
    grades = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    left[:, 4:] *= 6
    right[:, 4:] *= 6
    return quality.Labelled(torch.from_numpy(left), torch.from_numpy(right), torch.from_numpy(grades))


def test_the_loss_is_that_of_every_two_pairs_in_their_order() -> None:
    pairs = labelled(4)
    cosines = torch.tensor([0.1, 0.9, -0.2, 0.4])
    each = [
        np.log1p(np.exp(quality.SCALE * float(cosines[j] - cosines[i])))
        for i in range(4)
        for j in range(4)
        if pairs.values[i] > pairs.values[j]
    ]
    assert float(pairs.loss(cosines)) == pytest.approx(np.mean(each), rel=1e-5)
    assert float(pairs.loss(pairs.values)) < float(pairs.loss(-pairs.values))


def test_pairs_of_one_grade_have_no_order() -> None:
    pairs = labelled(5)
    same = quality.Labelled(pairs.left, pairs.right, torch.ones(5))
    assert float(same.loss(torch.rand(5))) == 0


def test_labels_teach_a_flow_what_the_text_alone_does_not() -> None:
    train, others = labelled(200), labelled(400, seed=1)
    x = np.concatenate([train.left.numpy(), train.right.numpy()])
    start = fit("identity", x, x[:0], 0)

    def score(weight: float) -> dict[int, float]:
        fitted = quality.fit_labelled(start, x, train, weight, (0, 160), 0)
        found = {steps: quality.cosines(latents, others).numpy() for steps, latents in fitted.items()}
        return {steps: labelled_score(cosines, others.values.numpy()) for steps, cosines in found.items()}

    raw = torch.nn.functional.cosine_similarity(others.left, others.right)
    taught, untaught = score(30.0), score(0.0)
    assert taught[0] == pytest.approx(labelled_score(raw.numpy(), others.values.numpy()), abs=1e-6)
    assert taught[160] > max(taught[0], untaught[160]) + 0.05


@pytest.mark.parametrize("count", [20, 100])
def test_labels_are_fitted_or_chosen_on_and_both_have_every_kind(count: int) -> None:
    values = (np.arange(count) % 2).astype(np.float64)
    train, check = quality.split(values, np.random.default_rng(0))
    assert sorted([*train, *check]) == list(range(count))
    assert len(check) == round(count * (0.5 if count < 50 else quality.VALIDATION))
    assert {*values[train]} == {*values[check]} == {0.0, 1.0}


def embedded(count: int, first: int) -> Embedded:
    """Pairs of neighbours in a row of sentences: each shares a sentence with the next."""
    texts = [f"sentence {number}" for number in range(first, first + count + 1)]
    gold = np.arange(count) % 6 / 1.0
    pairs = Pairs(texts[:-1], texts[1:], gold)
    return Embedded.of(
        pairs, lambda found: (np.random.default_rng(0).random((len(found), 8), np.float32), np.arange(0))
    )


def test_what_is_held_out_shares_no_sentence_with_a_labelled_pair() -> None:
    own, other = embedded(300, 0), embedded(300, 150)
    draw = quality.draw_of(own, other, 50, 0)
    sentences = {own.pairs.left[row] for row in draw.seen} | {own.pairs.right[row] for row in draw.seen}
    assert len(draw.seen) == 50
    assert (draw.others >= 300).all()
    assert len(draw.others) > 100
    assert not sentences & {side[row - 300] for row in draw.others for side in (other.pairs.left, other.pairs.right)}


def test_of_one_file_nothing_of_the_domain_is_held_out() -> None:
    texts = [f"question {number}" for number in range(4000)]
    pairs = Pairs(texts[:2000], texts[2000:], (np.arange(2000) % 2).astype(np.float64))
    own = Embedded.of(pairs, lambda found: (np.zeros((len(found), 8), np.float32), np.arange(0)))
    draw = quality.draw_of(own, None, 100, 0)
    held = {side[row] for row in draw.others for side in (pairs.left, pairs.right)}
    assert len(draw.others) == 1000
    assert not held & set(draw.texts)
    assert len(draw.texts) == 2000
