"""`ResponseWriter` on a transport that is driven by hand: what is written, and when it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import cast

import pytest

from kbroker.protocol.codecs.codec import Part
from kbroker.server.network.descriptors import DescriptorBudget
from kbroker.server.network.page_cache import PageCache
from kbroker.server.network.response_writer import JOIN_BYTES, ResponseWriter


class FakeTransport:
    """Takes `room` bytes at once, the rest when `drain` is called."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.writes: list[bytes] = []
        self.unsent = 0
        self.writer: ResponseWriter | None = None

    def get_extra_info(self, name: str) -> object:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writes.append(bytes(data))
        if not self.unsent and len(data) > self.room:
            self.unsent = len(data) - self.room
            self.writer.pause()

    def drain(self) -> None:
        assert self.writer is not None
        self.unsent = 0
        self.writer.resume()


class Turns:
    """The part of an event loop that the writer needs here."""

    def __init__(self) -> None:
        self.planned: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.planned.append(callback)


def writer_of(transport: FakeTransport, turns: Turns, idle: list[int]) -> ResponseWriter:
    writer = ResponseWriter(
        cast(asyncio.Transport, transport),
        cast(asyncio.AbstractEventLoop, turns),
        None,
        DescriptorBudget(),
        PageCache(None),
        on_idle=lambda: idle.append(1),
        on_error=lambda error: pytest.fail(repr(error)),
    )
    transport.writer = writer
    return writer


def test_responses_of_bytes_leave_in_one_write() -> None:
    transport = FakeTransport()
    writer = writer_of(transport, Turns(), [])
    writer.write([b"ab", bytearray(b"cd"), memoryview(b"ef")])
    writer.write([b"g"])
    assert transport.writes == [b"abcdef", b"g"]
    assert writer.idle


def test_what_is_large_is_not_joined() -> None:
    transport = FakeTransport()
    writer = writer_of(transport, Turns(), [])
    large = bytes(JOIN_BYTES)
    writer.write([b"ab", large])
    assert transport.writes == [b"ab", large]
    assert writer.idle


def test_idle_as_long_as_the_transport_has_taken_everything() -> None:
    transport, turns = FakeTransport(), Turns()
    idle: list[int] = []
    writer = writer_of(transport, turns, idle)
    transport.room = 3
    writer.write([b"ab", b"cd"])
    assert (writer.idle, idle) == (False, [])
    writer.write([b"ef"])
    assert transport.writes == [b"abcd"], "nothing more while the transport is full"
    transport.room = 10
    transport.drain()
    assert transport.writes == [b"abcd", b"ef"]
    assert (writer.idle, idle) == (True, [1])


@pytest.mark.parametrize("seed", range(50))
def test_bytes_leave_in_order_and_idle_is_never_wrong(seed: int) -> None:
    random = Random(seed)
    transport, turns = FakeTransport(), Turns()
    writer = writer_of(transport, turns, [])
    sent = bytearray()
    sizes = (0, 1, 5, 700, JOIN_BYTES - 1, JOIN_BYTES, JOIN_BYTES + 1, 600_000)
    for _ in range(60):
        transport.room = random.choice((0, 4, 1000, 1 << 30))
        action = random.random()
        if action < 0.5:
            parts: list[Part] = [
                random.randbytes(random.choice(sizes)) for _ in range(random.randrange(4))
            ]
            sent += b"".join(cast(list[bytes], parts))
            writer.write(parts)
        elif action < 0.8 and transport.unsent:
            transport.drain()
        elif turns.planned:
            turns.planned.pop(0)()
        is_sent = sum(map(len, transport.writes)) == len(sent)
        assert writer.idle == (is_sent and not transport.unsent)
        assert sent.startswith(b"".join(transport.writes))
    transport.room = 1 << 30
    while not writer.idle:
        transport.drain()
        while turns.planned:
            turns.planned.pop(0)()
    assert b"".join(transport.writes) == sent
