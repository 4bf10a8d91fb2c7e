"""What batches unpack to decides where they are looked at, and is charged while they wait."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kbroker.log.append_cost import (
    LOOP_BYTES,
    LOOP_PACKED_BYTES,
    LOOP_TURN_BYTES,
    MESSAGE_SET_BYTES,
)
from kbroker.log.results import Refused
from kbroker.log.validator import MAX_RECORD_ERRORS, RECORD_ERROR_BYTES
from kbroker.ports import Deferred
from kbroker.protocol.batches import compression
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.appends.append import Appender, PartitionAppendResult
from kbroker.server.network.memory_pool import MemoryPool
from tests.replication.waiting_batches import KEY, LARGE, MEGABYTE, large, opened_anew, value
from tests.replication.world import NOW_MS, World, batch
from tests.sim.offload import HeldOffload

# what a small batch unpacks to

BOMB_BYTES = 20 << 20


class Unpacked:
    """How many bytes the codecs have made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size_bytes = 0
        for codec, unpack in list(compression._DECOMPRESSORS.items()):
            monkeypatch.setitem(compression._DECOMPRESSORS, codec, partial(self._count, unpack))

    def _count(
        self, unpack: Callable[[memoryview, int], bytes], data: memoryview, max_bytes: int
    ) -> bytes:
        try:
            plain = unpack(data, max_bytes)
        except KafkaError:
            self.size_bytes += max_bytes
            raise
        self.size_bytes += len(plain)
        return plain


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Unpacked:
    return Unpacked(monkeypatch)


def bomb(
    size: int = BOMB_BYTES, *, key: bytes | None = b"key", timestamp: int = NOW_MS
) -> bytearray:
    """About 720 bytes of zstd."""
    made = build_batch([(timestamp, key, bytes(size), [])], compression=Compression.ZSTD)
    assert len(made) < LOOP_PACKED_BYTES
    return made


LOOKED_AT = [
    pytest.param({"compression_type": "lz4"}, id="another codec"),
    pytest.param({"compression_type": "uncompressed"}, id="no codec"),
    pytest.param({"cleanup_policy": "compact"}, id="keys"),
    pytest.param({"message_timestamp_before_max_ms": "1000"}, id="timestamps"),
]


@pytest.mark.parametrize("overrides", LOOKED_AT)
def test_the_unpacked_size_decides_where_a_batch_is_looked_at(
    world: World, unpacked: Unpacked, overrides: dict[str, str]
) -> None:
    held = opened_anew(world, **overrides)
    answer = world.append(batches=bomb(19 << 20))
    assert unpacked.size_bytes <= LOOP_BYTES, "on the loop"
    assert len(held.held) == 1
    held.run()
    assert isinstance(value(answer).error, ErrorCode)
    assert unpacked.size_bytes > 1 << 20, "in the thread"


def test_a_timestamp_too_far_ahead_is_looked_for_in_the_thread(
    world: World, unpacked: Unpacked
) -> None:
    """No setting of the topic asks for its records; the header's timestamp does."""
    held = opened_anew(world)
    answer = world.append(batches=bomb(timestamp=NOW_MS + 7_200_000))
    assert unpacked.size_bytes <= LOOP_BYTES, "on the loop"
    assert len(held.held) == 1
    held.run()
    assert value(answer).error is ErrorCode.MESSAGE_TOO_LARGE
    small = value(world.append(batches=batch(2, timestamp=NOW_MS + 7_200_000)))
    assert (small.error, len(small.record_errors)) == (ErrorCode.INVALID_TIMESTAMP, 2)


def test_many_records_are_looked_at_in_the_thread(world: World) -> None:
    held = opened_anew(world, cleanup_policy="compact")
    many = build_batch([(NOW_MS, b"", b"", [])] * 1100)
    assert len(many) < LOOP_BYTES
    answer = world.append(batches=many)
    assert len(held.held) == 1
    held.run()
    assert value(answer).last_offset == 1099


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4])
def test_the_unpacked_size_of_a_message_set_decides(
    world: World, unpacked: Unpacked, magic: int, codec: Compression
) -> None:
    held = opened_anew(world)
    sent = bytearray()
    records = [Record(0, NOW_MS, b"key", bytes(100_000))]
    write_message_set(sent, records, magic=magic, codec=codec)
    assert len(sent) < MESSAGE_SET_BYTES
    answer = world.replicas.append(KEY, sent, acks=1, timeout_ms=1000, produce_version=2)
    assert unpacked.size_bytes <= MESSAGE_SET_BYTES
    assert len(held.held) == 1
    held.run()
    assert value(answer).last_offset == 0


