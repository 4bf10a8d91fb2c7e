"""Batches that a share fetch has read: the offsets for readers, those passed over, and the cut; and
how their headers are read: in chunks, in steps, off the loop where they are not cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbroker.log.storage.files import FileSlice, LogDirectoryError, LogFile
from kbroker.log.storage.segment_file import SCAN_CHUNK_BYTES
from kbroker.log.time_search import HEADERS_PER_STEP
from kbroker.protocol.batches import batch_header
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.share import read_batches
from kbroker.share.acquisition import Acquired
from kbroker.share.read_batches import MAX_BATCHES, Readable, ReadBatches
from tests.sim.offload import HeldOffload, run_inline

PLACE = (b"t" * 16, 0)
MANY = 1 << 40


class Aborted(NamedTuple):
    first_offset: int
    producer_id: int


def batch(
    first: int,
    count: int = 2,
    *,
    producer_id: int = -1,
    marker: bool = False,
    value: bytes = b"v",
) -> bytes:
    key = bytes((0, 0, 0, ControlType.ABORT)) if marker else None
    return bytes(
        build_batch(
            [Record(first + index, 0, key, value, []) for index in range(1 if marker else count)],
            base_offset=first,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            is_transactional=producer_id >= 0,
            is_control=marker,
        )
    )


class Core:
    """Of a share partition: what is passed over. All offsets are available."""

    def __init__(self) -> None:
        self.skipped: list[tuple[int, int]] = []

    def count_available(self, first: int, last: int) -> int:
        return last - first + 1

    def skip(self, first: int, last: int) -> None:
        self.skipped.append((first, last))


class Found:
    def __init__(self) -> None:
        self.core = Core()


def look(
    *batches: bytes,
    offset: int = 0,
    end_offset: int = 100,
    aborted: list[tuple[int, int]] | None = None,
) -> tuple[ReadBatches, list[tuple[int, int]], list[tuple[int, int]]]:
    """The batches, the offsets that are wanted, and those that were passed over."""
    read = read_of(b"".join(batches), [Aborted(*one) for one in aborted or ()], offset, end_offset)
    assert run(read)
    wanted = list(read.wanted())
    return read, wanted, skipped_of(read)


def read_of(
    records: Any, aborted: Sequence[Any] = (), offset: int = 0, end_offset: int = 100
) -> ReadBatches:
    found: Any = Found()
    return ReadBatches(Readable(PLACE, found, offset, records, end_offset, len(records)), aborted)


def run(read: ReadBatches, max_records: int = MANY, offload: Any = run_inline) -> int:
    """Take all steps. Returns how many there were."""
    return 1 + sum(1 for _ in read.read(max_records, offload))


def skipped_of(read: ReadBatches) -> list[tuple[int, int]]:
    core: Any = read.readable.found.core
    skipped: list[tuple[int, int]] = core.skipped
    return skipped


def test_whole_batches() -> None:
    _, wanted, skipped = look(batch(0), batch(2, 3))
    assert (wanted, skipped) == ([(0, 1), (2, 4)], [])


def test_the_first_batch_may_begin_before_what_is_next() -> None:
    _, wanted, skipped = look(batch(0, 5), batch(5), offset=3)
    assert (wanted, skipped) == ([(3, 4), (5, 6)], [])


def test_offsets_that_no_batch_has_are_passed_over() -> None:
    _, wanted, skipped = look(batch(2), batch(7), offset=0)
    assert wanted == [(2, 3), (7, 8)]
    assert skipped == [(0, 1), (4, 6)]


def test_a_batch_that_was_cut_off_is_not_there() -> None:
    _, wanted, _ = look(batch(0), batch(2)[:40])
    assert wanted == [(0, 1)]


def test_aborted_transactions_are_passed_over_up_to_their_marker() -> None:
    _, wanted, skipped = look(
        batch(0, producer_id=7),
        batch(2, producer_id=8),
        batch(4, producer_id=7),
        batch(6, producer_id=7, marker=True),
        batch(7, producer_id=7),
        batch(9),
        aborted=[(0, 7)],
    )
    assert skipped == [(0, 1), (4, 5), (6, 6)]
    assert wanted == [(2, 3), (7, 8), (9, 10)]


def test_a_producers_second_aborted_transaction() -> None:
    _, wanted, skipped = look(
        batch(0, producer_id=7),
        batch(2, producer_id=7, marker=True),
        batch(3, producer_id=7),
        batch(5, producer_id=7),
        batch(7, producer_id=7, marker=True),
        aborted=[(5, 7), (0, 7)],
    )
    assert skipped == [(0, 1), (2, 2), (5, 6), (7, 7)]
    assert wanted == [(3, 4)], "it was committed between the two"


def test_batches_outside_transactions_have_no_producer() -> None:
    _, wanted, _ = look(batch(0), batch(2), aborted=[(0, -1)])
    assert wanted == [(0, 1), (2, 3)]


def test_an_aborted_batch_is_passed_over_from_what_is_next_on() -> None:
    _, wanted, skipped = look(batch(0, 5, producer_id=7), offset=3, aborted=[(0, 7)])
    assert (wanted, skipped) == ([], [(3, 4)])


def old_message(offset: int) -> bytes:
    """A message of magic 1, shorter than the header of a batch."""
    message = bytes(4) + b"\1\0" + bytes(8) + b"\xff\xff\xff\xff" + b"\0\0\0\1v"
    return offset.to_bytes(8, "big") + len(message).to_bytes(4, "big") + message


def test_messages_of_an_old_format_are_one_batch_with_all_that_follows() -> None:
    old = old_message(0) + old_message(1)
    read, wanted, skipped = look(old, batch(2), offset=0, end_offset=4)
    assert (wanted, skipped) == ([(0, 3)], [])
    assert read.around([Acquired(1, 1, 1)]) == old + batch(2)


def test_a_single_message_of_an_old_format() -> None:
    read, wanted, _ = look(old_message(7), offset=7, end_offset=8)
    assert wanted == [(7, 7)]
    assert read.around([Acquired(7, 7, 1)]) == old_message(7)


def test_an_old_format_behind_batches() -> None:
    """A topic's format could be set back."""
    read, wanted, skipped = look(batch(0), old_message(2), offset=0, end_offset=3)
    assert (wanted, skipped) == ([(0, 1), (2, 2)], [])
    assert read.around([Acquired(2, 2, 1)]) == old_message(2)


