"""Posted files of any format: detects the format, shows the content, and reads the sentences of one column."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from email.message import Message
from typing import Annotated, Any, BinaryIO, Literal, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from isosim.access.grants import Grant
from isosim.api.calibration.schemas import Inspection
from isosim.api.policy import media_type, needs, sent_as
from isosim.api.requests import TraceDep, json_response
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.encoders.device import memory_left
from isosim.errors import InvalidInput, TooLarge, UnsupportedMedia
from isosim.jobs.intake import MEMORY, Limits
from isosim.jobs.job import LABEL_KINDS
from isosim.jobs.posted import Spool, temporary_file
from isosim.jobs.sandbox import LEAST_MEMORY, MEMORY_OF_LINES, Reading, held_whole, read_isolated
from isosim.jobs.tables import KINDS, TYPES, Kind

router = APIRouter(tags=["calibration"])

CHUNK = 64 * 1024  # bytes handed to a thread at once
# The spool of a posted file may be at most this many times as large as the file. Asian text in UTF-16 needs 1.5 times
# its size as UTF-8, vectors of one-digit numbers twice theirs as float32.
JSON_GROWTH = 2

NPY = "application/x-npy"
# Web forms, which wrap the file, and web pages.
UNREAD = ("multipart/form-data", "application/x-www-form-urlencoded", "text/html", "application/xhtml+xml")
# Charsets that many clients state for every file, whatever its encoding. They are ignored: the encoding is detected.
UTF8 = ("utf-8", "utf8", "us-ascii", "ascii")
AS_IT_IS = "send the file itself: curl --data-binary @FILE -H 'content-type: application/octet-stream' '…/{}'"


FILE = {"type": "string", "format": "binary"}
FILE_TYPES = {
    "application/octet-stream": {**FILE, "description": "any file; its format is detected from its content"},
    "text/csv": FILE,
    "text/tab-separated-values": FILE,
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": FILE,
    "application/vnd.apache.parquet": FILE,
}
BODY = {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in FILE_TYPES.items()}}}


def content_type(request: Request) -> tuple[str, str | None]:
    """Media type and charset of the Content-Type header; the charset is None if the header states none."""
    header = request.headers.get("content-type", "")
    parsed = Message()
    parsed["content-type"] = header
    return media_type(header), parsed.get_content_charset()


def check_no_form(kind: str, route: str) -> None:
    """Raises UnsupportedMedia for the media types in UNREAD. With -F or -d, curl sends a web form."""
    if kind in UNREAD:
        raise UnsupportedMedia(f"{sent_as(kind)}; {AS_IT_IS.format(route)}, with the options in the query")


async def reading_of(
    request: Request,
    column: Annotated[
        str | None,
        Query(max_length=1000, description="column with the sentences: its name, or its number, counted from 1"),
    ] = None,
    charset: Annotated[
        str | None, Query(max_length=40, description="encoding of the file; detected by default")
    ] = None,
    form: Annotated[
        str | None,
        Query(alias="format", max_length=40, description=f"{', '.join(KINDS)}; default: the content type"),
    ] = None,
    sheet: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="sheet of a workbook; default: the longest",
        ),
    ] = None,
    header: Annotated[
        bool | None, Query(description="whether the first row names the columns; detected by default")
    ] = None,
    force: Annotated[
        bool, Query(description="for plain text: each line is a sentence, even if the lines look like rows of a table")
    ] = False,
) -> Reading:
    """How to read a posted file, from query and content type. Raises InvalidInput for an unknown format."""
    kind, declared = content_type(request)
    if kind == NPY and any(one is not None for one in (column, charset, form, sheet, header)):
        raise InvalidInput("column, charset, format, sheet and header are only for files of text, not for .npy")
    ignored = kind == "application/json" or (declared or "").lower() in UTF8
    return Reading(
        column=column,
        kind=cast(Kind | None, form) or ("npy" if kind == NPY else TYPES.get(kind)),
        charset=charset or (None if ignored else declared),
        sheet=sheet,
        header=header,
        force=force,
    )


ReadingDep = Annotated[Reading, Depends(reading_of)]


@asynccontextmanager
async def temporary(service: Service, grant: Grant) -> AsyncIterator[BinaryIO]:
    """An unnamed file. The system deletes it when the process ends, or is killed.

    Raises:
        Overloaded: there are MOST_FILES already, or half of them are this API key's of several.
    """
    files = service.temporary_files
    files.check(grant, service.share(files.most, 2), "files are arriving or being read", "send the request again later")
    with files.taken(grant), await asyncio.to_thread(temporary_file) as file:
        try:
            yield file
        finally:
            # Closing frees the file's blocks, which takes 0.1 s for 100 MB. Must run even if a disconnect cancels this.
            await asyncio.shield(asyncio.to_thread(file.close))


async def store(request: Request, file: BinaryIO, limit: int, remedy: str) -> None:
    """Writes the body into a file. Raises TooLarge above `limit` bytes; its message ends with `remedy`."""
    taken, held = 0, bytearray()
    async for part in request.stream():
        taken += len(part)
        if taken > limit:
            raise TooLarge(f"the file is larger than {limit:,} bytes; {remedy}")
        held += part
        if len(held) >= CHUNK:
            await asyncio.to_thread(file.write, held)
            held.clear()
    await asyncio.to_thread(file.write, held)
    await asyncio.to_thread(file.flush)


@contextmanager
def one_of_few(service: Service, grant: Grant) -> Iterator[None]:
    """Takes one of `service.file_readers` while a `with` block reads or writes a file. Raises Overloaded
    if all are taken, or half of them by this API key of several."""
    readers = service.file_readers
    readers.check(grant, service.share(readers.most, 2), "files are being read", "send the request again later")
    with readers.taken(grant):
        yield


async def read_body(
    request: Request, service: Service, reading: Reading, out: Spool | BinaryIO | None
) -> dict[str, Any]:
    """Reads the posted file in a child process, and writes its entries or rows to `out`.

    Returns facts about the file, such as its format, encoding and columns, and the counts of its entries.

    Raises:
        Overloaded: too many files are being read.
        TooLarge, UnsupportedMedia, InvalidInput, EmptyInput: see `read_isolated`.
        CallerLeft: the caller has disconnected; the child process is ended.
    """
    settings = service.settings
    size = settings.max_calibration_bytes if reading.brought is None else settings.max_vector_bytes
    trace: Trace = request.scope["state"]["trace"]
    lines, vectors = (out.lines, out.vectors) if isinstance(out, Spool) else (out, None)
    async with AsyncExitStack() as stack:
        if reading.kind == "npy" and vectors is not None:
            file = vectors  # nothing is converted
        else:
            file = await stack.enter_async_context(temporary(service, trace.grant))
        await store(request, file, size, "a random sample of 20,000 sentences is enough")
        return await read_stored(service, trace, file, reading, JSON_GROWTH * size, lines, vectors)


async def read_stored(
    service: Service,
    trace: Trace,
    file: BinaryIO,
    reading: Reading,
    most: int,
    lines: BinaryIO | None,
    vectors: BinaryIO | None = None,
    **bounds: Any,
) -> dict[str, Any]:
    """Reads a file that has arrived, in a child process that writes at most `most` bytes. Returns and raises what
    `read_body` does. `bounds`: fields of `Limits` in place of those for calibrations."""
    settings, whole, left = service.settings, held_whole(file), threading.Event()

    def read() -> dict[str, Any]:
        limits = Limits(
            settings.max_characters,
            settings.max_calibration_sentences,
            most,
            memory_of_reader(memory_left(), whole=whole),
        )
        return read_isolated(file, reading, replace(limits, **bounds), lines, left, vectors=vectors)

    with one_of_few(service, trace.grant):
        unwatch = trace.watch(left.set)
        try:
            async with service.whole_files if whole else nullcontext():
                return await asyncio.to_thread(read)
        finally:
            # Tells the thread to end its child process. Cancelling this task stops neither thread nor child.
            left.set()
            unwatch()


def memory_of_reader(left: int | None, *, whole: bool) -> int:
    """Memory limit, in bytes, of the process that reads a file.

    A process that holds its file as a whole gets 1/2 of the free memory, at most MEMORY. Any other process gets 1/8, at
    most MEMORY_OF_LINES. Each gets at least LEAST_MEMORY. At most one whole file and three others are read at the same
    time, so together they usually get at most 7/8.

    Args:
        left: free bytes of the container; None if its memory has no limit.
        whole: whether the file is held in memory as a whole (workbook, Parquet) instead of being read line by line.
    """
    most, share = (MEMORY, 2) if whole else (MEMORY_OF_LINES, 8)
    return most if left is None else max(LEAST_MEMORY, min(most, left // share))


async def sent(stack: AsyncExitStack, file: BinaryIO) -> AsyncIterator[bytes]:
    """Yields a file in pieces. Closes `stack`, which owns the file, at the end or if the client disconnects."""
    async with stack:
        file.seek(0)
        while piece := await asyncio.to_thread(file.read, CHUNK):
            yield piece


@router.post("/inspect", response_model=Inspection, dependencies=[needs("read", body="file")], openapi_extra=BODY)
async def inspect(
    request: Request,
    service: ServiceDep,
    trace: TraceDep,
    reading: ReadingDep,
    give: Annotated[
        Literal["facts", "sentences", "rows", "labels"],
        Query(
            description="what to return: `facts` as a JSON object, `sentences` as NDJSON of strings, `rows` as NDJSON "
            "of lists of strings, or `labels`, the labelled pairs of a table, as NDJSON of [a, b, label, weight]"
        ),
    ] = "facts",
    label_kind: Annotated[str, Query(alias="kind", description="what labels mean: matches or grades")] = "matches",
) -> Response:
    """Shows how a match or a calibration would read a file. The answer has the file's format, encoding, columns, first
    ten rows and counts. The file is not kept."""
    kind, _ = content_type(request)
    check_no_form(kind, "inspect")
    if label_kind not in LABEL_KINDS:
        raise InvalidInput(f"kind: {', '.join(LABEL_KINDS)} are known")
    reading = replace(reading, give="entries" if give == "sentences" else give, labels=label_kind)
    if give == "facts":
        facts = await read_body(request, service, reading, None)
        return json_response({name: value for name, value in facts.items() if name in Inspection.model_fields})
    async with AsyncExitStack() as stack:
        out = await stack.enter_async_context(temporary(service, trace.grant))
        await read_body(request, service, reading, out)
        return StreamingResponse(sent(stack.pop_all(), out), media_type="application/x-ndjson")
