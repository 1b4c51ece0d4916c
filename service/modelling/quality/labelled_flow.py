"""Do a few labelled pairs in the flow's objective beat labels that only teach the probability? On held-out pairs.

The hybrid that BERT-flow leaves to others: bits per dimension + λ · a loss over labelled pairs, pairwise logistic on
the order of their cosines (RankNet, Burges et al., 2005, section 3; on cosines: CoSENT). It starts from the map that
`auto` chooses without labels, and λ and the number of steps, none among them, are chosen on labels kept out of the
fit: the most favourable reading. Against it: `auto` and the unsupervised flow, whose labels teach the curve alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from service.core.probability import evidence
from service.core.reference import ReferenceDistribution
from service.core.similarity import cosine
from service.modelling import gate, reference
from service.modelling.calibrator import bits_per_dimension, flow
from service.modelling.evidence import bootstrapped, labelled_score, score_of
from service.modelling.flow import ROBUST, Flow, drop_bias_correction
from service.modelling.methods import Fitted, Vectors, fit
from service.modelling.probability import log_loss, mix
from service.modelling.quality.probabilities import groups
from service.modelling.quality.sources import Embedded, Encoder, Pairs, Progress, read_pairs
from service.modelling.reference import Rows
from service.modelling.reliability import calibration_error

Doubles = npt.NDArray[np.float64]

SETS = {
    "STS-B": ("sts/stsb/train.tsv", "sts/stsb/test.tsv"),
    "SICK": ("sts/sick/train.tsv", "sts/sick/test.tsv"),
    "quora": ("pairs/quora.tsv", None),
}
FEWEST = 20  # labelled pairs
SENTENCES = 2000  # of a domain, without labels
WEIGHTS = (3.0, 30.0)  # λ
CHECKPOINTS = (0, 20, 40, 80)  # steps; 0 is the map it starts from, 80 gave the preset all but 0.2 points (flow.py)
VALIDATION = 0.3  # of the labels; of fewer than 50 the half
PAIRS_A_STEP = 32
SCALE = 20.0  # of the cosines in the pairwise loss, as CoSENT has it
DRAWS = 300  # bootstrap samples of the held-out pairs
ARMS = ("identity", "auto", "flow", "labelled")


@dataclass(frozen=True)
class Labelled:
    """Pairs (L,) by their vectors (L, D), and labels on a scale of 0–1."""

    left: Tensor
    right: Tensor
    values: Tensor

    def part(self, rows: Rows) -> "Labelled":
        picked = torch.from_numpy(rows)
        return Labelled(self.left[picked], self.right[picked], self.values[picked])

    def loss(self, cosines: Tensor) -> Tensor:
        """Mean logistic loss of all ordered pairs of pairs, from the cosines (L,)."""
        higher = self.values[:, None] > self.values[None, :]
        if not higher.any():
            return cosines.sum() * 0
        return softplus(SCALE * (cosines[None, :] - cosines[:, None]))[higher].mean()


@dataclass(frozen=True)
class Draw:
    """One domain with its labels: what may be learnt from, and what is judged on."""

    texts: list[str]
    vectors: Vectors  # (N, D)
    left: Vectors  # of all pairs (P, D)
    right: Vectors
    values: Doubles  # (P,) on a scale of 0–1
    seen: Rows  # labelled
    others: Rows  # held out


@dataclass(frozen=True)
class Result:
    """One cell: each arm's figures, a number a draw, and the labelled flow's gains over every other arm."""

    encoder: str
    source: str
    labels: int
    score: str  # Spearman or AUROC
    scores: dict[str, list[float]] = field(default_factory=dict)
    log_losses: dict[str, list[float]] = field(default_factory=dict)  # matches only
    errors: dict[str, list[float]] = field(default_factory=dict)  # expected calibration error, matches only
    chosen: list[str] = field(default_factory=list)  # λ and steps
    gains: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # of the score: mean, 95 % interval
    losses: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # of the log-loss: below 0 is better


def fit_labelled(
    start: Fitted, x: Vectors, labels: Labelled, weight: float, checkpoints: Sequence[int], seed: int
) -> dict[int, Callable[[Tensor], Tensor]]:
    """Flows behind the starting map after each number of steps, as functions of vectors, (B, D) -> (B, D)."""
    rng = torch.Generator().manual_seed(seed)
    first = torch.from_numpy(start(x))
    left, right = (torch.from_numpy(start(side.numpy())) for side in (labels.left, labels.right))
    model = Flow(x.shape[1], ROBUST.permutation, rng)
    model.start_at(float(ROBUST.start_deviation or 1) / max(float(first.std()), 1e-12))
    # PyTorch's fused kernel: the loop over a hundred small tensors costs more than the flow.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=ROBUST.learning_rate, eps=1e-6, weight_decay=ROBUST.weight_decay, fused=True
    )
    found: dict[int, Callable[[Tensor], Tensor]] = {}
    for step in range(max(checkpoints) + 1):
        if step in checkpoints:
            kept = {name: t.detach().clone() for name, t in model.tensors().items()}
            found[step] = lambda y, kept=kept: flow(torch.from_numpy(start(y.numpy())), kept)  # type: ignore[misc]
        if step == max(checkpoints):
            break
        batch = torch.randint(len(first), (ROBUST.batch,), generator=rng)
        rows = torch.randperm(len(left), generator=rng)[:PAIRS_A_STEP]
        tensors = model.tensors()
        latents = flow(torch.cat([first[batch], left[rows], right[rows]]), tensors)
        z, a, b = torch.split(latents, [len(batch), len(rows), len(rows)])
        drawn = Labelled(left[rows], right[rows], labels.values[rows])
        loss = bits_per_dimension(z, model.log_det()) + weight * drawn.loss(cosine_similarity(a, b))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), ROBUST.clip)
        drop_bias_correction(optimizer, step + 1, ROBUST)
        optimizer.step()
    return found


@torch.no_grad()
def cosines(latents: Callable[[Tensor], Tensor], pairs: Labelled) -> Tensor:  # (L,)
    return cosine_similarity(latents(pairs.left), latents(pairs.right))


def split(values: Doubles, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Labels to fit and to choose on, with equal shares of every label."""
    share = VALIDATION if len(values) >= 50 else 0.5
    order = np.lexsort((rng.random(len(values)), values))
    kept = np.floor((np.arange(len(values)) + 1) * share) > np.floor(np.arange(len(values)) * share)
    return order[~kept], order[kept]