@pytest.mark.parametrize(
    ("acquired", "begin", "end"),
    [
        pytest.param([(0, 1)], 0, 1, id="the first"),
        pytest.param([(3, 3)], 1, 2, id="inside the second"),
        pytest.param([(1, 1), (2, 2)], 0, 2, id="two of them"),
        pytest.param([(0, 0), (5, 5)], 0, 3, id="from the first to the last"),
        pytest.param([(5, 9)], 2, 3, id="beyond what was read"),
    ],
)
def test_only_batches_with_acquired_records_are_sent(
    acquired: list[tuple[int, int]], begin: int, end: int
) -> None:
    batches = [batch(0), batch(2), batch(4)]
    read, _, _ = look(*batches)
    pieces = [Acquired(first, last, 1) for first, last in acquired]
    assert read.around(pieces) == b"".join(batches[begin:end])


class CountedAborted:
    """An aborted transaction; `looked_at` counts for all of them."""

    looked_at = 0

    def __init__(self, first_offset: int, producer_id: int) -> None:
        self._first_offset = first_offset
        self.producer_id = producer_id

    @property
    def first_offset(self) -> int:
        CountedAborted.looked_at += 1
        return self._first_offset


def aborted_transactions(count: int) -> bytes:
    """Transactions of two producers, each a record and its marker."""
    return b"".join(
        batch(2 * index, 1, producer_id=7 + index % 2)
        + batch(2 * index + 1, producer_id=7 + index % 2, marker=True)
        for index in range(count)
    )


def test_each_aborted_transaction_is_looked_at_a_few_times_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountedAborted, "looked_at", 0)
    count = 1000
    aborted = [CountedAborted(2 * index, 7 + index % 2) for index in range(count)]
    read = read_of(aborted_transactions(count), aborted, end_offset=2 * count)
    run(read)
    assert list(read.wanted()) == []
    assert skipped_of(read) == [(offset, offset) for offset in range(2 * count)]
    assert CountedAborted.looked_at <= 5 * count


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions in chunks of the headers that were decoded."""
    positions: list[int] = []

    def read_batch_header(buffer: Any, position: int = 0) -> batch_header.BatchHeader:
        positions.append(position)
        return batch_header.read_batch_header(buffer, position)

    monkeypatch.setattr(read_batches, "read_batch_header", read_batch_header)
    return positions


def test_a_step_reads_a_bounded_number_of_headers(decoded: list[int]) -> None:
    count = 500
    aborted = [Aborted(2 * index, 7 + index % 2) for index in range(count)]
    read = read_of(aborted_transactions(count), aborted, end_offset=2 * count)
    former = 0
    for _ in read.read(MANY, run_inline):
        assert len(decoded) - former <= HEADERS_PER_STEP
        former = len(decoded)
    assert len(decoded) == 2 * count
    assert former >= 2 * count - HEADERS_PER_STEP


def test_no_more_headers_are_read_than_there_are_records_to_acquire(decoded: list[int]) -> None:
    aborted = [Aborted(4, 7)]
    batches = [batch(0), batch(2), batch(4, producer_id=7), *(batch(6 + 2 * i) for i in range(50))]
    read = read_of(b"".join(batches), aborted)
    run(read, 5)
    assert list(read.wanted()) == [(0, 1), (2, 3), (6, 7)]
    assert len(decoded) == 4


def test_a_response_ends_before_very_many_batches(decoded: list[int]) -> None:
    """Aborted transactions behind the first batch to deliver are left for the next fetch."""
    count = MAX_BATCHES
    aborted = [Aborted(2 * index, 7 + index % 2) for index in range(1, count)]
    read = read_of(aborted_transactions(count), aborted, end_offset=2 * count)
    run(read)
    assert list(read.wanted()) == [(0, 0), (1, 1)]
    assert MAX_BATCHES <= len(decoded) < MAX_BATCHES + HEADERS_PER_STEP


class Disk:
    """Counts the reads of a file, and decides what the page cache has and whether reads fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cached = True
        self.fails = False
        self.cached_reads = self.cached_bytes = 0
        self.blocking_reads = 0
        read_at = LogFile.read_at

        def read_cached(file: LogFile, position: int, count: int) -> bytes | None:
            self.cached_reads += 1
            self.cached_bytes += count
            return read_at(file, position, count) if self.is_cached else None

        def read(file: LogFile, position: int, count: int) -> bytes:
            self.blocking_reads += 1
            if self.fails:
                raise LogDirectoryError(file.path, "read", OSError(5, "EIO"))
            return read_at(file, position, count)

        monkeypatch.setattr(LogFile, "read_cached", read_cached)
        monkeypatch.setattr(LogFile, "read_at", read)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def in_file(tmp_path: Path, records: bytes) -> FileSlice:
    path = tmp_path / "file"
    path.write_bytes(b"before" + records + b"behind")
    return FileSlice(LogFile(str(path)), len(b"before"), len(records))


