"""ShareFetch and ShareAcknowledge over the wire: sessions, waiting, what is passed over."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.model import Uuid
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call

Ranges = list[tuple[int, int, int]]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    overrides = {"group.share.record.lock.duration.ms": "60000", "log.cleaner.enable": "false"}
    with EmbeddedBroker(overrides=overrides) as embedded:
        for topic in ("__consumer_offsets", "__share_group_state"):
            embedded.wait(
                lambda running, name=topic: running.services.channel.ensure_internal_topic(name)
            )
        yield embedded


class Reader:
    """A member of a share group with a connection of its own, of one topic with one partition."""

    def __init__(self, broker: EmbeddedBroker, topic: str, group: str, member: str = "m") -> None:
        host, port = broker.bootstrap_servers.split(":")
        self.connection = socket.create_connection((host, int(port)), timeout=20)
        self.topic_id: Uuid = broker.call(
            lambda running: running.services.image.topics[topic].topic_id
        )
        self.topic, self.group, self.member = topic, group, member
        self.epoch = 0

    def close(self) -> None:
        self.connection.close()

    def begin(self, offset: int = 0) -> None:
        """Give the group a state that begins at offset."""
        kind = AlterShareGroupOffsetsRequest
        place = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
        topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name=self.topic, partitions=[place])
        answer: Any = call(self.connection, kind(group_id=self.group, topics=[topic]), 0)
        assert answer.responses[0].partitions[0].error_code == 0

    def fetch(self, **fields: Any) -> ShareFetchResponse:
        kind = ShareFetchRequest
        place = kind.FetchPartition(partition_index=0)
        request = kind(
            **{
                "group_id": self.group,
                "member_id": self.member,
                "share_session_epoch": self.epoch,
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "max_records": 1_000,
                "batch_size": 1_000,
                "topics": [kind.FetchTopic(topic_id=self.topic_id, partitions=[place])],
                **fields,
            }
        )
        answer: Any = call(self.connection, request, 2)
        if answer.error_code == ErrorCode.NONE:
            self.epoch += 1
        return answer  # type: ignore[no-any-return]  # a ShareFetchResponse

    def read(self, **fields: Any) -> tuple[Ranges, list[int]]:
        """(first, last, delivery) of what was acquired, and the offsets of all records that
        came.
        """
        answer = self.fetch(**fields)
        assert answer.error_code == ErrorCode.NONE
        acquired: Ranges = []
        offsets: list[int] = []
        for topic in answer.responses:
            for data in topic.partitions:
                assert data.error_code == ErrorCode.NONE
                acquired += [
                    (one.first_offset, one.last_offset, one.delivery_count)
                    for one in data.acquired_records
                ]
                raw = bytes(data.records or b"")  # type: ignore[arg-type]  # bytes
                for position, header in iter_batches(raw):
                    if not header.is_control:
                        offsets += [r.offset for r in iter_records(raw[position:], header)]
        return acquired, offsets

    def acknowledge(self, first: int, last: int, *types: int, final: bool = False) -> int:
        kind = ShareAcknowledgeRequest
        batch = kind.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=list(types)
        )
        place = kind.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        request = kind(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=-1 if final else self.epoch,
            topics=[kind.AcknowledgeTopic(topic_id=self.topic_id, partitions=[place])],
        )
        answer: Any = call(self.connection, request, 2)
        assert answer.error_code == ErrorCode.NONE
        self.epoch += 1
        code: int = answer.responses[0].partitions[0].error_code
        return code

    def state(self) -> tuple[int, int]:
        """(start offset, lag)."""
        kind = DescribeShareGroupOffsetsRequest
        group = kind.DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=None)
        answer: Any = call(self.connection, kind(groups=[group]), 1)
        (place,) = answer.groups[0].topics[0].partitions
        return place.start_offset, place.lag


@pytest.fixture
def readers(broker: EmbeddedBroker) -> Iterator[list[Reader]]:
    """Two readers of a new topic in a new group."""
    topic = f"shared-{next(_numbers)}"
    broker.create_topic(topic)
    pair = [Reader(broker, topic, f"g-{topic}", member) for member in "mn"]
    pair[0].begin()
    yield pair
    for reader in pair:
        reader.close()


def produce(reader: Reader, count: int) -> None:
    now_ms = int(time.time() * 1000)
    batch = build_batch([(now_ms, None, b"v", ()) for _ in range(count)])
    place = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    topic = ProduceRequest.TopicProduceData(name=reader.topic, partition_data=[place])
    request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
    answer: Any = call(reader.connection, request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_acknowledged_records_are_not_redelivered(readers: list[Reader]) -> None:
    first, second = readers
    produce(first, 10)
    assert first.read() == ([(0, 9, 1)], list(range(10)))
    assert second.read() == ([], [])
    assert first.acknowledge(0, 4, 1) == ErrorCode.NONE
    assert second.acknowledge(5, 9, 1) == ErrorCode.INVALID_RECORD_STATE
    assert first.acknowledge(5, 6, 2) == ErrorCode.NONE
    assert second.read()[0] == [(5, 6, 2)]
    assert first.state() == (5, 5)
    assert second.acknowledge(5, 6, 1) == ErrorCode.NONE
    assert first.state() == (5, 3)


def test_a_connection_that_ends_gives_its_records_back(readers: list[Reader]) -> None:
    first, second = readers
    produce(first, 3)
    assert first.read()[0] == [(0, 2, 1)]
    assert second.read()[0] == []
    first.close()
    assert second.read(max_wait_ms=10_000)[0] == [(0, 2, 2)]


def test_a_session_that_ends_gives_its_records_back(readers: list[Reader]) -> None:
    first, second = readers
    produce(first, 3)
    first.read()
    assert first.acknowledge(1, 1, 1, final=True) == ErrorCode.NONE
    assert second.read()[0] == [(0, 0, 2), (2, 2, 2)]
    again = first.fetch(share_session_epoch=3)
    assert again.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_fetch_waits_for_records(readers: list[Reader]) -> None:
    first, second = readers
    assert first.read() == ([], [])
    timer = threading.Timer(0.1, produce, (second, 2))
    timer.start()
    began = time.monotonic()
    assert first.read(max_wait_ms=15_000)[0] == [(0, 1, 1)]
    assert time.monotonic() - began < 10
    timer.join()


def test_a_fetch_waits_for_what_is_released(readers: list[Reader]) -> None:
    first, second = readers
    produce(first, 2)
    first.read()
    timer = threading.Timer(0.1, first.acknowledge, (0, 1, 2))
    timer.start()
    assert second.read(max_wait_ms=15_000)[0] == [(0, 1, 2)]
    timer.join()


def test_a_fetch_waits_for_enough_bytes_or_the_end_of_its_time(readers: list[Reader]) -> None:
    first, _ = readers
    produce(first, 1)
    assert first.read(max_wait_ms=200, min_bytes=100_000)[0] == [(0, 0, 1)]


def test_whole_batches_or_exactly(readers: list[Reader]) -> None:
    first, _ = readers
    for _ in range(4):
        produce(first, 3)
    acquired, offsets = first.read(max_records=4)
    assert (acquired, offsets) == ([(0, 5, 1)], list(range(6)))
    acquired, offsets = first.read(max_records=2, share_acquire_mode=1)
    assert (acquired, offsets) == ([(6, 7, 1)], [6, 7, 8])
    acquired, offsets = first.read(max_records=2, share_acquire_mode=1)
    assert (acquired, offsets) == ([(8, 9, 1)], [6, 7, 8, 9, 10, 11])


def test_renewal_only_by_those_who_say_so(readers: list[Reader]) -> None:
    first, _ = readers
    produce(first, 1)
    first.read()
    assert first.acknowledge(0, 0, 4) == ErrorCode.INVALID_REQUEST
    refused = first.fetch(is_renew_ack=True)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    zero = dict.fromkeys(("max_wait_ms", "min_bytes", "max_bytes", "max_records"), 0)
    assert first.fetch(is_renew_ack=True, **zero).error_code == ErrorCode.NONE


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions(
    broker: EmbeddedBroker, readers: list[Reader], isolation: str
) -> None:
    from confluent_kafka import Producer

    first, _ = readers
    kind = IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name="share.isolation.level", value=isolation)
    resource = kind.AlterConfigsResource(
        resource_type=32, resource_name=first.group, configs=[config]
    )
    altered: Any = call(first.connection, kind(resources=[resource]), 1)
    assert altered.responses[0].error_code == ErrorCode.NONE
    servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    producer = Producer({**servers, "transactional.id": first.topic})
    producer.init_transactions(10)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(first.topic, b"x")
        producer.produce(first.topic, b"y")
        assert producer.flush(10) == 0
        if number == 1:
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)
    # two records and a marker, thrice; the second pair is aborted
    acquired, _ = first.read()
    aborted = (3, 5)
    if isolation == "read_committed":
        assert acquired == [(0, 2, 1), (6, 8, 1)]
        assert first.acknowledge(0, 2, 1, 1, 0) == ErrorCode.NONE
        assert first.acknowledge(6, 8, 1) == ErrorCode.NONE
        assert first.read() == ([], [])
        assert first.acknowledge(*aborted, 1) == ErrorCode.NONE  # below the start
    else:
        assert acquired == [(0, 8, 1)]


def test_compacted_records_do_not_block_a_share_group(
    broker: EmbeddedBroker, readers: list[Reader]
) -> None:
    """Released offsets that the log has no more are passed over."""
    first, second = readers
    for _ in range(4):
        produce(first, 3)
    first.read()
    assert first.acknowledge(3, 8, 2) == ErrorCode.NONE
    partition = (first.topic, 0)

    def hide(running: Broker) -> None:
        """As if compaction had taken the batch 3 to 5."""
        replica = running.services.replicas.find(*partition)
        read = replica.log.read  # type: ignore[union-attr]  # it is hosted

        def holed(offset: int, **limits: Any) -> Any:
            return read(6 if 3 <= offset < 6 else offset, **limits)

        replica.log = Holed(replica.log, holed)  # type: ignore[union-attr, assignment]

    broker.call(hide)
    assert second.read()[0] == [(6, 8, 2)]
    assert second.acknowledge(6, 8, 1) == ErrorCode.NONE
    assert first.acknowledge(0, 2, 1) == ErrorCode.NONE
    assert first.acknowledge(9, 11, 1) == ErrorCode.NONE
    assert first.acknowledge(9, 11, 1) == ErrorCode.NONE
    assert second.read() == ([], [])


class Holed:
    """A log whose `read` is another one."""

    def __init__(self, log: Any, read: Any) -> None:
        self._log = log
        self.read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def test_the_log_of_states_begins_later_and_nothing_is_forgotten(
    broker: EmbeddedBroker, readers: list[Reader]
) -> None:
    first, _ = readers
    produce(first, 20)
    first.read()
    for offset in range(10):
        assert first.acknowledge(offset, offset, 1) == ErrorCode.NONE

    def starts(running: Broker) -> dict[str, int]:
        return {
            str(replica.topic_partition): replica.log.log_start_offset
            for replica in running.services.replicas.partitions()
            if replica.topic_partition.topic == "__share_group_state"
        }

    before = broker.call(starts)
    broker.call(lambda running: running.services.share_coordinator.prune(min_records=5))
    after = broker.call(starts)
    assert any(after[name] > before[name] for name in before)
    for reader in readers:
        reader.close()
    broker.restart()
    third = Reader(broker, first.topic, first.group, "o")
    assert third.read(max_wait_ms=10_000)[0] == [(10, 19, 2)]
    assert third.acknowledge(10, 19, 1) == ErrorCode.NONE
    third.close()
