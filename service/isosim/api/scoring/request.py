"""One scoring request: what it is charged, its vectors and scores, and what is recorded of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from isosim.api.parameters import fault
from isosim.api.requests import resolve
from isosim.api.state import Service
from isosim.api.trace import Trace
from isosim.arrays import Doubles, Vectors
from isosim.encoders.brought import refuse_texts
from isosim.encoders.embedding import Embeddings
from isosim.encoders.loaded import LoadedEncoder
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.texts import Side
from isosim.errors import EmptyInput, EncoderMismatch, InvalidInput
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.scoring.distances import Space
from isosim.scoring.similarity import Scores, normalized, score
from isosim.threads import FEW

MAX_TEXTS = 2048  # texts in a request to /embed, /v1/embeddings or /rerank; also OpenAI's limit


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
    check_count(len(value), field, MAX_TEXTS if limit is None else limit)
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


def check_dimensions(dimensions: int | None, space: Space, dim: int, field: str = "dimensions") -> None:
    """Raises InvalidInput if vectors cannot be cut to `dimensions`. Calibrated vectors cannot be cut, because they
    would lose their meaning; raw vectors can. `dim` itself, which some clients always send, cuts nothing."""
    if dimensions not in (None, dim) and space == "calibrated":
        raise fault(
            InvalidInput,
            field,
            f": a calibrated vector has {dim} numbers and cannot be cut; ask for the raw one "
            "(space: raw, or isosim/<domain>:raw)",
        )
    if dimensions is not None and dimensions > dim:
        raise fault(InvalidInput, field, f": {dimensions} requested, but the encoder has {dim}")


@dataclass(slots=True)
class ScoringRequest:
    """A request for vectors or scores: the version and the encoder that answer it, and the vectors of its texts."""

    service: Service
    trace: Trace
    calibration: Calibration
    encoder: LoadedEncoder
    space: Space = "calibrated"  # whose vectors or cosines a compatible route answers with
    embeddings: Embeddings | None = None  # None until `embed` or `bring`

    @classmethod
    async def begin(cls, service: Service, trace: Trace, domain: DomainRef | str, space: Space = "calibrated") -> Self:
        """Finds the version and the encoder for a domain. Raises as `resolve` does."""
        return cls(service, trace, *await resolve(service, trace, domain), space)

    @property
    def raw(self) -> bool:
        return self.space == "raw"

    @property
    def made(self) -> Embeddings:
        """The vectors of the request's texts."""
        assert self.embeddings is not None  # noqa: S101 - routes embed first
        return self.embeddings

    def check_encoder(self, digest: str | None) -> None:
        """Raises EncoderMismatch if a digest is given that is not the encoder's."""
        if digest is not None and digest != self.encoder.digest:
            raise EncoderMismatch(
                f"encoder: the vectors are from {digest[:80]!r}, but domain {self.calibration.domain!r} uses "
                f"{self.encoder.artifact.id} ({self.encoder.digest})"
            )

    async def charge(self, texts: int) -> None:
        """Charges texts to the key's limits. Raises Overloaded if they are exceeded."""
        await self.service.limits.admit(self.trace.grant, texts)

    async def embed(
        self,
        contents: Sequence[str],
        *,
        truncation_direction: str = "right",
        truncate: bool | None = None,
        prompt_name: str | None = None,
        scored: bool = True,
        charged: bool = False,
    ) -> None:
        """Computes the texts' vectors with the frozen encoder.

        Args:
            truncate: False refuses a text that is too long, as in text-embeddings-inference.
            prompt_name: the prompt that is put before each text; None: the encoder's default prompt.
            scored: False skips the out-of-domain test, which only scores need.
            charged: whether the caller has charged the texts to the key's limits.

        Raises:
            InvalidInput: a text is too long and may not be truncated; the encoder has no such prompt; or it takes
                vectors instead of texts.
            TokenizerFailure, Overloaded, BackendFailure, CallerLeft: see `Embedder.embed`.
        """
        artifact = self.encoder.artifact
        prompt = named_prompt(prompt_name, artifact)
        refuse_texts(artifact)
        if not charged:
            await self.charge(len(contents))
        if len(contents) > FEW:
            await self.service.pace()
        if self.encoder.remote is not None:
            self.trace.headers["x-isosim-tokens"] = "estimated"
        before = artifact.spec.prompt if prompt is None else prompt
        side: Side = "left" if truncation_direction.lower() == "left" else "right"
        judge = self.calibration.early_judge if scored else None
        texts = [before + content for content in contents] if before else contents
        self.embeddings = await self.encoder.embedder.embed(texts, side, self.trace.watch, judge)
        if truncate is False and any(text.truncated for text in self.embeddings.texts):
            raise InvalidInput(f"truncate is false and a text has more than {artifact.spec.max_length} tokens")

    async def vectors(self, *, normalize: bool = True, dimensions: int | None = None) -> Vectors:
        """One vector for each text: (texts, dim), or (texts, dimensions) if `dimensions` is given."""
        if len(self.made.rows) > FEW:
            await self.service.pace()
        started = time.perf_counter()
        rows, calibration = self.made.vectors, self.calibration
        if not self.raw and calibration.transform is not None:
            rows = await self.service.scoring.sized(len(rows), calibration.latents, rows)
        rows = rows[:, :dimensions]
        if normalize:
            rows = normalized(rows)
        self._record(time.perf_counter() - started)
        return rows[self.made.rows]

    async def score(self, left: slice | int, right: slice, features: Doubles | None = None) -> Scores:
        """Scores the texts at `left` against those at `right`, in the order of the request. If `left` is an index, that
        one text is compared with each text at `right`. `features`: see `similarity.score`."""
        started = time.perf_counter()
        made = self.made
        b = made.rows[right]
        a = np.full_like(b, made.rows[left]) if isinstance(left, int) else made.rows[left]
        inputs = (self.calibration, made.texts, made.vectors, a, b)
        size = max(len(made.vectors), len(a))
        result = await self.service.scoring.sized(size, score, *inputs, brought=made.brought, features=features)
        self._record(time.perf_counter() - started, result)
        return result

    def _record(self, spent: float, scores: Scores | None = None) -> None:
        """Records the answer, once for all that tell of it. `spent`: seconds that applying the calibration took."""
        trace, made = self.trace, self.made
        trace.calibration, trace.embeddings, trace.scores = self.calibration, made, scores
        trace.calibrating = spent
        self.service.metrics.observe_scored(made, spent)
        # Drift is measured for the current champion only. The version may be another: the request may have named it,
        # or the champion may have changed since scoring began.
        if scores is not None and self.service.registry.is_champion(self.calibration):
            self.service.drift.observe(self.calibration, scores)

    @property
    def usage(self) -> dict[str, Any]:
        """The field `usage` of OpenAI's API: tokens of all texts, also cached ones; estimated if the encoder is
        remote."""
        tokens = sum(self.made.texts[row].tokens for row in self.made.rows)
        estimated = {} if self.encoder.remote is None else {"estimated": True}
        return {"prompt_tokens": tokens, "total_tokens": tokens, **estimated}
