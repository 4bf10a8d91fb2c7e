"""Producer state against Kafka's snapshots, and the rules of KIP-98 and KIP-890 one by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.producer.producer_state import (
    MAX_EPOCH,
    MAX_SEQUENCE,
    CompletedTransaction,
    DuplicateBatch,
    ProducerStateManager,
    read_snapshot,
)
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.batches.control_records import (
    ControlType,
    control_type,
    marker_coordinator_epoch,
)
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError

GOLDEN = Path(__file__).parents[2] / "data" / "kafka-4.3.1"
SNAPSHOTS = [
    pytest.param(path, id=f"{path.parent.name}/{path.stem[-3:]}")
    for path in sorted(GOLDEN.glob("data/*/*.snapshot"))
    if path.parent.name.startswith(("codec", "txn"))
]
DUMP_LINE = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
    r"currentTxnFirstOffset: (\S+) lastTimestamp: (-?\d+)"
    r"(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (\d+) offsetDelta: (\d+))?"
)
DAY_MS = 86_400_000


def manager(expiration_ms: int = DAY_MS) -> ProducerStateManager:
    return ProducerStateManager(TopicPartition("topic", 0), expiration_ms=expiration_ms)


def batch(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    offset: int = 0,
    producer_id: int = 7,
    timestamp: int = 1000,
    transactional: bool = False,
    control: bool = False,
) -> BatchHeader:
    attributes = (0x10 if transactional else 0) | (0x20 if control else 0)
    return BatchHeader(
        base_offset=offset,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def marker(*, epoch: int = 0, offset: int = 0, producer_id: int = 7) -> BatchHeader:
    return batch(
        -1, epoch=epoch, offset=offset, producer_id=producer_id, transactional=True, control=True
    )


def append(
    state: ProducerStateManager, header: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT
) -> DuplicateBatch | None:
    duplicate = state.check(header, origin=origin)
    if duplicate is None:
        state.update(header)
    return duplicate


def refused(state: ProducerStateManager, header: BatchHeader, **options: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(header, origin=AppendOrigin.CLIENT, **options)
    return caught.value.code


# -- files of Kafka -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SNAPSHOTS)
def test_snapshots_come_back_byte_for_byte(path: Path) -> None:
    data = path.read_bytes()
    state = manager()
    state.load_snapshot(data, map_end_offset=int(path.stem), now_ms=0)
    assert state.to_snapshot() == data
    assert state.map_end_offset == int(path.stem)


@pytest.mark.parametrize("path", SNAPSHOTS)
def test_snapshots_say_what_kafka_prints(path: Path) -> None:
    dump = GOLDEN / "dump-clean" / path.parent.name / f"{path.name}.txt"
    lines = [match for line in dump.read_text().splitlines() if (match := DUMP_LINE.match(line))]
    states = read_snapshot(path.read_bytes())
    assert len(states) == len(lines)
    for state, line in zip(states, lines, strict=True):
        first = state.transaction_first_offset
        printed = [state.producer_id, state.producer_epoch, state.coordinator_epoch]
        assert [str(number) for number in printed] == list(line.groups()[:3])
        assert line[4] == ("OptionalLong.empty" if first is None else f"OptionalLong[{first}]")
        assert line[5] == str(state.last_timestamp)
        if line[6] is None:
            assert not state.batches
        else:
            (last,) = state.batches
            numbers = [last.first_sequence, last.last_sequence, last.last_offset, last.offset_delta]
            assert [str(number) for number in numbers] == list(line.groups()[5:])


@pytest.mark.parametrize("path", SNAPSHOTS)
def test_replaying_the_log_gives_kafkas_snapshot(path: Path) -> None:
    end_offset = int(path.stem)
    state = manager()
    for log in sorted(path.parent.glob("*.log")):
        data = log.read_bytes()
        for position, header in iter_batches(data):
            if header.base_offset >= end_offset:
                break
            if header.is_control:
                (record,) = iter_records(data[position : position + header.size_bytes])
                completed = state.update_marker(
                    header, control_type(record), marker_coordinator_epoch(record)
                )
                if completed is not None:
                    state.complete_transaction(completed)
            else:
                assert state.check(header, origin=AppendOrigin.CLIENT) is None
                state.update(header)
    assert state.map_end_offset == end_offset
    expected = manager()
    expected.load_snapshot(path.read_bytes(), map_end_offset=end_offset, now_ms=0)
    ours = {entry.producer_id: entry for entry in read_snapshot(state.to_snapshot())}
    for producer_id, entry in expected.active_producers.items():
        mine = ours.pop(producer_id)
        for name in entry.__slots__:
            assert getattr(mine, name) == getattr(entry, name), (producer_id, name)
    # record timestamps are of 2023, the broker's clock of 2026: at its restart Kafka forgot these
    assert all(entry.last_timestamp < 1_701_000_000_000 for entry in ours.values())
    state.on_high_watermark(end_offset)
    assert state.first_unstable_offset == expected.first_unstable_offset


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="nothing"),
        pytest.param(lambda data: data[:5], id="half a prefix"),
        pytest.param(lambda data: data[:-1], id="cut short"),
        pytest.param(lambda data: data + b"\0", id="a byte too many"),
        pytest.param(lambda data: b"\0\2" + data[2:], id="version 2"),
        pytest.param(lambda data: data[:20] + b"\xff" + data[21:], id="a wrong byte"),
        pytest.param(lambda data: data[:6] + b"\xff" * 4 + data[10:], id="negative count"),
    ],
)
def test_snapshots_that_are_none(damage: object) -> None:
    state = manager()
    append(state, batch(0))
    data = state.to_snapshot()
    with pytest.raises(KafkaError) as caught:
        state.load_snapshot(damage(data), map_end_offset=1, now_ms=0)  # type: ignore[operator]  # a row's lambda
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert state.is_empty


# -- sequences ------------------------------------------------------------------------------------


def test_the_last_five_batches_are_known_as_duplicates() -> None:
    state = manager()
    for index in range(7):
        append(state, batch(index * 10, 10, offset=100 + index * 10))
    for index in range(2, 7):
        duplicate = state.check(batch(index * 10, 10), origin=AppendOrigin.CLIENT)
        assert duplicate == DuplicateBatch(100 + index * 10, 109 + index * 10, 1000)
    assert refused(state, batch(10, 10)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_duplicate_has_both_ends_in_common() -> None:
    state = manager()
    append(state, batch(0, 10))
    assert refused(state, batch(0, 9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, batch(1, 9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


SEQUENCES = [
    pytest.param(4, 5, True, id="next"),
    pytest.param(4, 6, False, id="gap"),
    pytest.param(4, 0, False, id="from the start"),
    pytest.param(MAX_SEQUENCE, 0, True, id="wraps"),
    pytest.param(MAX_SEQUENCE, 1, False, id="wraps with a gap"),
    pytest.param(MAX_SEQUENCE - 1, MAX_SEQUENCE, True, id="the last one"),
]


@pytest.mark.parametrize(("last", "following", "accepted"), SEQUENCES)
def test_sequences_follow_each_other(last: int, following: int, accepted: bool) -> None:
    state = manager()
    append(state, batch(last))
    if accepted:
        assert append(state, batch(following, 3)) is None
    else:
        assert refused(state, batch(following, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_across_the_wrap_is_known_again() -> None:
    state = manager()
    header = batch(MAX_SEQUENCE - 1, 5, offset=50)
    append(state, header)
    assert header.last_sequence == 2
    assert state.check(header, origin=AppendOrigin.CLIENT) == DuplicateBatch(50, 54, 1000)
    assert append(state, batch(3)) is None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert append(manager(), batch(4711)) is None


def test_under_transaction_version_2_an_unknown_producer_begins_with_0() -> None:
    """Otherwise a batch that overtakes the first one would cause the retry of the first one to be
    rejected.
    """
    state = manager()
    for sequence, transactional, version, expected in [
        (5, True, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, True, 2, None),
        (5, True, 0, None),
        (5, False, 2, None),
    ]:
        header = batch(sequence, transactional=transactional)
        found = None
        try:
            state.check(header, origin=AppendOrigin.CLIENT, transaction_version=version)
        except KafkaError as error:
            found = error.code
        assert found is expected


def test_batches_without_a_producer_have_no_state() -> None:
    state = manager()
    assert append(state, batch(-1, 5, producer_id=-1)) is None
    assert append(state, batch(0, 5, producer_id=-1)) is None  # as coordinators write them
    assert state.is_empty and state.map_end_offset == 5


@pytest.mark.parametrize(
    ("epoch", "sequence", "expected"),
    [
        pytest.param(4, 0, ErrorCode.INVALID_PRODUCER_EPOCH, id="an old epoch"),
        pytest.param(6, 0, None, id="a new epoch from 0"),
        pytest.param(6, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a new epoch from 1"),
        pytest.param(5, 1, None, id="the same epoch"),
    ],
)
def test_epochs(epoch: int, sequence: int, expected: ErrorCode | None) -> None:
    state = manager()
    append(state, batch(0, epoch=5))
    header = batch(sequence, epoch=epoch)
    if expected is None:
        assert append(state, header) is None
        assert state.active_producers[7].producer_epoch == epoch
    else:
        assert refused(state, header) is expected


def test_a_new_epoch_forgets_the_old_batches() -> None:
    state = manager()
    append(state, batch(0, epoch=0))
    append(state, batch(0, epoch=1))
    assert len(state.active_producers[7].batches) == 1


def test_a_coordinator_is_fenced_but_not_counted() -> None:
    state = manager()
    append(state, batch(0, epoch=5))
    assert append(state, batch(0, epoch=5), AppendOrigin.COORDINATOR) is None
    with pytest.raises(KafkaError):
        state.check(batch(0, epoch=4), origin=AppendOrigin.COORDINATOR)


def test_retries_are_known_after_a_restart() -> None:
    """Redpanda 3039: five in flight, a restart between append and answer, then all are retried."""
    state = manager()
    headers = [batch(index, offset=index) for index in range(5)]
    for header in headers:
        append(state, header)
    again = manager()  # only the log survives: its batches are replayed
    for header in headers:
        again.update(header)
    for index, header in enumerate(headers):
        duplicate = again.check(header, origin=AppendOrigin.CLIENT)
        assert duplicate == DuplicateBatch(index, index, 1000)


# -- transactions ---------------------------------------------------------------------------------


def end(
    state: ProducerStateManager, header: BatchHeader, kind: ControlType = ControlType.COMMIT
) -> CompletedTransaction | None:
    assert state.check(header, origin=AppendOrigin.COORDINATOR) is None
    completed = state.update_marker(header, kind, 0)
    if completed is not None:
        state.complete_transaction(completed)
    return completed


def first_undecided_offset(state: ProducerStateManager) -> int | None:
    """First offset of the oldest open transaction."""
    return min(state.ongoing, default=None)


def test_the_first_unstable_offset_waits_for_the_marker_and_the_high_watermark() -> None:
    state = manager()
    assert state.first_unstable_offset is None
    append(state, batch(0, 2, offset=10, transactional=True))
    append(state, batch(2, 2, offset=12, transactional=True))
    assert state.first_unstable_offset == first_undecided_offset(state) == 10
    completed = end(state, marker(offset=14), ControlType.ABORT)
    assert completed == CompletedTransaction(7, 10, 14, True)
    assert first_undecided_offset(state) is None
    state.on_high_watermark(14)
    assert state.first_unstable_offset == 10
    state.on_high_watermark(15)
    assert state.first_unstable_offset is None


def test_overlapping_transactions() -> None:
    state = manager()
    append(state, batch(0, offset=0, producer_id=1, transactional=True))
    append(state, batch(0, offset=1, producer_id=2, transactional=True))
    completed = state.update_marker(marker(offset=2, producer_id=2), ControlType.COMMIT, 0)
    assert completed is not None
    assert state.last_stable_offset(completed) == 0
    state.complete_transaction(completed)
    completed = state.update_marker(marker(offset=3, producer_id=1), ControlType.COMMIT, 0)
    assert completed is not None
    assert state.last_stable_offset(completed) == 4
    state.complete_transaction(completed)
    state.on_high_watermark(4)
    assert state.first_unstable_offset is None


def test_a_producer_knows_its_last_marker() -> None:
    state = manager()
    append(state, batch(0, offset=0, transactional=True))
    assert state.active_producers[7].marker_offset == -1
    for offset in (1, 2):
        end(state, marker(offset=offset))
        assert state.active_producers[7].marker_offset == offset
    append(state, batch(1, offset=3, transactional=True))
    assert state.active_producers[7].marker_offset == 2


def test_a_marker_without_a_transaction_ends_none() -> None:
    state = manager()
    assert end(state, marker(offset=0)) is None
    assert state.first_unstable_offset is None
    assert state.active_producers[7].coordinator_epoch == 0


def test_no_plain_batch_inside_a_transaction() -> None:
    state = manager()
    append(state, batch(0, transactional=True))
    assert refused(state, batch(1)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("known", "open_transaction", "epoch", "version", "accepted"),
    [
        pytest.param(5, True, 4, 0, False, id="v0, older"),
        pytest.param(5, True, 5, 0, True, id="v0, same"),
        pytest.param(5, True, 6, 0, True, id="v0, newer"),
        pytest.param(5, True, 4, 2, False, id="v2, older"),
        pytest.param(5, True, 5, 2, False, id="v2, same: a delayed end of the one before"),
        pytest.param(5, True, 6, 2, True, id="v2, newer"),
        pytest.param(5, False, 5, 2, True, id="v2, the same marker again"),
        pytest.param(MAX_EPOCH, True, MAX_EPOCH, 2, True, id="v2, the last epoch there is"),
    ],
)
def test_an_older_epochs_marker_does_not_end_a_newer_transaction(
    known: int, open_transaction: bool, epoch: int, version: int, accepted: bool
) -> None:
    state = manager()
    if open_transaction:
        append(state, batch(0, epoch=known, transactional=True))
    else:
        end(state, marker(epoch=known))
    header = marker(epoch=epoch, offset=1)
    if accepted:
        origin = AppendOrigin.COORDINATOR
        assert state.check(header, origin=origin, transaction_version=version) is None
    else:
        code = refused(state, header, transaction_version=version)
        assert code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_coordinators_are_fenced_by_their_epoch() -> None:
    state = manager()
    state.update_marker(marker(), ControlType.COMMIT, 3)
    state.check_coordinator_epoch(7, 3)
    state.check_coordinator_epoch(8, 0)
    with pytest.raises(KafkaError) as caught:
        state.check_coordinator_epoch(7, 2)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_after_a_marker_of_a_new_epoch_sequences_begin_at_0() -> None:
    state = manager()
    append(state, batch(0, 5, transactional=True))
    end(state, marker(epoch=1, offset=5))
    assert refused(state, batch(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(state, batch(0, epoch=1)) is None


def test_after_a_marker_of_the_same_epoch_sequences_go_on() -> None:
    state = manager()
    append(state, batch(0, 5, transactional=True))
    end(state, marker(offset=5))
    assert append(state, batch(5, offset=6, transactional=True)) is None
    assert first_undecided_offset(state) == 6


# -- time and truncation --------------------------------------------------------------------------


def test_producers_expire_unless_a_transaction_is_open() -> None:
    state = manager(expiration_ms=100)
    append(state, batch(0, producer_id=1, timestamp=1000))
    append(state, batch(0, offset=1, producer_id=2, timestamp=1000, transactional=True))
    assert state.expire(1099) == 0
    assert state.expire(1100) == 1
    assert list(state.active_producers) == [2]


def test_expired_producers_are_not_loaded() -> None:
    state = manager(expiration_ms=100)
    append(state, batch(0, producer_id=1, timestamp=1000))
    append(state, batch(0, producer_id=2, timestamp=2000))
    again = manager(expiration_ms=100)
    again.load_snapshot(state.to_snapshot(), map_end_offset=2, now_ms=1100)
    assert list(again.active_producers) == [2]


def test_clear_and_the_start_of_the_log() -> None:
    state = manager()
    append(state, batch(0, offset=10, transactional=True))
    end(state, marker(offset=11))
    state.on_log_start_offset(20)
    assert state.first_unstable_offset is None
    assert state.map_end_offset == 20
    assert 7 in state.active_producers
    state.clear(5)
    assert state.is_empty and state.map_end_offset == 5


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=30))
def test_no_batch_is_written_twice_however_often_it_is_sent(
    sends: list[tuple[int, int]],
) -> None:
    """Each step sends the next batch, or one of the last two again: a retry is never appended
    again.
    """
    state = manager()
    log: list[BatchHeader] = []
    sequence = 0
    for back, count in sends:
        if back and back <= len(log):
            header = log[-back]
            sent = batch(header.base_sequence, header.record_count)
            duplicate = append(state, sent)
            assert duplicate is not None and duplicate.base_offset == header.base_offset
        else:
            header = batch(sequence, count, offset=sequence)
            assert append(state, header) is None
            log.append(header)
            sequence += count
    assert [header.base_sequence for header in log] == [header.base_offset for header in log]