def test_headers_in_the_page_cache_are_read_in_chunks(tmp_path: Path, disk: Disk) -> None:
    batches = [batch(index, 1) for index in range(1000)]
    records = in_file(tmp_path, b"".join(batches))
    read = read_of(records, end_offset=1000)
    run(read, offload=HeldOffload())
    assert list(read.wanted()) == [(offset, offset) for offset in range(1000)]
    assert disk.blocking_reads == 0
    assert disk.cached_reads <= len(records) // (SCAN_CHUNK_BYTES - len(batches[0])) + 1
    around = read.around([Acquired(300, 302, 1)])
    assert isinstance(around, FileSlice)
    assert around.read() == b"".join(batches[300:303])


def test_headers_of_large_batches_are_read_without_their_records(
    tmp_path: Path, disk: Disk
) -> None:
    large = [batch(index, 1, value=bytes(5 * SCAN_CHUNK_BYTES)) for index in range(5)]
    read = read_of(in_file(tmp_path, b"".join(large) + batch(5)))
    run(read)
    assert list(read.wanted()) == [*((offset, offset) for offset in range(5)), (5, 6)]
    assert disk.cached_reads == 6
    assert disk.cached_bytes <= 6 * SCAN_CHUNK_BYTES


def test_headers_that_are_not_in_the_page_cache_are_read_by_a_worker(
    tmp_path: Path, disk: Disk
) -> None:
    count = 2 * HEADERS_PER_STEP + 1
    worker = HeldOffload()
    large = [batch(offset, 1, value=bytes(SCAN_CHUNK_BYTES)) for offset in range(count)]
    read = read_of(in_file(tmp_path, b"".join(large)), end_offset=count)
    disk.is_cached = False
    pauses = 0
    for waits_for in read.read(MANY, worker):
        if waits_for is None:
            pauses += 1
            continue
        assert not waits_for.done
        assert disk.blocking_reads <= worker.done * HEADERS_PER_STEP, "none is on the loop"
        worker.run()
    assert (worker.done, pauses) == (3, 2)
    assert disk.blocking_reads == count
    assert list(read.wanted()) == [(offset, offset) for offset in range(count)]


def test_a_worker_reads_no_more_headers_than_there_are_records_to_acquire(
    tmp_path: Path, disk: Disk, decoded: list[int]
) -> None:
    read = read_of(in_file(tmp_path, b"".join(batch(2 * i) for i in range(50))))
    disk.is_cached = False
    run(read, 5)
    assert list(read.wanted()) == [(0, 1), (2, 3), (4, 5)]
    assert len(decoded) == 3


def test_a_disk_that_fails_in_the_worker(tmp_path: Path, disk: Disk) -> None:
    read = read_of(in_file(tmp_path, batch(0)))
    disk.is_cached, disk.fails = False, True
    with pytest.raises(LogDirectoryError):
        run(read)


def test_a_worker_that_has_ended(tmp_path: Path, disk: Disk) -> None:
    """Its error says nothing of the disk."""
    read = read_of(in_file(tmp_path, batch(0)))
    disk.is_cached = False
    with pytest.raises(KafkaError) as raised:
        run(read, offload=lambda work, then: then(OSError("the executor is shut down")))
    assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def damaged(first: int) -> bytes:
    """A batch whose length is less than a header's."""
    data = bytearray(batch(first))
    data[batch_header.LENGTH_POSITION : batch_header.LENGTH_POSITION + 4] = bytes(4)
    return bytes(data)


def test_what_is_before_a_damaged_header_is_delivered() -> None:
    _, wanted, _ = look(batch(0), batch(2), damaged(4), batch(6))
    assert wanted == [(0, 1), (2, 3)]


def test_a_damaged_header_at_the_beginning() -> None:
    with pytest.raises(KafkaError) as raised:
        look(batch(0, producer_id=7), damaged(2), batch(4), aborted=[(0, 7)])
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
