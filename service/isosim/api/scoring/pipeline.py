"""Steps that all scoring routes share: check texts, compute vectors and scores, record timings for headers and log."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isosim.api.parameters import fault
from isosim.api.state import Service
from isosim.api.trace import ScoringRecord, Trace
from isosim.arrays import Vectors
from isosim.encoders.brought import refuse_texts
from isosim.encoders.embedding import Embeddings
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.texts import Side, Text
from isosim.errors import EmptyInput, InvalidInput
from isosim.migration.encoders import Resolution
from isosim.scoring.calibration import Calibration
from isosim.scoring.distances import Space
from isosim.scoring.similarity import Scores, normalized, score

INLINE_ROWS = 64  # scoring up to this many texts or pairs is faster than handing them to a thread


def check_count(count: int, field: str, limit: int) -> None:
    """Raises EmptyInput if a field has no entries, InvalidInput if it has more than `limit`; both name the field."""
    if not count:
        raise fault(EmptyInput, f"`{field}`", "cannot be empty")  # same words as text-embeddings-inference
    if count > limit:
        raise fault(InvalidInput, field, f"has {count} entries, at most {limit} are taken")


def check_text(text: str, field: str, max_characters: int) -> None:
    """Raises EmptyInput for a blank text, InvalidInput for one that is too long; both name the field."""
    if not text or text.isspace():
        raise fault(EmptyInput, field, "is empty")
    if len(text) > max_characters:
        raise fault(InvalidInput, field, f"has {len(text)} characters, at most {max_characters} are taken")


def check_texts(texts: Sequence[str], field: Callable[[int], str], max_characters: int) -> None:
    """Raises EmptyInput or InvalidInput for the first invalid text, whose field is `field(index)`."""
    for number, text in enumerate(texts):
        if not text or len(text) > max_characters or text.isspace():
            check_text(text, field(number), max_characters)


def listed(value: str | list[str], field: str, service: Service, limit: int | None = None) -> list[str]:
    """Checked texts of a field that holds one text or several. Raises EmptyInput or InvalidInput, naming the entry."""
    settings = service.settings
    if isinstance(value, str):
        check_text(value, field, settings.max_characters)
        return [value]
    check_count(len(value), field, settings.max_texts if limit is None else limit)
    check_texts(value, lambda number: f"{field}.{number}", settings.max_characters)
    return value


def named_prompt(name: str | None, encoder: EncoderArtifact) -> str | None:
    """Text of the named prompt, which replaces the default prompt; None if `name` is None.

    Raises:
        InvalidInput: the encoder has no prompt of that name; the message lists the known ones.
    """
    known = encoder.prompts
    if name is None or name in known:
        return None if name is None else known[name]
    there = f"the encoder has {', '.join(sorted(known))[:500]}" if known else "this encoder has no named prompts"
    raise fault(InvalidInput, "prompt_name", f": there is no prompt {name[:80]!r}; {there}")


def check_dimensions(dimensions: int | None, space: Space, dim: int) -> None:
    """Raises InvalidInput if vectors cannot be cut to `dimensions`. Calibrated vectors cannot be cut, because they
    would lose their meaning; raw vectors can. `dim` itself, which some clients always send, cuts nothing."""
    if dimensions not in (None, dim) and space == "calibrated":
        raise fault(
            InvalidInput,
            "dimensions",
            f": a calibrated vector has {dim} numbers and cannot be cut; ask for the raw one "
            "(space: raw, or isosim/<domain>:raw)",
        )
    if dimensions is not None and dimensions > dim:
        raise fault(InvalidInput, "dimensions", f": {dimensions} requested, but the encoder has {dim}")


def side_of(truncation_direction: str) -> Side:
    return "left" if truncation_direction.lower() == "left" else "right"


async def embed(
    service: Service,
    trace: Trace,
    resolution: Resolution,
    contents: Sequence[str],
    *,
    side: Side = "right",
    truncate: bool | None = None,
    prompt: str | None = None,
    scored: bool = True,
) -> Embeddings:
    """Vectors of the texts, computed by the frozen encoder of `resolution`.

    Args:
        truncate: False refuses a text that is too long, as in text-embeddings-inference.
        prompt: put before each text; None: the encoder's default prompt.
        scored: False skips the out-of-domain test, which only scores need.

    Raises:
        InvalidInput: a text is too long and may not be truncated, or the encoder takes vectors instead of texts.
        TokenizerFailure, Overloaded, BackendFailure, CallerLeft: see `Embedder.embed`.
    """
    refuse_texts(resolution.encoder.artifact)
    await service.limits.admit(trace.grant, len(contents))
    spec = resolution.encoder.artifact.spec
    if resolution.encoder.remote is not None:
        trace.headers["x-isosim-tokens"] = "estimated"
    before = spec.prompt if prompt is None else prompt
    texts = [Text(before + content, side) for content in contents]
    judge = resolution.calibration.early_judge if scored else None
    embeddings = await resolution.encoder.embedder.embed(texts, trace.watch, judge)
    if truncate is False and any(text.truncated for text in embeddings.texts):
        raise InvalidInput(f"truncate is false and a text has more than {spec.max_length} tokens")
    return embeddings


async def vectors(
    service: Service,
    trace: Trace,
    resolution: Resolution,
    space: Space,
    embeddings: Embeddings,
    *,
    normalize: bool = True,
    dimensions: int | None = None,
) -> Vectors:
    """One vector for each requested text: (texts, dim), or (texts, dimensions) if `dimensions` is given."""
    started = time.perf_counter()
    rows, calibration = embeddings.vectors, resolution.calibration
    if space == "calibrated" and calibration.transform is not None:
        few = len(rows) <= INLINE_ROWS
        rows = calibration.latents(rows) if few else await service.scoring(calibration.latents, rows)
    rows = rows[:, :dimensions]
    if normalize:
        rows = normalized(rows)
    note(service, trace, calibration, embeddings, time.perf_counter() - started)
    return rows[embeddings.rows]


async def scores(
    service: Service, trace: Trace, resolution: Resolution, embeddings: Embeddings, left: slice | int, right: slice
) -> Scores:
    """Scores the texts at `left` against those at `right`, in the order of the request. If `left` is an index, that one
    text is compared with each text at `right`."""
    started = time.perf_counter()
    calibration = resolution.calibration
    b = embeddings.rows[right]
    a = np.full_like(b, embeddings.rows[left]) if isinstance(left, int) else embeddings.rows[left]
    inputs = (calibration, embeddings.texts, embeddings.vectors, a, b)
    small = max(len(embeddings.vectors), len(a)) <= INLINE_ROWS
    result = (
        score(*inputs, brought=embeddings.brought)
        if small
        else await service.scoring(score, *inputs, brought=embeddings.brought)
    )
    # Drift is measured for the current champion only. `calibration` may be another version: the request
    # may have named it, or the champion may have changed since scoring began.
    if service.encoders.registry.is_champion(calibration):
        service.drift.observe(calibration, result)
    if result.unreadable is not None:
        trace.headers["x-isosim-flags"] = "unreadable"
    note(service, trace, calibration, embeddings, time.perf_counter() - started)
    return result


def note(service: Service, trace: Trace, calibration: Calibration, embeddings: Embeddings, spent: float) -> None:
    """Records an answer's calibration, embeddings and timings for headers, log and metrics. `spent`: seconds that
    applying the calibration took."""
    trace.scored = ScoringRecord(calibration, embeddings, spent, time.perf_counter())
    truncated = 0
    for text in embeddings.texts:
        truncated += text.truncated
        if text.unreadable:
            trace.headers["x-isosim-flags"] = "unreadable"
    if truncated:
        service.metrics.truncated.inc(truncated)
    service.metrics.observe_embeddings(embeddings, spent)


def usage(embeddings: Embeddings, resolution: Resolution) -> dict[str, Any]:
    """The field `usage` of OpenAI's API: tokens of all requested texts, also cached ones; estimated if the encoder is
    remote."""
    tokens = sum(embeddings.texts[row].tokens for row in embeddings.rows)
    estimated = {} if resolution.encoder.remote is None else {"estimated": True}
    return {"prompt_tokens": tokens, "total_tokens": tokens, **estimated}
