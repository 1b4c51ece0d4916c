"""Posts a match: one file or two, or lists in JSON."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any, BinaryIO, cast

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response
from pydantic import TypeAdapter
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile

from isosim.api.bodies import body_of
from isosim.api.calibration.calibrate import (
    FULL_POSTS,
    accept,
    check_room,
    megabytes,
    options_of,
    sent_away,
    spooling,
)
from isosim.api.calibration.files import (
    FILE,
    FILE_TYPES,
    JSON_GROWTH,
    UTF8,
    ReadingDep,
    check_no_form,
    content_type,
    read_stored,
    store,
    temporary,
)
from isosim.api.matches.schemas import MatchAccepted, MatchOptions, MatchRequest
from isosim.api.policy import needs
from isosim.api.requests import TraceDep, resolve
from isosim.api.scoring.request import listed
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.encoders.store import EncoderArtifact
from isosim.errors import EmptyInput, InvalidInput, ShareUsed, TooLarge, UnsupportedMedia
from isosim.jobs.job import JobRequest, MatchInput
from isosim.jobs.posted import Spool
from isosim.jobs.requirements import FEWEST_SENTENCES
from isosim.jobs.sandbox import Reading
from isosim.jobs.tables import Kind, kind_of_name
from isosim.scoring.calibration import DEFAULT, DomainRef

router = APIRouter(prefix="/matches", tags=["matches"])

MOST_ROWS = 200_000  # rows of both files together: their vectors and the search take 1 GB of a worker's memory
TOKENS_A_SECOND = 6000.0  # that two cores of a CPU encode (loadtest/README.md)
PAIRS_A_SECOND = 1e8  # that they compare
CANDIDATES_A_SECOND = 60_000  # whose words are compared
FIT = 6.0  # s for a scale
MOST_COLUMNS, LONGEST_NAME = 100, 100  # columns beside the text, and characters of their names

BODY = body_of(
    MatchRequest,
    {
        "multipart/form-data": {
            "type": "object",
            "required": ["a"],
            "properties": {"a": FILE, "b": FILE},
            "description": "one file, to find its duplicates, or two; options go in the query",
        },
        "text/plain": {"type": "string", "description": "one text in each line, to find its duplicates"},
        "application/x-ndjson": {"type": "string"},
        **FILE_TYPES,
    },
    MatchOptions,
)


async def second_reading(
    first: ReadingDep,
    column_b: Annotated[
        str | None, Query(max_length=1000, description="column of the second file; default: that of the first")
    ] = None,
    charset_b: Annotated[str | None, Query(max_length=40, description="encoding of the second file")] = None,
    form_b: Annotated[
        str | None, Query(alias="format_b", max_length=40, description="format of the second file")
    ] = None,
    sheet_b: Annotated[str | None, Query(max_length=1000, description="sheet of the second file")] = None,
    header_b: Annotated[bool | None, Query(description="header of the second file")] = None,
) -> Reading:
    """How to read the second file. What is not given for it is as for the first; a sheet is only for the first if the
    second has a format of its own."""
    return replace(
        first,
        column=column_b or first.column,
        charset=charset_b or (None if form_b else first.charset),
        kind=cast(Kind | None, form_b) or first.kind,
        sheet=sheet_b or (None if form_b else first.sheet),
        header=first.header if header_b is None and form_b is None else header_b,
    )


@router.post(
    "", status_code=202, response_model=MatchAccepted, dependencies=[needs("read", body="files")], openapi_extra=BODY
)
async def match(
    request: Request,
    service: ServiceDep,
    trace: TraceDep,
    reading: ReadingDep,
    second: Annotated[Reading, Depends(second_reading)],
    idempotency_key: Annotated[str | None, Header(max_length=256)] = None,
) -> Response:
    """Starts a job that finds the pairs of texts that mean the same: in one file, or between two files."""
    await check_room(service, trace)
    async with spooling() as spool:
        options = await options_of(request, service, MatchOptions, MATCH_REQUEST)
        if isinstance(options, MatchRequest):
            facts = await service.large_json(take_lists, service, spool, options)
        else:
            facts = await read_files(request, service, trace, (reading, second), spool)
        rows = [one["sentences"] for one in facts]
        names = tuple(one["name"] for one in facts if "name" in one)
        if sum(rows) > MOST_ROWS:
            raise InvalidInput(f"the files have {sum(rows):,} rows with text; a match takes at most {MOST_ROWS:,}")
        distinct = sum(one["distinct"] for one in facts)
        estimate = seconds(spool, rows)
        scale, domain, artifact, base = await scale_of(service, trace, options)
        if len(facts) == 1 and distinct == 1 == rows[0]:
            raise InvalidInput("one text was posted, and a match needs two that it can compare")
        if scale == "new" and distinct < FEWEST_SENTENCES:
            raise InvalidInput(
                f"domain: a new one needs {FEWEST_SENTENCES} distinct sentences, and {distinct} were posted; leave "
                "out domain"
            )
        wanted = JobRequest(
            domain,
            artifact.digest,
            artifact.id,
            seed=options.seed,
            sentences=sum(rows),
            base=base,
            match=MatchInput(scale, tuple(rows), tuple(tuple(one["other_columns"]) for one in facts), estimate, names),
        )
        await service.store(check_results, service, trace)
        notices = [notice for one in facts for notice in one["notices"]]
        notices += sent_away(service, artifact, distinct)
        return await accept(service, trace, wanted, spool, notices, idempotency_key, "/matches", seconds=estimate)


MATCH_REQUEST = TypeAdapter(MatchRequest)


def take_lists(service: Service, spool: Spool, body: MatchRequest) -> list[dict[str, Any]]:
    """Spools the lists of a JSON body. Raises InvalidInput or EmptyInput, naming the entry."""
    facts = []
    for name, texts, file in (("a", body.a, spool.lines), ("b", body.b, spool.second)):
        if texts is None:
            continue
        checked = listed(texts, name, service, MOST_ROWS)
        file.writelines(orjson.dumps([row, text.strip(), []]) + b"\n" for row, text in enumerate(checked, 1))
        file.flush()
        facts.append({"sentences": len(texts), "distinct": len(set(texts)), "other_columns": [], "notices": []})
    return facts


async def read_files(
    request: Request, service: Service, trace: Trace, readings: tuple[Reading, Reading], spool: Spool
) -> list[dict[str, Any]]:
    """Reads the posted file, or those of a form, into the spool."""
    reading, second = (replace(one, give="texts") for one in readings)
    if (kind := content_type(request)[0]) != "multipart/form-data":
        check_no_form(kind, "matches")
        async with temporary(service, trace.grant) as file:
            await store(request, file, service.settings.max_calibration_bytes, MATCH_LESS)
            return [await read_one(service, trace, file, reading, spool.lines)]
    async with posted_form(request, service, trace) as files:
        facts = []
        for name, how, out in (("a", reading, spool.lines), ("b", second, spool.second)):
            if name in files:
                try:
                    read = await read_one(service, trace, files[name], named(how, files[name]), out)
                except (InvalidInput, EmptyInput, TooLarge, UnsupportedMedia) as error:
                    error.args = (f"file {name}: {error}",)
                    raise
                facts.append({**read, "name": plain_name(files[name].filename or "")})
        return facts


MATCH_LESS = "match a part of it"


async def read_one(
    service: Service, trace: Trace, file: UploadFile | BinaryIO, reading: Reading, out: BinaryIO
) -> dict[str, Any]:
    content: BinaryIO = file.file if isinstance(file, UploadFile) else file
    size = os.fstat(content.fileno()).st_size  # also puts a small file of a form on disk
    if size > service.settings.max_calibration_bytes:
        raise TooLarge(f"the file is larger than {service.settings.max_calibration_bytes:,} bytes; {MATCH_LESS}")
    most = JSON_GROWTH * service.settings.max_calibration_bytes
    facts = await read_stored(service, trace, content, reading, most, out, sentences=MOST_ROWS, less=MATCH_LESS)
    if len(facts["other_columns"]) > MOST_COLUMNS:
        raise InvalidInput(
            f"the file has more than {MOST_COLUMNS} columns beside the text; send those that the result needs"
        )
    facts["other_columns"] = [name[:LONGEST_NAME] for name in facts["other_columns"]]
    if not facts["sentences"]:
        raise EmptyInput(f"no row has a text in column {facts['column']!r}")
    return facts


def plain_name(name: str) -> str:
    """A file's name without folders and without characters that do not print.

    >>> plain_name("C:\\\\Temp\\\\new\\tcalls.csv")
    'newcalls.csv'
    """
    return "".join(filter(str.isprintable, re.split(r"[/\\]", name)[-1]))[:LONGEST_NAME]


def named(reading: Reading, file: UploadFile) -> Reading:
    """How to read a file of a form: its name tells the format, unless the query does."""
    return replace(reading, kind=reading.kind or kind_of_name(file.filename or ""))


@asynccontextmanager
async def posted_form(request: Request, service: Service, trace: Trace) -> AsyncIterator[dict[str, UploadFile]]:
    """The files of a form, on disk.

    Raises:
        InvalidInput: the form has other fields, or no file `a`.
        UnsupportedMedia: the form declares a charset other than UTF-8. Starlette would decode the fields with it on the
            event loop, and decoding 1 MB of `punycode` takes minutes.
    """
    places = service.temporary_files
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")  # as Starlette does
    if charset.decode("latin-1").lower() not in UTF8:
        raise UnsupportedMedia("the names in a form are UTF-8; name the encoding of a file by charset in the query")
    places.check(trace.grant, service.share(places.most, 2), "files are arriving", "send them again later")
    with places.taken(trace.grant):
        async with request.form(max_files=2, max_fields=1) as form:
            files = {name: value for name, value in form.multi_items() if isinstance(value, UploadFile)}
            if "a" not in files or not files.keys() <= {"a", "b"} or len(form.multi_items()) > len(files):
                raise InvalidInput(
                    "a form has the file a, and for a match between two files also b: -F a=@new.csv -F b=@known.csv; "
                    "options go in the query"
                )
            yield files


def seconds(spool: Spool, rows: list[int]) -> float:
    """Rough estimate of a job's run time on two cores: embedding takes most of it. A token has about four bytes."""
    tokens = spool.size / 4 + 4 * sum(rows)
    pairs = rows[0] * rows[-1] / (2 if len(rows) == 1 else 1)
    candidates = 10 * rows[0] / (2 if len(rows) == 1 else 1)
    return round(tokens / TOKENS_A_SECOND + pairs / PAIRS_A_SECOND + candidates / CANDIDATES_A_SECOND + FIT, 1)


