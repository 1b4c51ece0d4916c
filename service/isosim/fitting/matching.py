"""Runs a match: embeds the distinct texts of one or two files, gives their similarities a scale, and finds the best
pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from isosim.arrays import Rows, Vectors
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EmptyInput, InvalidInput
from isosim.fitting.job import Progress, Stages, calibrate_job
from isosim.fitting.methods import UNCHANGED, FittedMap
from isosim.fitting.publication import Fit
from isosim.jobs.job import JobRequest, MatchInput
from isosim.jobs.matches import Found, Side
from isosim.jobs.offline import Encodings, TextEncoder, open_texts
from isosim.jobs.posted import Posted
from isosim.matching import candidates
from isosim.scoring.calibration import DEFAULT, DomainModel
from isosim.scoring.method import Method
from isosim.scoring.pair_features import PairFeatures, pair_features
from isosim.scoring.similarity import normalized

MOST = 1_000_000  # candidates; 28 MB with their features. Groups of one file took 200 MB of memory to answer
SEARCH = 0.8  # share of the stage "matching" that the search takes; the rest are the features, 16 µs a pair
PAIRS = 100_000  # whose features are computed at once
BLOCK = 4096  # vectors that are calibrated at once, to save memory
# The best pairs are shown once as many texts are embedded, and whenever there are GROWTH times as many.
FIRST_LOOK, GROWTH, SHOWN = 1000, 4, 100
# Stages of a match that calibrates to the posted text, with its progress, 0–1, at the beginning and at the end of each.
STAGES = {"embedding": (0.0, 0.7), "calibrating": (0.7, 0.9), "matching": (0.9, 0.99)}


@dataclass(frozen=True)
class Scale:
    """What turns vectors into similarities, and gives these a meaning."""

    fitted: FittedMap
    model: DomainModel
    facts: dict[str, Any]  # where it comes from: `domain` and `version`, both None if it belongs to the job; `method`
    fit: Fit | None = None  # to be published; None if it is not


@dataclass(frozen=True)
class Match:
    """A result that is not written yet."""

    found: Found
    scale: Scale
    vectors: Vectors | None  # of one file's distinct texts, see `MatchStore.publish`
    notices: list[str]
    report: dict[str, Any]  # for JSON


def match_job(
    request: JobRequest,
    files: Sequence[Path],
    encoder: EncoderArtifact,
    domains: DomainStore,
    report: Callable[[str, float], None],
    *,
    threads: int,
    show: Callable[[Rows, Rows], object] = lambda left, right: None,
) -> Match:
    """Embeds the distinct texts, fits or loads a scale and finds candidates; writes nothing.

    Args:
        files: one file of rows (`jobs/matches.py`), whose rows are compared with each other, or two.
        show: is told the most similar pairs of the texts that are embedded so far, by their raw similarity: the rows
            of both texts.

    Raises:
        EmptyInput: a file has no readable text.
        InvalidInput: the texts cannot be calibrated.
    """
    given = request.match
    assert given is not None  # noqa: S101 - the caller has seen it
    number_of: dict[str, int] = {}
    rows = [read_texts(path, number_of) for path in files]
    texts, notices = list(number_of), []
    encode = open_texts(encoder, threads)
    stages = Stages(report, STAGES)
    with stages("embedding") as progress:
        encodings = embedded(texts, rows, encode, progress, show)
    sides = tuple(side_of(numbers, encodings.unreadable) for numbers in rows)
    for number, side in enumerate(sides):
        if not len(side.first):
            raise EmptyInput(f"file {number + 1} has no text that the encoder can read")
    unreadable = int(encodings.unreadable.sum())
    if unreadable:
        notices.append(f"{unreadable:,} texts are left out: the encoder knows too few of their words")
    scale = None
    if given.scale != "domain":
        known = Remembered(encode, number_of, encodings)
        try:
            with stages("calibrating") as progress:
                scale = fitted_scale(request, texts, known, encoder, domains, progress, threads)
        except InvalidInput as error:
            if given.scale == "new":
                raise
            notices.append(f"the texts got no scale of their own ({error}); the scale is that of domain {DEFAULT!r}")
    scale = scale or stored_scale(request, given, encoder, domains)
    unit = scaled(scale.fitted, encodings.vectors)
    own = [unit[numbers[side.first]] for numbers, side in zip(rows, sides, strict=True)]
    with stages("matching") as progress:
        found = candidates.find(*own, most=MOST, report=lambda share: progress(share * SEARCH))
        ends = [[texts[number] for number in numbers[side.first]] for numbers, side in zip(rows, sides, strict=True)]
        features = words_of(found, ends[0], ends[-1], lambda share: progress(SEARCH + share * (1 - SEARCH)))
    if found.pairs and not len(found.left):
        raise InvalidInput(
            f"more than {MOST:,} pairs are of texts that the encoder cannot tell apart; remove repetitions"
        )
    facts = {
        "scale": scale.facts,
        "distinct": [len(side.first) for side in sides],
        "copies": [int((side.text_of >= 0).sum()) - len(side.first) for side in sides],
        "unreadable": unreadable,
        "candidates": len(found.left),
        "floor": found.floor,
        "pairs": found.pairs,
    }
    return Match(Found(found, features, sides), scale, own[0] if len(own) == 1 else None, notices, facts)


def words_of(
    found: candidates.Candidates, left: Sequence[str], right: Sequence[str], progress: Callable[[float], None]
) -> npt.NDArray[np.float32]:
    """The features of the candidates' texts. (P, F)"""
    features = np.empty((len(found.left), len(PairFeatures._fields)), np.float32)
    for start in range(0, len(features), PAIRS):
        part = slice(start, start + PAIRS)
        pairs = zip(found.left[part].tolist(), found.right[part].tolist(), strict=True)
        features[part] = pair_features((left[a], right[b]) for a, b in pairs)
        progress(min((start + PAIRS) / len(features), 1.0))
    return features


