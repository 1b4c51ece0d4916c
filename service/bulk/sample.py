"""A seeded sample of a corpus's distinct texts, drawn by many workers: what `core/jobs/requirements.py` draws alone."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import orjson

from service.bulk.cluster import map_items
from service.bulk.inputs import Part, Source, faults
from service.bulk.places import Place
from service.bulk.readers import reader_of
from service.bulk.run import RunOptions
from service.core.errors import BackendFailure, IsosimError
from service.core.jobs.requirements import by_rank, rank

SCAN_ROWS = 65_536  # of a part: hashing is quick
SPARE = 4  # times the wanted texts are let through at first; twins leave fewer
SPACE = 2**64


class SampleWorker:
    """Numbers of parts in; of each its texts below a limit, by rank, and how many rows had none."""

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
        reasons = faults(records, part.rows, self.longest)
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
    """At most `count` distinct texts in the order of their ranks, and how many rows had no usable text."""
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
