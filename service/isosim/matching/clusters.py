"""Groups texts by average linkage at a threshold, inside each set of texts that passing pairs connect.

Such a set, a connected component, may be a chain: neighbours are similar and the ends are not. Average linkage (Sokal &
Michener, 1958) joins two clusters only if the mean similarity of their texts reaches the threshold. Texts that were
judged different are in no common cluster, and texts that were judged the same are in one, unless other judgements
contradict it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from isosim.arrays import Integers, Rows, Vectors
from isosim.scoring.similarity import normalized

MOST = 2000  # texts of a component that are clustered at once: a matrix of 16 MB, about a second
ROUNDING = 1e-4  # of similarities: the vectors may be in float16
# Added to the similarity of judged texts. The mean of two clusters, of at most MOST² pairs, stays above all thresholds
# if one of the pairs was judged the same, and below them if one was judged different.
SAME, DIFFERENT = 1e9, -1e18


@dataclass(frozen=True)
class Cluster:
    """Texts that are similar on average."""

    members: Rows  # (M,) rising, at least two
    central: int  # the member with the highest mean similarity to the others
    lowest: float  # lowest similarity of two members
    split: bool  # whether the component was too large and was divided at a higher threshold first


def clusters(
    left: Integers,
    right: Integers,
    similarity: Vectors,
    vectors: Vectors,
    threshold: float,
    judged: tuple[Integers, Integers, Integers] | None = None,
    known: tuple[Integers, Integers, Vectors] | None = None,
) -> list[Cluster]:
    """The clusters of two texts or more, largest first, then by their first member.

    Args:
        left, right, similarity: (P,) the pairs that pass: those that reach the threshold, without those that were
            judged different, and those that were judged the same.
        vectors: (N, D) of unit length; `left` and `right` are their rows. The similarities of pairs that do not reach
            the threshold are computed from them. May be memory-mapped.
        judged: left, right and labels of the judged pairs, (J,) each: 1 same, 0 different.
        known: left, right and similarity of pairs, (Q,) each, whose similarity is not that of their vectors.
    """
    found = []
    place, part = np.zeros(len(vectors), np.intp), np.full(len(vectors), -1)  # of each text: in which part, and where
    divided = list(parts(left, right, similarity))
    for number, (members, _) in enumerate(divided):
        place[members], part[members] = np.arange(len(members)), number
    inner_of, moved_of = (inside(pairs, place, part) for pairs in (judged, known))
    for number, (members, split) in enumerate(divided):
        unit = normalized(vectors[members].astype(np.float32))
        scores = (unit @ unit.T).astype(np.float64)
        np.fill_diagonal(scores, 1.0)
        wanted = scores.copy()
        for a, b, other in moved_of.get(number, []):
            wanted[[a, b], [b, a]] = other
        for a, b, label in inner_of.get(number, []):
            wanted[[a, b], [b, a]] += SAME if label else DIFFERENT
        for places in linked(wanted, threshold - ROUNDING):
            if len(places) > 1:
                inner = scores[np.ix_(places, places)]
                central = members[places[inner.sum(1).argmax()]]
                found.append(Cluster(members[places], int(central), float(inner.min()), split))
    return sorted(found, key=lambda one: (-len(one.members), int(one.members[0])))


def inside(
    pairs: tuple[Integers, Integers, Integers | Vectors] | None, place: Rows, part: Rows
) -> dict[int, list[tuple[int, int, float]]]:
    """For each part, the pairs of two of its texts, with their places in it."""
    found: dict[int, list[tuple[int, int, float]]] = {}
    if pairs is not None:
        left, right, values = pairs
        within = (part[left] == part[right]) & (part[left] >= 0)
        columns = (part[left[within]], place[left[within]], place[right[within]], values[within])
        for number, a, b, value in zip(*(column.tolist() for column in columns), strict=True):
            found.setdefault(number, []).append((a, b, value))
    return found


def parts(left: Integers, right: Integers, similarity: Vectors) -> Iterator[tuple[Rows, bool]]:
    """The connected components, as rising rows, and whether each is a part of a larger one.

    A component of more than MOST texts loses its less similar half of the pairs until its components are small enough.
    """
    waiting = [(np.asarray(left, np.intp), np.asarray(right, np.intp), similarity, False)]
    while waiting:
        a, b, scores, split = waiting.pop()
        rows, ends = np.unique(np.concatenate([a, b]), return_inverse=True)
        label = components(ends[: len(a)], ends[len(a) :], len(rows))
        sizes = np.bincount(label, minlength=len(rows))
        large = sizes[label] > MOST
        order = np.argsort(label, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(label[order])) + 1) if len(rows) else []:
            if len(group) <= MOST:
                yield rows[group], split
        owner = label[ends[: len(a)]]
        for one in np.unique(label[large]):
            inside = np.flatnonzero(owner == one)
            kept = inside[np.argsort(-scores[inside], kind="stable")][: len(inside) // 2]
            waiting.append((a[kept], b[kept], scores[kept], True))


def components(a: Rows, b: Rows, count: int) -> Rows:
    """The lowest node that each of `count` nodes is connected with through edges (a, b). (E,), (E,) -> (count,)"""
    label = np.arange(count)
    while True:
        lower = label.copy()
        np.minimum.at(lower, label[a], label[b])
        np.minimum.at(lower, label[b], label[a])
        lower = lower[lower]
        if (lower == label).all():
            return label
        label = np.minimum(lower[label], lower)


def linked(similarity: np.ndarray, threshold: float) -> list[Rows]:
    """Average linkage: the clusters of n texts from their similarities (n, n), joined down to the threshold.

    By chains of nearest neighbours (Murtagh, 1983), in n² steps: two clusters that are each other's nearest may be
    joined in any order.
    """
    mean = similarity.astype(np.float64)
    np.fill_diagonal(mean, -np.inf)
    size = np.ones(len(mean))
    members = [np.array([row]) for row in range(len(mean))]
    closed = np.zeros(len(mean), np.bool_)  # joined into another, or without a neighbour at the threshold
    chain: list[int] = []
    while chain or not closed.all():
        if not chain:
            chain.append(int(closed.argmin()))
        last = chain[-1]
        near = int(mean[last].argmax())
        if len(chain) > 1 and mean[last, near] <= mean[last, chain[-2]]:
            near = chain[-2]
        if mean[last, near] < threshold:
            # No cluster comes nearer by being joined with others (reducibility), so this one is complete.
            closed[last] = True
            chain.pop()
        elif len(chain) < 2 or near != chain[-2]:
            chain.append(near)
        else:
            chain = chain[:-2]
            joined = (size[near] * mean[near] + size[last] * mean[last]) / (size[near] + size[last])
            mean[near], mean[:, near] = joined, joined
            mean[near, near] = -np.inf
            mean[last], mean[:, last] = -np.inf, -np.inf
            size[near] += size[last]
            members[near], members[last] = np.concatenate([members[near], members[last]]), members[last][:0]
            closed[last] = True
    return [np.sort(one) for one in members if len(one)]
