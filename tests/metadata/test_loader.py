"""The metadata loader: what it publishes from the committed log, and when."""

from __future__ import annotations

import pytest

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.loader import RECORDS_PER_STEP, MetadataLoader
from kbroker.metadata.records import encode_record
from kbroker.metadata.snapshot import image_records
from kbroker.model import InvariantError
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)

VERSION = 30


def level(name: str, to: int = 1) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, feature_level=to)


class Log:
    """Commits batches to a loader, in order."""

    def __init__(self) -> None:
        self.loader = MetadataLoader("cluster", node_id=1)
        self.next_offset = 0
        self.steps = 0
        self.published: list[tuple[MetadataImage, MetadataImage]] = []
        self.loader.on_image(lambda old, new: self.published.append((old, new)))

    def commit(self, *records: Message, epoch: int = 1) -> None:
        encoded = [encode_record(record, VERSION) for record in records]
        for _ in self.loader.committed(self.next_offset, epoch, encoded):
            self.steps += 1
        self.next_offset += max(len(records), 1)

    def load(self, records: list[bytes], end_offset: int, epoch: int) -> None:
        for _ in self.loader.snapshot_read(records, end_offset, epoch):
            self.steps += 1


def test_loading_publishes_once_and_then_each_batch() -> None:
    log = Log()
    log.commit(level("a"))
    log.commit()  # a control batch
    log.commit(level("b"), level("c"), epoch=2)
    assert log.published == [] and log.loader.image.offset == -1
    assert log.loader.last_offset == 3
    log.loader.caught_up()
    ((old, new),) = log.published
    assert (old.offset, new.offset, new.epoch) == (-1, 3, 2)
    assert set(new.features) == {"a", "b", "c"}
    log.commit(level("d"), epoch=2)
    assert log.published[1][0] is new
    assert log.published[1][1] is log.loader.image
    log.commit(epoch=2)
    assert (log.loader.image.offset, log.loader.last_offset) == (4, 5), "a control batch"
    assert "d" in log.loader.image.features
    log.commit(epoch=3)
    assert len(log.published) == 2


def test_a_new_cluster_is_published_with_its_bootstrap_records() -> None:
    log = Log()
    log.commit()
    log.loader.caught_up()
    assert log.published == []
    log.commit(BeginTransactionRecord(name="Bootstrap records"), level("a"), EndTransactionRecord())
    assert [new.features for _, new in log.published] == [{"a": 1}]


def test_a_transaction_is_published_when_it_ends() -> None:
    log = Log()
    log.commit(level("a"))
    log.loader.caught_up()
    log.commit(BeginTransactionRecord(name="x"), level("b"))
    log.commit(level("c"))
    assert len(log.published) == 1 and log.loader.in_transaction
    log.commit(EndTransactionRecord())
    assert set(log.loader.image.features) == {"a", "b", "c"}
    assert log.loader.image.offset == log.next_offset - 1


def test_an_aborted_transaction_leaves_nothing() -> None:
    log = Log()
    log.commit(level("a"), BeginTransactionRecord(name="x"), level("b"))
    log.loader.caught_up()
    assert log.loader.in_transaction
    assert log.loader.image.features == {"a": 1}
    log.commit(AbortTransactionRecord(reason="x"))
    assert log.loader.image.features == {"a": 1}
    assert not log.loader.in_transaction


def test_a_snapshot_is_the_start() -> None:
    first = Log()
    first.commit(level("metadata.version", VERSION), level("a"))
    first.loader.caught_up()
    second = Log()
    records = [encode_record(record, VERSION) for record in image_records(first.loader.image)]
    second.load(records, first.next_offset, 1)
    second.next_offset = first.next_offset
    second.commit(level("b"))
    second.loader.caught_up()
    assert second.loader.image.features == {"metadata.version": VERSION, "a": 1, "b": 1}
    assert second.loader.image.offset == first.next_offset
    assert second.loader.image.cluster_id == "cluster"


def test_a_snapshot_that_is_fetched_later_is_published_as_a_whole() -> None:
    """A standby that was stopped for so long that the leader no longer has the log before its
    snapshot.
    """
    leader = Log()
    leader.commit(level("metadata.version", VERSION), level("new"), level("changed", 2))
    leader.loader.caught_up()
    records = [encode_record(record, VERSION) for record in image_records(leader.loader.image)]
    standby = Log()
    standby.commit(level("metadata.version", VERSION), level("gone"), level("changed", 1))
    standby.loader.caught_up()
    standby.published.clear()
    standby.load(records, 10, 4)
    ((old, new),) = standby.published
    assert set(old.features) == {"metadata.version", "gone", "changed"}
    assert new.features == {"metadata.version": VERSION, "new": 1, "changed": 2}
    assert (new.offset, new.epoch) == (9, 4)
    standby.next_offset = 10
    standby.commit(level("later"))
    assert set(standby.loader.image.features) == {"metadata.version", "new", "changed", "later"}


def test_a_large_snapshot_is_read_in_steps_and_published_by_the_last_one() -> None:
    log = Log()
    log.commit(level("old"))
    log.loader.caught_up()
    log.published.clear()
    records = [encode_record(level(f"f{i}"), VERSION) for i in range(2 * RECORDS_PER_STEP + 1)]
    steps = log.loader.snapshot_read(records, 10, 4)
    for _ in range(2):
        next(steps)
        assert not log.published and set(log.loader.image.features) == {"old"}
    assert next(steps, "over") == "over"
    assert len(log.published) == 1 and len(log.loader.image.features) == len(records)


def test_a_listener_that_comes_late_gets_the_present_image() -> None:
    log = Log()
    log.commit(level("a"))
    log.loader.caught_up()
    seen: list[tuple[MetadataImage, MetadataImage]] = []
    log.loader.on_image(lambda old, new: seen.append((old, new)))
    assert seen == [(MetadataImage(cluster_id="cluster"), log.loader.image)]


def test_an_image_never_goes_back() -> None:
    log = Log()
    log.commit(level("a"), level("b"))
    log.loader.caught_up()
    log.next_offset = 0
    with pytest.raises(InvariantError, match="goes back"):
        log.commit(level("c"))


def test_a_large_batch_is_replayed_in_steps_and_published_by_the_last() -> None:
    log = Log()
    log.commit(level("a"))
    log.loader.caught_up()
    image, count = log.loader.image, 10 * RECORDS_PER_STEP
    encoded = [encode_record(level(f"f{number}"), VERSION) for number in range(count)]
    steps = log.loader.committed(log.next_offset, 1, encoded)
    for _ in range(9):
        next(steps)
        assert log.loader.image is image and len(log.published) == 1
    assert next(steps, "over") == "over"
    assert len(log.loader.image.features) == count + 1
    assert len(log.published) == 2


def test_a_small_batch_has_no_pause() -> None:
    log = Log()
    log.commit(*(level(f"f{number}") for number in range(RECORDS_PER_STEP)))
    assert log.steps == 0
