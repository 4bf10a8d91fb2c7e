"""A conversation of its own about share groups (KIP-932), with a broker that assigns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kbroker.model import Uuid
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from kbroker.protocol.messages.coordinators.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from kbroker.protocol.messages.produce import ProduceRequest
from tests.reference.step import State, Step

OVERRIDES: Final = {
    "group.share.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.snapshot.update.records.per.snapshot": "3",
}
OFFSETS_SEGMENT: Final = "__consumer_offsets-0/00000000000000000000.log"
STATE_SEGMENT: Final = "__share_group_state-0/00000000000000000000.log"
FIRST = "AAAAAAAAAAAAAAAAAAAAAA"
SECOND = "BBBBBBBBBBBBBBBBBBBBBB"
TIME_MS = 1_700_000_000_000
Build = Callable[[State], Message]
Batches = list[tuple[int, int, list[int]]]


def heartbeat(member: str, epoch: int, **fields: Any) -> Build:
    values = {"group_id": "sg", "member_id": member, "member_epoch": epoch, **fields}
    return lambda _: ShareGroupHeartbeatRequest(**values)


def joining(member: str, **fields: Any) -> Build:
    return heartbeat(member, 0, **{"subscribed_topic_names": ["sh"], **fields})


def alter(group: str, places: Mapping[str, Mapping[int, int]]) -> Build:
    kind = AlterShareGroupOffsetsRequest
    return lambda _: kind(
        group_id=group,
        topics=[
            kind.AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    kind.AlterShareGroupOffsetsRequestPartition(
                        partition_index=index, start_offset=offset
                    )
                    for index, offset in offsets.items()
                ],
            )
            for topic, offsets in places.items()
        ],
    )


def delete_offsets(group: str, *topics: str) -> Build:
    kind = DeleteShareGroupOffsetsRequest
    return lambda _: kind(
        group_id=group,
        topics=[kind.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics],
    )


def describe_offsets(group: str, topics: Mapping[str, list[int]] | None = None) -> Build:
    kind = DescribeShareGroupOffsetsRequest
    asked = topics and [
        kind.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
        for topic, partitions in topics.items()
    ]
    found = kind.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=asked)
    return lambda _: kind(groups=[found])


def fetch(member: str | None, epoch: int, **fields: Any) -> Build:
    """partitions: to read; batches: acknowledged of partition 0."""
    kind = ShareFetchRequest
    partitions: list[int] = fields.pop("partitions", [])
    batches: Batches = fields.pop("batches", [])
    topic_id: Uuid | None = fields.pop("topic_id", None)

    def build(state: State) -> Message:
        topics = [
            kind.FetchTopic(
                topic_id=topic_id or state.topic_ids["sh"],
                partitions=[
                    kind.FetchPartition(
                        partition_index=index,
                        acknowledgement_batches=[
                            kind.AcknowledgementBatch(
                                first_offset=first, last_offset=last, acknowledge_types=types
                            )
                            for first, last, types in (batches if index == 0 else [])
                        ],
                    )
                    for index in partitions
                ],
            )
        ]
        values = {
            "group_id": "sg",
            "max_wait_ms": 100,
            "min_bytes": 1,
            "max_bytes": 100_000,
            "max_records": 500,
            "batch_size": 500,
            **fields,
        }
        return kind(
            member_id=member,
            share_session_epoch=epoch,
            topics=topics if partitions else [],
            **values,
        )

    return build


def acknowledge(member: str, epoch: int, batches: Batches, **fields: Any) -> Build:
    kind = ShareAcknowledgeRequest
    index = fields.pop("partition", 0)

    def build(state: State) -> Message:
        place = kind.AcknowledgePartition(
            partition_index=index,
            acknowledgement_batches=[
                kind.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=types
                )
                for first, last, types in batches
            ],
        )
        topic = kind.AcknowledgeTopic(topic_id=state.topic_ids["sh"], partitions=[place])
        values = {"group_id": "sg", **fields}
        topics = [topic] if batches else []
        return kind(member_id=member, share_session_epoch=epoch, topics=topics, **values)

    return build


def keep_id(state: State, answer: Any) -> None:
    state.topic_ids["sh"] = answer.topics[0].topic_id


def before_steps() -> Iterator[Step]:
    topic = CreateTopicsRequest.CreatableTopic(name="sh", num_partitions=2, replication_factor=1)
    yield Step(
        "create the shared topic",
        7,
        lambda _: CreateTopicsRequest(topics=[topic], timeout_ms=10_000),
        keep_id,
    )
    for number in range(8):
        records = [(TIME_MS, None, b"v%d" % (3 * number + n), ()) for n in range(3)]
        batch = bytes(build_batch(records))
        place = ProduceRequest.PartitionProduceData(index=0, records=batch)
        entry = ProduceRequest.TopicProduceData(name="sh", partition_data=[place])
        produced = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[entry])
        yield Step(f"produce shared batch {number}", 9, lambda _, message=produced: message)  # type: ignore[misc]  # a default in a lambda
    key = "sg:AAAAAAAAAAAAAAAAAAAAAQ:0"
    for version in (4, 5):
        yield Step(
            f"find share coordinator v{version}",
            version,
            lambda _: FindCoordinatorRequest(key_type=2, coordinator_keys=[key]),
        )
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="share.auto.offset.reset", value="earliest"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=32, resource_name="sg", configs=[config]
    )
    yield Step(
        "share group reads from the start",
        1,
        lambda _: IncrementalAlterConfigsRequest(resources=[resource]),
    )
    yield Step("share states before members", 0, alter("sg", {"sh": {0: 0, 1: 0}}))


def refused_steps() -> Iterator[Step]:
    for name, request in {
        "no group": joining(FIRST, group_id=""),
        "no member": joining(""),
        "no topics": joining(FIRST, subscribed_topic_names=None),
        "empty topics": joining(FIRST, subscribed_topic_names=[]),
        "empty rack": joining(FIRST, rack_id=""),
        "epoch -2": heartbeat(FIRST, -2),
        "unknown group": heartbeat(FIRST, 5, group_id="nogroup"),
        "leave unknown group": heartbeat(FIRST, -1, group_id="nogroup"),
        "stranger": heartbeat(SECOND, 1),
        "stranger leaves": heartbeat(SECOND, -1),
    }.items():
        yield Step(f"share refused: {name}", 1, request)


def life_steps() -> Iterator[Step]:
    yield Step("share member joins", 1, joining(FIRST))
    yield Step("share heartbeat", 1, heartbeat(FIRST, 2))
    yield Step("share member joins again", 1, joining(FIRST))
    yield Step("share epoch too high", 1, heartbeat(FIRST, 9))
    yield Step("share full heartbeat", 1, heartbeat(FIRST, 2, subscribed_topic_names=["sh"]))
    yield Step("share second joins", 1, joining(SECOND))
    yield Step("share first hears", 1, heartbeat(FIRST, 2))
    yield Step("share epoch too low", 1, heartbeat(FIRST, 1))
    yield Step("share previous epoch", 1, heartbeat(FIRST, 2))
    yield Step(
        "share describe",
        1,
        lambda _: ShareGroupDescribeRequest(
            group_ids=["sg", "nogroup", ""], include_authorized_operations=True
        ),
    )
    for version in (5, 6):
        yield Step(
            f"share described as classic v{version}",
            version,
            lambda _: DescribeGroupsRequest(groups=["sg"]),
        )
    yield Step(
        "share described as consumer",
        1,
        lambda _: ConsumerGroupDescribeRequest(group_ids=["sg"]),
    )
    yield Step(
        "consumer joins share group",
        1,
        lambda _: ConsumerGroupHeartbeatRequest(
            group_id="sg",
            member_id=FIRST,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["sh"],
            topic_partitions=[],
        ),
    )
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")
    yield Step(
        "classic member joins share group",
        9,
        lambda _: JoinGroupRequest(
            group_id="sg",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[protocol],
        ),
    )
    yield Step("list share groups", 5, lambda _: ListGroupsRequest(types_filter=["Share"]))
    yield Step("list stable", 5, lambda _: ListGroupsRequest(states_filter=["Stable"]))
    yield Step("alter offsets with members", 0, alter("sg", {"sh": {0: 5}}))
    yield Step("delete offsets with members", 0, delete_offsets("sg", "sh"))
    yield Step(
        "delete share group with members", 2, lambda _: DeleteGroupsRequest(groups_names=["sg"])
    )
    yield Step("share second leaves", 1, heartbeat(SECOND, -1))


def session_steps() -> Iterator[Step]:
    for name, request in {
        "no session": fetch(FIRST, 5, partitions=[0]),
        "no member": fetch("", 0, partitions=[0]),
        "null member": fetch(None, 0, partitions=[0]),
        "acknowledgements at the beginning": fetch(FIRST, 0, partitions=[0], batches=[(0, 0, [1])]),
        "end of no session": fetch(FIRST, -1, partitions=[0]),
    }.items():
        yield Step(f"share fetch refused: {name}", 2, request)
    for name, epoch in {"epoch 0": 0, "no session": 1, "end of no session": -1}.items():
        yield Step(
            f"share acknowledge refused: {name}", 2, acknowledge(FIRST, epoch, [(0, 0, [1])])
        )


def reading_steps() -> Iterator[Step]:
    small = {"max_records": 4, "batch_size": 4}
    yield Step("share fetch begins", 2, fetch(FIRST, 0, partitions=[0], **small))
    yield Step("share fetch bad epoch", 2, fetch(FIRST, 9))
    yield Step("share fetch split", 2, fetch(FIRST, 1, max_records=4, batch_size=2))
    yield Step("share fetch exactly", 2, fetch(FIRST, 2, max_records=2, share_acquire_mode=1))
    for number, (name, batches) in enumerate(
        {
            "unknown type": [(0, 1, [9])],
            "wrong count": [(0, 2, [1, 1])],
            "reversed": [(2, 0, [1])],
            "downwards": [(2, 3, [1]), (0, 1, [1])],
            "overlapping": [(0, 1, [1]), (1, 2, [1])],
            "not delivered": [(100, 101, [1])],
            "partly delivered": [(0, 20, [1])],
            "no types": [(0, 1, [])],
        }.items()
    ):
        yield Step(f"share acknowledge {name}", 2, acknowledge(FIRST, 3 + number, batches))
    yield Step("share acknowledge accept", 2, acknowledge(FIRST, 11, [(0, 1, [1])]))
    yield Step("share acknowledge twice", 2, acknowledge(FIRST, 12, [(0, 1, [1])]))
    yield Step("share acknowledge mixed", 2, acknowledge(FIRST, 13, [(2, 4, [2, 3, 0])]))
    yield Step("share acknowledge v1", 1, acknowledge(FIRST, 14, [(6, 8, [2])]))
    yield Step("share fetch again", 2, fetch(FIRST, 15, max_records=1, share_acquire_mode=1))
    yield Step("share fetch the rest", 2, fetch(FIRST, 16, max_records=3))
    yield Step("share renew without saying so", 2, acknowledge(FIRST, 17, [(2, 2, [4])]))
    yield Step("share renew", 2, acknowledge(FIRST, 18, [(2, 2, [4])], is_renew_ack=True))
    yield Step(
        "share renew while reading",
        2,
        fetch(FIRST, 19, partitions=[0], batches=[(2, 2, [4])], is_renew_ack=True),
    )
    nothing = dict.fromkeys(("max_records", "max_wait_ms", "min_bytes", "max_bytes"), 0)
    yield Step(
        "share renew in a fetch",
        2,
        fetch(FIRST, 19, partitions=[0], batches=[(2, 2, [4])], is_renew_ack=True, **nothing),
    )
    yield Step("share offsets", 1, describe_offsets("sg"))
    yield Step("share offsets v0", 0, describe_offsets("sg"))
    yield Step(
        "share fetch with acknowledgement",
        2,
        fetch(FIRST, 20, partitions=[0], batches=[(5, 5, [1])], max_records=1),
    )
    yield Step(
        "share acknowledge unknown partition",
        2,
        acknowledge(FIRST, 21, [(0, 1, [1])], partition=7),
    )
    yield Step("share fetch nothing", 2, fetch(FIRST, 22, max_records=0))
    yield Step("share session ends", 2, fetch(FIRST, -1, partitions=[0], batches=[(9, 9, [1])]))
    yield Step("share session is over", 2, fetch(FIRST, 23))
    yield Step("share offsets after the session", 1, describe_offsets("sg"))
    yield Step("share state after the session", 0, read_state("sg"))
    yield Step("share fetch redelivered", 2, fetch(FIRST, 0, partitions=[0], max_records=2))
    yield Step("share session ends by acknowledging", 2, acknowledge(FIRST, -1, [(2, 2, [1])]))


def offset_steps() -> Iterator[Step]:
    yield Step(
        "share offsets of some",
        1,
        describe_offsets("sg", {"sh": [0, 1]}),
    )
    yield Step("share offsets of unknown group", 1, describe_offsets("nogroup"))
    yield Step("share offsets without group", 1, describe_offsets(""))
    yield Step("share first leaves", 1, heartbeat(FIRST, -1))
    yield Step("share first has left", 1, heartbeat(FIRST, 5))
    yield Step("share describe empty", 1, lambda _: ShareGroupDescribeRequest(group_ids=["sg"]))
    yield Step("alter offsets", 0, alter("sg", {"sh": {0: 20}}))
    yield Step("alter offsets of unknown partition", 0, alter("sx", {"sh": {3: 1}}))
    yield Step("alter offsets of unknown topic", 0, alter("sx", {"nosuch": {0: 1}}))
    yield Step("alter no offsets", 0, alter("sg", {}))
    yield Step("alter offsets without group", 0, alter("", {"sh": {0: 1}}))
    yield Step("share offsets altered", 1, describe_offsets("sg"))
    yield Step("delete offsets of unknown topic", 0, delete_offsets("sg", "nosuch"))
    yield Step("delete offsets without group", 0, delete_offsets("", "sh"))
    yield Step("delete offsets of unknown group", 0, delete_offsets("nogroup", "sh"))
    yield Step("delete share offsets", 0, delete_offsets("sg", "sh"))
    yield Step("delete share offsets again", 0, delete_offsets("sg", "sh"))
    yield Step("share offsets deleted", 1, describe_offsets("sg"))
    yield Step("alter offsets of deleted", 0, alter("sg", {"sh": {0: 3, 1: 0}}))
    yield Step(
        "delete share groups",
        2,
        lambda _: DeleteGroupsRequest(groups_names=["sg", "nogroup"]),
    )
    yield Step("share offsets of deleted group", 1, describe_offsets("sg"))
    yield Step("list after share groups", 5, lambda _: ListGroupsRequest(types_filter=["share"]))


def read_state(group: str, *, partition: int = 0, leader_epoch: int = 0) -> Build:
    kind = ReadShareGroupStateRequest
    place = kind.PartitionData(partition=partition, leader_epoch=leader_epoch)
    return lambda s: kind(
        group_id=group,
        topics=[kind.ReadStateData(topic_id=s.topic_ids["sh"], partitions=[place])],
    )


def write_state(*batches: tuple[int, int, int, int], version: int = 1, **fields: Any) -> Step:
    kind = WriteShareGroupStateRequest
    values = {"partition": 0, "state_epoch": 2, "start_offset": -1, **fields}
    if version:
        values.setdefault("delivery_complete_count", 0)
    group = values.pop("group", "raw")
    place = kind.PartitionData(
        **values,
        state_batches=[
            kind.StateBatch(first_offset=a, last_offset=b, delivery_state=c, delivery_count=d)
            for a, b, c, d in batches
        ],
    )

    def build(state: State) -> Message:
        topic = kind.WriteStateData(topic_id=state.topic_ids["sh"], partitions=[place])
        return kind(group_id=group, topics=[topic])

    return Step(f"write state {batches} {fields} v{version}", version, build)


def initialize(**fields: Any) -> Step:
    kind = InitializeShareGroupStateRequest
    place = kind.PartitionData(**{"partition": 0, "state_epoch": 2, "start_offset": 0, **fields})
    return Step(
        f"initialize state {fields}",
        0,
        lambda s: kind(
            group_id="raw",
            topics=[kind.InitializeStateData(topic_id=s.topic_ids["sh"], partitions=[place])],
        ),
    )


def summary(version: int, group: str = "raw", partition: int = 0) -> Build:
    kind = ReadShareGroupStateSummaryRequest
    place = kind.PartitionData(partition=partition)
    return lambda s: kind(
        group_id=group,
        topics=[kind.ReadStateSummaryData(topic_id=s.topic_ids["sh"], partitions=[place])],
    )


def state_steps() -> Iterator[Step]:
    """What brokers ask each other."""
    yield Step("read state of none", 0, read_state("raw"))
    yield Step("read state of negative partition", 0, read_state("raw", partition=-1))
    yield Step("read state without group", 0, read_state(""))
    yield write_state(group="nobody")
    yield initialize(start_offset=-1)
    yield Step("summary uninitialized", 1, summary(1))
    yield initialize()
    yield initialize(state_epoch=1)
    yield initialize(partition=-1)
    yield write_state((0, 9, 0, 1))
    yield write_state((2, 3, 2, 1), (5, 5, 4, 2), start_offset=0)
    yield write_state((0, 1, 2, 1), (4, 4, 0, 2), delivery_complete_count=4)
    yield Step("read state before a snapshot", 0, read_state("raw"))
    yield write_state((6, 7, 0, 2), start_offset=4, delivery_complete_count=1)
    yield write_state((6, 6, 2, 1), state_epoch=9)
    yield write_state((8, 8, 2, 1), state_epoch=1)
    yield write_state((8, 20, 2, 3), version=0)
    yield Step("read state", 0, read_state("raw"))
    yield Step("read state of new leader", 0, read_state("raw", leader_epoch=4))
    yield Step("read state of old leader", 0, read_state("raw", leader_epoch=3))
    yield write_state((9, 9, 2, 9), leader_epoch=3)
    yield write_state((9, 9, 2, 9), leader_epoch=4)
    for version in (0, 1):
        yield Step(f"summary v{version}", version, summary(version))
    yield Step("summary of none", 1, summary(1, "nobody"))
    yield Step("summary of negative partition", 1, summary(1, partition=-1))
    yield initialize(state_epoch=7, start_offset=3)
    yield Step("read state begun anew", 0, read_state("raw"))
    kind = DeleteShareGroupStateRequest
    for name in ("delete state", "delete state again"):
        yield Step(
            name,
            0,
            lambda s: kind(
                group_id="raw",
                topics=[
                    kind.DeleteStateData(
                        topic_id=s.topic_ids["sh"], partitions=[kind.PartitionData(partition=0)]
                    )
                ],
            ),
        )


def share_steps() -> Iterator[Step]:
    """The whole conversation."""
    for part in (
        before_steps,
        refused_steps,
        life_steps,
        session_steps,
        reading_steps,
        offset_steps,
        state_steps,
    ):
        yield from part()
