"""The conversation about topics, metadata, records, offsets by time and configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.messages.coordinators.transactions import InitProducerIdRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from kbroker.protocol.messages.produce import ProduceRequest
from tests.reference.alter_configs import alter_config_steps
from tests.reference.groups import group_steps
from tests.reference.log_steps import log_steps
from tests.reference.migration import migration_steps
from tests.reference.step import UNKNOWN_ID, State, Step

TIME_MS = 1_790_000_000_000


def batch(
    *values: bytes | None, key: bytes | None = b"k", at_ms: int = TIME_MS, **extra: Any
) -> bytearray:
    return build_batch([(at_ms + n, key, value, []) for n, value in enumerate(values)], **extra)


def produce(
    topic: str,
    data: bytes | bytearray | None,
    *,
    acks: int = -1,
    partition: int = 0,
    topic_id: Uuid = ZERO_UUID,
) -> ProduceRequest:
    part = ProduceRequest.PartitionProduceData(index=partition, records=data)
    entry = ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[entry])


def broken_crc() -> bytearray:
    data = batch(b"x")
    data[-1] ^= 1
    return data


def fetch(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    topic_id: Uuid = ZERO_UUID,
    session_id: int = 0,
    session_epoch: int = -1,
    leader_epoch: int = -1,
    isolation: int = 0,
    max_bytes: int = 1 << 20,
) -> FetchRequest:
    part = FetchRequest.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=leader_epoch,
        partition_max_bytes=max_bytes,
    )
    topics = [FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[part])]
    return FetchRequest(
        max_wait_ms=50,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
    )


def list_offsets(
    topic: str, timestamp: int, *, partition: int = 0, leader_epoch: int = -1
) -> ListOffsetsRequest:
    part = ListOffsetsRequest.ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch
    )
    return ListOffsetsRequest(
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])]
    )


def create(
    name: str, partitions: int = 1, factor: int = 1, **extra: Any
) -> CreateTopicsRequest.CreatableTopic:
    configs = [
        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
        for key, value in extra.pop("configs", {}).items()
    ]
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in extra.pop("assignments", {}).items()
    ]
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=configs,
        assignments=assignments,
    )


def create_topics(
    *topics: CreateTopicsRequest.CreatableTopic, validate_only: bool = False
) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def metadata(*names: str, auto: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=auto,
    )


def keep_topic_ids(state: State, answer: Any) -> None:
    for topic in answer.topics:
        state.topic_ids[topic.name] = topic.topic_id


def keep_session(state: State, answer: Any) -> None:
    state.session_id = answer.session_id


def keep_producer(state: State, answer: Any) -> None:
    state.producer_id = answer.producer_id


def topic_steps() -> Iterator[Step]:
    good = [
        create("t1", 2, configs={"retention.ms": "-1"}),
        create("t2", 1, configs={"cleanup.policy": "compact"}),
    ]
    yield Step("create two", 7, lambda _: create_topics(*good), keep_topic_ids)
    wrong = create_topics(
        create("t1"),
        create("bad name"),
        create(".."),
        create("x" * 250),
        create("", 1),
        create("zero", 0),
        create("minus", -2),
        create("factor", 1, 3),
        create("nofactor", 1, 0),
        create("assigned", -1, -1, assignments={0: [1], 2: [1]}),
        create("noassigned", -1, -1, assignments={0: [7]}),
        create("doubly", -1, -1, assignments={0: [1, 1]}),
        create("both", 3, 1, assignments={0: [1]}),
        create("badconfig", 1, 1, configs={"retention.ms": "soon"}),
        create("noconfig", 1, 1, configs={"no.such.config": "1"}),
        create("nullconfig", 1, 1, configs={"retention.ms": None}),
        create("lowseg", 1, 1, configs={"segment.bytes": "14"}),
        create("twice"),
        create("twice"),
    )
    for version in (7, 5, 2):
        yield Step(f"create wrong v{version}", version, lambda _: wrong)
    yield Step("with a dot", 7, lambda _: create_topics(create("a.b"), create("a.b_c")))
    yield Step("collisions", 7, lambda _: create_topics(create("a_b"), create("a_b.c")))
    yield Step("validate only", 7, lambda _: create_topics(create("vo", 3), validate_only=True))
    yield Step("validate only made nothing", 12, lambda _: metadata("vo"))
    yield Step("defaults", 7, lambda _: create_topics(create("defaults", -1, -1)))
    yield Step("too many", 7, lambda _: create_topics(create("many", 100_000)))
    yield Step("nothing to create", 7, lambda _: create_topics())


def metadata_steps() -> Iterator[Step]:
    for version in (0, 1):
        yield Step(f"metadata v{version}", version, lambda _: metadata("t1", auto=True))
    for version in (4, 9, 12, 13):
        yield Step(f"metadata v{version}", version, lambda _: metadata("t1", "nosuch"))
    yield Step("metadata bad name", 12, lambda _: metadata("bad name", auto=True))
    yield Step("metadata of nothing", 12, lambda _: metadata())
    by_id = MetadataRequest.MetadataRequestTopic
    yield Step(
        "metadata by id",
        12,
        lambda s: MetadataRequest(topics=[by_id(name=None, topic_id=s.topic_ids["t1"])]),
    )
    yield Step(
        "metadata by unknown id",
        12,
        lambda _: MetadataRequest(topics=[by_id(name=None, topic_id=UNKNOWN_ID)]),
    )
    yield Step(
        "metadata operations",
        9,
        lambda _: MetadataRequest(
            topics=[by_id(name="t1")],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        ),
    )
    yield Step("cluster v0", 0, lambda _: DescribeClusterRequest())
    yield Step(
        "cluster v2",
        2,
        lambda _: DescribeClusterRequest(include_cluster_authorized_operations=True),
    )
    yield Step("cluster controllers", 1, lambda _: DescribeClusterRequest(endpoint_type=2))
    yield Step("cluster wrong endpoint", 1, lambda _: DescribeClusterRequest(endpoint_type=9))
    entry = DescribeTopicPartitionsRequest.TopicRequest
    cursor = DescribeTopicPartitionsRequest.Cursor
    yield Step(
        "topic partitions",
        0,
        lambda _: DescribeTopicPartitionsRequest(topics=[entry(name="t1"), entry(name="nosuch")]),
    )
    yield Step(
        "topic partitions limited",
        0,
        lambda _: DescribeTopicPartitionsRequest(
            topics=[entry(name="t1"), entry(name="t2")], response_partition_limit=1
        ),
    )
    yield Step(
        "topic partitions cursor",
        0,
        lambda _: DescribeTopicPartitionsRequest(
            topics=[entry(name="t1"), entry(name="t2")],
            cursor=cursor(topic_name="t1", partition_index=1),
        ),
    )


def produce_steps() -> Iterator[Step]:
    yield Step("produce three", 9, lambda _: produce("t1", batch(b"a", b"b", b"c")))
    yield Step("produce v3", 3, lambda _: produce("t1", batch(b"d")))
    yield Step("produce acks 1", 11, lambda _: produce("t1", batch(b"e"), acks=1))
    yield Step(
        "produce by id",
        13,
        lambda s: produce("", batch(b"f"), topic_id=s.topic_ids["t1"]),
    )
    yield Step("produce unknown id", 13, lambda _: produce("", batch(b"f"), topic_id=UNKNOWN_ID))
    yield Step("produce unknown topic", 9, lambda _: produce("nosuch", batch(b"x")))
    yield Step("produce unknown partition", 9, lambda _: produce("t1", batch(b"x"), partition=9))
    yield Step("produce wrong acks", 9, lambda _: produce("t1", batch(b"x"), acks=2))
    yield Step("produce wrong crc", 9, lambda _: produce("t1", broken_crc()))
    yield Step("produce no key compacted", 9, lambda _: produce("t2", batch(b"x", key=None)))
    yield Step("produce compacted", 9, lambda _: produce("t2", batch(b"x", None)))
    yield Step("produce too large", 9, lambda _: produce("t1", batch(b"x" * 1_100_000)))
    yield Step("produce two batches", 9, lambda _: produce("t1", batch(b"x") + batch(b"y")))
    yield Step("produce cut", 9, lambda _: produce("t1", batch(b"xyz")[:-2]))
    yield Step("produce nothing", 9, lambda _: produce("t1", bytearray()))
    yield Step(
        "produce old timestamp",
        9,
        lambda _: produce("t1", batch(b"x", at_ms=TIME_MS + 10**12)),
    )
    yield Step("produce control", 9, lambda _: produce("t1", batch(b"x", is_control=True)))
    yield Step("produce internal topic", 9, lambda _: produce("__consumer_offsets", batch(b"x")))
    yield Step(
        "init producer v0",
        0,
        lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
    )
    yield Step("init producer no id", 4, lambda _: InitProducerIdRequest(transactional_id=""))
    yield Step(
        "init producer v4",
        4,
        lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
        keep_producer,
    )
    for name, epoch, sequence in (
        ("first", 0, 0),
        ("again", 0, 0),
        ("gap", 0, 5),
        ("next", 0, 2),
        ("old", 0, 1),
        ("new epoch", 1, 0),
        ("old epoch", 0, 4),
        ("new epoch not from 0", 2, 7),
    ):
        yield Step(
            f"idempotent {name}",
            9,
            lambda s, epoch=epoch, sequence=sequence: produce(
                "t1",
                batch(
                    b"i",
                    b"j",
                    producer_id=s.producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                ),
                partition=1,
            ),
        )


def fetch_steps() -> Iterator[Step]:
    for version in (4, 7, 11, 12):
        yield Step(f"fetch v{version}", version, lambda _: fetch("t1", 0))
    yield Step("fetch inside a batch", 12, lambda _: fetch("t1", 1))
    yield Step("fetch the end", 12, lambda _: fetch("t1", 6))
    yield Step("fetch beyond", 12, lambda _: fetch("t1", 7))
    yield Step("fetch below", 12, lambda _: fetch("t1", -5))
    yield Step("fetch little", 12, lambda _: fetch("t1", 0, max_bytes=1))
    yield Step("fetch committed", 12, lambda _: fetch("t1", 0, isolation=1))
    yield Step("fetch unknown topic", 12, lambda _: fetch("nosuch", 0))
    yield Step("fetch unknown partition", 12, lambda _: fetch("t1", 0, partition=9))
    yield Step("fetch newer epoch", 12, lambda _: fetch("t1", 0, leader_epoch=7))
    yield Step("fetch this epoch", 12, lambda _: fetch("t1", 0, leader_epoch=0))
    yield Step("fetch by id", 13, lambda s: fetch("", 0, topic_id=s.topic_ids["t1"]))
    yield Step("fetch unknown id", 17, lambda _: fetch("", 0, topic_id=UNKNOWN_ID))
    yield Step("session opens", 12, lambda _: fetch("t1", 5, session_epoch=0), keep_session)
    idle = FetchRequest(max_wait_ms=10, min_bytes=1, max_bytes=1 << 20)

    def in_session(state: State, epoch: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=10,
            min_bytes=0,
            max_bytes=1 << 20,
            session_id=state.session_id,
            session_epoch=epoch,
        )

    yield Step("session goes on", 12, lambda s: in_session(s, 1))
    yield Step("session wrong epoch", 12, lambda s: in_session(s, 9))
    yield Step("session closes", 12, lambda s: in_session(s, -1))
    yield Step("session is gone", 12, lambda s: in_session(s, 2))
    yield Step("session never was", 12, lambda _: in_session(State(session_id=77), 1))
    yield Step("fetch nothing", 12, lambda _: idle)


def list_offset_steps() -> Iterator[Step]:
    for version in (1, 4, 7, 9, 11):
        yield Step(f"latest v{version}", version, lambda _: list_offsets("t1", -1))
    yield Step("earliest", 7, lambda _: list_offsets("t1", -2))
    yield Step("max timestamp", 7, lambda _: list_offsets("t1", -3))
    yield Step("earliest local", 8, lambda _: list_offsets("t1", -4))
    yield Step("latest tiered", 9, lambda _: list_offsets("t1", -5))
    yield Step("pending upload", 11, lambda _: list_offsets("t1", -6))
    yield Step("unknown special", 11, lambda _: list_offsets("t1", -9))
    for at_ms in (0, TIME_MS, TIME_MS + 1, TIME_MS + 2, TIME_MS + 3):
        yield Step(
            f"at {at_ms - TIME_MS if at_ms else 'zero'}",
            7,
            lambda _, at=at_ms: list_offsets("t1", at),
        )
    yield Step("max timestamp too old", 6, lambda _: list_offsets("t1", -3))
    yield Step("offsets unknown topic", 7, lambda _: list_offsets("nosuch", -1))
    yield Step("offsets newer epoch", 7, lambda _: list_offsets("t1", -1, leader_epoch=9))
    yield Step("offsets of empty", 7, lambda _: list_offsets("defaults", -3))


def config_steps() -> Iterator[Step]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    names = ["retention.ms", "cleanup.policy", "segment.bytes", "min.insync.replicas", "no.such"]
    for version in (1, 2, 4):
        yield Step(
            f"topic configs v{version}",
            version,
            lambda _: DescribeConfigsRequest(
                resources=[resource(resource_type=2, resource_name="t1", configuration_keys=names)],
                include_synonyms=True,
            ),
        )
    wrong = [
        resource(resource_type=2, resource_name="nosuch"),
        resource(resource_type=2, resource_name="bad name"),
        resource(resource_type=4, resource_name="99"),
        resource(resource_type=4, resource_name="x"),
        resource(resource_type=77, resource_name="x"),
    ]
    for one in wrong:
        yield Step(
            f"configs of {one.resource_type} {one.resource_name}",
            4,
            lambda _, one=one: DescribeConfigsRequest(resources=[one]),
        )
    yield Step(
        "all topic configs",
        4,
        lambda _: DescribeConfigsRequest(resources=[resource(resource_type=2, resource_name="t2")]),
    )
    yield Step(
        "broker configs",
        4,
        lambda _: DescribeConfigsRequest(
            resources=[
                resource(
                    resource_type=4,
                    resource_name="1",
                    configuration_keys=[
                        "log.retention.ms",
                        "log.retention.hours",
                        "num.partitions",
                    ],
                )
            ],
            include_synonyms=True,
        ),
    )


def delete_steps() -> Iterator[Step]:
    state = DeleteTopicsRequest.DeleteTopicState
    yield Step(
        "delete v1",
        1,
        lambda _: DeleteTopicsRequest(topic_names=["defaults", "nosuch"], timeout_ms=9000),
    )
    yield Step(
        "delete v6",
        6,
        lambda s: DeleteTopicsRequest(
            timeout_ms=9000,
            topics=[
                state(name="a.b"),
                state(name="nosuch"),
                state(name=None, topic_id=s.topic_ids["t2"]),
                state(name=None, topic_id=UNKNOWN_ID),
            ],
        ),
    )
    yield Step(
        "delete doubly",
        6,
        lambda _: DeleteTopicsRequest(topics=[state(name="t1"), state(name="t1")], timeout_ms=9000),
    )
    yield Step("deleted is gone", 12, lambda _: metadata("defaults", "t2", "t1"))


def steps() -> Iterator[Step]:
    """The whole conversation."""
    for part in (
        topic_steps,
        metadata_steps,
        produce_steps,
        fetch_steps,
        list_offset_steps,
        group_steps,
        config_steps,
        alter_config_steps,
        migration_steps,
        log_steps,
        delete_steps,
    ):
        yield from part()