async def scale_of(
    service: Service, trace: Trace, options: MatchOptions
) -> tuple[str, str, EncoderArtifact, int | None]:
    """Where the scale of a match comes from (`MatchInput.scale`), the domain, its encoder, and the version.

    Raises:
        Forbidden: the key may not use the domain, or may not make a new one.
        InvalidInput: the encoder computes no vectors.
    """
    scale, base, ref = "posted", None, DomainRef.parse(options.domain or DEFAULT)
    trace.grant.check_domain(ref.name)
    if options.domain is not None:
        record = await service.store(service.domains.read, ref.name)
        new = ref == DomainRef(ref.name) and ref.name != DEFAULT and not record.versions
        scale = "new" if new else "domain"
    if scale == "domain":
        calibration, encoder = await resolve(service, trace, ref)
        artifact, base = encoder.artifact, calibration.version
    else:
        if scale == "new":
            trace.grant.check_scope("calibrate")
        artifact = service.encoder.artifact
    if artifact.kind == "vectors":
        raise InvalidInput(f"encoder {artifact.id} computes no vectors, and a match needs those of its texts")
    return scale, ref.name, artifact, base


def check_results(service: Service, trace: Trace) -> None:
    """Raises ShareUsed if the results of this key keep too many bytes; they may keep as many as posted jobs."""
    room = service.share(FULL_POSTS * service.settings.max_calibration_bytes)
    held = service.results.held(trace.grant.id)
    if held >= room:
        raise ShareUsed(
            f"the results of earlier matches hold {megabytes(held)}; the limit is {megabytes(room)}; remove one: "
            "DELETE /matches/{job}",
            retry_after=60,
        )
