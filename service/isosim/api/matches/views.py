"""Views of a result: where a target cuts it, what the pairs that pass are worth, and the tables to download.

The candidates are found once. A target, a form and new judgements only change how they are read.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from isosim.api.matches.writing import Share
from isosim.arrays import Floats, Rows
from isosim.errors import Action, Conflict, InvalidInput
from isosim.jobs.matches import Result, Row
from isosim.matching.adjusting import Ranking, by_similarity, by_words
from isosim.matching.clusters import clusters
from isosim.matching.drawing import IN_VAIN
from isosim.matching.estimate import Estimate, Point, estimate
from isosim.scoring.advice import Target, advise, in_single_precision
from isosim.scoring.pair_features import FLAGS
from isosim_client import Histogram, MatchAnswer

Form = Literal["pairs", "best", "clusters", "judged"]
STEPS = 128  # of a histogram over −1 … 1; the candidates' own has a multiple of it
CONFIDENCE = 0.95  # of the intervals in answers
FEWEST, FEWEST_EACH = 10, 3  # judged pairs, and matches and others among them, that tell precision and recall
WIDTHS: dict[Literal["precision", "recall"], float] = {
    "precision": 0.2,
    "recall": 0.3,
}  # of the intervals at which the answer asks for no more judgements
NOT_JUDGED = "not judged: how many of these pairs are matches is unknown; judge about 50 of them"
Cells = list[Any]
STRATUM = 5  # judged pairs of one weight: with a weight each, chance alone would halve what the labels are worth
# The first names are those that readers of labels know.
JUDGED = ["row_a", "row_b", "a", "b", "label", "weight", "similarity", "pair", "chosen", *FLAGS]
SCORES = ["similarity", "adjusted", "percentile", "probability", "label", "pair", *FLAGS]
COPY = (1.0, None, None, None, None, None, False, False)  # the SCORES of two rows with the same text
NONE = (None,) * len(SCORES)  # of a row without a match


@dataclass(frozen=True)
class Ask:
    """What a reader asks for: a target, a similarity, or neither. `confidence`: the bound of the interval must reach
    the target, not its middle."""

    target: Target | None = None
    similarity: float | None = None
    confidence: float | None = None


def highest(estimate: Estimate, bound: bool) -> tuple[float, Point] | None:
    """The highest precision that can be asked for, in whole per cent, and what passes then; None if none can be."""
    best = estimate.highest(bound=bound)
    if best is None or best.precision is None or best.precision_interval is None:
        return None
    asked = math.floor((best.precision_interval[0] if bound else best.precision) * 100) / 100
    threshold = estimate.threshold_for(asked, bound=bound)
    return None if threshold is None or asked <= 0 else (asked, estimate.at(threshold))


class View:
    """A result as it is read with one target."""

    def __init__(self, result: Result, ask: Ask) -> None:
        """Raises as `_threshold` does."""
        self.result, self.ask = result, ask
        self.candidates = result.found.candidates
        self.notices: list[str] = []
        self.threshold = self._threshold()
        self.above = self.ranking.above(self.threshold)

    @cached_property
    def ranking(self) -> Ranking:
        """The candidates, best first. A target that is a similarity, or a rate of the scale, cuts by similarity."""
        plain = self.ask.similarity is not None or (self.ask.target is not None and self.ask.target.precision is None)
        return by_similarity(self.candidates.similarity) if plain else ranked(self.result)

    @cached_property
    def passing(self) -> Rows:
        """The candidates that this view gives, best first: a judged one follows its judgement, and the others pass if
        they reach the threshold. (C,)"""
        pairs, labels = self.result.judged
        passes = self.ranking.place < self.above
        passes[pairs] = labels == 1
        return self.ranking.order[passes[self.ranking.order]]

    @cached_property
    def adjusted(self) -> Floats:
        """The similarity by which each candidate is ranked. (P,)"""
        return self.ranking.similarity[self.ranking.place]

    @cached_property
    def estimate(self) -> Estimate | None:
        """What the judgements of drawn pairs say; None if there are too few, or too few of one kind."""
        pairs, labels = self.result.drawn
        if len(pairs) < FEWEST or not FEWEST_EACH <= labels.sum() <= len(labels) - FEWEST_EACH:
            return None
        ranking = self.ranking
        places = ranking.place[pairs]
        return estimate(ranking.similarity, places, labels, unseen=ranking.unseen, confidence=CONFIDENCE)

    def _threshold(self) -> float:
        """The similarity that reaches the target.

        Raises:
            Conflict: a precision is asked for, and too few pairs are judged; or the scale has no reference.
            InvalidInput: no threshold reaches the target.
        """
        ask, target = self.ask, self.ask.target
        if ask.similarity is not None:
            threshold = ask.similarity
        elif target is None:
            best = self.ranking.similarity[: self._texts]
            threshold = float(best[-1]) if len(best) else 1.0
        elif target.precision is not None:
            threshold = self._of_precision(target.precision)
        else:
            try:
                advice = advise(self.result.model, "this match", target)
            except InvalidInput as error:
                raise InvalidInput(f"{error}; or judge pairs, and ask for a precision") from None
            threshold = advice.similarity if ask.confidence is None else advice.interval[1]
            if advice.extrapolated:
                self.notices.append("the rate is extrapolated: fewer random pairs than it needs were compared")
            if target.false_hit_rate is not None and self._repeats:
                self.notices.append(
                    "false_hit_rate counts a text's own duplicates as wrong hits, so it is too strict for files that "
                    "have them: judge pairs, and ask for a precision"
                )
        if threshold < self.candidates.floor:
            self.notices.append(
                f"only pairs of at least {self.candidates.floor:.4f} were kept: those between it and the threshold, "
                f"{threshold:.4f}, are missing"
            )
        return in_single_precision(threshold if self.ranking.adjusted else max(threshold, self.candidates.floor))

    def _of_precision(self, precision: float) -> float:
        if self.estimate is None:
            pairs, labels = self.result.drawn
            besides = f"; {chosen} that you chose yourself do not count" if (chosen := self._chosen) else ""
            raise Conflict(
                f"a precision needs judged pairs, at least {FEWEST}, and {FEWEST_EACH} of each kind: {len(pairs)} are "
                f"judged, {labels.sum()} of them matches{self._in_vain * '; there seem to be few or none'}{besides}"
            ).with_remedy(Action.JUDGE, match=self.result.job.id)
        bound = self.ask.confidence is not None
        sure = replace(self.estimate, confidence=self.ask.confidence or CONFIDENCE)
        found = sure.threshold_for(precision, bound=bound)
        if found is None:
            surely = f"with {100 * sure.confidence:g} % confidence " * bound
            missed = f"precision: no threshold {surely}has one of {precision:g}"
            if (best := highest(sure, bound)) is None:
                raise InvalidInput(f"{missed}, or judge more pairs")
            asked, point = best
            raise InvalidInput(
                f"{missed}; the highest is {asked:g}, of {point.passing:,} pairs of at least {point.threshold:.4f}: "
                "ask for that or less, or judge more pairs"
            ).with_remedy(Action.ASK_LESS, precision=f"{asked:g}", pairs=f"{point.passing:,}")
        return found

    @property
    def _texts(self) -> int:
        return len(self.result.found.left.first)

    @property
    def _repeats(self) -> bool:
        return len(self.result.found.sides) == 1

    @property
    def _chosen(self) -> int:
        return len(self.result.judgements.chosen)

    @property
    def _in_vain(self) -> bool:
        _, labels = self.result.drawn
        return len(labels) >= IN_VAIN and not labels.any()

    @property
    def answer(self) -> MatchAnswer:
        pairs, labels = self.result.judged
        judged = len(pairs)
        facts: dict[str, Any] = {}
        notices = [] if self.estimate is not None else [NOT_JUDGED]
        if self._in_vain:
            notices.append(f"none of {judged - self._chosen} judged pairs is a match: there seem to be few or none")
        named = len({*self.result.judgements.named} - {*self.result.judgements.chosen})
        if self.estimate is not None and named:
            notices.append(
                f"{named} of {judged} judgements came with the pairs' texts, as from an earlier match: precision and "
                "recall hold only if these pairs were not chosen by whether they match"
            )
        if self.estimate is not None:
            chosen, their_labels = self.result.chosen
            point = self.estimate.knowing(self.ranking.place[chosen], their_labels).at(self.threshold)
            facts = {
                "precision": point.precision,
                "precision_interval": within(point.precision_interval, 1),
                "expected_false": max(point.false, 0.0),
                "expected_false_interval": within(point.false_interval, len(self.passing)),
                "recall": point.recall,
                "recall_interval": within(point.recall_interval, 1),
                "more_labels": max(
                    self.estimate.needed(self.threshold, width, figure) for figure, width in WIDTHS.items()
                ),
            }
        return MatchAnswer(
            similarity=self.threshold,
            adjusted=self.ranking.adjusted,
            passing=len(self.passing),
            matched_rows=tuple(self._matched_rows()),
            judged=judged,
            chosen=self._chosen,
            confirmed=int(labels.sum()),
            confirmed_below=int(((self.ranking.place[pairs] >= self.above) & (labels == 1)).sum()),
            left_out=self.left_out,
            notices=(*notices, *self.notices),
            **facts,
        )

    @property
    def left_out(self) -> int:
        """How many pairs reach the threshold and are not given, because they were judged different."""
        pairs, labels = self.result.judged
        return int(((self.ranking.place[pairs] < self.above) & (labels == 0)).sum())

    def worth(self, wanted: Mapping[str, Any]) -> list[list[Any]]:
        """What was asked for and what it is worth: rows of a name, a value, and the ends of its 95 % interval."""
        answer = self.answer
        asked = [
            [f"asked for: {name}", Share(value) if name in ("precision", "confidence") else value]
            for name, value in wanted.items()
            if value is not None
        ]
        figures: list[list[Any]] = [
            ["pairs of different texts that pass", answer.passing],
            ["of these, judged the same", answer.confirmed],
            [f"{'adjusted ' * answer.adjusted}similarity from (except for pairs judged the same)", answer.similarity],
            ["precision (share of them that mean the same)", *shares(answer.precision, answer.precision_interval)],
            ["expected number of false ones", *rounded(answer.expected_false, *(answer.expected_false_interval or ()))],
            ["recall (share of the matches among the kept pairs)", *shares(answer.recall, answer.recall_interval)],
            ["judged pairs", answer.judged],
            ["of these, chosen by a person and not counted for precision and recall", answer.chosen],
            ["left out, because they were judged different", answer.left_out],
            ["judged the same, of lower similarity", answer.confirmed_below],
        ]
        notices = [["notice", notice] for notice in answer.notices]
        return [["", "value", "95 % interval from", "to"], *asked, *figures, *notices]

    def _matched_rows(self) -> Iterator[int]:
        left, right = self.candidates.left[self.passing], self.candidates.right[self.passing]
        ends = [np.concatenate([left, right])] if self._repeats else [left, right]
        for side, texts in zip(self.result.found.sides, ends, strict=True):
            rows = np.bincount(side.text_of[side.text_of >= 0], minlength=len(side.first))  # of each text
            matched = (rows > 1) & self._repeats
            matched[texts] = True
            yield int(rows[matched].sum())

    # Tables

    def table(self, form: Form) -> tuple[list[str], Iterator[Cells]]:
        """The names of the columns, and the rows."""
        forms = {"pairs": self._pairs, "best": self._best, "clusters": self._clusters, "judged": self._judged}
        return self._names(form), forms[form]()

    def _names(self, form: Form) -> list[str]:
        given = self.result.job.request.match
        columns = [list(names) for names in given.columns] if given is not None else [[]]
        if form == "judged":
            return [*JUDGED]
        if form == "clusters":
            return unlike(["cluster", "size", "lowest_similarity", "central", "row", "text", *columns[0]])
        own = [f"{name}_{end}" for end, names in zip("ab", (columns[0], columns[-1]), strict=True) for name in names]
        return unlike(["row_a", "row_b", "text_a", "text_b", *SCORES, *own])

    def _pairs(self) -> Iterator[Cells]:
        """The pairs that pass, best first. Rows of one file with the same text come before them, each with the first
        row of its text."""
        if self._repeats:
            side = self.result.found.left
            for row in np.flatnonzero(side.text_of >= 0).tolist():
                first = int(side.first[side.text_of[row]])
                if first != row:
                    yield self._cells(self._row(0, first), self._row(-1, row), *COPY)
        yield from self._scored(self.passing)

    def _scored(self, chosen: Rows) -> Iterator[Cells]:
        """The rows of these candidates: of each text the first row."""
        block = 10_000
        for start in range(0, len(chosen), block):
            part = chosen[start : start + block]
            for (a, b), scores in zip(self._ends(part), self._scores(part), strict=True):
                yield self._cells(a, b, *scores)

    def _best(self) -> Iterator[Cells]:
        """Every row of the first file with its best match; the match is empty if none passes."""
        found, passing = self.result.found, self.passing
        given = replace(self.candidates, left=self.candidates.left[passing], right=self.candidates.right[passing])
        chosen = passing[given.best(one_file=self._repeats)]
        left, right = self.candidates.left[chosen].tolist(), self.candidates.right[chosen].tolist()
        best: dict[int, tuple[int, int]] = {}  # text -> (place in `chosen`, its other text)
        for at, (a, b) in enumerate(zip(left, right, strict=True)):
            best.setdefault(a, (at, b))
            if self._repeats:
                best.setdefault(b, (at, a))
        scores = list(self._scores(chosen))
        first_of, text_of = found.right.first, found.left.text_of.tolist()
        firsts = found.left.first[text_of].tolist()
        copy_of: dict[int, int] = {}  # row -> the best match of a row whose text another row of the file has
        if self._repeats:
            for row, (text, first) in enumerate(zip(text_of, firsts, strict=True)):
                if text >= 0 and row != first:
                    copy_of[row] = first
                    copy_of.setdefault(first, row)
        for row, text in enumerate(text_of):
            if row in copy_of:
                yield self._cells(self._row(0, row), self._row(-1, copy_of[row]), *COPY)
            elif text in best:
                at, other = best[text]
                yield self._cells(self._row(0, row), self._row(-1, int(first_of[other])), *scores[at])
            else:
                yield self._cells(self._row(0, row), None, *NONE)

    def _clusters(self) -> Iterator[Cells]:
        """The rows of each group of texts that mean the same, largest group first.

        Raises:
            InvalidInput: two files were compared; clusters are of one.
        """
        if not self._repeats:
            raise InvalidInput("form: clusters are of one file; two were compared")
        side = self.result.found.left
        rows_of: dict[int, list[int]] = {}
        for row, text in enumerate(side.text_of.tolist()):
            rows_of.setdefault(text, []).append(row)
        assert self.result.vectors is not None  # noqa: S101 - opened with them for this form
        every, chosen, (pairs, labels) = self.candidates, self.passing, self.result.judged
        similarity = np.where(np.isin(chosen, pairs[labels == 1]), np.float32(1), self.adjusted[chosen])
        passing = every.left[chosen], every.right[chosen], similarity
        judged = every.left[pairs], every.right[pairs], labels
        known = (every.left, every.right, self.adjusted) if self.ranking.adjusted else None
        groups, grouped = [], set()  # rows, lowest similarity and central row of each
        for group in clusters(*passing, self.result.vectors, self.threshold, judged, known):
            members = group.members.tolist()
            grouped.update(members)
            rows = [row for text in members for row in rows_of[text]]
            groups.append((rows, group.lowest, int(side.first[group.central])))
        alone = (rows for text, rows in rows_of.items() if text >= 0 and len(rows) > 1 and text not in grouped)
        groups += ((rows, 1.0, rows[0]) for rows in alone)
        groups.sort(key=lambda one: (-len(one[0]), one[2]))
        for number, (rows, lowest, central) in enumerate(groups, 1):
            yield from self._cluster(number, rows, lowest, central)

    def _cluster(self, number: int, members: list[int], lowest: float, central: int) -> Iterator[Cells]:
        for row in sorted(members, key=lambda row: (row != central, row)):
            found = self._row(0, row)
            yield [number, len(members), lowest, row == central, found.number, found.text, *found.cells]

    def _judged(self) -> Iterator[Cells]:
        """All judged pairs. STRATUM neighbours together stand for the candidates that are nearest to one of them, a
        chosen pair for itself."""
        pairs, _ = self.result.drawn
        found, count = self.result.found, len(self.candidates.similarity)
        between = (pairs[1:] + pairs[:-1] + 1) / 2
        nearest = np.diff(np.concatenate([[0.0], between, [count]]))[: len(pairs)]
        starts = np.arange(0, len(pairs), STRATUM)
        sizes = np.diff(np.append(starts, len(pairs)))
        weights = np.repeat(np.add.reduceat(nearest, starts) / sizes, sizes) if len(pairs) else nearest
        others = 1 - self._chosen / max(count, 1)  # share of the candidates that the drawn ones stand for
        weight_of = dict(zip(pairs.tolist(), (weights * others).tolist(), strict=True))
        for pair, label in zip(*(part.tolist() for part in self.result.judged), strict=True):
            a = self._row(0, int(found.left.first[self.candidates.left[pair]]))
            b = self._row(-1, int(found.right.first[self.candidates.right[pair]]))
            weight, similarity = weight_of.get(pair, 1.0), self.candidates.similarity[pair]
            flags = found.features[pair, -len(FLAGS) :].astype(bool).tolist()
            yield [
                a.number,
                b.number,
                a.text,
                b.text,
                label,
                weight,
                similarity,
                pair,
                int(pair not in weight_of),
                *flags,
            ]

    def _row(self, side: int, row: int) -> Row:
        return self.result.files[side][row]

    def _cells(self, a: Row, b: Row | None, *scores: float | None) -> Cells:
        if b is None:
            return [a.number, None, a.text, None, *scores, *a.cells, *[None] * self._columns_of_b]
        return [a.number, b.number, a.text, b.text, *scores, *a.cells, *b.cells]

    @property
    def _columns_of_b(self) -> int:
        """Number of the other columns of the last file."""
        given = self.result.job.request.match
        return len(given.columns[-1]) if given is not None and given.columns else 0

    def _ends(self, chosen: Rows) -> list[tuple[Row, Row]]:
        """The first rows of both texts of candidates."""
        found = self.result.found
        left = found.left.first[self.candidates.left[chosen]].tolist()
        right = found.right.first[self.candidates.right[chosen]].tolist()
        return [(self._row(0, i), self._row(-1, j)) for i, j in zip(left, right, strict=True)]

    def _scores(self, chosen: Rows) -> Iterator[tuple[float | None, ...]]:
        """The SCORES of candidates. The judgements of the match give probabilities, or else the domain's labels."""
        model, features = self.result.model, self.result.found.features[chosen]
        similarity = self.candidates.similarity[chosen]
        none: list[float | None] = [None] * len(similarity)
        reference, learnt = model.reference, model.probability
        rates = None if reference is None else reference.false_match_rate(similarity.astype(np.float64))
        percentile = none if rates is None else (1 - rates).tolist()
        if self.estimate is not None:
            probability = self.estimate.probabilities(self.ranking.place[chosen]).tolist()
        elif rates is None or learnt is None:
            probability = none
        elif model.pair_map is not None:
            probability = model.pair_map.probability(rates, features.astype(np.float64)).tolist()
        else:
            probability = learnt.probability(rates).tolist()
        pairs = chosen.tolist()
        label = map(self.result.judgements.labels.get, pairs)
        flags = features[:, -len(FLAGS) :].T.astype(bool).tolist()
        adjusted = self.adjusted[chosen] if self.ranking.adjusted else none
        return zip(similarity, adjusted, percentile, probability, label, pairs, *flags, strict=True)


