"""Batches checked against the producer state, and replayed into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.producer.producer_state import ProducerStateManager
from kbroker.log.producer.replay import check_producers, end_transaction, replay_producer
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment import Segment
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader, read_batch_header
from kbroker.protocol.batches.control_records import ControlType, build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000


@pytest.fixture
def producers() -> ProducerStateManager:
    return ProducerStateManager(TopicPartition("t", 0), expiration_ms=1 << 40)


def header(offset: int, sequence: int, *, producer_id: int = 7) -> BatchHeader:
    return read_batch_header(
        build_batch(
            [(NOW_MS, None, b"v", [])],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=producer_id >= 0,
        )
    )


def marker(offset: int, producer_id: int = 7) -> BatchHeader:
    return read_batch_header(
        build_end_transaction_marker(
            commit=False,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=3,
            timestamp_ms=NOW_MS,
            base_offset=offset,
        )
    )


def check(
    producers: ProducerStateManager, *headers: BatchHeader, coordinator_epoch: int | None = None
) -> int | None:
    is_marker = coordinator_epoch is not None
    markers = [(ControlType.ABORT, coordinator_epoch) if is_marker else None for _ in headers]
    duplicate = check_producers(
        producers,
        headers,
        markers,  # type: ignore[arg-type]  # the epoch is a number in each of them
        origin=AppendOrigin.COORDINATOR if is_marker else AppendOrigin.CLIENT,
        transaction_version=0,
    )
    return None if duplicate is None else duplicate.base_offset


def test_a_batch_that_was_sent_before_is_named_wherever_it_is(
    producers: ProducerStateManager,
) -> None:
    replay_producer(producers, header(5, 0), None)
    assert check(producers, header(9, 1)) is None
    assert check(producers, header(9, 0)) == 5
    assert check(producers, header(9, 0, producer_id=-1), header(10, 0)) == 5


def test_a_gap_in_the_sequence_is_refused(producers: ProducerStateManager) -> None:
    replay_producer(producers, header(5, 0), None)
    with pytest.raises(KafkaError) as caught:
        check(producers, header(9, 2))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_coordinator_writes_no_marker(producers: ProducerStateManager) -> None:
    replay_producer(producers, header(0, 0), None)
    replay_producer(producers, marker(1), (ControlType.ABORT, 3))
    assert check(producers, marker(2), coordinator_epoch=3) is None
    with pytest.raises(KafkaError) as caught:
        check(producers, marker(2), coordinator_epoch=2)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_only_an_abort_is_in_the_index_of_its_segment(
    producers: ProducerStateManager, tmp_path: Path, kind: ControlType
) -> None:
    segment = Segment.create(
        str(tmp_path), 0, config=LogConfig(), open_files=OpenFiles(2), now_ms=NOW_MS
    )
    assert replay_producer(producers, header(0, 0), None) is None
    assert replay_producer(producers, header(1, 0, producer_id=8), None) is None
    completed = replay_producer(producers, marker(2), (kind, 3))
    assert completed is not None and producers.ongoing
    end_transaction(producers, segment, completed)
    # the transaction of producer 8 is still open, so its first offset is the last stable offset
    expected = [AbortedTransaction(7, 0, 2, 1)] if kind is ControlType.ABORT else []
    assert segment.transaction_index.entries() == expected
    producers.on_high_watermark(3)
    assert producers.first_unstable_offset == 1