def test_what_one_turn_of_the_loop_looks_at_is_bounded(world: World, unpacked: Unpacked) -> None:
    """However many batches, partitions and requests bring it."""
    held = opened_anew(world, cleanup_policy="compact")
    for index in range(1, 64):
        world.host(index, cleanup_policy="compact")
    size = 20_000
    answers = [world.append(index, bomb(size)) for index in range(64)]
    at_once = sum(isinstance(answer, PartitionAppendResult) for answer in answers)
    assert at_once == LOOP_TURN_BYTES // size
    assert unpacked.size_bytes <= 2 * LOOP_TURN_BYTES, "to learn the size, and to look for keys"
    assert len(held.held) == 64 - at_once
    for _ in range(3):
        held.run()
    assert {value(answer).error for answer in answers} == {ErrorCode.NONE}
    world.timers.advance(0)
    assert isinstance(world.append(0, bomb(size)), PartitionAppendResult), "in the next turn"


def test_small_batches_behind_a_large_one_do_not_fill_one_turn(world: World) -> None:
    held = opened_anew(world, cleanup_policy="compact")
    answers = [
        world.append(batches=large()),
        *(world.append(batches=bomb(20_000)) for _ in range(64)),
    ]
    runs = 0
    while held.held:
        held.run()
        runs += 1
    assert [value(answer).base_offset for answer in answers] == [0, *range(10, 74)]
    assert runs > 32


# what waits is charged


@pytest.fixture
def memory() -> MemoryPool:
    return MemoryPool()


@pytest.fixture
def charged(make_world: Callable[..., World], memory: MemoryPool) -> World:
    """A world with a memory account."""
    return make_world(partitions=3, memory=memory)


def keyless(count: int) -> bytearray:
    return build_batch([(NOW_MS, None, b"", [])] * count, compression=Compression.ZSTD)


def test_what_refused_records_may_take_is_charged_while_a_batch_waits(
    charged: World, memory: MemoryPool
) -> None:
    held = opened_anew(charged, cleanup_policy="compact")
    sent = [keyless(5_000), keyless(10), large()]
    answers = [charged.append(batches=one) for one in sent]
    most = RECORD_ERROR_BYTES * (MAX_RECORD_ERRORS + 10 + 10)
    assert memory.used == sum(map(len, sent)) + most
    for _ in sent:
        held.run()
    assert [len(value(answer).record_errors) for answer in answers] == [MAX_RECORD_ERRORS, 10, 0]
    assert memory.used == 0


@pytest.mark.parametrize("overrides", [{"cleanup_policy": "compact"}, {}], ids=["keys", "times"])
def test_refused_records_take_no_more_than_they_are_charged_for(
    charged: World, overrides: dict[str, str]
) -> None:
    held = opened_anew(charged, **overrides)
    far_ms = NOW_MS + 7_200_000
    sent = build_batch([(far_ms, None, b"", [])] * 5_000)
    charged.append(batches=bytearray(sent))
    held.run()  # imports, caches
    answer = charged.append(batches=sent)
    tracemalloc.start()
    held.run()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    count = len(value(answer).record_errors)
    assert count == MAX_RECORD_ERRORS
    assert taken < RECORD_ERROR_BYTES * count * 2 // 3, "the rest is for the answer's own objects"


def test_what_a_batch_was_unpacked_to_is_charged_while_it_waits_for_a_segment(
    charged: World, memory: MemoryPool
) -> None:
    held = opened_anew(charged, segment_bytes=str(MEGABYTE), compression_type="uncompressed")
    for _ in range(2):
        assert isinstance(charged.append(batches=bomb(400_000)), Deferred)
        held.run()
    answer = charged.append(batches=bomb(400_000))
    held.run()
    assert (len(held.held), memory.used > 400_000) == (1, True), "it rolls"
    held.run()
    assert value(answer).base_offset == 2
    assert memory.used == 0


def test_an_error_holds_nothing_of_what_was_unpacked(
    world: World, offload: HeldOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does what it was raised from."""
    outcomes: list[Refused] = []
    append = Appender._append_ready

    def noted(self: Appender, partition: Any, request: Any, ready: Any) -> Any:
        if isinstance(ready, Refused):
            outcomes.append(ready)
        return append(self, partition, request, ready)

    monkeypatch.setattr(Appender, "_append_ready", noted)
    damaged = build_batch([(NOW_MS, b"k", bytes(LARGE), [])], compression=Compression.GZIP)
    damaged[80] ^= 255
    struct.pack_into(">I", damaged, 17, crc32c(memoryview(damaged)[21:]))
    damaged += bytes(LOOP_PACKED_BYTES)
    struct.pack_into(">i", damaged, 8, len(damaged) - 12)
    struct.pack_into(">I", damaged, 17, crc32c(memoryview(damaged)[21:]))
    answer = world.append(batches=damaged)
    offload.run()
    assert value(answer).error is ErrorCode.CORRUPT_MESSAGE
    (refused,) = outcomes
    held = [getattr(refused, name) for name in refused.__slots__]
    assert not [value for value in held if isinstance(value, BaseException | memoryview)]