def ranked(result: Result) -> Ranking:
    """The candidates by similarity less what their words take away, as the judgements teach, or else the labels of the
    domain whose scale it is."""
    found, learnt = result.found, result.model.pair_map
    known, seed = None if learnt is None else learnt.moves, result.job.request.seed
    return by_words(found.candidates.similarity, found.features, *result.drawn, known=known, seed=seed)


def histogram(result: Result) -> Histogram:
    """The pairs by similarity, without empty steps at the ends."""
    candidates, (judged, labels) = result.found.candidates, result.judged
    compared, edges = candidates.histogram.reshape(STEPS, -1).sum(1), np.linspace(-1, 1, STEPS + 1)
    used = slice(*(np.flatnonzero(compared)[[0, -1]] + [0, 1] if compared.any() else (0, STEPS)))
    scores = np.clip(candidates.similarity[judged], -1, 1)  # rounding may go beyond
    matches, others = (np.histogram(scores[labels == label], edges)[0][used].tolist() for label in (1, 0))
    own = edges[used.start : used.stop + 1].tolist()
    return Histogram(edges=own, compared=compared[used].tolist(), matches=matches, others=others)


def unlike(names: list[str]) -> list[str]:
    """The names of columns; one that is there already gets a number.

    >>> unlike(["text", "note", "text", "text"])
    ['text', 'note', 'text_2', 'text_3']
    """
    found: dict[str, None] = {}
    for name in names:
        number, free = 2, name
        while free in found:
            number, free = number + 1, f"{name}_{number}"
        found[free] = None
    return [*found]


def shares(share: float | None, interval: tuple[float, ...] | None) -> list[float | None]:
    return [None if one is None else Share(round(one, 4)) for one in (share, *(interval or ()))]


def rounded(*numbers: float | None) -> list[float | None]:
    return [None if number is None else round(number, 1) for number in numbers]


def within(interval: tuple[float, float] | None, most: float) -> tuple[float, float] | None:
    """The interval without what rounding added beyond 0 and `most`."""
    return None if interval is None else (max(interval[0], 0.0), min(interval[1], float(most)))
