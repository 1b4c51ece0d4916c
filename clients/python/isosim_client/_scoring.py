"""Calls that score and embed texts, and the probe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ._answers import Ranked, Similarity
from ._call import Call, answer, many
from ._retries import Repeat
from .errors import ConnectionFailed, IsosimError, UnexpectedAnswer

Space = Literal["calibrated", "raw"]


def similarity(pairs: Iterable[Sequence[str]], *, domain: str = "default", detail: bool = False) -> Call[Similarity]:
    """Calibrated similarity of sentence pairs.

    Args:
        pairs: (text, text) each; a server takes 512 a request unless set otherwise.
        domain: `name`, `name@3` or `name@previous`.
        detail: adds token counts and out-of-domain scores.

    Returns:
        Columns, one entry a pair, in order.

    Raises:
        EmptyInput, InvalidInput: no pair, an empty or too long text, too many pairs.
        NotFound: no such domain or version. Conflict: it belongs to another encoder.
        Overloaded: still full when the patience ended.
    """
    body: dict[str, Any] = {"pairs": many(pairs, "pairs"), "domain": domain}
    if detail:  # a server refuses fields it does not know: what is not asked for is not mentioned to an older one
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
    """Vectors of texts, one each, in order; a list of one for a single string.

    Args:
        texts: a server takes 1024 a request unless set otherwise.
        domain: `name`, `name@3` or `name@previous`; pin the version of vectors that are stored.
        space: `calibrated`, or `raw` for the frozen encoder's.
        normalize: to length 1.
        dimensions: the first so many, of raw vectors only.
        truncate: False refuses a text that is longer than the encoder reads, instead of cutting it.
        truncation_direction: the side that is cut.

    Raises:
        EmptyInput, InvalidInput, NotFound, Conflict, Overloaded: as for `similarity`.
    """
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
    """Numbers are taken as they are: a look at each would cost as much as reading them."""
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
) -> Call[tuple[Ranked, ...]]:
    """Texts by how similar they are to a query, the best first.

    Args:
        query: one text.
        texts: what to rank.
        domain: `name`, `name@3` or `name@previous`.
        raw_scores: similarities instead of percentiles.
        return_text: repeats each text in the answer.

    Returns:
        An index into `texts` and a score each. Scores are percentiles, 0-1; similarities where the domain has no
        reference.

    Raises:
        EmptyInput, InvalidInput, NotFound, Conflict, Overloaded: as for `similarity`.
    """
    body = {
        "query": query,
        "texts": many(texts, "texts"),
        "domain": domain,
        "raw_scores": raw_scores,
        "return_text": return_text,
    }
    return Call(method="POST", path="rerank", body=body, parse=answer(tuple[Ranked, ...]))


def ready() -> Call[bool]:
    """Whether the server takes requests now: False while it starts or stops, and where nobody listens."""

    def rescue(error: IsosimError) -> bool:
        if error.status == 503 or isinstance(error, ConnectionFailed):
            return False
        raise error

    return Call(method="GET", path="readyz", parse=lambda _: True, rescue=rescue, repeat=Repeat.NEVER)
