"""Calibrates from a corpus: draws a random sample of its texts, embeds it on many engines, and fits a calibration."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from isosim.bulk.cluster import cluster, map_items
from isosim.bulk.inputs import Part, Source, check_columns, cut, fault, faults
from isosim.bulk.places import Place
from isosim.bulk.plan import device_of, with_address
from isosim.bulk.readers import open_input, reader_of
from isosim.bulk.run import Report, RunOptions, pack, store_here
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import BackendFailure, InvalidInput, IsosimError
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from isosim.jobs.offline import WINDOW, Encodings, Sending, open_texts
from isosim.jobs.requirements import by_rank, check_sentences, rank
from isosim.store.blobs import opened, remote


@dataclass(frozen=True)
class Corpus:
    """Where the texts are, and how to read them."""

    input: str
    column: str
    form: str | None
    delimiter: str | None
    longest: int  # maximum number of characters per text


def fit_sample(
    corpus: Corpus,
    count: int,
    domain: str,
    asked: dict[str, Any],
    encoder: str,
    device: str,
    options: RunOptions,
    threads: int,
    report: Report,
    sending: Sending,
) -> dict[str, Any]:
    """Samples texts, embeds them, fits a calibration and publishes it.

    Returns:
        `domain`, `version`, `promoted` (whether the version was promoted), `promotion` (why the version was or was
        not promoted), and `report` (the report that is stored with the version).

    Raises:
        EmptyInput, InvalidInput: the corpus has too few distinct texts for the method.
    """
    place, sources, form, delimiter, reader = open_input(corpus.input, corpus.form, corpus.delimiter)
    check_columns(reader, place, sources, [corpus.column], [])
    parts = cut(reader, place, sources, SCAN_ROWS)
    artifact = EncoderStore.at(options.store, options.seed).find(encoder)
    if artifact.kind == "vectors":
        raise InvalidInput(
            f"encoder {artifact.id} takes vectors, but this command reads only texts; use isosim calibrate, which "
            "reads vectors"
        )
    domains = DomainStore(opened(options.store))
    epoch = domains.read(domain).epoch
    with cluster(options.address, options.local_cores) as ray:
        texts, unusable = sample(
            ray, [with_address(place, source) for source in sources], parts, form=form, delimiter=delimiter,
            column=corpus.column, longest=corpus.longest, seed=asked["seed"], count=count, options=options,
            report=report,
        )  # fmt: skip
        check_sentences(asked["method"], artifact.spec.dim, len(texts))
        shipped = None
        if options.address is not None and not remote(options.store):
            shipped = [ray.put(pack(options, artifact.id, artifact.digest, domain, 0))]
        spread = SpreadEncoder(ray, artifact, options, shipped, sending, gpu=device_of(device) == "gpu")
        wanted = JobRequest(domain, artifact.digest, artifact.id, sentences=len(texts), epoch=epoch, **asked)
        result = calibrate_job(
            wanted, CalibrationInput(texts), artifact, domains, report, threads=threads, encode=spread
        )
    rows = sum(part.rows for part in parts)
    drawn = {"rows": rows, "unusable": unusable, "texts": len(texts), "asked": count}
    result = replace(result, report=result.report | {"sample": drawn})
    version, promoted, why = result.publish(domains)
    return {"domain": domain, "version": version, "promoted": promoted, "promotion": why, "report": result.report}


class EncodeWorker:
    """Encodes the texts of an item (a JSON array `[start, texts]`); returns `start` and the encodings as bytes."""

    def __init__(self, store: str, seed: Path | None, encoder: str, digest: str, threads: int, shipped: Any) -> None:
        self.failure: str | None = None
        try:
            seen = store_here(Path(store), encoder, digest, "encoder", shipped)
            self.encode = open_texts(EncoderStore.at(seen, seed).find(f"{encoder}@{digest}"), threads)
        except (IsosimError, OSError) as error:
            self.failure = str(error)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        start, texts = orjson.loads(batch["item"][0])
        if self.failure is None:
            try:
                columns = vars(self.encode(texts))
                return {"start": [start], "failure": [""], **{n: [array.tobytes()] for n, array in columns.items()}}
            except IsosimError as error:
                self.failure = str(error)
        return {"start": [start], "failure": [self.failure], **{one.name: [b""] for one in fields(Encodings)}}


class SpreadEncoder:
    """A TextEncoder that uses many engines.

    Each engine encodes `WINDOW` texts at a time, as `isosim calibrate` does. So this class forms the same batches as
    that command, and gets the same vectors.
    """

    def __init__(
        self, ray: Any, artifact: EncoderArtifact, options: RunOptions, shipped: Any, sending: Sending, *, gpu: bool
    ) -> None:
        self.ray, self.artifact, self.options, self.shipped, self.gpu = ray, artifact, options, shipped, gpu
        self.sending = sending

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Encodings:
        """Encodes the texts. Raises BackendFailure if the encoder fails or cannot be reached."""
        if self.artifact.remote is not None:
            self.sending(len(texts))
        encodings = Encodings.build(len(texts), self.artifact.spec.dim)
        items = [orjson.dumps([at, list(texts[at : at + WINDOW])]).decode() for at in range(0, len(texts), WINDOW)]
        arguments = {
            "store": str(self.options.store), "seed": self.options.seed, "encoder": self.artifact.id,
            "digest": self.artifact.digest, "threads": self.options.cores, "shipped": self.shipped,
        }  # fmt: skip
        done = 0
        engines = self.options.engines(self.ray, gpu=self.gpu)
        with closing(map_items(self.ray, items, EncodeWorker, arguments, engines)) as results:
            for made in results:
                if made["failure"]:
                    raise BackendFailure(str(made["failure"]))
                start, count = int(made["start"]), 0
                for name, array in vars(encodings).items():
                    part = np.frombuffer(made[name], array.dtype).reshape(-1, *array.shape[1:])
                    count = len(part)
                    array[start : start + count] = part
                done += count
                progress(done / len(texts))
        return encodings


SCAN_ROWS = 65_536  # rows per part when a corpus is sampled
# `sample` keeps the rows whose pseudo-random rank is below a limit. To get N texts, the first limit keeps
# about SPARE × N rows. N rows would be too few, because several rows may have the same text.
SPARE = 4
SPACE = 2**64  # every rank is less than this number


class SampleWorker:
    """Reads the part with a given number. Returns the number of its rows, the number of unusable rows, and at most
    `count` texts with a rank below `limit`."""

    def __init__(
        self, sources: Sequence[Source], parts: Sequence[Part], form: str, delimiter: str, column: str,
        longest: int, seed: int, limit: int, count: int,
    ) -> None:  # fmt: skip
        self.sources, self.parts, self.column = sources, parts, column
        self.reader = reader_of(form, delimiter)
        self.place = Place(sources[0].path)
        self.longest, self.seed, self.limit, self.count = longest, seed, limit, count

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        part = self.parts[int(batch["item"][0])]
        try:
            path = self.sources[part.source].path
            records = self.reader.read(self.place, path, part, [self.column], [])
        except (IsosimError, OSError) as error:
            return {"found": [orjson.dumps({"failure": str(error)})]}
        reasons = faults(records, part.rows, partial(fault, longest=self.longest))
        cells = records.cells[self.column]
        texts = {cells[row].strip() for row, reason in enumerate(reasons) if reason is None}
        ranked = sorted((rank(text, self.seed), text) for text in texts)
        below = [pair for pair in ranked[: self.count] if pair[0] < self.limit]
        unusable = sum(reason is not None for reason in reasons)
        return {"found": [orjson.dumps({"rows": part.rows, "unusable": unusable, "texts": below})]}


def sample(
    ray: Any,
    sources: Sequence[Source],
    parts: Sequence[Part],
    *,
    form: str,
    delimiter: str,
    column: str,
    longest: int,
    seed: int,
    count: int,
    options: RunOptions,
    report: Callable[[str, float | None], None],
) -> tuple[list[str], int]:
    """Draws at most `count` distinct texts: those with the lowest ranks, sorted by rank.

    A text's rank is a hash of the text and the seed. Returns the texts and the number of rows without usable text.
    """
    rows = sum(part.rows for part in parts)
    limit = min(SPACE, SPARE * count * SPACE // rows)
    while True:
        arguments = {
            "sources": list(sources), "parts": list(parts), "form": form, "delimiter": delimiter, "column": column,
            "longest": longest, "seed": seed, "limit": limit, "count": count,
        }  # fmt: skip
        ranked: dict[str, int] = {}
        seen = unusable = 0
        numbers = [str(part.number) for part in parts]
        with closing(map_items(ray, numbers, SampleWorker, arguments, options.engines(ray, gpu=False))) as results:
            for result in results:
                facts = orjson.loads(result["found"])
                if "failure" in facts:
                    raise BackendFailure(facts["failure"])
                seen += facts["rows"]
                unusable += facts["unusable"]
                ranked.update((text, place) for place, text in facts["texts"])
                if len(ranked) > 2 * count:
                    ranked = dict(sorted(ranked.items(), key=by_rank)[:count])
                report(f"sampling {seen:,}", seen / rows)
        if len(ranked) >= count or limit == SPACE:
            return [text for text, _ in sorted(ranked.items(), key=by_rank)[:count]], unusable
        limit = min(SPACE, 16 * limit)
