"""What a Fetch response becomes for a client before 0.11: message sets of magic 0 or 1.

The records of a response are read and converted in a worker thread, which gets file ranges and
gives bytes back (docs/adr/0007, 0011). Kafka converts while it sends and pads what came out shorter
with a message that is cut short; here the response is as long as it is. A stretch that holds
nothing such a client may see (control batches, batches emptied by compaction) is passed over and
the next one read, since the client could not get beyond it otherwise.

What a response holds is charged to the memory account until it is resolved: while it waits for its
turn, and for as long as the worker needs, even if the client has disconnected by then. After that
the connection charges it. Everything is charged and released on the loop, never by a destructor,
which would run in the thread that drops the last reference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Final

from kbroker.ports import Chained, Deferred, Offload, Timers
from kbroker.protocol.batches.any_magic import iter_any_batches
from kbroker.protocol.batches.record_conversion import ConversionBudget, down_convert
from kbroker.protocol.codecs.pieces import pieces
from kbroker.protocol.codecs.schema import Records, size_of
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.reads.fetch import ANSWER_BYTES
from kbroker.server.network.memory_pool import MemoryPool, Ticket

logger = logging.getLogger(__name__)

MAX_SOURCE_BYTES: Final = 16 * 1024 * 1024
"""Of stored batches in one response, but for a first batch that is larger: bounds time and memory.
The batches behind the one with which as many bytes were unpacked or written are left for the next
request.
"""
COPIES: Final = 3
"""How many of the stored batches there may be meanwhile: read, unpacked, converted."""

MEMORY_SHARE: Final = 16
"""One answer converts at most this part of `kbroker.memory.limit.bytes`."""

MAX_ROUNDS: Final = 64
"""How many stretches without a record are passed over in one response."""

PartitionData = FetchResponse.PartitionData
Key = tuple[str, int]
"""Topic name, partition index."""

_Sources = dict[Key, tuple[PartitionData, Records]]
"""Partitions of a response that have records, and those records."""

STEP_ITEMS: Final = 512
"""Topics and partitions of a wide response, or of its request, that are looked at in one step."""

ReadOn = Callable[[FetchRequest], FetchResponse]
"""Answers a Fetch request at once, waiting for nothing."""

OnStorageError = Callable[[Key, OSError], None]
"""Told of a partition whose log cannot be read."""


def share_of(memory: MemoryPool) -> int:
    """Bytes that one response may convert under this memory limit."""
    return min(MAX_SOURCE_BYTES, memory.limit // MEMORY_SHARE)


class _Conversion:
    """The worker's part of one partition: stored batches, and what they became. It knows nothing of
    the response.
    """

    __slots__ = (
        "error",
        "failure",
        "fetch_offset",
        "is_left",
        "key",
        "next_offset",
        "result",
        "source",
    )

    def __init__(self, key: Key, source: Records, fetch_offset: int) -> None:
        self.key = key
        self.source = source
        self.fetch_offset = fetch_offset
        self.next_offset = fetch_offset
        self.result = b""
        self.error = ErrorCode.NONE
        self.failure: OSError | None = None
        """Why the log cannot be read."""
        self.is_left = False
        """The budget was used up before its turn came."""

    def convert(self, magic: int, max_unpacked_bytes: int, budget: ConversionBudget) -> None:
        """Read and convert; blocks. Faults are kept in `error` and `failure`."""
        source = self.source
        try:
            stored = (
                source if isinstance(source, bytes | bytearray | memoryview) else source.read()  # type: ignore[attr-defined]  # a range of a file
            )
            for _, header in iter_any_batches(stored):
                self.next_offset = max(self.next_offset, header.next_offset)
            self.result = bytes(
                down_convert(
                    stored,
                    magic=magic,
                    first_offset=self.fetch_offset,
                    max_decompressed_bytes=max_unpacked_bytes,
                    budget=budget,
                )
            )
        except KafkaError as error:
            self.error = error.code
            logger.debug("%s-%d cannot be converted to magic %d: %s", *self.key, magic, error)
        except OSError as error:
            self.error = ErrorCode.KAFKA_STORAGE_ERROR
            self.failure = error.with_traceback(None)  # its frames hold this object
            logger.error("%s-%d cannot be read: %s", *self.key, error)


class _Work:
    """What one visit to the worker converts. is_cancelled: written by the loop, looked at by the
    worker before each partition.
    """

    __slots__ = ("conversions", "is_cancelled", "magic", "max_bytes", "max_unpacked_bytes")

    def __init__(
        self, conversions: list[_Conversion], magic: int, max_unpacked_bytes: int, max_bytes: int
    ) -> None:
        self.conversions = conversions
        self.magic = magic
        self.max_unpacked_bytes = max_unpacked_bytes
        self.max_bytes = max_bytes
        self.is_cancelled = False

    def cancel(self) -> None:
        """Convert no further partition."""
        self.is_cancelled = True

    def run(self, unpacking: AbstractContextManager[object]) -> None:
        """In the worker."""
        budget = ConversionBudget(self.max_bytes)
        has_records = False
        for conversion in self.conversions:
            if self.is_cancelled or (has_records and budget.left_bytes <= 0):
                conversion.is_left = True
                continue
            with unpacking:
                conversion.convert(self.magic, self.max_unpacked_bytes, budget)
            has_records |= bool(conversion.result)


class _Turn:
    """A place in the pool's queue for large responses."""

    __slots__ = ("_memory", "ticket")

    def __init__(self, memory: MemoryPool) -> None:
        self._memory = memory
        self.ticket: Ticket | None = None

    def cancel(self) -> None:
        """Leave the queue."""
        if self.ticket is not None:
            self._memory.withdraw(self.ticket)


