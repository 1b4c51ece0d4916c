"""Methods that score and embed texts, and the readiness probe."""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ._answers import Ranked, Similarity
from ._call import Answered, Call, Sender
from ._methods import Given, answered, request
from ._retries import Repeat
from .errors import ApiError, ConnectionFailed, UnexpectedAnswer

Space = Literal["calibrated", "raw"]
Unit = Literal["similarity", "cosine_distance", "l2", "l2_squared", "inner_product"]


@request("POST", "similarity")
def similarity(
    pairs: Iterable[Sequence[str]], *, domain: str = "default", threshold: str | None = None, detail: bool = False
) -> Similarity:
    """Calibrated similarity of sentence pairs.

    Args:
        pairs: tuples (text, text). By default, a server accepts 512 pairs per request.
        domain: `name`, `name@3` or `name@previous`.
        threshold: the name of a saved threshold (see `save_threshold`). `match` of the result then says which
            pairs reach the threshold.
        detail: adds token counts and out-of-domain scores.

    Returns:
        Columns with one entry for each pair, in order.
    """


def inputs(given: Given) -> None:
    given["inputs"] = given.pop("texts")


def vectors(value: Any) -> list[list[float]]:
    """The vectors of an answer. Checks that the answer is a list of lists. Checking its numbers would take too long."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise UnexpectedAnswer(f"expected a list of vectors, got {value!r:.80}; is this an isosim server?")
    return value


@request("POST", "embed", prepare=inputs, parse=vectors)
def embed(
    texts: str | Iterable[str],
    *,
    domain: str = "default",
    space: Space = "calibrated",
    normalize: bool = True,
    dimensions: int | None = None,
    truncate: bool | None = None,
    truncation_direction: Literal["Right", "Left"] = "Right",
) -> list[list[float]]:
    """One vector for each text, in order; for a single string, a list with one vector.

    Args:
        texts: by default, a server accepts 2,048 texts per request.
        domain: `name`, `name@3` or `name@previous`. If you store vectors, name the version: vectors of different
            versions cannot be compared.
        space: `calibrated`, or `raw` for vectors of the frozen encoder.
        normalize: scales vectors to norm 1.
        dimensions: number of leading dimensions to return; fewer than the encoder's only for raw vectors.
        truncate: if False, the server refuses a text that is too long for the encoder. Otherwise it cuts the text.
        truncation_direction: `Right` cuts off the end of the text, `Left` its beginning.
    """


@request("POST", "rerank")
def rerank(
    query: str,
    texts: Iterable[str],
    *,
    domain: str = "default",
    raw_scores: bool = False,
    return_text: bool = False,
    gallery: int | None = None,
) -> tuple[Ranked, ...]:
    """Ranks texts by their similarity to a query, the most similar first.

    Args:
        query: one text.
        texts: the texts to rank.
        domain: `name`, `name@3` or `name@previous`.
        raw_scores: if True, scores are similarities instead of percentiles.
        return_text: if True, the answer repeats each text.
        gallery: number of entries that were searched to find the texts. The result then has the `false_hit_rate`
            of each text.

    Returns:
        The score of each text, and its index in `texts`. Scores are percentiles, 0-1, or similarities if the
        domain has no random pairs.
    """


@answered
def ready() -> Answered[bool]:
    """Whether the server accepts requests now: False while it starts or stops, or if it cannot be reached."""
    call = Call(method="GET", path="readyz", parse=lambda _: True, repeat=Repeat.NEVER)

    async def run(sender: Sender) -> bool:
        try:
            return await call(sender)
        except ConnectionFailed:
            return False
        except ApiError as error:
            if error.status == 503:
                return False
            raise

    return run
