"""The app in a command's process: bodies and answers pass piece by piece."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from isosim.encoders.engines import LateEncoder
from isosim.encoders.onnx_engine import OnnxEncoder
from isosim.encoders.store import EncoderArtifact
from isosim.server.embedded import AHEAD, Exchange

Loop = asyncio.AbstractEventLoop


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def start(status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": []}


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def begun(app: Any, loop: Loop, body: Iterable[bytes] = ()) -> Exchange:
    exchange = Exchange(app, {}, loop)
    exchange.send_body(body)
    return exchange


def counted(pieces: int, read: list[int]) -> Iterator[bytes]:
    for number in range(pieces):
        read.append(number)
        yield b"%d " % number


def test_an_answer_is_read_while_the_app_still_sends_it(loop: Loop) -> None:
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(piece(b"first"))
        await go_on.wait()
        await send(piece(b"last", more=False))

    exchange = begun(app, loop)
    assert next(exchange.messages())["status"] == 200
    pieces = iter(exchange)
    assert next(pieces) == b"first"
    loop.call_soon_threadsafe(go_on.set)
    assert list(pieces) == [b"last"]


def test_a_body_is_read_at_the_pace_of_the_app_and_not_beyond_its_answer(loop: Loop) -> None:
    taken: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        taken.extend([(await receive())["body"] for _ in range(3)])
        await send(start(422))
        await send(piece(b"", more=False))

    read: list[int] = []
    exchange = begun(app, loop, counted(1000, read))
    assert next(exchange.messages())["status"] == 422
    assert taken == [b"0 ", b"1 ", b"2 "]
    assert len(read) <= 3 + AHEAD + 2


def test_a_body_arrives_whole_and_once(loop: Loop) -> None:
    taken: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["more_body"]:
            taken.append(message["body"])
        await send(start())
        await send(piece(b"", more=False))

    exchange = begun(app, loop, counted(100, []))
    assert [message["type"] for message in exchange.messages()] == ["http.response.start", "http.response.body"]
    assert b"".join(taken) == b"".join(counted(100, []))


def test_an_error_of_the_app_is_raised_in_the_caller(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise OSError("no room")

    exchange = begun(app, loop, counted(100, []))
    with pytest.raises(OSError, match="no room"):
        next(exchange.messages())


def test_a_late_encoder_is_opened_once_and_by_its_first_batch(tiny: EncoderArtifact) -> None:
    opened: list[OnnxEncoder] = []

    def open_encoder() -> OnnxEncoder:
        opened.append(OnnxEncoder(tiny.encoder, 1))
        return opened[-1]

    late = LateEncoder(open_encoder)
    assert not opened
    vectors = [late.run(late.prepare([[2, 5, 3], [2, 3]])) for _ in range(2)]
    assert len(opened) == 1
    np.testing.assert_array_equal(vectors, [opened[0]([[2, 5, 3], [2, 3]])] * 2)


def test_a_caller_that_leaves_ends_its_request(loop: Loop) -> None:
    left = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send(start())
            await asyncio.Event().wait()
        finally:
            left.set()

    exchange = begun(app, loop)
    next(exchange.messages())
    exchange.close()
    assert left.wait(10)
