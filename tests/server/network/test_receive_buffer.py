"""Framing: frames fed whole, byte by byte and with a tail; hostile lengths; memory that follows."""

from __future__ import annotations

import struct

import pytest

from kbroker.protocol.errors import MalformedRequest
from kbroker.server.network.receive_buffer import (
    ASK_BYTES,
    INITIAL_BYTES,
    KEEP_BYTES,
    SEVERAL_FRAMES_BYTES,
    SMALL_BYTES,
    ReceiveBuffer,
)

LIMIT = 64 << 20


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(buffer: ReceiveBuffer, data: bytes, chunk: int) -> list[bytes]:
    """Pass data in chunks, like a socket, and let the buffer grow as needed; returns copies of the
    frames.
    """
    frames = []
    position = 0
    while position < len(data):
        room = buffer.writable()
        assert len(room) > 0
        part = data[position : position + min(chunk, len(room))]
        room[: len(part)] = part
        buffer.received(len(part))
        position += len(part)
        while (found := buffer.next_frame()) is not None:
            frames.append(bytes(found))
        buffer.grow()
    return frames


BODIES = [
    pytest.param([b""], id="empty"),
    pytest.param([b"x"], id="one byte"),
    pytest.param([b"abc", b"", b"defgh"], id="three"),
    pytest.param([bytes(INITIAL_BYTES)], id="as large as the buffer"),
    pytest.param([b"a" * 5000, b"b" * 300, b"c" * 70_000], id="growing"),
    pytest.param([b"%d" % i for i in range(500)], id="many small"),
]


@pytest.mark.parametrize("bodies", BODIES)
@pytest.mark.parametrize("chunk", [1, 7, 4096, 1 << 30], ids=["1", "7", "4096", "whole"])
def test_frames_come_out_as_they_went_in(bodies: list[bytes], chunk: int) -> None:
    buffer = ReceiveBuffer(LIMIT)
    assert feed(buffer, b"".join(map(frame, bodies)), chunk) == bodies
    assert buffer.pending_bytes == 0


@pytest.mark.parametrize("bodies", BODIES)
def test_a_tail_waits_for_the_rest(bodies: list[bytes]) -> None:
    buffer = ReceiveBuffer(LIMIT)
    tail = frame(b"later")
    assert feed(buffer, b"".join(map(frame, bodies)) + tail[:6], 1 << 30) == bodies
    assert buffer.pending_bytes == 6
    assert feed(buffer, tail[6:], 1) == [b"later"]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        pytest.param(b"\xff\xff\xff\xff", "length of -1", id="negative"),
        pytest.param(b"\x80\x00\x00\x00", "length of -2147483648", id="most negative"),
        pytest.param(struct.pack(">i", LIMIT + 1), "socket.request.max.bytes", id="too long"),
        pytest.param(b"\x7f\xff\xff\xff", "socket.request.max.bytes", id="longest"),
        pytest.param(b"\x16\x03\x01\x02", "TLS", id="TLS"),
        pytest.param(b"GET ", "HTTP", id="HTTP GET"),
        pytest.param(b"POST", "HTTP", id="HTTP POST"),
    ],
)
def test_a_bad_length_is_refused_at_once(head: bytes, why: str) -> None:
    buffer = ReceiveBuffer(LIMIT)
    buffer.writable()[:4] = head
    buffer.received(4)
    with pytest.raises(MalformedRequest, match=why):
        buffer.next_frame()
    assert buffer.capacity_bytes == INITIAL_BYTES


def test_a_promised_length_costs_nothing() -> None:
    buffer = ReceiveBuffer(100 << 20)
    assert feed(buffer, struct.pack(">i", 100 << 20) + b"only this", 4) == []
    assert buffer.held_bytes <= INITIAL_BYTES


def test_memory_stays_within_twice_what_came() -> None:
    buffer = ReceiveBuffer(LIMIT)
    feed(buffer, struct.pack(">i", LIMIT) + bytes(300_000), 1 << 14)
    assert buffer.held_bytes <= 2 * 300_000


def test_a_large_frame_waits_for_its_buffer() -> None:
    buffer = ReceiveBuffer(LIMIT)
    start = frame(b"x" * 300_000)[: ASK_BYTES - 1]
    assert feed(buffer, start, 1 << 16) == []
    assert buffer.needed_bytes == 0, "a promise is no reason to ask"
    room = buffer.writable()
    room[:1] = b"x"
    buffer.received(1)
    start += b"x"
    assert buffer.next_frame() is None
    assert buffer.capacity_bytes <= SMALL_BYTES
    assert buffer.front_bytes == 300_004
    assert 300_004 <= buffer.needed_bytes <= 310_000
    buffer.grow()
    assert feed(buffer, frame(b"x" * 300_000)[len(start) :], 1 << 16) == [b"x" * 300_000]


