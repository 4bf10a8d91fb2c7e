"""What a Fetch answer becomes for a client before 0.11: message sets of magic 0 or 1.

The records of an answer are read and converted in a worker thread, which gets file ranges and
gives bytes back (docs/adr/0007, 0011). Kafka converts while it sends and pads what came out shorter
with a message that is cut short; here the answer is as long as it is. A stretch that holds nothing
such a client may see (control batches, batches emptied by compaction) is passed over and the next
one read, since the client could not get beyond it otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from kbroker.model import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.legacy_records import down_convert, iter_any_batches
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.schema import Records
from kbroker.replication.fetch import size_of
from kbroker.server.memory_pool import MemoryPool, charged
from kbroker.server.offload import Offload

logger = logging.getLogger(__name__)

MAX_SOURCE_BYTES: Final = 16 * 1024 * 1024
"""Of stored batches in one answer, but for a first batch that is larger: bounds time and memory."""
COPIES: Final = 3
"""How many of the stored batches there may be meanwhile: read, unpacked, converted."""

MEMORY_SHARE: Final = 16
"""One answer converts at most this part of `kbroker.memory.limit.bytes`."""

MAX_ROUNDS: Final = 64
"""How many stretches without a record are passed over in one answer."""

PartitionData = FetchResponse.PartitionData
Key = tuple[str, int]
"""Topic name, partition index."""

ReadOn = Callable[[FetchRequest], FetchResponse]
"""Answers a Fetch request at once, waiting for nothing."""


class _Stretch:
    """Stored batches of one partition, and what they became."""

    __slots__ = ("data", "error", "fetch_offset", "key", "next_offset", "result", "source")

    def __init__(self, key: Key, data: PartitionData, source: Records, fetch_offset: int) -> None:
        self.key = key
        self.data = data
        self.source = source
        self.fetch_offset = fetch_offset
        self.next_offset = fetch_offset
        self.result: bytearray | None = None
        self.error = ErrorCode.NONE

    def convert(self, magic: int, max_unpacked_bytes: int) -> None:
        """Read and convert; blocks. Faults are kept in `error`."""
        source = self.source
        try:
            stored = (
                source if isinstance(source, bytes | bytearray | memoryview) else source.read()  # type: ignore[attr-defined]  # a range of a file
            )
            for _, header in iter_any_batches(stored):
                self.next_offset = max(self.next_offset, header.next_offset)
            self.result = down_convert(
                stored,
                magic=magic,
                first_offset=self.fetch_offset,
                max_decompressed_bytes=max_unpacked_bytes,
            )
        except KafkaError as error:
            self.error = error.code
            logger.debug("%s-%d cannot be converted to magic %d: %s", *self.key, magic, error)
        except OSError as error:
            self.error = ErrorCode.KAFKA_STORAGE_ERROR
            logger.error("%s-%d cannot be read: %s", *self.key, error)


class DownConversion:
    """One answer on its way; `response` resolves with it. Only `convert` leaves the loop, and one
    at a time has `unpacking`.
    """

    __slots__ = (
        "_magic",
        "_max_unpacked_bytes",
        "_memory",
        "_message",
        "_offload",
        "_read_on",
        "_rounds",
        "_stretches",
        "_unpacking",
        "response",
    )

    def __init__(
        self,
        request: FetchRequest,
        message: FetchResponse,
        *,
        magic: int,
        offload: Offload,
        memory: MemoryPool,
        unpacking: AbstractContextManager[object],
        max_unpacked_bytes: int,
        read_on: ReadOn,
    ) -> None:
        self._unpacking = unpacking
        self._max_unpacked_bytes = max_unpacked_bytes
        self.response: Deferred[FetchResponse] = Deferred()
        self._message = message
        self._magic = magic
        self._offload = offload
        self._memory = memory
        self._read_on = read_on
        self._rounds = 0
        self._stretches = _stretches(request, message)

    def start(self) -> Deferred[FetchResponse]:
        """Convert in its turn, or resolve at once if there is nothing to convert."""
        if not self._stretches:
            self.response.resolve(self._message)
            return self.response
        if self._memory.is_pressed:
            self._memory.wait_turn(self._convert)
        else:
            self._convert()
        return self.response

    def _convert(self) -> None:
        stretches, magic, memory = self._stretches, self._magic, self._memory
        unpacking, max_unpacked_bytes = self._unpacking, self._max_unpacked_bytes
        size = COPIES * sum(size_of(stretch.source) for stretch in stretches)
        memory.charge(size)

        def work() -> None:
            for stretch in stretches:
                with unpacking:
                    stretch.convert(magic, max_unpacked_bytes)

        def converted(failure: BaseException | None) -> None:
            self._converted(failure)
            memory.release(size)

        self._offload(work, converted)

    def _converted(self, failure: BaseException | None) -> None:
        if failure is not None:
            logger.error("a Fetch answer could not be converted", exc_info=failure)
        empty: list[_Stretch] = []
        for stretch in self._stretches:
            data = stretch.data
            data.records = charged(self._memory, stretch.result) if stretch.result else b""
            stretch.result, is_empty = None, not stretch.result
            if failure is not None:
                data.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            elif stretch.error:
                data.error_code = int(stretch.error)
            elif is_empty and stretch.next_offset < data.high_watermark:
                empty.append(stretch)
        self._rounds += 1
        if not empty or self._rounds >= MAX_ROUNDS:
            self.response.resolve(self._message)
            return
        self._stretches = self._next_stretches(empty)
        self.start()

    def _next_stretches(self, empty: list[_Stretch]) -> list[_Stretch]:
        topics = [
            FetchRequest.FetchTopic(
                topic=stretch.key[0],
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=stretch.key[1],
                        fetch_offset=stretch.next_offset,
                        partition_max_bytes=MAX_SOURCE_BYTES // len(empty),
                    )
                ],
            )
            for stretch in empty
        ]
        request = FetchRequest(max_bytes=MAX_SOURCE_BYTES, topics=topics)
        found = {stretch.key: stretch for stretch in _stretches(request, self._read_on(request))}
        following: list[_Stretch] = []
        for stretch in empty:
            read = found.get(stretch.key)
            if read is not None:
                read.data = stretch.data  # the answer of the first round is the one that is sent
                following.append(read)
        return following


def _stretches(request: FetchRequest, response: FetchResponse) -> list[_Stretch]:
    """What there is to convert: partitions with records, and from which offset on."""
    offsets = {
        (topic.topic, asked.partition): asked.fetch_offset
        for topic in request.topics
        for asked in topic.partitions
    }
    return [
        _Stretch((topic.topic, data.partition_index), data, data.records, fetch_offset)
        for topic in response.responses
        for data in topic.partitions
        if data.records
        and (fetch_offset := offsets.get((topic.topic, data.partition_index))) is not None
    ]