def labelled_flow(
    start: Fitted, draw: Draw, graded: bool, seed: int
) -> tuple[Callable[[Tensor], Tensor], str, tuple[Rows, Doubles, Callable[[Tensor], Tensor]] | None]:
    """The flow fitted with all labels, the chosen λ and steps; for matches also the part it was chosen on.

    That part (numbers of labels, their cosines by a fit that had not seen them, and that fit) teaches the curve.
    """
    rng = np.random.default_rng(seed)
    every = Labelled(
        torch.from_numpy(draw.left[draw.seen]),
        torch.from_numpy(draw.right[draw.seen]),
        torch.from_numpy(draw.values[draw.seen]).float(),
    )
    train, check = split(draw.values[draw.seen], rng)
    judged = every.part(check)
    best: tuple[float, float, int, Callable[[Tensor], Tensor]] | None = None
    for weight in WEIGHTS:
        for steps, latents in fit_labelled(start, draw.vectors, every.part(train), weight, CHECKPOINTS, seed).items():
            score = labelled_score(cosines(latents, judged).numpy(), judged.values.numpy())
            if best is None or score > best[0]:  # among equals the fewest steps
                best = (score, weight, steps, latents)
    assert best is not None  # noqa: S101 - there are weights
    _, weight, steps, earlier = best
    final = fit_labelled(start, draw.vectors, every, weight, (steps,), seed)[steps]
    name = f"λ {weight:g}, {steps} steps" if steps else "no steps"
    held = None if graded else (check, cosines(earlier, judged).double().numpy(), earlier)
    return final, name, held


def scale_of(latents: Vectors, seed: int) -> ReferenceDistribution:
    rows = np.arange(len(latents))
    rng = np.random.default_rng(seed)
    return reference.build(reference.sample_pairs([(latents, rows)], rng), rng, intervals=False)


def judge(draw: Draw, arm: str, auto: str, graded: bool, seed: int) -> tuple[Doubles, Doubles | None, str]:
    """Held-out similarities (H,), probabilities (H,) where labels are matches, and what was chosen."""
    held: tuple[Rows, Doubles, Callable[[Tensor], Tensor]] | None = None
    chosen = arm
    if arm == "labelled":
        start = fit(auto, draw.vectors, draw.vectors[:0], seed)
        latents, chosen, held = labelled_flow(start, draw, graded, seed)

        def apply(x: Vectors) -> Vectors:
            with torch.no_grad():
                made: Vectors = latents(torch.from_numpy(x)).numpy()
            return made

    else:
        tenth = len(draw.vectors) // 10
        apply = fit(auto if arm == "auto" else arm, draw.vectors[tenth:], draw.vectors[:tenth], seed)
    similar = cosine(apply(draw.left), apply(draw.right)).astype(np.float64)
    if graded:
        return similar[draw.others], None, chosen
    values, scale = draw.values[draw.seen], scale_of(apply(draw.vectors), seed)
    known = evidence(scale.false_match_rate(similar[draw.seen]))
    if held is not None and not chosen.startswith("no"):
        rows, found, earlier = held
        values = values[rows]
        with torch.no_grad():
            known = evidence(scale_of(earlier(torch.from_numpy(draw.vectors)).numpy(), seed).false_match_rate(found))
    curve = mix(known, values, False, np.random.default_rng(seed))
    return similar[draw.others], curve(evidence(scale.false_match_rate(similar[draw.others]))), chosen


