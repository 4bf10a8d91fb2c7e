"""Which requests wait while the memory account is nearly exhausted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.server.api_handler import small_responses
from kbroker.server.handlers import all_handlers
from kbroker.server.network.memory_pool import MemoryPool, Ticket
from kbroker.server.network.peer_progress import PeerProgress
from kbroker.server.network.receive_buffer import ReceiveBuffer
from kbroker.server.network.request_admission import STARTED_PER_SWEEP, RequestAdmission
from tests.server.network.test_muting import Clock, muting


class FrontOf:
    """A receive buffer with a small request of this API at its front."""

    def __init__(self, api_key: int) -> None:
        self.api_key = api_key

    def next_api_key(self) -> int:
        return self.api_key


@pytest.mark.parametrize(
    ("api_key", "waits_for_answers", "waits_at_the_limit"),
    [
        (ApiKey.METADATA, True, True),
        (ApiKey.PRODUCE, False, True),
        (ApiKey.FETCH, False, True),
        (ApiKey.HEARTBEAT, False, True),
    ],
)
def test_small_answers_do_not_wait_for_the_large_ones_of_others(
    api_key: ApiKey, waits_for_answers: bool, waits_at_the_limit: bool
) -> None:
    memory = MemoryPool(1 << 20)
    unused: Any = None
    front = cast(Any, FrontOf(api_key))
    small = small_responses(all_handlers())
    admission = RequestAdmission(front, memory, unused, lambda: None, small)
    assert not admission.must_queue_up()
    memory.charge(memory.answer_limit + 1)
    assert admission.must_queue_up() == waits_for_answers
    memory.charge(memory.limit)
    if admission.ticket is None:
        assert admission.must_queue_up() == waits_at_the_limit


@pytest.mark.parametrize("is_short", [False, True])
def test_room_for_a_second_frame_is_not_waited_for(is_short: bool) -> None:
    memory = MemoryPool(1 << 20)
    buffer = ReceiveBuffer(1 << 20)
    admission = RequestAdmission(buffer, memory, PeerProgress(), lambda: None, frozenset())

    def receive(data: bytes) -> None:
        room = buffer.writable()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        buffer.received(count)
        while buffer.next_frame() is not None:
            pass
        if buffer.needed_bytes:
            assert admission.may_grow()
        if data[count:]:
            receive(data[count:])

    receive(frame_of(40_000))
    assert admission.held_bytes == buffer.capacity_bytes == 128 * 1024
    if is_short:
        memory.charge(memory.limit - memory.used)
    receive(frame_of(90_000) + frame_of(90_000)[:20_000])
    assert admission.ticket is None
    assert buffer.needed_bytes == 0
    assert admission.held_bytes == buffer.capacity_bytes == (128 if is_short else 256) * 1024


class MutedConnection:
    """A muted connection whose buffer has 128 KiB. A request of 40,000 bytes was handled. arrived:
    the bytes behind it. Each request that is started mutes it again.
    """

    def __init__(self, memory: MemoryPool, arrived: bytes) -> None:
        self.buffer = ReceiveBuffer(1 << 20)
        self.progress = PeerProgress()
        self.muting = muting(Clock(), [])
        self.started = 0
        self.admission = RequestAdmission(
            self.buffer, memory, self.progress, lambda: None, frozenset()
        )
        first = frame_of(40_000)
        while self.buffer.pending_bytes < 20_000:
            self._receive(first[self.buffer.pending_bytes : 20_000])
            assert self.buffer.next_frame() is None
            assert not self.buffer.needed_bytes or self.admission.may_grow()
        self._receive(first[20_000:] + arrived)
        assert self.buffer.next_frame() is not None
        assert self.buffer.pending_bytes == len(arrived)
        self.muting.begin(60_000)

    def _receive(self, data: bytes) -> None:
        room = self.buffer.writable()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        self.buffer.received(count)

    def pump(self) -> None:
        if self.buffer.next_frame() is not None:
            self.started += 1
            self.muting.begin(60_000)
            self.admission.shrink()

    def sweep(self) -> None:
        self.admission.start_muted(self.muting, self.pump)


def one_waits(memory: MemoryPool) -> Ticket:
    """Take the memory that is left, and wait for more than the free bytes."""
    memory.charge(memory.limit - memory.used)
    return memory.wait(1000, lambda: None)


def test_requests_of_a_muted_connection_start_while_others_wait_for_their_memory() -> None:
    memory = MemoryPool(1 << 20)
    muted = MutedConnection(memory, frame_of(40_000) + frame_of(20_000))
    muted.sweep()
    assert (muted.started, muted.muting.is_muted) == (0, True), "no other waits"
    one_waits(memory)
    assert memory.contended
    muted.sweep()
    assert not memory.contended
    assert (muted.started, muted.muting.is_muted) == (1, True), "that was enough"


def test_a_muted_connection_keeps_no_more_than_a_small_buffer_needs() -> None:
    memory = MemoryPool(1 << 20)
    muted = MutedConnection(memory, frame_of(10_000))
    one_waits(memory)
    muted.sweep()
    assert not memory.contended
    assert (muted.started, muted.muting.is_muted) == (0, True)
    assert muted.admission.held_bytes == 0
    assert muted.buffer.pending_bytes == 10_004


def test_a_muted_connection_with_half_a_request_may_send_the_rest() -> None:
    memory = MemoryPool(1 << 20)
    muted = MutedConnection(memory, frame_of(40_000)[:30_000])
    one_waits(memory)
    muted.sweep()
    assert (muted.started, muted.muting.is_muted) == (0, False)


def test_a_muted_connection_stays_muted_where_its_memory_serves_no_other() -> None:
    """Where others wait until large responses are sent, or it waits itself."""
    memory = MemoryPool(1 << 20)
    muted = MutedConnection(memory, frame_of(40_000))
    memory.charge(memory.answer_limit + 1)
    waits = memory.wait_turn(lambda: None)
    assert memory.contended
    muted.sweep()
    assert (muted.started, muted.muting.is_muted) == (0, True)
    memory.withdraw(waits)
    muted.admission.ticket = one_waits(memory)
    muted.sweep()
    assert (muted.started, muted.muting.is_muted) == (0, True)


def test_a_sweep_starts_so_many_requests_of_a_muted_connection() -> None:
    memory = MemoryPool(1 << 20)
    muted = MutedConnection(memory, frame_of(900) * 80)
    memory.charge(memory.limit)
    memory.wait(1000, lambda: None)
    muted.sweep()
    assert (muted.started, muted.muting.is_muted) == (STARTED_PER_SWEEP, True)


def frame_of(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(size)