class DownConversion(Chained[FetchResponse]):
    """The response to one Fetch request of such a client, from the wait for records on.

    on_storage_error: called for each partition whose log cannot be read, also after `cancel`.
    on_read: called with what was read before it is converted. on_converted: called with the
    response before it resolves. `cancel` ends whatever it waits for; a partition that the worker is
    busy with is converted to its end, and charged until then.
    """

    __slots__ = (
        "_charged_bytes",
        "_magic",
        "_max_unpacked_bytes",
        "_memory",
        "_message",
        "_offload",
        "_on_converted",
        "_on_read",
        "_on_storage_error",
        "_parts",
        "_read_on",
        "_request",
        "_rounds",
        "_timers",
        "_unpacking",
    )

    _message: FetchResponse

    def __init__(
        self,
        request: FetchRequest,
        *,
        magic: int,
        timers: Timers,
        offload: Offload,
        memory: MemoryPool,
        unpacking: AbstractContextManager[object],
        max_unpacked_bytes: int,
        read_on: ReadOn,
        on_storage_error: OnStorageError,
        on_read: Callable[[FetchResponse], None] = lambda response: None,
        on_converted: Callable[[FetchResponse], None] = lambda response: None,
    ) -> None:
        super().__init__()
        self._request = request
        self._magic = magic
        self._timers = timers
        self._offload = offload
        self._memory = memory
        self._unpacking = unpacking
        self._max_unpacked_bytes = max_unpacked_bytes
        self._read_on = read_on
        self._on_storage_error = on_storage_error
        self._on_read = on_read
        self._on_converted = on_converted
        self._rounds = 0
        self._charged_bytes = 0
        self._parts: list[tuple[PartitionData, _Conversion]] = []

    def follow(self, outcome: FetchResponse | Deferred[FetchResponse]) -> DownConversion:
        """Convert what outcome is, or will be."""
        if isinstance(outcome, FetchResponse):
            self._read(outcome)
        else:
            self.waits_for = outcome
            outcome.on_done(self._read, self.fail)
        return self

    def follow_in_steps(
        self, message: FetchResponse
    ) -> Generator[Deferred[Any] | None, None, FetchResponse]:
        """Convert a response of perhaps very many partitions, which are looked through in steps."""
        sources: _Sources = {}
        offsets: dict[Key, int] = {}
        for some, _ in pieces(message, ("responses", "partitions"), STEP_ITEMS):
            sources |= _sources(some)
            yield None
        if sources:
            for asked, _ in pieces(self._request, ("topics", "partitions"), STEP_ITEMS):
                offsets |= _offsets(asked, sources)
                yield None
        self._take(message, _parts(sources, offsets))
        yield self
        return self.value

    def cancel(self) -> None:
        super().cancel()
        self._release()

    def _read(self, message: FetchResponse) -> None:
        self.waits_for = None
        self._on_read(message)
        self._take(message, _found(self._request, message))

    def _take(self, message: FetchResponse, parts: list[tuple[PartitionData, _Conversion]]) -> None:
        """Begin with the partitions that have records."""
        self._message = message
        self._parts = parts
        is_pressed = self._memory.is_pressed
        self._charge(ANSWER_BYTES * sum(len(topic.partitions) for topic in message.responses))
        self._begin(is_pressed)

    def _begin(self, is_pressed: bool) -> None:
        """Convert in its turn, or resolve at once if there is nothing to convert. Where so much
        waits for memory that this cannot too, the response leaves without the records: the client
        asks for them again.
        """
        memory = self._memory
        if not self._parts:
            self._finish()
        elif not is_pressed:
            self._convert()
        elif memory.may_park_answer(self._charged_bytes):
            turn = self.waits_for = _Turn(memory)
            turn.ticket = memory.wait_turn(self._convert, held=self._charged_bytes)
        else:
            for data, _ in self._parts:
                data.records = b""
            self._finish()

    def _convert(self) -> None:
        memory, unpacking = self._memory, self._unpacking
        conversions = [conversion for _, conversion in self._parts]
        work = self.waits_for = _Work(
            conversions, self._magic, self._max_unpacked_bytes, share_of(memory)
        )
        size = COPIES * sum(size_of(conversion.source) for conversion in conversions)
        memory.charge(size)

        def converted(failure: OSError | None) -> None:
            for conversion in conversions:
                if conversion.failure is not None:
                    self._on_storage_error(conversion.key, conversion.failure)
            if not self.is_cancelled:
                self._converted(failure)
            memory.release(size)

        self._offload(lambda: work.run(unpacking), converted)

    def _converted(self, failure: OSError | None) -> None:
        self.waits_for = None
        if failure is not None:
            logger.error("a Fetch answer could not be converted", exc_info=failure)
        empty: list[tuple[PartitionData, _Conversion]] = []
        for data, conversion in self._parts:
            data.records = conversion.result
            self._charge(len(conversion.result))
            if failure is not None:
                data.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
                data.records = b""
            elif conversion.error:
                data.error_code = int(conversion.error)
            elif (
                not conversion.result
                and not conversion.is_left
                and conversion.next_offset < data.high_watermark
            ):
                empty.append((data, conversion))
        self._parts = []
        self._rounds += 1
        if not empty or self._rounds >= MAX_ROUNDS:
            self._finish()
            return
        self._parts = self._behind(empty)
        self._begin(self._memory.is_pressed)

    def _behind(
        self, empty: list[tuple[PartitionData, _Conversion]]
    ) -> list[tuple[PartitionData, _Conversion]]:
        """Read on behind the ranges that gave no record. The response of the first round is the one
        that is sent.
        """
        topics = [
            FetchRequest.FetchTopic(
                topic=conversion.key[0],
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=conversion.key[1],
                        fetch_offset=conversion.next_offset,
                        partition_max_bytes=MAX_SOURCE_BYTES // len(empty),
                    )
                ],
            )
            for _, conversion in empty
        ]
        request = FetchRequest(max_bytes=MAX_SOURCE_BYTES, topics=topics)
        following = {found.key: found for _, found in _found(request, self._read_on(request))}
        return [
            (data, following[conversion.key])
            for data, conversion in empty
            if conversion.key in following
        ]

    def _finish(self) -> None:
        self._on_converted(self._message)
        self.resolve(self._message)
        self._timers.call_later(0, self._release)  # behind the connection's turn, which charges it

    def _charge(self, count: int) -> None:
        self._charged_bytes += count
        self._memory.charge(count)

    def _release(self) -> None:
        charged_bytes, self._charged_bytes = self._charged_bytes, 0
        self._memory.release(charged_bytes)


def _found(
    request: FetchRequest, response: FetchResponse
) -> list[tuple[PartitionData, _Conversion]]:
    """What there is to convert: partitions with records, and the offset each was read from."""
    sources = _sources(response)
    return _parts(sources, _offsets(request, sources))


def _sources(response: FetchResponse) -> _Sources:
    return {
        (topic.topic, data.partition_index): (data, data.records)
        for topic in response.responses
        for data in topic.partitions
        if data.records
    }


def _offsets(request: FetchRequest, sources: _Sources) -> dict[Key, int]:
    """The offsets from which partitions with records were read."""
    return {
        key: asked.fetch_offset
        for topic in request.topics
        for asked in topic.partitions
        if (key := (topic.topic, asked.partition)) in sources
    }


def _parts(sources: _Sources, offsets: dict[Key, int]) -> list[tuple[PartitionData, _Conversion]]:
    return [
        (data, _Conversion(key, records, offsets[key]))
        for key, (data, records) in sources.items()
        if key in offsets
    ]