def draw_of(own: Embedded, other: Embedded | None, count: int, seed: int) -> Draw:
    """A domain of 2,000 sentences with `count` labelled pairs; held out is what shares no sentence with a labelled one.

    Where there is one file only, nothing is shared with the domain's text either, directly or by other pairs.
    """
    rng = np.random.default_rng(seed)
    known = {text: row for row, text in enumerate(own.texts)}
    values = (own.pairs.gold - own.pairs.gold.min()) / float(np.ptp(own.pairs.gold))
    if other is None:
        group = groups(own.pairs)
        place = np.argsort(rng.permutation(group.max() + 1)[group], kind="stable")
        mine = place[: SENTENCES // 2]
        mine = place[np.isin(group[place], group[mine])]
        seen = rng.permutation(mine)[:count]
        rows = sorted({known[side[row]] for row in mine for side in (own.pairs.left, own.pairs.right)})
        others = np.flatnonzero(~np.isin(group, group[mine]))
        return Draw([own.texts[r] for r in rows], own.vectors[rows], own.left, own.right, values, seen, others)
    order = rng.permutation(len(own.pairs.gold))
    seen = order[:count]
    rows = rng.permutation(len(own.texts))[:SENTENCES].tolist()
    labelled = {side[row] for row in seen for side in (own.pairs.left, own.pairs.right)}
    pairs = zip(other.pairs.left, other.pairs.right, strict=True)
    free = np.array([a not in labelled and b not in labelled for a, b in pairs])
    gold = (other.pairs.gold - own.pairs.gold.min()) / float(np.ptp(own.pairs.gold))
    return Draw(
        [own.texts[r] for r in rows],
        own.vectors[rows],
        np.concatenate([own.left, other.left]),
        np.concatenate([own.right, other.right]),
        np.concatenate([values, gold]),
        seen,
        len(order) + np.flatnonzero(free),
    )


def interval(samples: Sequence[Doubles]) -> tuple[float, float, float]:
    """Mean over the draws, and its 95 % interval; a draw's samples weigh the same pairs alike."""
    together = np.mean(samples, axis=0)
    low, high = np.quantile(together, [0.025, 0.975])
    return float(together.mean()), float(low), float(high)


def measure_cell(name: str, own: Embedded, other: Embedded | None, source: str, count: int, seeds: int) -> Result:
    pairs = len(own.pairs.gold) + (0 if other is None else len(other.pairs.gold))
    graded = score_of(own.pairs.gold) == "spearman"
    kind = "spearman" if graded else "auroc"
    result = Result(name, source, count, kind)
    gains: dict[str, list[Doubles]] = {}
    losses: dict[str, list[Doubles]] = {}
    drawn = np.random.default_rng(0).multinomial(pairs, np.full(pairs, 1 / pairs), DRAWS).astype(np.float64)
    for seed in range(seeds):
        draw = draw_of(own, other, count, seed)
        auto = gate.decide(draw.texts, draw.vectors, seed=seed).method
        weights, values = drawn[:, draw.others], draw.values[draw.others]
        samples, lost = {}, {}
        for arm in ARMS:
            similar, probabilities, chosen = judge(draw, arm, auto, graded, seed)
            samples[arm] = 100 * bootstrapped(similar, values, weights, score_of(values))
            plain = bootstrapped(similar, values, np.ones((1, len(values))), score_of(values))
            result.scores.setdefault(arm, []).append(100 * float(plain[0]))
            if arm == "labelled":
                result.chosen.append(chosen)
            if probabilities is not None:
                each = log_loss(probabilities, values)
                result.log_losses.setdefault(arm, []).append(float(each.mean()))
                result.errors.setdefault(arm, []).append(calibration_error(probabilities, values))
                lost[arm] = weights @ each / weights.sum(1)
        for arm in ARMS[:-1]:
            gains.setdefault(arm, []).append(samples["labelled"] - samples[arm])
            if lost:
                losses.setdefault(arm, []).append(lost["labelled"] - lost[arm])
    result.gains.update({arm: interval(found) for arm, found in gains.items()})
    result.losses.update({arm: interval(found) for arm, found in losses.items()})
    return result


def measure(data: Path, encode: Encoder, counts: Sequence[int], seeds: int, progress: Progress) -> list[Result]:
    """Every set with every number of labels; a cell is some seconds a seed."""
    torch.set_num_threads(1)  # a hundred small tensors: more threads wait for each other
    results = []
    for place, (source, (first, second)) in enumerate(SETS.items()):
        read: list[Pairs] = [read_pairs(data / file) for file in (first, second) if file]
        own, *rest = [Embedded.of(p, lambda t: encode(t, lambda done: progress("embedding", done))) for p in read]
        for number, count in enumerate(counts):
            other = rest[0] if rest else None
            results.append(measure_cell(encode.artifact.id, own, other, source, count, seeds))
            progress("fitting", (place + (number + 1) / len(counts)) / len(SETS))
    return results