@pytest.mark.parametrize("first", [10_000, 40_000, 90_000])
def test_a_buffer_has_room_for_two_frames_whichever_came_first(first: int) -> None:
    buffer = ReceiveBuffer(LIMIT)
    feed(buffer, frame(bytes(first)), 1 << 30)
    large = frame(b"x" * 90_000)
    feed(buffer, large + large[:ASK_BYTES], 1 << 30)
    assert not buffer.must_grow
    assert buffer.capacity_bytes == 256 * 1024
    feed(buffer, large[ASK_BYTES:], 1 << 30)
    assert len(buffer.writable()) >= 2 * len(large)
    assert buffer.needed_bytes == 0, "no room for a third one"


def test_small_frames_do_not_ask_for_room_for_two() -> None:
    buffer = ReceiveBuffer(LIMIT)
    small = frame(bytes(SMALL_BYTES - 1000))
    feed(buffer, small + small[: ASK_BYTES + 100], 1 << 30)
    assert (buffer.capacity_bytes, buffer.needed_bytes) == (SMALL_BYTES, 0)


@pytest.mark.parametrize("pending", [0, 100, 3000, 60_000])
def test_shrinking_keeps_what_is_pending(pending: int) -> None:
    buffer = ReceiveBuffer(LIMIT)
    feed(buffer, frame(bytes(200_000)), 1 << 16)
    next_frame = frame(b"z" * 100_000)
    assert feed(buffer, next_frame[:pending], 1 << 16) == []
    buffer.shrink()
    assert buffer.capacity_bytes <= max(INITIAL_BYTES, 2 * pending + 1024)
    assert feed(buffer, next_frame[pending:], 1 << 14) == [b"z" * 100_000]


def test_a_huge_frame_is_not_kept() -> None:
    buffer = ReceiveBuffer(LIMIT)
    body = bytes(9 << 20)
    assert len(feed(buffer, frame(body), 1 << 20)) == 1
    assert buffer.capacity_bytes == INITIAL_BYTES


def test_trim_follows_what_was_needed() -> None:
    buffer = ReceiveBuffer(LIMIT)
    feed(buffer, frame(bytes(200_000)), 1 << 16)
    buffer.trim()
    assert 200_000 < buffer.capacity_bytes <= KEEP_BYTES, "recent frames were that large"
    feed(buffer, frame(b"small"), 1 << 16)
    buffer.trim()
    assert buffer.capacity_bytes == INITIAL_BYTES


def test_trim_keeps_a_half_received_frame() -> None:
    buffer = ReceiveBuffer(LIMIT)
    data = frame(b"ab" * 50_000)
    assert feed(buffer, data[:90_000], 1 << 16) == []
    buffer.trim()
    buffer.trim()
    assert feed(buffer, data[90_000:], 1 << 16) == [b"ab" * 50_000]


def test_a_view_kept_over_a_move_keeps_its_own_buffer() -> None:
    buffer = ReceiveBuffer(LIMIT)
    data = frame(b"first") + frame(b"x" * 10_000)[:1000]
    room = buffer.writable()
    room[: len(data)] = data
    buffer.received(len(data))
    view = buffer.next_frame()
    assert view is not None and bytes(view) == b"first"
    feed(buffer, b"y" * 9004, 1 << 16)
    assert bytes(view) == b"first"


def test_a_kept_buffer_brings_little_of_a_frame_that_it_has_no_room_for() -> None:
    buffer = ReceiveBuffer(LIMIT)
    feed(buffer, frame(bytes(1 << 20)), 1 << 30)
    large = frame(bytes(4 << 20))
    room = buffer.writable()
    assert len(room) == SEVERAL_FRAMES_BYTES
    room[:] = large[: len(room)]
    buffer.received(len(room))
    assert buffer.next_frame() is None
    assert buffer.needed_bytes > len(large)
    buffer.grow()
    came = buffer.pending_bytes
    assert len(buffer.writable()) >= len(large) - came, "and then all of it at once"


def test_a_kept_buffer_goes_once_the_next_frame_is_known_to_be_larger() -> None:
    buffer = ReceiveBuffer(LIMIT)
    feed(buffer, frame(bytes(1 << 20)), 1 << 30)
    head = frame(bytes(4 << 20))[: ASK_BYTES - 1]
    buffer.writable()[: len(head)] = head
    buffer.received(len(head))
    assert buffer.next_frame() is None
    assert (buffer.capacity_bytes, buffer.needed_bytes) == (SMALL_BYTES, 0)
    assert buffer.pending_bytes == len(head)
