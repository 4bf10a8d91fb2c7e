"""The state of a broker that is attacked: topics, groups of each kind, transactions in progress.

`prepare` writes what survives a restart; `join` adds members, whose sessions do not, and gives the
names of all of it for `attack_values`. The neighbour `api_attack` copies a prepared directory for
every API, so that no API is attacked on what another one left behind.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from benchmarks.attack_records import LONG_MAX, batch_of, packed_value
from benchmarks.attack_values import RECORD_TIMESTAMP, Names, assignment, subscription
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from tests.e2e.wire import call

PROPERTIES: Final = {
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
}
"""What differs from the defaults: records carry times of 2023, and joins answer at once."""

TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "plain": (4, {}),
    "compacted": (1, {"cleanup.policy": "compact"}),
    "gzipped": (1, {"compression.type": "gzip"}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime"}),
    "lying": (1, {"max.message.bytes": "8388608"}),
    "wide": (1000, {}),
}
"""Partitions and configurations, by name."""

TRANSACTIONS: Final = 8
PENDING_OFFSETS: Final = 1000
BOMB_BYTES: Final = 8 << 20
RETRIES: Final = 200

_RETRIABLE: Final = frozenset({
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REBALANCE_IN_PROGRESS,
})  # fmt: skip


class World:
    """A connection on which things are created. wide_partitions: of the topic "wide"."""

    def __init__(self, host: str, port: int, *, wide_partitions: int = 1000) -> None:
        self._connection = socket.create_connection((host, port), timeout=120)
        self._wide_partitions = wide_partitions

    def close(self) -> None:
        """End the connection; members stay until their session ends."""
        self._connection.close()

    def _call(self, message: Message, version: int, client_id: str = "wire") -> Any:
        """Send until the answer has no retriable error."""
        for _ in range(RETRIES):
            answer: Any = call(self._connection, message, version, client_id)
            if first_error(answer) not in _RETRIABLE:
                return answer
            time.sleep(0.05)
        raise TimeoutError(f"{type(message).__name__} fails for ever: {answer}")

    # what survives a restart

    def prepare(self) -> None:
        """Topics with records, offsets of 1,000 partitions, transactions in progress."""
        for name, (partitions, configs) in TOPICS.items():
            self._create(name, min(partitions, self._wide_partitions), configs)
        for _ in range(20):
            for name in ("plain", "compacted", "gzipped", "stamped"):
                self._produce(name, _honest_batch())
        for codec in (Compression.GZIP, Compression.LZ4, Compression.ZSTD):
            lie = batch_of(packed_value(codec, BOMB_BYTES), 1, codec=codec, max_timestamp=LONG_MAX)
            for _ in range(4):
                self._produce("lying", lie)
        self._find("offsets-only", 0)
        self._commit_offsets("offsets-only")
        for number in range(TRANSACTIONS):
            self._begin_transaction(f"transaction-{number}")

    def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        kind = CreateTopicsRequest.CreatableTopicConfig
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[kind(name=key, value=value) for key, value in configs.items()],
        )
        answer = self._call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)
        code = answer.topics[0].error_code
        if code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RuntimeError(f"topic {name}: {answer.topics[0]}")

    def _produce(self, topic: str, batch: bytes | bytearray) -> None:
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        self._call(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic_data]), 9)

    def _find(self, key: str, key_type: int) -> None:
        self._call(FindCoordinatorRequest(key=key, key_type=key_type), 3)

    def _commit_offsets(self, group: str) -> None:
        kind = OffsetCommitRequest
        partitions = [
            kind.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=0, committed_metadata=""
            )
            for index in range(self._wide_partitions)
        ]
        topic = kind.OffsetCommitRequestTopic(name="wide", partitions=partitions)
        self._call(kind(group_id=group, generation_id_or_member_epoch=-1, topics=[topic]), 8)

    def _begin_transaction(self, name: str) -> tuple[int, int]:
        """With partitions and pending offsets; the producer id and epoch."""
        self._find(name, 1)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=900_000)
        producer = self._call(request, 4)
        identity: dict[str, Any] = {
            "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch,
        }  # fmt: skip
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name="wide", partitions=list(range(min(self._wide_partitions, 100)))
        )
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[topic],
        )
        self._call(add, 3)
        offsets = {"transactional_id": name, "group_id": "offsets-only", **identity}
        self._call(AddOffsetsToTxnRequest(**offsets), 3)
        kind = TxnOffsetCommitRequest
        partitions = [
            kind.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1)
            for index in range(min(self._wide_partitions, PENDING_OFFSETS))
        ]
        pending = kind.TxnOffsetCommitRequestTopic(name="wide", partitions=partitions)
        self._call(kind(**offsets, topics=[pending]), 3)
        return producer.producer_id, producer.producer_epoch

    # what does not

    def join(self) -> dict[int, Sequence[Names]]:
        """Add a member to a group of each kind. The names to attack with, by API; 0: of all others.
        Each list begins with those that are used where it does not matter.
        """
        answer = self._call(MetadataRequest(topics=None), 10)
        ids = {topic.name: topic.topic_id for topic in answer.topics}
        name = "transaction-0"
        producer_id, producer_epoch = self._begin_transaction(name)
        directories = self._call(DescribeLogDirsRequest(topics=[]), 2)
        plain = Names(
            "plain", topic_id=ids["plain"], partitions=4, transactional_id=name,
            producer_id=producer_id, producer_epoch=producer_epoch,
            log_directory=directories.results[0].log_dir,
            node_id=answer.brokers[0].node_id,
        )  # fmt: skip
        topics = [
            replace(
                plain, label=topic, topic=topic, topic_id=ids[topic],
                partitions=min(TOPICS[topic][0], self._wide_partitions), resource_name=topic,
            )
            for topic in ("wide", "compacted", "gzipped", "stamped", "lying")
        ]  # fmt: skip
        groups = [
            self._classic(plain),
            self._consumer(plain),
            self._share(plain),
            self._streams(plain),
        ]
        new = [
            replace(
                plain, label=f"new {kind}", group=f"new-{kind}", member_epoch=0,
                member_id="" if kind == "classic" else "m",
            )
            for kind in ("classic", "consumer", "share", "streams")
        ]  # fmt: skip
        broker = str(plain.node_id)
        resources = [
            replace(plain, label="broker", resource_type=4, resource_name=broker),
            replace(plain, label="logger", resource_type=8, resource_name=broker),
            replace(plain, label="group", resource_type=32, resource_name="consumer"),
            replace(plain, label="brokers", resource_type=4, resource_name=""),
        ]
        changing = replace(plain, label="not only validated", validate_only=False)
        all_names = [plain, *topics, *groups]
        described = {
            api_key: [*all_names, *resources, changing]
            for api_key in (
                ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
            )
        }  # fmt: skip
        fresh = replace(plain, label="fresh", topic="fresh")
        wide = topics[0]
        classic, consumer, share, streams = groups
        return {
            0: all_names,
            **described,
            ApiKey.CREATE_TOPICS: [
                fresh, plain,
                replace(fresh, label="fresh, created", topic="fresh-2", validate_only=False),
            ],
            ApiKey.JOIN_GROUP: [new[0], classic, consumer],
            ApiKey.SYNC_GROUP: [classic, consumer],
            ApiKey.HEARTBEAT: [classic, consumer],
            ApiKey.LEAVE_GROUP: [classic, consumer],
            ApiKey.CONSUMER_GROUP_HEARTBEAT: [
                new[1], consumer, *_on(wide, new[1], consumer), classic,
            ],
            ApiKey.SHARE_GROUP_HEARTBEAT: [new[2], share, *_on(wide, new[2], share)],
            ApiKey.STREAMS_GROUP_HEARTBEAT: [new[3], streams, *_on(wide, new[3], streams)],
            ApiKey.SHARE_FETCH: [share, *_on(wide, share)],
            ApiKey.SHARE_ACKNOWLEDGE: [share, *_on(wide, share)],
        }  # fmt: skip

    def _classic(self, names: Names) -> Names:
        self._find("classic", 0)
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=subscription(names)
        )
        request = JoinGroupRequest(
            group_id="classic", session_timeout_ms=1_800_000, rebalance_timeout_ms=5_000,
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        joined = self._call(request, 3)
        mine = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=assignment(names)
        )
        sync = SyncGroupRequest(
            group_id="classic", generation_id=joined.generation_id, member_id=joined.member_id,
            assignments=[mine],
        )  # fmt: skip
        self._call(sync, 3)
        return replace(
            names, label="classic group", group="classic", member_id=joined.member_id,
            member_epoch=joined.generation_id,
        )  # fmt: skip

    def _consumer(self, names: Names) -> Names:
        request = ConsumerGroupHeartbeatRequest(
            group_id="consumer", member_id="member", rebalance_timeout_ms=30_000,
            subscribed_topic_names=["plain", "wide"], topic_partitions=[],
        )  # fmt: skip
        joined = self._call(request, 1)
        return replace(
            names, label="consumer group", group="consumer", member_id="member",
            member_epoch=joined.member_epoch,
        )  # fmt: skip

    def _share(self, names: Names) -> Names:
        request = ShareGroupHeartbeatRequest(
            group_id="share", member_id="member", subscribed_topic_names=["plain"]
        )
        joined = self._call(request, 1)
        return replace(
            names, label="share group", group="share", member_id="member",
            member_epoch=joined.member_epoch,
        )  # fmt: skip

    def _streams(self, names: Names) -> Names:
        kind = StreamsGroupHeartbeatRequest
        part = kind.Subtopology(subtopology_id="0", source_topics=["plain"])
        request = kind(
            group_id="streams", member_id="member", rebalance_timeout_ms=30_000,
            topology=kind.Topology(subtopologies=[part]), process_id="process",
            active_tasks=[], standby_tasks=[], warmup_tasks=[],
        )  # fmt: skip
        joined = self._call(request, 0)
        return replace(
            names, label="streams group", group="streams", member_id="member",
            member_epoch=joined.member_epoch,
        )  # fmt: skip


def _on(topic: Names, *groups: Names) -> list[Names]:
    """The same groups, asking for another topic."""
    return [
        replace(
            names, label=f"{names.label}, {topic.label}", topic=topic.topic,
            topic_id=topic.topic_id, partitions=topic.partitions,
        )
        for names in groups
    ]  # fmt: skip


def _honest_batch() -> bytearray:
    records: list[Any] = [
        (RECORD_TIMESTAMP + n, b"key-%d" % n, b"value" * 20, []) for n in range(100)
    ]
    return build_batch(records)


def first_error(value: Any) -> int:
    """The first error code in a response that is not 0."""
    code = getattr(value, "error_code", 0)
    if code:
        return cast(int, code)
    for field in getattr(value, "FIELDS", ()):
        inner = getattr(value, field.name)
        for each in inner if isinstance(inner, list) else [inner]:
            found = first_error(each) if hasattr(each, "FIELDS") else 0
            if found:
                return found
    return 0
