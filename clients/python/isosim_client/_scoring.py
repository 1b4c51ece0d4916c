"""Calls that score and embed texts, and the readiness probe. Arguments are documented at the methods of `Client`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ._answers import Ranked, Similarity
from ._call import Call, answer, many
from ._retries import Repeat
from .errors import ConnectionFailed, IsosimError, UnexpectedAnswer

Space = Literal["calibrated", "raw"]
Unit = Literal["similarity", "cosine_distance", "l2", "l2_squared", "inner_product"]


def similarity(
    pairs: Iterable[Sequence[str]], *, domain: str = "default", threshold: str | None = None, detail: bool = False
) -> Call[Similarity]:
    """Calibrated similarity of sentence pairs."""
    body: dict[str, Any] = {"pairs": many(pairs, "pairs"), "domain": domain}
    if threshold is not None:
        body["threshold"] = threshold
    if detail:  # sent only if True, because older servers refuse this field
        body["detail"] = True
    return Call(method="POST", path="similarity", body=body, parse=answer(Similarity))


def embed(
    texts: str | Iterable[str],
    *,
    domain: str = "default",
    space: Space = "calibrated",
    normalize: bool = True,
    dimensions: int | None = None,
    truncate: bool | None = None,
    truncation_direction: Literal["Right", "Left"] = "Right",
) -> Call[list[list[float]]]:
    """One vector for each text, in order; for a single string, a list with one vector."""
    body: dict[str, Any] = {
        "inputs": texts if isinstance(texts, str) else list(texts),
        "domain": domain,
        "space": space,
        "normalize": normalize,
        "truncation_direction": truncation_direction,
    }
    given = {"dimensions": dimensions, "truncate": truncate}
    body |= {name: value for name, value in given.items() if value is not None}
    return Call(method="POST", path="embed", body=body, parse=vectors)


def vectors(value: Any) -> list[list[float]]:
    """The vectors of an answer. Checks that the answer is a list of lists. Checking its numbers would take too long."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise UnexpectedAnswer(f"expected a list of vectors, got {value!r:.80}; is this an isosim server?")
    return value


def rerank(
    query: str,
    texts: Iterable[str],
    *,
    domain: str = "default",
    raw_scores: bool = False,
    return_text: bool = False,
    gallery: int | None = None,
) -> Call[tuple[Ranked, ...]]:
    """Ranks texts by their similarity to a query, the most similar first."""
    body = {
        "query": query,
        "texts": many(texts, "texts"),
        "domain": domain,
        "raw_scores": raw_scores,
        "return_text": return_text,
    }
    if gallery is not None:
        body["gallery"] = gallery
    return Call(method="POST", path="rerank", body=body, parse=answer(tuple[Ranked, ...]))


def ready() -> Call[bool]:
    """Whether the server accepts requests now: False while it starts or stops, or if it cannot be reached."""

    def rescue(error: IsosimError) -> bool:
        if error.status == 503 or isinstance(error, ConnectionFailed):
            return False
        raise error

    return Call(method="GET", path="readyz", parse=lambda _: True, rescue=rescue, repeat=Repeat.NEVER)
