"""Hosting, appending, faults of the disk, and what survives a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.log.validator import AppendOrigin
from kbroker.metadata.publisher import HostPartition
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.settings.views.log_config import LogConfig
from tests.replication.world import (
    NODE_ID,
    TOPIC,
    World,
    batch,
    fetch_request,
    partitions_of,
    records_of,
)

KEY = TopicPartition(TOPIC, 0)


def appended(
    outcome: PartitionAppendResult | Deferred[PartitionAppendResult],
) -> PartitionAppendResult:
    assert isinstance(outcome, PartitionAppendResult)
    return outcome


def corrupt(good: bytearray) -> bytearray:
    good[-1] ^= 1
    return good


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_one_replica_answers_at_once(world: World, acks: int) -> None:
    world.append(batches=batch(2))
    result = appended(world.append(batches=batch(3), acks=acks))
    assert (result.error, result.base_offset, result.last_offset) == (ErrorCode.NONE, 2, 4)
    assert (result.log_append_time_ms, result.log_start_offset) == (-1, 0)


@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_other_acks(world: World, acks: int) -> None:
    assert appended(world.append(acks=acks)).error == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize(
    ("records", "error"),
    [
        pytest.param(corrupt(batch()), ErrorCode.CORRUPT_MESSAGE, id="crc"),
        pytest.param(batch()[:-1], ErrorCode.INVALID_RECORD, id="cut off"),
        pytest.param(bytearray(), ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(batch() + batch(), ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(batch(size=2_000_000), ErrorCode.MESSAGE_TOO_LARGE, id="too large"),
        pytest.param(batch(is_control=True), ErrorCode.INVALID_RECORD, id="control"),
        pytest.param(batch(timestamp=1 << 50), ErrorCode.INVALID_TIMESTAMP, id="far in the future"),
    ],
)
def test_refused_batches_have_their_error_and_leave_no_trace(
    world: World, records: bytearray, error: ErrorCode
) -> None:
    result = appended(world.append(batches=bytearray(records)))
    assert (result.error, result.base_offset) == (error, -1)
    assert appended(world.append()).base_offset == 0


def test_a_compacted_topic_wants_keys(world: World) -> None:
    world.configure(cleanup_policy="compact")
    result = appended(world.append(batches=build_batch([(world.timers.now_ms(), None, b"v", [])])))
    assert result.error == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in result.record_errors] == [0]


def test_zstd_before_produce_7(world: World) -> None:
    records = batch(3, compression=Compression.ZSTD)
    for version, error in ((6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)):
        result = world.replicas.append(
            KEY, bytearray(records), acks=1, timeout_ms=0, produce_version=version
        )
        assert appended(result).error == error


def test_a_retried_batch_has_its_old_offsets_and_wakes_no_fetch(world: World) -> None:
    def sent() -> bytearray:
        return batch(2, producer_id=9, producer_epoch=0, base_sequence=0)

    first = appended(world.append(batches=sent()))
    waits = world.fetch(fetch_request({0: 2}, max_wait_ms=100))
    again = appended(world.append(batches=sent(), acks=-1))
    assert (again.error, again.base_offset, again.last_offset) == (ErrorCode.NONE, 0, 1)
    assert again.base_offset == first.base_offset
    world.timers.advance(10)
    assert isinstance(waits, Deferred)
    assert not waits.done
    gap = batch(1, producer_id=9, producer_epoch=0, base_sequence=5)
    assert appended(world.append(batches=gap)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_acks_all_waits_for_followers_until_its_time_is_over(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    assert appended(world.append(acks=1)).error == ErrorCode.NONE
    waits = world.append(acks=-1, timeout_ms=300)
    assert isinstance(waits, Deferred)
    world.timers.advance(299)
    assert not waits.done
    world.timers.advance(1)
    assert waits.value.error == ErrorCode.REQUEST_TIMED_OUT


def test_acks_all_hears_of_a_lost_leadership(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    waits = world.append(acks=-1)
    assert isinstance(waits, Deferred)
    world.host(0, leader=2, epoch=1, replicas=(1, 2), partition_epoch=2)
    world.timers.advance(0)
    assert waits.value.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert appended(world.append()).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_acks_all_waits_on_when_the_same_leader_has_a_new_epoch(world: World) -> None:
    partition = world.host(0, replicas=(1, 2), partition_epoch=1)
    waits = world.append(acks=-1, timeout_ms=300)
    late = world.append(acks=-1, timeout_ms=300)
    assert isinstance(waits, Deferred) and isinstance(late, Deferred)
    world.host(0, epoch=1, replicas=(1, 2), partition_epoch=2)
    world.timers.advance(0)
    assert not waits.done
    partition.follower_fetched(
        2, fetch_offset=1, log_start_offset=0, broker_epoch=-1, now_ms=world.timers.monotonic_ms()
    )
    world.timers.advance(0)
    assert appended(waits.value).error == ErrorCode.NONE and not late.done
    world.timers.advance(300)
    assert late.value.error == ErrorCode.REQUEST_TIMED_OUT


def test_acks_all_fails_when_the_log_directory_does(world: World) -> None:
    partition = world.host(0, replicas=(1, 2), partition_epoch=1)
    waits = world.append(acks=-1)
    assert isinstance(waits, Deferred)
    world.replicas.hosting.read_failed(partition, OSError(5, "Input/output error"))
    world.timers.advance(0)
    assert waits.value.error == ErrorCode.KAFKA_STORAGE_ERROR


def test_acks_all_fails_when_its_partition_is_deleted(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    waits = world.append(acks=-1)
    assert isinstance(waits, Deferred)
    world.remove(0)
    world.timers.advance(0)
    assert waits.value.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_what_waits_in_a_partition_is_answered_when_the_broker_stops(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    waits = world.append(acks=-1)
    fetch = world.fetch(fetch_request({0: 0}, max_wait_ms=500))
    assert isinstance(waits, Deferred) and isinstance(fetch, Deferred)
    world.replicas.close()
    assert waits.value.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partitions_of(fetch.value)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_too_few_in_sync(world: World) -> None:
    world.host(0, replicas=(1, 2), isr=(1,), partition_epoch=1, min_insync_replicas="2")
    assert appended(world.append(acks=-1)).error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert appended(world.append(acks=1)).error == ErrorCode.NONE
    world.configure(min_insync_replicas="1")
    assert appended(world.append(acks=-1)).error == ErrorCode.NONE


def test_unknown_partitions(world: World) -> None:
    result = world.append(9)
    assert appended(result).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.replicas.hosting.knows = lambda topic, index: True
    assert appended(world.append(9)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_leadership_is_told_once_each(world: World) -> None:
    heard: list[tuple[int, int | None]] = []
    world.replicas.on_leadership(lambda key, epoch: heard.append((key.partition, epoch)))
    world.host(5)
    world.host(5, partition_epoch=1)
    world.host(5, epoch=1, partition_epoch=2)
    world.host(5, epoch=2, partition_epoch=3, leader=2, replicas=(1, 2))
    world.host(5, epoch=3, partition_epoch=4)
    world.remove(5)
    assert heard == [(5, 0), (5, 1), (5, None), (5, 3), (5, None)]


def test_a_removed_partition_is_deleted_from_disk(world: World) -> None:
    folder = world.folder / "data" / f"{TOPIC}-0"
    assert folder.is_dir()
    world.remove(0)
    assert not folder.exists()
    assert world.replicas.partition(KEY) is None


def test_a_restart_keeps_records_and_high_watermarks(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    world.append(batches=batch(4))
    request = fetch_request({0: 3})
    request.replica_id = 2
    world.fetch_now(request)
    world.close()
    world.open()
    partition = world.host(0, replicas=(1, 2), partition_epoch=1, epoch=1)
    assert (partition.high_watermark, partition.log.log_end_offset) == (3, 4)


def fail_writes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(self: LogFile, *args: object) -> None:
        raise LogDirectoryError(self.path, "use", OSError(5, "Input/output error"))

    monkeypatch.setattr(LogFile, name, fail)


def test_a_failed_write_takes_only_its_directory_offline(
    make_world: Callable[..., World], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(partitions=2, log_dirs=f"{tmp_path}/a,{tmp_path}/b")
    heard: list[tuple[TopicPartition, int | None]] = []
    world.replicas.on_leadership(lambda key, epoch: heard.append((key, epoch)))
    waits = world.fetch(fetch_request({0: 0, 1: 0}, max_wait_ms=500))
    with monkeypatch.context() as patch:
        fail_writes(patch, "write_at")
        assert appended(world.append(0)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert heard == [(KEY, None)]
    assert appended(world.append(0)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert appended(world.append(1)).error == ErrorCode.NONE
    world.timers.advance(0)
    assert isinstance(waits, Deferred)
    found = partitions_of(waits.value)
    assert found[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(records_of(found[1])) == 1
    assert len(world.logs.offline_directories) == 1


def test_a_failed_read_takes_the_directory_offline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append()

    def fail(self: PartitionLog, *args: object, **options: object) -> None:
        raise LogDirectoryError(self.directory / "x", "read", OSError(5, "Input/output error"))

    monkeypatch.setattr(PartitionLog, "read", fail)
    response = world.fetch(fetch_request({0: 0}, max_wait_ms=100))
    assert isinstance(response, FetchResponse)
    assert partitions_of(response)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        world.replicas.read_led_log(KEY, 0, 1000)


def test_the_coordinators_port(world: World) -> None:
    made = batch(3, base_sequence=0)
    result = world.replicas.append(
        KEY, made, acks=-1, timeout_ms=100, origin=AppendOrigin.COORDINATOR
    )
    assert appended(result).last_offset == 2
    read = world.replicas.read_led_log(KEY, -1, 1)
    assert read == bytes(made)
    assert world.replicas.read_led_log(KEY, 3, 1000) == b""
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        world.replicas.read_led_log(TopicPartition("nope", 0), 0, 1000)


def test_an_order_that_surprises_keeps_no_other_from_being_carried_out(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from one change of the metadata, which must not fail for a single partition."""
    world = make_world(partitions=1)
    create = LogManager.get_or_create

    def surprise(self: LogManager, key: TopicPartition, *args: Any, **options: Any) -> PartitionLog:
        if key.topic == "bad":
            raise IndexError("list index out of range")
        return create(self, key, *args, **options)

    orders = [
        HostPartition(
            TopicPartition(topic, 0), bytes(15) + bytes([number]), NODE_ID, 0, 0, (NODE_ID,),
            (NODE_ID,), LogConfig(),
        )
        for number, topic in enumerate(("before", "bad", "behind"), 20)
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(LogManager, "get_or_create", surprise)
        world.replicas.apply(orders)
    assert world.replicas.find("bad", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    for topic in ("before", "behind"):
        assert world.replicas.partition(TopicPartition(topic, 0)) is not None
    world.replicas.apply([orders[1]])  # the next change of that partition
    assert world.replicas.partition(TopicPartition("bad", 0)) is not None


def test_a_disk_that_fails_while_a_file_of_another_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open file makes the oldest one close, which writes what is pending of its index: the
    fault is of that log, and met by its own next flush.
    """
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    world = World(tmp_path, partitions=2, log_dirs=",".join(map(str, dirs)))
    world.logs.open_files.limit = 1
    healthy, failing = (world.logs.logs[TopicPartition(TOPIC, index)] for index in range(2))
    assert [log.directory.parent for log in (healthy, failing)] == dirs
    world.configure(index_interval_bytes="0")
    for _ in range(4):
        appended(world.append(1))
    write_at = LogFile.write_at

    def fail(self: LogFile, data: bytes, position: int) -> None:
        if self.path.startswith(str(dirs[1])):
            raise LogDirectoryError(self.path, "write", OSError(5, "Input/output error"))
        write_at(self, data, position)

    monkeypatch.setattr(LogFile, "write_at", fail)
    assert failing.segments.active.file is not None
    assert appended(world.append(0)).error == ErrorCode.NONE
    assert failing.segments.active.file is None, "closed in favour of the other"
    assert healthy.failure is None and not world.logs.offline_directories
    assert appended(world.append(1)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(world.logs.offline_directories) == [dirs[1]]
    assert appended(world.append(0)).error == ErrorCode.NONE
    world.close()


def test_a_fault_of_another_disk_takes_no_partition_of_this_one_offline(world: World) -> None:
    partition = world.replicas.partition(KEY)
    assert partition is not None
    elsewhere = LogDirectoryError("/elsewhere/x.log", "read", OSError(5, "Input/output error"))
    world.replicas.hosting.read_failed(partition, elsewhere)
    assert appended(world.append()).error == ErrorCode.NONE
