"""A server whose routes fail in the words of what they were sent: `python -m tests.observability.indiscreet`."""

import asyncio
import json
import logging
import sys
import threading
import warnings

from fastapi import Request
from pydantic import BaseModel, TypeAdapter

from isosim.api.errors import TABLE
from isosim.api.state import ServiceDep
from isosim.commands.serving import logged
from isosim.errors import CallerLeft, IsosimError, MethodNotAllowed
from isosim.observability import logs
from isosim.server.process import Server
from isosim.settings import Settings


class Strict(BaseModel):
    count: int


def fail(kind: str, words: str) -> None:
    """Raises as libraries do, with what they were given in the message."""
    known: dict[str, type[IsosimError]] = {error.__name__: error for error in TABLE}
    if kind in known:
        raise MethodNotAllowed(words, "GET") if known[kind] is MethodNotAllowed else known[kind](words)
    if kind == "OSError":
        raise OSError(28, "No space left on device", words)
    if kind == "pydantic":
        TypeAdapter(Strict).validate_python({"count": words})
    if kind == "KeyError":
        _ = dict[str, str]()[words]
    if kind == "json":
        json.loads("{" + words)
    if kind == "group":
        raise ExceptionGroup(words, [ValueError(words), KeyError(words)])
    if kind == "chain":
        try:
            fail("pydantic", words)
        except ValueError as error:
            raise RuntimeError(words) from error
    if kind == "left":
        raise CallerLeft(words)
    raise RuntimeError(words)


KINDS = [error.__name__ for error in TABLE]
KINDS += ["OSError", "pydantic", "KeyError", "json", "group", "chain", "left", "RuntimeError"]


async def lost(words: str) -> None:
    raise ValueError(words)


class Odd:
    """Fails where nobody can catch it, and has a telling repr."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words

    def __del__(self) -> None:
        raise ValueError(self.words)


def main() -> None:
    settings = Settings()
    with logged(settings, queued=True):
        if "--queue" in sys.argv:
            lines = logs.line_queue()
            assert lines is not None
            lines.capacity = int(sys.argv[-1])
        server = Server(settings)

        @server.app.post("/fail/{kind}")
        async def failing(kind: str, request: Request) -> None:
            fail(kind, (await request.body()).decode())

        @server.app.post("/aside")
        async def aside(request: Request, service: ServiceDep) -> str:
            """Everything that fails beside a request: threads, tasks, callbacks, collectors, warnings."""
            words = (await request.body()).decode()
            thread = threading.Thread(target=fail, args=("RuntimeError", words))
            thread.start()
            thread.join()
            await asyncio.wait([asyncio.create_task(lost(words))])
            asyncio.get_running_loop().call_soon(fail, "KeyError", words)
            _ = Odd(words)
            del _
            warnings.warn(f"odd: {len(words)}", stacklevel=1)
            for name in ("websockets", "httptools", "asyncio", "multipart", "some.library"):
                logging.getLogger(name).debug("received %s", words)
            return "done"

        server.run()


if __name__ == "__main__":
    main()