def read_texts(path: Path, number_of: dict[str, int]) -> Rows:
    """The number of each row's text. Texts that are not in `number_of` get the next numbers. (R,)"""
    with path.open("rb") as lines:
        every = (orjson.loads(line)[1] for line in lines)
        return np.array([number_of.setdefault(text, len(number_of)) for text in every], np.intp)


def embedded(
    texts: Sequence[str],
    rows: Sequence[Rows],
    encode: TextEncoder,
    progress: Callable[[float], None],
    show: Callable[[Rows, Rows], object],
) -> Encodings:
    """Encodes the texts in parts, with texts of every file in each, and shows the best pairs after each but the last.

    `rows`: for each file the numbers of its rows' texts. `show` gets the first rows of both texts of each pair.
    """
    firsts = [np.unique(numbers, return_index=True) for numbers in rows]
    turn = np.full(len(texts), len(texts))
    for numbers, first in firsts:
        turn[numbers] = np.minimum(turn[numbers], np.argsort(np.argsort(first)))
    order = np.argsort(turn, kind="stable")
    whole: Encodings | None = None
    start, stop = 0, FIRST_LOOK
    while start < len(texts):
        stop = stop if stop * 2 <= len(texts) else len(texts)  # a look at almost everything would come too late

        def advance(share: float, start: int = start, stop: int = stop) -> None:
            progress((start + share * (stop - start)) / len(texts))

        part = encode([texts[number] for number in order[start:stop]], advance)
        whole = whole or Encodings.build(len(texts), part.vectors.shape[1])
        for name, column in vars(whole).items():
            column[order[start:stop]] = getattr(part, name)
        if stop < len(texts):
            known = order[:stop][~whole.unreadable[order[:stop]]]
            show(*best_pairs(whole.vectors, firsts, known))
        start, stop = stop, stop * GROWTH
    return whole or encode(texts)


def best_pairs(vectors: Vectors, firsts: Sequence[tuple[Rows, Rows]], known: Rows) -> tuple[Rows, Rows]:
    """The first rows of both texts of the SHOWN most similar pairs of known texts. (P,), (P,)

    `firsts`: for each file the numbers of its texts, ascending, and the first row of each.
    """
    sides = []
    for numbers, first in firsts:
        there = np.isin(numbers, known)
        sides.append((normalized(vectors[numbers[there]]), first[there]))
    if not all(len(unit) for unit, _ in sides):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    best = candidates.find(*(unit for unit, _ in sides), most=MOST)
    return sides[0][1][best.left[:SHOWN]], sides[-1][1][best.right[:SHOWN]]


def side_of(numbers: Rows, unreadable: Any) -> Side:
    """The distinct readable texts of a file, in the order of their first appearance."""
    readable = ~unreadable[numbers]
    _, first, inverse = np.unique(numbers[readable], return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    text_of = np.full(len(numbers), -1, np.intp)
    text_of[readable] = place[inverse]
    return Side(np.flatnonzero(readable)[first[order]], text_of)


def fitted_scale(
    request: JobRequest,
    texts: Sequence[str],
    encode: TextEncoder,
    encoder: EncoderArtifact,
    domains: DomainStore,
    progress: Progress,
    threads: int,
) -> Scale:
    own, posted = replace(request, match=None, base=None), Posted(texts)
    fit = calibrate_job(own, posted, encoder, domains, lambda _, done: progress(done), threads=threads, encode=encode)
    facts = {"domain": None, "version": None, "method": str(fit.fitted.method)}
    return Scale(fit.fitted, fit.model, facts, fit)


def stored_scale(request: JobRequest, given: MatchInput, encoder: EncoderArtifact, domains: DomainStore) -> Scale:
    """The scale of the version that the request names, or of the champion."""
    name = request.domain if given.scale == "domain" else DEFAULT
    version = (request.champion if request.base is None else request.base) if given.scale == "domain" else None
    if version is None:
        version = domains.read(name).served(encoder.digest).champion
    if not version:
        return Scale(UNCHANGED, DomainModel(), {"domain": name, "version": 0, "method": "identity"})
    stored = domains.load(name, version)
    fitted = FittedMap(Method.parse(stored.version.method), stored.weights)
    return Scale(fitted, stored.model, {"domain": name, "version": version, "method": stored.version.method})


def scaled(fitted: FittedMap, vectors: Vectors) -> Vectors:
    """Calibrated vectors of length 1, written over `vectors`. (N, D)"""
    for start in range(0, len(vectors), BLOCK):
        vectors[start : start + BLOCK] = normalized(fitted(vectors[start : start + BLOCK]))
    return vectors


class Remembered:
    """Encodes texts; looks up those that were encoded already."""

    def __init__(self, encode: TextEncoder, number_of: dict[str, int], encodings: Encodings) -> None:
        self.encode, self.number_of, self.encodings = encode, number_of, encodings

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
        numbers = np.array([self.number_of.get(text, -1) for text in texts], np.intp)
        fresh = self.encode([text for text, number in zip(texts, numbers, strict=True) if number < 0], progress)
        columns = {}
        for name, known in vars(self.encodings).items():
            columns[name] = known[numbers]
            columns[name][numbers < 0] = getattr(fresh, name)
        return Encodings(**columns)
