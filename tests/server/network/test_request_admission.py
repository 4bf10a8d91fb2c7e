"""Which requests wait while the memory account is nearly exhausted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.server.api_handler import small_responses
from kbroker.server.handlers import all_handlers
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.peer_progress import PeerProgress
from kbroker.server.network.receive_buffer import ReceiveBuffer
from kbroker.server.network.request_admission import RequestAdmission


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


def frame_of(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(size)
